"""From what a source holds to what a group wants of it: a part of its columns, in today's types and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.ids import ColumnId
from stelae.model.record import ROW_EXISTS, Kind
from stelae.storage.merge.order import Flags, Ints
from stelae.storage.merge.slab import Slab, SlabColumn
from stelae.storage.tablet.parts import NO_FAMILY, FamilySet, Naming


class RawColumns(msgspec.Struct, frozen=True):
    """Records of a group of columns as a source holds them."""

    rows: pa.Array
    ts: Ints
    txn: Ints
    kinds: npt.NDArray[np.int8] | None
    columns: Mapping[ColumnId, SlabColumn]
    exists: Flags | bool


class RawCells(msgspec.Struct, frozen=True):
    """Records of a group of cells as a source holds them, names as bytes."""

    rows: pa.Array
    ts: Ints
    txn: Ints
    kinds: npt.NDArray[np.int8] | None
    family: pa.Array
    qualifier: pa.Array
    value: pa.Array


class WantedColumns(msgspec.Struct, frozen=True):
    """Which columns, in what order and of what types now; `ROW_EXISTS` may be one, of any type."""

    columns: tuple[tuple[ColumnId, pa.DataType], ...]

    @property
    def ids(self) -> frozenset[ColumnId]:
        return frozenset(id_ for id_, _ in self.columns)


class WantedCells(msgspec.Struct, frozen=True):
    """Which families, by today's names; `exists`: also the puts of a key alone."""

    families: FamilySet
    exists: bool

    def __contains__(self, family: str) -> bool:
        return self.exists if family == NO_FAMILY else family in self.families


Wanted: TypeAlias = WantedColumns | WantedCells


def select_columns(raw: RawColumns, part: frozenset[ColumnId], wanted: WantedColumns) -> Slab:
    columns = []
    for id_, type_ in wanted.columns:
        if id_ not in part:
            columns.append(SlabColumn(None, written=False))
        elif id_ == ROW_EXISTS:
            columns.append(SlabColumn(None, raw.exists))
        else:
            column = raw.columns.get(id_, SlabColumn(None, written=False))
            if column.values is not None and column.values.type != type_:
                column = SlabColumn(column.values.cast(type_), column.written)
            columns.append(column)
    return Slab(raw.rows, raw.ts, raw.txn, raw.kinds, tuple(columns))


def select_cells(raw: RawCells, part: FamilySet, naming: Naming, wanted: WantedCells) -> Slab:
    """Erasures of whole rows are always there. A family that is called otherwise now may be out of order afterwards:
    the caller puts renamed ones in order again."""
    slab = Slab(
        raw.rows, raw.ts, raw.txn, raw.kinds, (SlabColumn(raw.value, written=True),), (raw.family, raw.qualifier)
    )
    if not len(raw.rows):
        return slab
    encoded = raw.family.dictionary_encode()
    names = [name.decode() for name in encoded.dictionary.to_pylist()]
    now = [naming.now(name) for name in names]
    keep = np.array([name in part and new in wanted for name, new in zip(names, now, strict=True)], np.bool_)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    kept: Flags = keep[codes]
    if raw.kinds is not None:
        kept = kept | (raw.kinds == Kind.ERASE_ROW)
    if names != now:
        renamed = pc.take(pa.array([name.encode() for name in now], pa.binary()), encoded.indices)
        slab = Slab(slab.rows, slab.ts, slab.txn, slab.kinds, slab.columns, (renamed, raw.qualifier))
    return slab if kept.all() else slab.take(np.flatnonzero(kept))
