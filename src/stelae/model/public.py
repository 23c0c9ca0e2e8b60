"""Names as users know them: a class or function shows, in help and notebooks, where it is imported from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

C = TypeVar("C", bound=Callable[..., Any])


def public(name: str, module: str = "stelae") -> Callable[[C], C]:
    """The class or function shows as `module.name`, whatever it is called and wherever it lives."""

    def show(named: C) -> C:
        if hasattr(named, "__struct_fields__"):
            # msgspec looks the types of fields up where a class shows, later: they are only known where it lives.
            named.__annotations__ = get_type_hints(named, include_extras=True)
        named.__module__ = module
        named.__name__ = named.__qualname__ = name
        return named

    return show
