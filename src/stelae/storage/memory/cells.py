"""Memory of one group of cells: see `memory`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.ids import Micros, Row, Txn
from stelae.model.ranges import RowRange
from stelae.model.record import CellRecord, Kind
from stelae.model.schema import CellsGroup
from stelae.storage.memory.rows import MemoryOfGroup, RowTable, last_block_txn
from stelae.storage.merge.order import Ints, Positions, extent
from stelae.storage.merge.places import RowPlaces
from stelae.storage.merge.select import RawCells


class CellVersion(NamedTuple):
    family: str
    qualifier: str
    ts: Micros
    txn: Txn
    kind: Kind
    value: bytes | None


class CellsBlock(msgspec.Struct, frozen=True, dict=True):
    """Many cells that were put or erased at one txn, as columns; all have the same kind. An erasure of whole rows has
    empty names and no values."""

    rows: pa.Array
    ts: Ints
    txn: Txn
    kind: Kind
    family: pa.Array
    qualifier: pa.Array
    value: pa.Array

    @cached_property
    def places(self) -> RowPlaces:
        return RowPlaces(self.rows)

    def take(self, which: Positions) -> CellsBlock:
        at = pa.array(which)
        names = self.family.take(at), self.qualifier.take(at)
        return CellsBlock(self.rows.take(at), self.ts[which], self.txn, self.kind, *names, self.value.take(at))


class MemoryOfCells(MemoryOfGroup[dict[tuple[str, str], list[CellVersion]], CellsBlock]):
    """One group of cells."""

    def __init__(self, group: CellsGroup) -> None:
        super().__init__()
        self.group = group

    def add(self, records: Iterable[CellRecord], txn: Txn) -> int:
        """Add the records, all of this txn; return how many there were."""
        count = 0
        for record in records:
            if record.kind is not Kind.PUT:
                self._erases = True
            version = CellVersion(record.family, record.qualifier, record.ts, txn, record.kind, record.value)
            cells = self._rows.setdefault(record.row, {})
            versions = cells.get((record.family, record.qualifier))
            if versions is None:
                cells[record.family, record.qualifier] = [version]
            else:
                versions.append(version)
            count += 1
        return count

    def remove(self, txns: Collection[Txn]) -> None:
        kept: RowTable[dict[tuple[str, str], list[CellVersion]]] = RowTable()
        for row, cells in self._rows.items():
            left = {
                key: some
                for key, versions in cells.items()
                if (some := [version for version in versions if version.txn not in txns])
            }
            if left:
                kept[row] = left
        self._rows = kept
        self.blocks = [block for block in self.blocks if block.txn not in txns]

    def last_txn(self, row: Row) -> Txn:
        in_dict = max((versions[-1].txn for versions in list(self._rows.get(row, {}).values())), default=Txn(0))
        return max(in_dict, last_block_txn(self.blocks, row))

    def versions_of(self, row: Row) -> Iterator[CellVersion]:
        for versions in list(self._rows.get(row, {}).values()):
            yield from list(versions)
        for block in self.blocks:
            low, high = block.places.find(row)
            for at in range(low, high):
                family, qualifier = block.family[at].as_py().decode(), block.qualifier[at].as_py().decode()
                value = block.value[at].as_py()
                yield CellVersion(family, qualifier, Micros(int(block.ts[at])), block.txn, block.kind, value)

    def rows_between(self, rows: RowRange) -> list[Row] | None:
        """Those of the dict, in order; None if blocks may have more."""
        return None if self.blocks else self._rows.between(rows)

    def raw(self, rows: RowRange) -> list[RawCells]:
        table = self._rows
        names = table.between(rows)
        small = [self._raw_small(table, names)] if names else []
        return [*small, *(raw for block in list(self.blocks) if (raw := _raw_cells(block, rows)) is not None)]

    def _raw_small(self, table: RowTable[dict[tuple[str, str], list[CellVersion]]], names: list[Row]) -> RawCells:
        found = [
            (name, version)
            for name in names
            for version in sorted(
                [each for versions in list(table[name].values()) for each in list(versions)],
                key=lambda v: (v.family.encode(), v.qualifier.encode(), -v.ts, -v.txn, v.kind),
            )
        ]
        versions = [version for _, version in found]
        kinds = [version.kind for version in versions]
        return RawCells(
            pa.array([name for name, _ in found], pa.binary()),
            np.array([version.ts for version in versions], np.int64),
            np.array([version.txn for version in versions], np.int64),
            np.array(kinds, np.int8) if any(kinds) else None,
            pa.array([version.family.encode() for version in versions], pa.binary()),
            pa.array([version.qualifier.encode() for version in versions], pa.binary()),
            pa.array([version.value for version in versions], pa.binary()),
        )


def _raw_cells(block: CellsBlock, rows: RowRange) -> RawCells | None:
    low, high = extent(block.rows, rows)
    if low == high:
        return None
    return RawCells(
        block.rows.slice(low, high - low),
        block.ts[low:high],
        np.full(high - low, block.txn, np.int64),
        None if block.kind is Kind.PUT else np.full(high - low, block.kind, np.int8),
        block.family.slice(low, high - low),
        block.qualifier.slice(low, high - low),
        block.value.slice(low, high - low),
    )
