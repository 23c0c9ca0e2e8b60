"""Names as users know them: a class shows, in tracebacks and notebooks, where it is imported from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)


def public(name: str, module: str = "stelae") -> Callable[[C], C]:
    """The class shows as `module.name`, whatever it is called and wherever it lives."""

    def show(kind: C) -> C:
        kind.__module__ = module
        kind.__name__ = kind.__qualname__ = name
        return kind

    return show
