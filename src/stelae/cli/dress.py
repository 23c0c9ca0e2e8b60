"""How options and arguments look in help: as people know them from other programs.

A flag stands alone, a number is N, an argument that is needed has no brackets around it. What the library would show
by itself are the types of Python: `--json <bool>`, `--limit <int range> [x>=0]`, `{TABLE} <str>`.
"""

from __future__ import annotations

from typing import Any

from stelae.cli.words.plain import take_plainly

_WORDS = {int: "N", float: "N", str: "TEXT"}


def dress(command: Any) -> Any:
    """The same command, and those under it, with parameters that show so."""
    listed = command.get_params

    def get_params(context: Any) -> list[Any]:
        return [dress_param(param) for param in listed(context)]

    command.get_params = get_params
    for each in getattr(command, "commands", {}).values():
        dress(each)
    return command


def dress_param(param: Any) -> Any:
    """Give one option or argument the look of the others, in help and usage, and have it take texts as they are; the
    same one."""
    if param.param_type_name == "argument":
        name = param.metavar or param.name.upper()
        param.display_type_rich = _nothing_of
        param.metavar = name
        param._usage_display_name = _constant(name if param.required else f"[{name}]")
    elif getattr(param, "is_flag", False):
        param.metavar = ""
    elif param.metavar is None:
        param.metavar = _WORDS.get(getattr(param.type_descriptor, "annotation", str), "TEXT")
    param._get_number_range_help_str = _constant(None)
    take_plainly(param)
    return param


def _nothing_of(ctx: Any) -> None:
    """An argument's name says what it is."""


def _constant(value: Any) -> Any:
    return lambda: value
