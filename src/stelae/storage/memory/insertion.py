"""A block enters memory: mutations become records of their groups, columnar batches are shared out by group.

Memory takes only rows of its own range, and columns and families its schema has: a block from the log may be about more
(its tablet was split since) or about what is gone (`carried` turns it into the words of a later schema first).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.format import layout
from stelae.format.block import Block as WrittenBlock
from stelae.format.block import SmallBlock
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model.arrow import to_arrow
from stelae.model.hybrid import micros_of
from stelae.model.ids import ColumnId, Micros, Row, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.record import Kind, lower
from stelae.model.values import Value
from stelae.storage.memory.cells import CellsBlock, MemoryOfCells
from stelae.storage.memory.columns import ColumnsBlock, MemoryOfColumns
from stelae.storage.memory.memory import Memory
from stelae.storage.merge.order import Flags, Ints, extent
from stelae.storage.merge.slab import SlabColumn, as_bytes
from stelae.storage.tablet.parts import Carry

_NO_NAME = pa.scalar(b"", pa.binary())
RECORD_BYTES = 400
VALUE_FACTOR = 1.5
"""What a record and its values weigh in memory, against their size in a block: measured, within a third."""


def insert(memory: Memory, block: WrittenBlock, txn: Txn, payload_bytes: int) -> bool:
    """Whether any of it was for this memory. `payload_bytes`: the block's encoded size, by which its weight is
    guessed. The caller holds the shard's lock, and txns grow."""
    if isinstance(block, SmallBlock):
        put = block.mutations[0] if len(block.mutations) == 1 else None
        if isinstance(put, Put) and insert_put(memory, put.row, dict(put.values), put.ts, txn, payload_bytes):
            return True
        size = _insert_small(memory, block, txn, payload_bytes)
    else:
        size = _ColumnarInsert(memory, block, txn).insert()
    if size:
        memory.txns.append(txn)
        memory.size_bytes += size
    return bool(size)


def insert_put(
    memory: Memory, row: Row, values: dict[ColumnId, Value], ts: Micros | None, txn: Txn, payload_bytes: int
) -> bool:
    """A put that is alone in its block, if it is of columns of one group: then it is its own record, and `lower` would
    only say so at length. Otherwise nothing happens."""
    if not (memory.takes_all or row in memory.rows):
        return False
    if ts is None:
        ts = micros_of(txn)
    elif ts > memory.ts_max:
        memory.ts_max = ts
    for columns in memory.of_columns:
        if columns.add_put(row, ts, txn, values):
            memory.txns.append(txn)
            memory.size_bytes += int(payload_bytes * VALUE_FACTOR) + RECORD_BYTES
            return True
    return False


def insert_unflushed(
    memory: Memory, block: WrittenBlock, txn: Txn, flushed: Sequence[tuple[RowRange, Txn]], payload_bytes: int
) -> None:
    """From the log: only rows that files do not hold up to this txn."""
    missing = [rows for rows, up_to in flushed if txn > up_to]
    if len(missing) == len(flushed):
        insert(memory, block, txn, payload_bytes)
    elif missing:
        wanted = RangeSet.of(missing)
        if isinstance(block, SmallBlock):
            kept = tuple(mutation for mutation in block.mutations if mutation.row in wanted)
            insert(memory, replace(block, mutations=kept), txn, payload_bytes)
        else:
            rows = layout.rows_of(memory.schema.codec, block.batch)
            pieces = [block.batch.slice(low, high - low) for low, high in (extent(rows, each) for each in wanted)]
            insert(memory, replace(block, batch=pa.concat_batches(pieces)), txn, payload_bytes)


def _insert_small(memory: Memory, block: SmallBlock, txn: Txn, payload_bytes: int) -> int:
    mutations = block.mutations
    mine = mutations if memory.takes_all else tuple(each for each in mutations if each.row in memory.rows)
    times = [each.ts for each in mine if isinstance(each, Put | PutCell) and each.ts is not None]
    memory.ts_max = max([memory.ts_max, *times])
    count = 0
    for id_, records in lower(memory.schema, mine, micros_of(txn)).items():
        count += memory.groups[id_].add(records, txn)  # type: ignore[arg-type]
    if not count:
        return 0
    share = len(mine) / len(mutations)
    return int(payload_bytes * VALUE_FACTOR * share) + RECORD_BYTES * count


