"""Words that need no check: a text stays the text that was typed, and a path a path.

For every option and argument, given or not, typer asks pydantic to make its value, and to import that takes as long as
to read a row of a store that another process has open. Only what must be looked at is left to it: numbers, and choices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def take_plainly(param: Any) -> None:
    """Have an option or argument take texts and paths as they are."""
    param.get_runtime_param = lambda: _Taker(param)


class _Taker:
    """In the place of what typer makes the values of one parameter with."""

    def __init__(self, param: Any) -> None:
        self._param = param
        self._type = param.type_descriptor.annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._type:
            return value
        if self._type == list[str] and isinstance(value, list | tuple):
            return list(value)
        if self._type is Path and type(value) is str and not param.type_descriptor.parameter_info.exists:
            return Path(value)
        return type(self._param).get_runtime_param(self._param).coerce(value, param=param, ctx=ctx)
