"""What a block does to rows: puts and erasures, as the caller said them, in order.

A time left out (None) means the commit's. Erasures reach up to a time, inclusive, or name one version exactly. An
erasure hides only what has a smaller txn, so within one block it is the order of mention that counts: see `lower`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.values import Value


class Put(msgspec.Struct, frozen=True):
    """Writes declared columns of one row; None writes NULL, a column not named is untouched. With no columns at all,
    the row exists from now on."""

    row: Row
    values: tuple[tuple[ColumnId, Value], ...]
    ts: Micros | None = None


class PutCell(msgspec.Struct, frozen=True):
    row: Row
    family: str
    qualifier: str
    value: bytes
    ts: Micros | None = None


class WholeRow(msgspec.Struct, frozen=True):
    pass


class Columns(msgspec.Struct, frozen=True):
    ids: tuple[ColumnId, ...]


class WholeFamily(msgspec.Struct, frozen=True):
    family: str


class Cell(msgspec.Struct, frozen=True):
    family: str
    qualifier: str


class Erase(msgspec.Struct, frozen=True):
    """Everything of the target up to and including `until`."""

    row: Row
    target: WholeRow | WholeFamily | Columns | Cell
    until: Micros | None = None


class EraseVersion(msgspec.Struct, frozen=True):
    """The target's version at exactly this time."""

    row: Row
    target: Columns | Cell
    ts: Micros


Mutation: TypeAlias = Put | PutCell | Erase | EraseVersion
