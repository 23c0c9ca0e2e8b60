"""Memory of one group of columns: see `memory`.

A row remembers whether its records came in the order of their times and without erasures, as they nearly always do: a
reader of the newest values then stops as soon as it has them all, however often the row was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.arrow_values import array_of, values_of
from stelae.model.ids import TS_MIN, ColumnId, Micros, Row, Txn
from stelae.model.ranges import RowRange
from stelae.model.record import ROW_EXISTS, ColumnsRecord, Kind
from stelae.model.schema import ColumnsGroup
from stelae.model.values import Value
from stelae.storage.memory.rows import MemoryOfGroup, RowTable, last_block_txn
from stelae.storage.merge.order import Flags, Ints, Positions, extent
from stelae.storage.merge.places import RowPlaces
from stelae.storage.merge.select import RawColumns
from stelae.storage.merge.slab import SlabColumn


class ColumnsVersion(NamedTuple):
    """A record of a row of columns, as point reads see it: an erasure has its columns as keys."""

    ts: Micros
    txn: Txn
    kind: Kind
    values: dict[ColumnId, Value]


_version_of = tuple.__new__
"""Of a tuple of all its parts: what ColumnsVersion(...) does, in half the time."""


class _RowOfColumns:
    """A row that was written more than once."""

    __slots__ = ("is_plain", "records")

    def __init__(self, first: ColumnsVersion) -> None:
        self.records = [first]
        self.is_plain = first.kind is Kind.PUT

    def add(self, record: ColumnsVersion) -> None:
        if record.kind is not Kind.PUT or self.records[-1].ts > record.ts:
            self.is_plain = False
        self.records.append(record)


_Known: TypeAlias = ColumnsVersion | _RowOfColumns
"""What is known of a row: most are written once, and then their record is all there is to keep."""


def _records_of(known: _Known | None) -> Sequence[ColumnsVersion]:
    if known is None:
        return ()
    return known.records if isinstance(known, _RowOfColumns) else (known,)


def _add_to(rows: RowTable[_Known], row: Row, record: ColumnsVersion) -> None:
    known = rows.get(row)
    if known is None:
        rows[row] = record
    elif isinstance(known, _RowOfColumns):
        known.add(record)
    else:
        several = _RowOfColumns(known)
        several.add(record)
        rows[row] = several


class ColumnsBlock(msgspec.Struct, frozen=True, dict=True):
    """A columnar block's share of a group of columns. All of it has one txn and one kind."""

    rows: pa.Array
    ts: Ints
    txn: Txn
    kind: Kind
    columns: tuple[tuple[ColumnId, SlabColumn], ...]
    exists: Flags | bool

    @cached_property
    def places(self) -> RowPlaces:
        return RowPlaces(self.rows)

    @cached_property
    def ts_max(self) -> int:
        return int(self.ts.max(initial=TS_MIN))

    def puts_all(self, ids: Collection[ColumnId]) -> bool:
        """Whether each of its records is a put of all of these columns."""
        written = [id_ for id_, column in self.columns if column.written is True and id_ in ids]
        return self.kind is Kind.PUT and len(written) == len(ids)

    def puts_any(self, ids: Collection[ColumnId]) -> bool:
        """Whether each of its records is a put of one of these columns, as far as that is plain to see."""
        return self.kind is Kind.PUT and any(column.written is True and id_ in ids for id_, column in self.columns)

    def take(self, which: Positions) -> ColumnsBlock:
        at = pa.array(which)
        columns = [
            (
                id_,
                SlabColumn(
                    None if column.values is None else column.values.take(at),
                    column.written if isinstance(column.written, bool) else column.written[which],
                ),
            )
            for id_, column in self.columns
        ]
        exists = self.exists if isinstance(self.exists, bool) else self.exists[which]
        return ColumnsBlock(self.rows.take(at), self.ts[which], self.txn, self.kind, tuple(columns), exists)


