"""Plans of reads, as values: what Spark reads from files as they are, and what tasks merge."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stelae.model import types as t
from stelae.model.ids import GroupId
from stelae.model.ranges import RowRange
from stelae.model.schema import Column

_MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """`parts`: about so many, if they are not too large or too small then. `filtered_bytes_min`: less than that is not
    read natively if it takes a filter on the row. `hidden_rows_max`: in so many rows at most it is looked for what
    newer files hide."""

    parts: int = 16
    part_bytes_max: int = 128 * _MEGABYTE
    part_bytes_min: int = 8 * _MEGABYTE
    filtered_bytes_min: int = 8 * _MEGABYTE
    hidden_rows_max: int = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of the table as a file has it: under which name and type; None if it is not there, and its default
    is read."""

    column: Column
    name: str | None
    type: t.ColumnType


@dataclass(frozen=True, slots=True)
class NativeShape:
    """What a native read needs to know of its files. `row`: the column that a row is found by."""

    keys: tuple[str, ...]
    columns: tuple[StoredColumn, ...]
    row: str
    row_type: t.ColumnType


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Records of a file that are not to be seen: bit i of byte i/8, least first, is set for the i-th. Whole words of
    eight bytes."""

    file: str
    size_bytes: int
    bits: bytes


@dataclass(frozen=True, slots=True)
class NativeRead:
    """Files that Spark reads as they are. `rows`: which rows of them, `where`: SQL that is to be true; None: all.
    `hidden`: without these; then it is of every file."""

    shape: NativeShape
    files: tuple[str, ...]
    rows: tuple[RowRange, ...] | None
    where: str | None
    hidden: tuple[HiddenRows, ...] = ()


class TabletPart(msgspec.Struct, frozen=True):
    """Some rows of a tablet, which has only those references that they need. `beside`: only rows that have nothing of
    this group, whose own are read otherwise."""

    config: bytes
    rows: tuple[RowRange, ...]
    beside: GroupId | None = None


class MergedPart(msgspec.Struct, frozen=True):
    """What one task merges."""

    tablets: tuple[TabletPart, ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    native: tuple[NativeRead, ...]
    merged: tuple[MergedPart, ...]
