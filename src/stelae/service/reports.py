"""What a store says of its health, and how long work goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stelae.model.public import public

Progress: TypeAlias = Callable[[int, int], None]
"""How much is done, and of how much; in whatever unit the work is counted in."""


@public("Problem")
class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: what kind of thing, which, and how, in words."""

    what: str
    where: str
    words: str


@public("CheckReport")
class CheckReport(msgspec.Struct, frozen=True):
    """What a check of the whole store has found. `problems` is empty if all is well; `counts`: how much was looked at,
    by kind."""

    problems: tuple[Problem, ...]
    counts: dict[str, int]
