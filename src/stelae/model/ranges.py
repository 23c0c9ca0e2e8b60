"""Half-open ranges of rows, and sets of them.

A range is [start, stop); stop None means no upper bound, and the empty byte string is the least row. A `RangeSet` is
kept in one form: its ranges are not empty, sorted, and neither overlap nor touch, so equal sets are equal values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from stelae.model.errors import InvalidArgument


class RowRange(msgspec.Struct, frozen=True):
    start: bytes = b""
    stop: bytes | None = None

    def __contains__(self, row: bytes) -> bool:
        return self.start <= row and (self.stop is None or row < self.stop)

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.stop <= self.start

    def covers(self, other: RowRange) -> bool:
        return other.is_empty or (self.start <= other.start and not _stops_before(self.stop, other.stop))

    def overlaps(self, other: RowRange) -> bool:
        return not self.intersect(other).is_empty

    def intersect(self, other: RowRange) -> RowRange:
        """What lies in both; an empty range if nothing does."""
        stop = self.stop if _stops_before(self.stop, other.stop) else other.stop
        return RowRange(max(self.start, other.start), stop)

    def split(self, at: bytes) -> tuple[RowRange, RowRange]:
        """The part below `at` and the part from it on; both must have something in them."""
        if at <= self.start or at not in self:
            raise InvalidArgument(f"cannot split {self} at {at!r}: the row must lie inside, above the start")
        return RowRange(self.start, at), RowRange(at, self.stop)

    def join(self, right: RowRange) -> RowRange:
        if self.stop is None or self.stop != right.start:
            raise InvalidArgument(f"cannot join {self} with {right}: they are not neighbours")
        return RowRange(self.start, right.stop)

    def __str__(self) -> str:
        return f"[{self.start!r}, {'end' if self.stop is None else repr(self.stop)})"


ALL_ROWS = RowRange()


def single(row: bytes) -> RowRange:
    """The range that holds one row."""
    return RowRange(row, row + b"\x00")


def prefixed(prefix: bytes) -> RowRange:
    """The range of all rows that start with the prefix."""
    return RowRange(prefix, after_prefix(prefix))


def after_prefix(prefix: bytes) -> bytes | None:
    """The least row above all that start with the prefix; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _stops_before(a: bytes | None, b: bytes | None) -> bool:
    return a is not None and (b is None or a < b)


class RangeSet(msgspec.Struct, frozen=True):
    ranges: tuple[RowRange, ...] = ()

    def __post_init__(self) -> None:
        previous: RowRange | None = None
        for each in self.ranges:
            if each.is_empty or (previous and (previous.stop is None or previous.stop >= each.start)):
                raise InvalidArgument(f"ranges {self.ranges} are not sorted and apart; use RangeSet.of")
            previous = each

    @staticmethod
    def of(ranges: Iterable[RowRange]) -> RangeSet:
        """The union of any ranges, in any order."""
        merged: list[RowRange] = []
        for each in sorted((r for r in ranges if not r.is_empty), key=lambda r: r.start):
            if merged and not _stops_before(merged[-1].stop, each.start):
                last = merged.pop()
                stop = each.stop if _stops_before(last.stop, each.stop) else last.stop
                merged.append(RowRange(last.start, stop))
            else:
                merged.append(each)
        return RangeSet(tuple(merged))

    @property
    def is_empty(self) -> bool:
        return not self.ranges

    def __iter__(self) -> Iterator[RowRange]:
        return iter(self.ranges)

    def __contains__(self, row: bytes) -> bool:
        at = bisect_right(self.ranges, row, key=lambda r: r.start) - 1
        return at >= 0 and row in self.ranges[at]

    def meets(self, rows: RowRange) -> bool:
        """Whether anything of a range is in it. Takes no longer for many ranges than for few."""
        if rows.is_empty:
            return False
        at = bisect_right(self.ranges, rows.start, key=lambda r: r.start) - 1
        near = self.ranges[max(at, 0) : at + 2]
        return any(each.overlaps(rows) for each in near)

    def union(self, other: RangeSet) -> RangeSet:
        return RangeSet.of((*self.ranges, *other.ranges))

    def complement(self) -> RangeSet:
        gaps = []
        start: bytes | None = b""
        for each in self.ranges:
            if start is not None and start < each.start:
                gaps.append(RowRange(start, each.start))
            start = each.stop
        if start is not None:
            gaps.append(RowRange(start, None))
        return RangeSet(tuple(gaps))

    def intersect(self, other: RangeSet) -> RangeSet:
        """One pass over both: linear in the number of ranges."""
        result, i, j = [], 0, 0
        while i < len(self.ranges) and j < len(other.ranges):
            a, b = self.ranges[i], other.ranges[j]
            common = a.intersect(b)
            if not common.is_empty:
                result.append(common)
            if _stops_before(a.stop, b.stop):
                i += 1
            else:
                j += 1
        return RangeSet(tuple(result))

    def within(self, rows: RowRange) -> RangeSet:
        """What of it lies in a range."""
        return self.intersect(RangeSet.of([rows]))

    def subtract(self, other: RangeSet) -> RangeSet:
        return self.intersect(other.complement())

    def after(self, row: bytes, *, reverse: bool = False) -> RangeSet:
        """What is left to read once everything up to this row has been read, it included; with `reverse`, once
        everything from the end back to it has. This is how every scan goes on from where it stopped."""
        rest = RowRange(b"", row) if reverse else RowRange(row + b"\0")
        return self.intersect(RangeSet.of([rest]))

    def covers(self, other: RangeSet) -> bool:
        return other.subtract(self).is_empty

    def split(self, at: bytes) -> tuple[RangeSet, RangeSet]:
        """What lies below `at`, and what lies from it on; either may be empty."""
        return self.intersect(RangeSet.of([RowRange(b"", at)])), self.intersect(RangeSet.of([RowRange(at)]))


EVERYTHING = RangeSet((ALL_ROWS,))
NOTHING = RangeSet()


def does_cover(ranges: Iterable[RowRange], whole: RowRange = ALL_ROWS) -> bool:
    """Whether ranges in order cover the whole with no gap and no overlap."""
    try:
        check_cover(ranges, whole)
    except InvalidArgument:
        return False
    return True


def check_cover(ranges: Iterable[RowRange], whole: RowRange = ALL_ROWS) -> None:
    """Ranges in order cover the whole with no gap and no overlap, or InvalidArgument says where they do not."""
    expected: bytes | None = whole.start
    for each in ranges:
        if expected is None or each.is_empty or each.start != expected:
            raise InvalidArgument(f"ranges leave a gap or overlap at {expected!r}: next is {each}")
        expected = each.stop
    if expected != whole.stop:
        raise InvalidArgument(f"ranges end at {expected!r}, not at {whole.stop!r}")
