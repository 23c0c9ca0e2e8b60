"""Plans of reads, as values: what Spark reads from files as they are, and what tasks merge."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stelae.model import types as t
from stelae.model.ids import GroupId
from stelae.model.ranges import RowRange
from stelae.model.values import Value

_MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """`parts`: about so many, if they are not too large or too small then. `filtered_bytes_min`: less than that is not
    read natively if it takes a filter on the row. `hidden_rows_max`: in files of so many records at most it is
    looked for what is not to be read, which takes a bit for each (120 MB for a billion) in this process, in Java, and
    in each worker, however many are hidden; files with more are merged by tasks. Of rows that are merged while a read
    is planned: `overlay_rows_max` in all and about `overlay_bytes_max`, `overlay_rows_small`
    wherever they are, more only up to `overlay_share` of what is read
    natively beside them. `beside_rows_max`: among so many records of other groups it is looked for rows that the one
    read has nothing of."""

    parts: int = 16
    part_bytes_max: int = 128 * _MEGABYTE
    part_bytes_min: int = 8 * _MEGABYTE
    filtered_bytes_min: int = 8 * _MEGABYTE
    hidden_rows_max: int = 1_000_000_000
    overlay_rows_max: int = 4_000_000
    overlay_bytes_max: int = 1024 * _MEGABYTE
    overlay_rows_small: int = 100_000
    overlay_share: float = 0.4
    beside_rows_max: int = 10_000_000


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A file that Spark reads as it is: a fragment, or an overlay. `rows`: from its first row to its last."""

    name: str
    size_bytes: int
    records: int
    rows: RowRange


CELLS = t.Map(t.String(), t.Binary())


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a frame as files have it. `shown`: its name there. `name` and `stored`: what it is called in the
    files, and its type; None if it is in none of them, and the default is read. `is_cells`: a family's cells, as a map
    that is empty where there is none."""

    shown: str
    type: t.ColumnType
    default: Value
    name: str | None
    stored: t.ColumnType
    is_cells: bool = False


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
    eight bytes. `records`: how many there are in all."""

    file: str
    size_bytes: int
    bits: bytes
    records: int


@dataclass(frozen=True, slots=True)
class NativeRead:
    """Files that Spark reads as they are. `rows`: which rows of them, `where`: SQL that is to be true; None: all.
    `hidden`: without these; then it is of every file."""

    shape: NativeShape
    files: tuple[str, ...]
    rows: tuple[RowRange, ...] | None
    where: str | None
    hidden: tuple[HiddenRows, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with rows that were read, in Spark's SQL: those are kept of which one condition is true, or just
    these columns are shown from there on."""

    is_filter: bool
    sql: tuple[str, ...]


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
    """`merged_bytes`: about how much lies in the files that the merged parts are of."""

    native: tuple[NativeRead, ...]
    merged: tuple[MergedPart, ...]
    merged_bytes: int = 0