class _ColumnarInsert:
    def __init__(self, memory: Memory, block: ColumnarBlock, txn: Txn) -> None:
        rows = layout.rows_of(memory.schema.codec, block.batch)
        low, high = extent(rows, memory.rows)
        self._memory = memory
        self._block = block
        self._txn = txn
        self._batch = block.batch.slice(low, high - low)
        self._rows = rows.slice(low, high - low)
        self._count = high - low

    def insert(self) -> int:
        if not self._count:
            return 0
        if layout.TS in self._batch.schema.names:
            self._memory.ts_max = max(self._memory.ts_max, Micros(int(self._ts().max())))
        match self._block.op:
            case ColumnarOp.PUT:
                self._put()
            case ColumnarOp.PUT_CELLS:
                self._put_cells()
            case ColumnarOp.ERASE_ROWS:
                for group in self._memory.groups.values():
                    self._erase_rows(group)
        return max(1, int(self._batch.nbytes))

    def _ts(self) -> Ints:
        if layout.TS in self._batch.schema.names:
            ts: Ints = self._batch.column(layout.TS).view(pa.int64()).to_numpy(zero_copy_only=False)
            return ts
        return np.full(self._count, micros_of(self._txn), np.int64)

    def _columns(self) -> dict[ColumnId, pa.Array]:
        fields = [(layout.field_id(field), field.name) for field in self._batch.schema]
        keys = {column.id for column in self._memory.schema.key}
        return {
            ColumnId(id_): self._batch.column(name)
            for id_, name in fields
            if id_ is not None and id_ not in keys and name not in layout.SYSTEM_NAMES
        }

    def _put(self) -> None:
        columns = self._columns()
        written = {id_: self._written(array) for id_, array in columns.items()}
        exists: Flags | bool = not columns
        if columns and not any(each is True for each in written.values()):
            alone: Flags = ~np.logical_or.reduce([layout.flags_of(each, self._count) for each in written.values()])
            exists = alone if alone.any() else False
        for group in self._memory.groups.values():
            is_home = self._memory.schema.existence_group.id == group.group.id
            match group:
                case MemoryOfColumns():
                    self._put_columns(group, columns, written, exists if is_home else False)
                case MemoryOfCells():
                    if is_home and exists is not False:
                        which = np.flatnonzero(layout.flags_of(exists, self._count))
                        group.add_block(self._bare_cells(which, Kind.PUT))

    def _written(self, array: pa.Array) -> Flags | bool:
        if self._block.nulls_written or array.null_count == 0:
            return True
        flags: Flags = array.is_valid().to_numpy(zero_copy_only=False)
        return flags if flags.any() else False

    def _put_columns(
        self,
        group: MemoryOfColumns,
        columns: dict[ColumnId, pa.Array],
        written: dict[ColumnId, Flags | bool],
        exists: Flags | bool,
    ) -> None:
        mine = [column for column in group.group.columns if column.id in columns and written[column.id] is not False]
        if not mine and exists is False:
            return
        found: list[tuple[ColumnId, SlabColumn]] = []
        for column in mine:
            values, type_ = columns[column.id], to_arrow(column.type)
            values = values if values.type == type_ else values.cast(type_)
            found.append((column.id, SlabColumn(values, written[column.id])))
        block = ColumnsBlock(self._rows, self._ts(), self._txn, Kind.PUT, tuple(found), exists)
        says = [*(column.written for _, column in found), exists]
        if not any(each is True for each in says):
            used = np.logical_or.reduce([layout.flags_of(each, self._count) for each in says])
            block = block if used.all() else block.take(np.flatnonzero(used))
        group.add_block(block)

    def _put_cells(self) -> None:
        schema = self._memory.schema
        family = self._batch.column(layout.FAMILY).dictionary_encode()
        homes = np.array([schema.family_group(name).id for name in family.dictionary.to_pylist()], np.int64)
        home = homes[family.indices.to_numpy(zero_copy_only=False)]
        whole = CellsBlock(
            self._rows,
            self._ts(),
            self._txn,
            Kind.PUT,
            as_bytes(self._batch.column(layout.FAMILY)),
            as_bytes(self._batch.column(layout.QUALIFIER)),
            self._batch.column(layout.VALUE),
        )
        for id_, group in self._memory.groups.items():
            which = np.flatnonzero(home == id_)
            if len(which) and isinstance(group, MemoryOfCells):
                group.add_block(whole if len(which) == self._count else whole.take(which))

    def _erase_rows(self, group: MemoryOfColumns | MemoryOfCells) -> None:
        match group:
            case MemoryOfColumns():
                group.add_block(ColumnsBlock(self._rows, self._ts(), self._txn, Kind.ERASE_ROW, (), exists=False))
            case MemoryOfCells():
                group.add_block(self._bare_cells(np.arange(self._count), Kind.ERASE_ROW))

    def _bare_cells(self, which: np.ndarray[tuple[int], np.dtype[np.intp]], kind: Kind) -> CellsBlock:
        empty = pa.repeat(_NO_NAME, len(which))
        rows = self._rows if len(which) == self._count else self._rows.take(pa.array(which))
        return CellsBlock(rows, self._ts()[which], self._txn, kind, empty, empty, pa.nulls(len(which), pa.binary()))


