"""What a block does to rows: puts and erasures, as the caller said them, in order.

A time left out (None) means the commit's. Erasures reach up to a time, inclusive, or name one version exactly. An
erasure hides only what has a smaller txn, so within one block it is the order of mention that counts: see `lower`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.values import Value


@dataclass(frozen=True, slots=True)
class Put:
    """Writes declared columns of one row; None writes NULL, a column not named is untouched. With no columns at all,
    the row exists from now on."""

    row: Row
    values: tuple[tuple[ColumnId, Value], ...]
    ts: Micros | None = None


@dataclass(frozen=True, slots=True)
class PutCell:
    row: Row
    family: str
    qualifier: str
    value: bytes
    ts: Micros | None = None


@dataclass(frozen=True, slots=True)
class WholeRow:
    pass


@dataclass(frozen=True, slots=True)
class Columns:
    ids: tuple[ColumnId, ...]


@dataclass(frozen=True, slots=True)
class WholeFamily:
    family: str


@dataclass(frozen=True, slots=True)
class Cell:
    family: str
    qualifier: str


@dataclass(frozen=True, slots=True)
class Erase:
    """Everything of the target up to and including `until`."""

    row: Row
    target: WholeRow | WholeFamily | Columns | Cell
    until: Micros | None = None


@dataclass(frozen=True, slots=True)
class EraseVersion:
    """The target's version at exactly this time."""

    row: Row
    target: Columns | Cell
    ts: Micros


Mutation: TypeAlias = Put | PutCell | Erase | EraseVersion
