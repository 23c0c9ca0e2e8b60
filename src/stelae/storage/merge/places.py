"""Where rows are in a sorted Arrow array, for those who ask often.

An Arrow scalar for each row that is looked at takes half a microsecond. So every 16th row is kept as an object, and the
rest is looked up in a copy of the bytes, a few steps away. Both are made when somebody asks for the first time.
"""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa

from stelae.model.arrow_values import span_of
from stelae.model.ranges import RowRange

_SAMPLE_STEP = 16
_NO_SPAN = memoryview(bytes(4)).cast("i"), b""


class RowPlaces:
    """Of the rows of one block, which may come several times each."""

    __slots__ = ("_count", "_rows", "_sample", "_span")

    def __init__(self, rows: pa.Array) -> None:
        self._rows = rows
        self._count = len(rows)
        self._span: tuple[memoryview, bytes] = _NO_SPAN
        self._sample: list[bytes] = []

    @property
    def is_ready(self) -> bool:
        """Whether `place` was called before, so that what it needs of the rows is made."""
        return bool(self._sample)

    def find(self, row: bytes) -> tuple[int, int]:
        """Where the row's records begin and end."""
        low = end = self.place(row)
        count, (offsets, data) = self._count, self._span
        while end < count and data[offsets[end] : offsets[end + 1]] == row:
            end += 1
        return low, end

    def extent(self, rows: RowRange) -> tuple[int, int]:
        """Where a range begins and ends."""
        low = self.place(rows.start)
        return low, self._count if rows.stop is None else max(low, self.place(rows.stop))

    def place(self, row: bytes) -> int:
        """Where the row is, or would be."""
        count = self._count
        if not self._sample and count:
            self._span = span_of(self._rows)
            self._sample = self._rows.take(pa.array(range(0, count, _SAMPLE_STEP))).to_pylist()
        offsets, data = self._span
        high = min(bisect_left(self._sample, row) * _SAMPLE_STEP, count)
        low = max(0, high - _SAMPLE_STEP)
        while low < high:
            middle = (low + high) >> 1
            if data[offsets[middle] : offsets[middle + 1]] < row:
                low = middle + 1
            else:
                high = middle
        return low
