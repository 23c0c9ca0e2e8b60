"""What both kinds of memory share: rows in order when asked for, and blocks looked up by row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from stelae.model.ids import TS_MIN, Micros, Row, Txn
from stelae.model.ranges import RowRange
from stelae.model.record import Kind
from stelae.storage.merge.order import Ints, extent, nth_row
from stelae.storage.merge.places import RowPlaces

T = TypeVar("T")


class RowTable(dict[Row, T]):
    """A dict by row that only grows, and its rows in order, brought up to date when asked. Whoever takes rows away
    makes another one: readers take the table once, and what they find in it goes together."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[Row] = []

    def between(self, rows: RowRange) -> list[Row]:
        known = self._sorted
        if len(known) != len(self):
            # The dict keeps the order of arrival: what is new lies at its end, and sorting what is nearly sorted is
            # cheap.
            known = sorted([*known, *list(self)[len(known) :]])
            self._sorted = known
        low = bisect_left(known, rows.start)
        high = len(known) if rows.stop is None else bisect_left(known, rows.stop)
        return known[low:high]

    def every(self, count: int, rows: RowRange) -> list[bytes]:
        return [bytes(row) for row in self.between(rows)[count::count]]

    def nth(self, count: int, rows: RowRange, *, reverse: bool) -> bytes | None:
        """As `nth_row`."""
        inside = self.between(rows)
        return inside[-count if reverse else count] if len(inside) > count else None


class SortedBlock(Protocol):
    """A columnar block in memory: rows in order, all of one txn and one kind."""

    @property
    def rows(self) -> pa.Array: ...

    @property
    def txn(self) -> Txn: ...

    @property
    def ts(self) -> Ints: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def places(self) -> RowPlaces: ...


B = TypeVar("B", bound=SortedBlock)


class MemoryOfGroup(Generic[T, B]):
    """One group in memory: a dict by row of what was written in small blocks, and the blocks that are columns."""

    def __init__(self) -> None:
        self._rows: RowTable[T] = RowTable()
        self._erases = False
        """Whether anything in the dict is an erasure."""
        self.blocks: list[B] = []
        self.blocks_txn_max = Txn(0)
        self.blocks_ts_max = TS_MIN
        """No record of a block is newer than these."""

    def add_block(self, block: B) -> None:
        self.blocks_txn_max = max(self.blocks_txn_max, block.txn)
        self.blocks_ts_max = max(self.blocks_ts_max, Micros(int(block.ts.max(initial=TS_MIN))))
        self.blocks.append(block)

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self.blocks

    @property
    def erases(self) -> bool:
        return self._erases or any(block.kind is not Kind.PUT for block in self.blocks)

    @property
    def row_count(self) -> int:
        """Rows of the dict."""
        return len(self._rows)

    def may_have(self, row: Row) -> bool:
        return row in self._rows or (bool(self.blocks) and self.is_in_blocks(row))

    def is_in_blocks(self, row: Row) -> bool:
        return last_block_txn(self.blocks, row) > 0

    def every(self, count: int, rows: RowRange) -> list[bytes]:
        """Every `count`-th row of the dict, as places to cut at."""
        return self._rows.every(count, rows)

    def nth(self, count: int, rows: RowRange, *, reverse: bool) -> bytes | None:
        """A row with no more than so many records before it in the dict, or in any block; None: there are not so many.
        With `reverse`, counted from the end."""
        cuts = [self._rows.nth(count, rows, reverse=reverse)]
        cuts += [nth_row(block.rows, count, rows, reverse=reverse) for block in list(self.blocks)]
        found = [cut for cut in cuts if cut is not None]
        return (max if reverse else min)(found, default=None)

    def has_any(self, rows: RowRange) -> bool:
        extents = (extent(block.rows, rows) for block in list(self.blocks))
        return bool(self._rows.between(rows)) or any(low < high for low, high in extents)


def last_block_txn(blocks: Sequence[SortedBlock], row: Row) -> Txn:
    """Of the last of the blocks that has the row; 0 if none has."""
    for block in reversed(blocks):
        low, high = block.places.find(row)
        if low < high:
            return block.txn
    return Txn(0)
