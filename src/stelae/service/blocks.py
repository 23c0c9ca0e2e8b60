"""Blocks as they go from a client to a store: in the order of their rows, and easy to cut at tablets' bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.format.block import Block, SmallBlock
from stelae.format.columnar import ColumnarBlock
from stelae.model.arrow import compute as pc
from stelae.model.arrow_values import bytes_reader
from stelae.model.ids import Row
from stelae.model.once import Once

_BINARY = pa.binary()


class OrderedBlock(msgspec.Struct, frozen=True):
    """`rows[i]`: the row of the i-th record of a batch, or of the i-th mutation. They ascend; of a columnar put or
    erasure, each stands once. Of mutations they need not be given: an array is made of them if somebody asks. `data`:
    the block's own bytes, where it came as bytes: then those are what is logged. `once`: its number, if it has one."""

    block: Block
    given_rows: pa.Array | None = None
    data: bytes | memoryview | None = None
    once: Once | None = None

    @property
    def rows(self) -> pa.Array:
        if self.given_rows is None and isinstance(self.block, SmallBlock):
            return pa.array([mutation.row for mutation in self.block.mutations], _BINARY)
        return self.given_rows

    @property
    def count(self) -> int:
        return len(self.block.mutations) if isinstance(self.block, SmallBlock) else self.block.batch.num_rows

    @property
    def first(self) -> Row:
        return self._row(0)

    @property
    def last(self) -> Row:
        return self._row(-1)

    def _row(self, at: int) -> Row:
        if isinstance(self.block, SmallBlock):
            return self.block.mutations[at].row
        return Row(self.rows[at].as_py())


def split_blocks(block: OrderedBlock, boundaries: Sequence[bytes]) -> list[tuple[int, OrderedBlock]]:
    """The parts of a block between ascending boundaries, without copying: each with the number of boundaries at or
    below its rows, which is the place of their tablet. Parts without rows are left out."""
    pieces: list[tuple[int, OrderedBlock]] = []
    count, read = len(block.rows), bytes_reader(block.rows)
    start = 0
    while start < count:
        place = bisect_right(boundaries, read(start))
        stop = count
        if place < len(boundaries):
            stop = bisect_left(range(count), boundaries[place], lo=start, key=read)
        pieces.append((place, _slice(block, start, stop)))
        start = stop
    return pieces


def blocks_behind(blocks: Sequence[OrderedBlock], count: int) -> list[OrderedBlock]:
    """What is left of the blocks without their first so many records or mutations."""
    left: list[OrderedBlock] = []
    for block in blocks:
        if count < block.count:
            left.append(_slice(block, count, block.count))
        count = max(0, count - block.count)
    return left


def blocks_of_rows(blocks: Sequence[OrderedBlock], rows: pa.Array) -> list[OrderedBlock]:
    """Of the blocks, in their order, what is about these rows. Without numbers, where something is left out."""
    chosen: list[OrderedBlock] = []
    for block in blocks:
        is_among = pc.is_in(block.rows, rows)
        match block.block:
            case _ if pc.all(is_among).as_py():
                chosen.append(block)
                continue
            case _ if not pc.any(is_among).as_py():
                continue
            case SmallBlock() as small:
                mutations = tuple(compress(small.mutations, is_among.to_pylist()))
                chosen.append(OrderedBlock(replace(small, mutations=mutations)))
            case ColumnarBlock() as columnar:
                batch = columnar.batch.filter(is_among)
                chosen.append(OrderedBlock(replace(columnar, batch=batch), block.rows.filter(is_among)))
    return chosen


def cut_block(block: OrderedBlock, count: int) -> tuple[OrderedBlock, OrderedBlock]:
    """Its first so many records or mutations, and the others."""
    return _slice(block, 0, count), _slice(block, count, block.count)


def _slice(ordered: OrderedBlock, start: int, stop: int) -> OrderedBlock:
    if start == 0 and stop == ordered.count:
        return ordered
    rows = ordered.rows.slice(start, stop - start)
    once = None if ordered.once is None else ordered.once.behind(start)
    match ordered.block:
        case SmallBlock() as small:
            return OrderedBlock(replace(small, mutations=small.mutations[start:stop]), rows, once=once)
        case ColumnarBlock() as columnar:
            return OrderedBlock(replace(columnar, batch=columnar.batch.slice(start, stop - start)), rows, once=once)
