"""Blocks as they leave the client: in the order of their rows, of bounded size, and easy to cut at tablets' bounds.

All that a call says of one row lies in one block, so that it is written as one. A block has at most a number of rows,
and less than a quarter of the bytes a block may have: only a single row may have more, up to that limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.block import NESTED_BYTES_MAX, SMALL_MUTATIONS_MAX, SmallBlock
from stelae.format.columnar import ColumnarBlock
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.schema import TableSchema
from stelae.model.values import Value
from stelae.service.blocks import OrderedBlock, _slice
from stelae.storage.checks.rules import shown_row
from stelae.storage.checks.sizes import packed_bytes, text_bytes
from stelae.storage.merge.order import Flags, Ints

BLOCK_ROWS_MAX = 65_536
SMALL_ROWS_MAX = 64
"""So few rows are a block of mutations: a batch of columns costs more than it saves, to send and to keep in memory."""

_MUTATION_BYTES = 32
_VALUE_BYTES = 16
_PLAIN = frozenset((type(None), bool, int, float))
_PLAIN_BYTES = 9


class Sizes(msgspec.Struct, frozen=True):
    """How large blocks may become."""

    limits: Limits
    block_rows_max: int = BLOCK_ROWS_MAX
    small_rows_max: int = SMALL_ROWS_MAX

    @property
    def block_bytes(self) -> int:
        return self.limits.block_bytes_max // 4


def cut_columnar(schema: TableSchema, ordered: OrderedBlock, begins: Flags | None, sizes: Sizes) -> list[OrderedBlock]:
    """Blocks of allowed size. `begins`: where another row begins; None: everywhere."""
    if not isinstance(ordered.block, ColumnarBlock):
        raise InvalidArgument("only a columnar block is cut by its bytes")
    fixed = _fixed_bytes(ordered.block.batch)
    pieces: list[OrderedBlock] = []
    waiting = [(0, len(ordered.rows))]
    while waiting:
        start, stop = waiting.pop()
        size = fixed + int(ordered.block.batch.slice(start, stop - start).nbytes)
        if size < sizes.block_bytes and stop - start <= sizes.block_rows_max:
            pieces.append(_slice(ordered, start, stop))
            continue
        middle = _row_begin(begins, start, stop)
        if start < middle < stop:  # so both parts are smaller, and this ends
            waiting += [(middle, stop), (start, middle)]
            continue
        check_block_bytes(schema, ordered.rows[start].as_py(), size, sizes.limits)
        pieces.append(_slice(ordered, start, stop))
    return pieces


def _fixed_bytes(batch: pa.RecordBatch) -> int:
    """What the encoded block has besides its data: the schema, and the padding of each buffer."""
    nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in batch.schema], schema=batch.schema)
    buffers = sum(len(column.buffers()) for column in batch.columns)
    return int(pa.ipc.get_record_batch_size(nothing) + batch.schema.serialize().size) + 64 * (buffers + 1)


def _row_begin(begins: Flags | None, start: int, stop: int) -> int:
    """Where a row begins, as near to the middle as can be; the start, if a single row lies there."""
    middle = (start + stop) // 2
    if begins is None:
        return middle
    inside = np.flatnonzero(begins[start + 1 : stop]) + start + 1
    return int(inside[np.argmin(np.abs(inside - middle))]) if len(inside) else start


def check_block_bytes(schema: TableSchema, row: bytes, size: int, limits: Limits) -> None:
    if size > limits.block_bytes_max:
        raise InvalidArgument(
            f"row {shown_row(schema.codec, row)}: what is written to it has {size} bytes; "
            f"a block has at most {limits.block_bytes_max}"
        )


class SaidRow(msgspec.Struct, frozen=True):
    """The mutations of one row, and what they weigh in a small block: all, and what is nested."""

    row: Row
    mutations: tuple[Mutation, ...]
    size_bytes: int
    nested_bytes: int

    @property
    def fits_small(self) -> bool:
        """Whether some small block can hold them."""
        return self.nested_bytes <= NESTED_BYTES_MAX and len(self.mutations) <= SMALL_MUTATIONS_MAX

    def followed_by(self, more: SaidRow) -> SaidRow:
        return SaidRow(
            self.row,
            self.mutations + more.mutations,
            self.size_bytes + more.size_bytes,
            self.nested_bytes + more.nested_bytes,
        )


def weighed(mutations: Sequence[Mutation]) -> SaidRow:
    """The mutations of one row, and about how many bytes they take in a block."""
    row = mutations[0].row
    size = nested = 0
    for mutation in mutations:
        size += _MUTATION_BYTES + len(row)
        match mutation:
            case PutCell(_, family, qualifier, data):
                size += 4 * (len(family) + len(qualifier)) + len(data)
            case Put(_, values):
                for _, value in values:
                    plain, packed = _value_bytes(value)
                    size += _VALUE_BYTES + plain + packed
                    nested += packed
            case _:
                pass
    return SaidRow(row, tuple(mutations), size, nested)


def _value_bytes(value: Value) -> tuple[int, int]:
    """Of a plain value, and of one that readers of a small block count as nested."""
    kind = type(value)
    if kind is str or kind is bytes:
        return text_bytes(value), 0
    if kind in _PLAIN:
        return _PLAIN_BYTES, 0
    return 0, packed_bytes(value)


def small_blocks(schema: TableSchema, said: Sequence[SaidRow], sizes: Sizes) -> Iterator[OrderedBlock]:
    """Blocks of rows that are given in order, each row with all of its mutations."""
    waiting: list[SaidRow] = []
    size = nested = count = 0
    for each in said:
        check_block_bytes(schema, each.row, each.size_bytes, sizes.limits)
        if not each.fits_small:
            raise InvalidArgument(
                f"row {shown_row(schema.codec, each.row)}: {each.nested_bytes} bytes of nested values in "
                f"{len(each.mutations)} mutations are too much for one block; say it in several calls, "
                "columns apart from cells"
            )
        size, nested, count = size + each.size_bytes, nested + each.nested_bytes, count + len(each.mutations)
        small = count <= min(SMALL_MUTATIONS_MAX, sizes.block_rows_max) and nested <= NESTED_BYTES_MAX
        if waiting and not (small and size < sizes.block_bytes):
            yield _small_block(schema, waiting)
            waiting = []
            size, nested, count = each.size_bytes, each.nested_bytes, len(each.mutations)
        waiting.append(each)
    if waiting:
        yield _small_block(schema, waiting)


def _small_block(schema: TableSchema, said: Sequence[SaidRow]) -> OrderedBlock:
    return OrderedBlock(SmallBlock(schema.version, tuple([mutation for each in said for mutation in each.mutations])))


def batch_of(
    schema: TableSchema,
    rows: pa.Array,
    keys: Sequence[pa.Array],
    others: Sequence[tuple[pa.Field, pa.Array]],
    ts: Ints | Micros | None,
) -> pa.RecordBatch:
    """A batch as columnar blocks have it: what says the row, then the other columns, then the time."""
    columns: list[tuple[pa.Field, pa.Array]] = []
    if layout.row_is_stored(schema.codec):
        columns.append((layout.system_field(layout.ROW), rows))
    for column, values in zip(schema.key, keys, strict=True):
        columns.append((layout.user_field(column.name, values.type, column.id, nullable=False), values))
    columns += others
    if ts is not None:
        times = ts if isinstance(ts, np.ndarray) else np.full(len(rows), ts, np.int64)
        field = layout.system_field(layout.TS)
        columns.append((field, pa.array(times).view(field.type)))
    return pa.RecordBatch.from_arrays(
        [values for _, values in columns], schema=pa.schema([field for field, _ in columns])
    )
