"""Range algebra against plain sets of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument
from stelae.model.ranges import EVERYTHING, RangeSet, RowRange, after_prefix, check_cover, prefixed, single

ROWS = [bytes([a]) + tail for a in range(4) for tail in (b"", b"\x00", b"\x01", b"\xff")] + [b"", b"\xff", b"\xff\xff"]
edges = st.sampled_from(sorted(ROWS))
ranges = st.builds(RowRange, edges, st.none() | edges)
sets = st.lists(ranges, max_size=5).map(RangeSet.of)


def rows_in(area: RangeSet | RowRange) -> set[bytes]:
    return {row for row in ROWS if row in area}


@given(st.lists(ranges, max_size=6))
def test_a_set_holds_what_its_ranges_hold_in_one_form(parts: list[RowRange]) -> None:
    area = RangeSet.of(parts)
    assert rows_in(area) == set().union(*(rows_in(part) for part in parts))
    assert RangeSet(area.ranges) == area
    assert RangeSet.of(reversed(parts)) == area


@given(sets, sets)
def test_algebra_is_that_of_sets(a: RangeSet, b: RangeSet) -> None:
    assert rows_in(a.union(b)) == rows_in(a) | rows_in(b)
    assert rows_in(a.intersect(b)) == rows_in(a) & rows_in(b)
    assert rows_in(a.subtract(b)) == rows_in(a) - rows_in(b)
    assert rows_in(a.complement()) == set(ROWS) - rows_in(a)
    assert a.complement().complement() == a
    assert a.union(a.complement()) == EVERYTHING
    assert a.covers(b) == (b.union(a) == a)


@given(sets, ranges)
def test_a_set_meets_a_range_if_they_have_rows_in_common(area: RangeSet, rows: RowRange) -> None:
    assert area.meets(rows) == (not area.within(rows).is_empty)


@given(sets, edges)
def test_splitting_parts_below_from_above(area: RangeSet, at: bytes) -> None:
    low, high = area.split(at)
    assert rows_in(low) == {row for row in rows_in(area) if row < at}
    assert rows_in(high) == {row for row in rows_in(area) if row >= at}


@given(sets, edges)
def test_what_is_left_after_a_row(area: RangeSet, at: bytes) -> None:
    assert rows_in(area.after(at)) == {row for row in rows_in(area) if row > at}
    assert rows_in(area.after(at, reverse=True)) == {row for row in rows_in(area) if row < at}


@given(ranges, ranges)
def test_ranges_intersect_overlap_and_cover(a: RowRange, b: RowRange) -> None:
    assert rows_in(a.intersect(b)) == rows_in(a) & rows_in(b)
    assert a.overlaps(b) == (not a.intersect(b).is_empty)
    assert a.covers(b) == RangeSet.of([a]).covers(RangeSet.of([b]))


@given(ranges, edges)
def test_a_split_range_joins_again(whole: RowRange, at: bytes) -> None:
    if at in whole and at > whole.start:
        left, right = whole.split(at)
        assert rows_in(left) | rows_in(right) == rows_in(whole)
        assert left.join(right) == whole
        check_cover([left, right], whole)
    else:
        with pytest.raises(InvalidArgument, match="cannot split"):
            whole.split(at)


@given(st.binary(max_size=3), st.binary(max_size=4))
def test_prefix_ranges_hold_exactly_the_prefixed(prefix: bytes, row: bytes) -> None:
    assert (row in prefixed(prefix)) == row.startswith(prefix)
    stop = after_prefix(prefix)
    assert stop is None or stop > prefix


def test_single_holds_one_row() -> None:
    assert rows_in(single(b"\x01")) == {b"\x01"}


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [RowRange(b"", b"b")],
        [RowRange(b"", b"b"), RowRange(b"c")],
        [RowRange(b"", b"c"), RowRange(b"b")],
        [RowRange(b"a")],
        [RowRange(), RowRange(b"x")],
        [RowRange(b"", b""), RowRange()],
    ],
)
def test_gaps_and_overlaps_are_found(parts: list[RowRange]) -> None:
    with pytest.raises(InvalidArgument, match="ranges"):
        check_cover(parts)


@pytest.mark.parametrize("parts", [(RowRange(b"b", b"a"),), (RowRange(b"b", b"c"), RowRange(b"c", b"d"))])
def test_a_set_in_another_form_is_refused(parts: tuple[RowRange, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"RangeSet\.of"):
        RangeSet(parts)


def test_only_neighbours_join() -> None:
    with pytest.raises(InvalidArgument, match="not neighbours"):
        RowRange(b"a", b"b").join(RowRange(b"c", b"d"))