class MemoryOfColumns(MemoryOfGroup[_Known, ColumnsBlock]):
    """One group of columns."""

    def __init__(self, group: ColumnsGroup) -> None:
        super().__init__()
        self.group = group
        self.types = {column.id: column.type for column in group.columns}
        self._ids = frozenset(self.types)
        self._is_complete = True

    @property
    def is_complete(self) -> bool:
        """Every record is a put of every column, and of nothing else."""
        return self._is_complete and all(
            block.kind is Kind.PUT
            and block.exists is False
            and {id_ for id_, column in block.columns if column.written is True} == self._ids
            for block in self.blocks
        )

    def add(self, records: Iterable[ColumnsRecord], txn: Txn) -> int:
        """Add the records, all of this txn; return how many there were."""
        count = 0
        for record in records:
            if record.kind is not Kind.PUT:
                self._erases = True
            if len(record.values) != len(self._ids) or record.values[0][0] == ROW_EXISTS:
                self._is_complete = False
            _add_to(self._rows, record.row, ColumnsVersion(record.ts, txn, record.kind, dict(record.values)))
            count += 1
        return count

    def add_put(self, row: Row, ts: Micros, txn: Txn, values: dict[ColumnId, Value]) -> bool:
        """The short way for what is nearly all of a log: one put of columns, if they are all in this group."""
        if not values or not self._ids.issuperset(values):
            return False
        if len(values) != len(self._ids):
            self._is_complete = False
        record = _version_of(ColumnsVersion, (ts, txn, Kind.PUT, values))
        if self._rows.setdefault(row, record) is not record:
            _add_to(self._rows, row, record)
        return True

    def remove(self, txns: Collection[Txn]) -> None:
        kept: RowTable[_Known] = RowTable()
        for name, known in self._rows.items():
            for record in _records_of(known):
                if record.txn not in txns:
                    _add_to(kept, name, record)
        self._rows = kept  # only when it is whole: readers take no lock
        self.blocks = [block for block in self.blocks if block.txn not in txns]

    def last_txn(self, row: Row) -> Txn:
        records = _records_of(self._rows.get(row))
        return max(records[-1].txn if records else Txn(0), last_block_txn(self.blocks, row))

    def newest_of(self, row: Row) -> tuple[Sequence[ColumnsVersion], bool]:
        """The records of a row in the dict, oldest txn first; whether their times are in that order too, all puts."""
        known = self._rows.get(row)
        if isinstance(known, _RowOfColumns):
            return known.records, known.is_plain
        return _records_of(known), known is None or known.kind is Kind.PUT

    def newest_in_blocks(self, row: Row) -> Sequence[ColumnsVersion]:
        """The record of the newest block that has the row, if it is the only one there, a put, and later than all that
        older blocks have; else none. Those then need not be looked up."""
        blocks = self.blocks
        for number in range(len(blocks) - 1, -1, -1):
            block = blocks[number]
            low, high = block.places.find(row)
            if low < high:
                ts = block.ts[low]
                if high - low > 1 or block.kind is not Kind.PUT or any(each.ts_max >= ts for each in blocks[:number]):
                    return ()
                found = self._version_at(block, low)
                return () if found is None else (found,)
        return ()

    def versions_of(self, row: Row) -> Iterator[ColumnsVersion]:
        yield from list(_records_of(self._rows.get(row)))
        yield from self.in_blocks(row)

    def in_blocks(self, row: Row) -> Iterator[ColumnsVersion]:
        for block in self.blocks:
            low, high = block.places.find(row)
            for at in range(low, high):
                found = self._version_at(block, at)
                if found is not None:
                    yield found

    def _version_at(self, block: ColumnsBlock, at: int) -> ColumnsVersion | None:
        types = self.types
        values = {
            id_: None if column.values is None else values_of(types[id_], column.values.slice(at, 1))[0]
            for id_, column in block.columns
            if column.written is True or (not isinstance(column.written, bool) and column.written[at])
        }
        if block.exists if isinstance(block.exists, bool) else block.exists[at]:
            values[ROW_EXISTS] = None
        if not values and block.kind is Kind.PUT:
            return None
        return ColumnsVersion(Micros(int(block.ts[at])), block.txn, block.kind, values)

    def rows_between(self, rows: RowRange) -> list[Row]:
        """The rows of the dict that lie in the range, in order. Blocks may have more."""
        return self._rows.between(rows)

    def blocks_between(self, rows: RowRange) -> list[tuple[ColumnsBlock, int, int]]:
        """Those that have any of the rows, and where in them these begin and end."""
        found = []
        for block in list(self.blocks):
            low, high = extent(block.rows, rows)
            if low < high:
                found.append((block, low, high))
        return found

    def newest_records(
        self, rows: Sequence[Row], ids: frozenset[ColumnId], floor: Txn, at: Txn
    ) -> list[tuple[Row, ColumnsVersion]] | None:
        """Of each of these rows of the dict that is seen at a snapshot, its newest record; None if one of them may not
        be all there is to know of these columns: it writes fewer, or is or follows an erasure, or came out of
        order."""
        table = self._rows
        found: list[tuple[Row, ColumnsVersion]] = []
        for row in rows:
            known = table[row]
            if isinstance(known, _RowOfColumns):
                if not known.is_plain:
                    return None
                record = known.records[0]
                for newer in reversed(known.records):
                    if newer.txn <= at:
                        record = newer
                        break
            else:
                record = known
            if record.txn > at:
                continue
            if record.kind is not Kind.PUT or record.txn < floor or not ids <= record.values.keys():
                return None
            found.append((row, record))
        return found

    def raw(self, rows: RowRange, *, with_values: bool = True) -> list[RawColumns]:
        """Sorted records: those of the dict as one piece, each block as another. Without values, columns say only which
        records write them."""
        table = self._rows
        names = table.between(rows)
        small = [self._raw_small(table, names, with_values=with_values)] if names else []
        return [*small, *(raw for block in list(self.blocks) if (raw := _raw_block(block, rows)) is not None)]

    def _raw_small(self, table: RowTable[_Known], names: list[Row], *, with_values: bool) -> RawColumns:
        found = [(name, record) for name in names for record in _ordered(_records_of(table[name]))]
        records = [record for _, record in found]
        puts = [record.kind is Kind.PUT for record in records]
        columns: dict[ColumnId, SlabColumn] = {}
        for column in self.group.columns:
            written = np.fromiter((column.id in record.values for record in records), np.bool_, len(records))
            if written.any():
                said = [record.values.get(column.id) for record in records] if with_values else None
                values = None if said is None else array_of(column.type, said)
                columns[column.id] = SlabColumn(values, True if written.all() else written)
        return RawColumns(
            pa.array([name for name, _ in found], pa.binary()),
            np.array([record.ts for record in records], np.int64),
            np.array([record.txn for record in records], np.int64),
            None if all(puts) else np.array([record.kind for record in records], np.int8),
            columns,
            np.fromiter((ROW_EXISTS in record.values for record in records), np.bool_, len(records)),
        )


def _ordered(records: Sequence[ColumnsVersion]) -> Sequence[ColumnsVersion]:
    return records if len(records) == 1 else sorted(records, key=lambda record: (-record.ts, -record.txn, record.kind))


def _raw_block(block: ColumnsBlock, rows: RowRange) -> RawColumns | None:
    low, high = extent(block.rows, rows)
    if low == high:
        return None
    return RawColumns(
        block.rows.slice(low, high - low),
        block.ts[low:high],
        np.full(high - low, block.txn, np.int64),
        None if block.kind is Kind.PUT else np.full(high - low, block.kind, np.int8),
        {
            id_: SlabColumn(
                None if column.values is None else column.values.slice(low, high - low),
                column.written if isinstance(column.written, bool) else column.written[low:high],
            )
            for id_, column in block.columns
        },
        block.exists if isinstance(block.exists, bool) else block.exists[low:high],
    )