def rows_in(block: WrittenBlock, memory: Memory) -> list[bytes]:
    """The rows a block touches, each once."""
    match block:
        case SmallBlock(_, mutations):
            return list(dict.fromkeys(mutation.row for mutation in mutations))
        case ColumnarBlock(batch=batch):
            return list(dict.fromkeys(layout.rows_of(memory.schema.codec, batch).to_pylist()))


def ends_of(block: WrittenBlock, memory: Memory) -> list[bytes]:
    """The least and the greatest row a block touches."""
    if isinstance(block, SmallBlock):
        rows = [mutation.row for mutation in block.mutations]
        return [min(rows), max(rows)] if rows else []
    encoded = layout.rows_of(memory.schema.codec, block.batch)
    return [encoded[0].as_py(), encoded[-1].as_py()] if len(encoded) else []


def carried(block: WrittenBlock, change: Carry, codec: KeyCodec) -> WrittenBlock:
    """The block in the words of the next schema, without what that does not have."""
    match block:
        case SmallBlock(version, mutations):
            kept = [new for mutation in mutations if (new := _carried_mutation(mutation, change)) is not None]
            return SmallBlock(version, tuple(kept))
        case ColumnarBlock(op=ColumnarOp.PUT_CELLS):
            return _carried_cells(block, change, codec)
        case ColumnarBlock(op=ColumnarOp.PUT):
            return _carried_columns(block, change, codec)
        case ColumnarBlock():
            return block


def _carried_mutation(mutation: Mutation, change: Carry) -> Mutation | None:
    match mutation:
        case Put(row, values, ts):
            kept = tuple((id_, value) for id_, value in values if id_ in change.columns)
            return Put(row, kept, ts) if kept or not values else None
        case PutCell(row, family, qualifier, value, ts):
            now = change.family(family)
            return None if now is None else PutCell(row, now, qualifier, value, ts)
        case Erase(row, target, until):
            new = _carried_target(target, change)
            return None if new is None else Erase(row, new, until)
        case EraseVersion(row, target, ts):
            exact = _carried_target(target, change)
            return EraseVersion(row, exact, ts) if isinstance(exact, Columns | Cell) else None


def _carried_target(
    target: WholeRow | WholeFamily | Columns | Cell, change: Carry
) -> WholeRow | WholeFamily | Columns | Cell | None:
    match target:
        case WholeRow():
            return target
        case Columns(ids):
            kept = tuple(id_ for id_ in ids if id_ in change.columns)
            return Columns(kept) if kept else None
        case Cell(family, qualifier):
            now = change.family(family)
            return None if now is None else Cell(now, qualifier)
        case WholeFamily(family):
            now = change.family(family)
            return None if now is None else WholeFamily(now)


def _carried_cells(block: ColumnarBlock, change: Carry, codec: KeyCodec) -> WrittenBlock:
    """One mutation at a time: other names may have another order."""
    batch = block.batch
    names = set(batch.column(layout.FAMILY).unique().to_pylist())
    if all(change.family(name) == name for name in names):
        return block
    columns = [batch.column(name).to_pylist() for name in (layout.FAMILY, layout.QUALIFIER, layout.VALUE)]
    times: list[int | None] = [None] * batch.num_rows
    if layout.TS in batch.schema.names:
        times = batch.column(layout.TS).view(pa.int64()).to_pylist()
    rows = layout.rows_of(codec, batch).to_pylist()
    puts = [PutCell(Row(row), f, q, value, ts) for row, f, q, value, ts in zip(rows, *columns, times, strict=True)]
    return carried(SmallBlock(block.schema_version, tuple(puts)), change, codec)


def _carried_columns(block: ColumnarBlock, change: Carry, codec: KeyCodec) -> WrittenBlock:
    """Without columns that are gone, and without rows that wrote only such: those were no puts of the key alone."""
    batch = block.batch
    values = {
        field.name: layout.field_id(field)
        for field in batch.schema
        if field.name not in layout.SYSTEM_NAMES and field.name not in codec.names
    }
    gone = [name for name, id_ in values.items() if id_ not in change.columns]
    if not gone:
        return block
    kept = batch.drop_columns(gone)
    left = [name for name in values if name not in gone]
    if block.nulls_written:
        return replace(block, batch=kept if left else kept.slice(0, 0))
    lost = _any_valid(batch, gone) & ~_any_valid(batch, left)
    return replace(block, batch=kept.filter(pa.array(~lost)) if lost.any() else kept)


def _any_valid(batch: pa.RecordBatch, names: list[str]) -> Flags:
    flags = np.zeros(batch.num_rows, np.bool_)
    for name in names:
        flags |= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    return flags
