"""Rows of a block as Python has them, for point reads: made once a block has answered enough of them.

They are made in pieces, some with each read, by whichever thread reads: to make all of them at once would hold up that
reader, and every other thread of the interpreter with it, for tens of milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import eq
from threading import Lock
from typing import TypeAlias

from stelae.model.ids import ColumnId, Row, Txn
from stelae.model.ranges import RowRange
from stelae.model.values import Value

WARM_HITS_MIN = 32
WARM_ROWS_PER_HIT = 64
"""A block is turned into Python's own objects once it has answered so many reads: that costs as much as some hundred
of them, and each later one takes a third of the time."""
WARM_ROWS_AT_ONCE = 256
"""A reader who does that is held up by so many rows, and so are all threads of the interpreter."""
WARMING = Lock()
"""One thread at a time, and nobody waits for it."""


FewRows: TypeAlias = tuple[list[bytes], list[tuple[Value, ...]]]
"""Some rows in order, and the values of each."""


class WarmRows:
    """Rows of a block and their values as Python has them, for one choice of columns. Only where each row is one record
    that says all."""

    __slots__ = ("_names", "_rows", "_txn_max", "_txn_min", "_values", "named")

    def __init__(
        self,
        named: tuple[tuple[ColumnId, str], ...],
        rows: list[bytes],
        values: list[tuple[Value, ...]],
        txns: tuple[Txn, Txn],
    ) -> None:
        self.named = named
        self._names = tuple(name for _, name in named)
        self._rows = rows
        self._values = values
        self._txn_min, self._txn_max = txns

    def newest(self, row: Row, at: Txn, floor: Txn) -> dict[str, Value] | None:
        """The row's newest values; None: this block cannot tell, so take the long way."""
        rows = self._rows
        place = bisect_left(rows, row)
        if place == len(rows) or rows[place] != row or at < self._txn_max or floor > self._txn_min:
            return None
        return dict(zip(self._names, self._values[place]))  # noqa: B905 - both are of one length

    def values(self, row: Row, at: Txn, floor: Txn) -> tuple[Value, ...] | None:
        """As `newest`, the values alone, in the order of the names."""
        rows = self._rows
        place = bisect_left(rows, row)
        if place == len(rows) or rows[place] != row or at < self._txn_max or floor > self._txn_min:
            return None
        return self._values[place]

    def all(self, at: Txn, floor: Txn) -> FewRows | None:
        """All rows and their values, not to be changed; None: this block cannot tell."""
        return None if at < self._txn_max or floor > self._txn_min else (self._rows, self._values)

    def between(self, rows: RowRange, count: int, at: Txn, floor: Txn) -> FewRows | None:
        """The first so many rows of a range; None: this block cannot tell."""
        if at < self._txn_max or floor > self._txn_min:
            return None
        low = bisect_left(self._rows, rows.start)
        high = min(low + count, len(self._rows))
        if rows.stop is not None and high > low and self._rows[high - 1] >= rows.stop:
            high = bisect_left(self._rows, rows.stop, low, high)
        return self._rows[low:high], self._values[low:high]


class Warming:
    """What of a block is turned into Python's objects so far, for one choice of columns."""

    __slots__ = ("_values", "named", "rows")

    def __init__(self, named: tuple[tuple[ColumnId, str], ...]) -> None:
        self.named = named
        self.rows: list[bytes] = []
        self._values: list[tuple[Value, ...]] = []

    def take(self, rows: Sequence[bytes], columns: Sequence[Sequence[Value]]) -> bool:
        """The rows that follow, and their values by column; False if a row has several records: then it is over."""
        around = [*self.rows[-1:], *rows]
        if any(map(eq, around, islice(around, 1, None))):
            return False
        del self._values[len(self.rows) :]  # if an interrupt came between the next two steps the last time
        self._values += zip(*columns, strict=True)
        self.rows += rows
        return True

    def done(self, txns: tuple[Txn, Txn]) -> WarmRows:
        """All rows; the least and the greatest txn among their records."""
        return WarmRows(self.named, self.rows, self._values, txns)
