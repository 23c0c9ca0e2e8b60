"""Rows found in sorted arrays, against looking at every one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.ranges import RowRange
from stelae.storage.merge.places import RowPlaces
from tests.effort import examples

SHORT = st.binary(max_size=3)
"""So short that several are the same."""


@settings(max_examples=examples(200))
@given(st.lists(SHORT, max_size=100), st.integers(0, 3), st.lists(SHORT, min_size=1, max_size=10))
def test_rows_are_found_where_they_are(rows: list[bytes], before: int, asked: list[bytes]) -> None:
    rows.sort()
    places = RowPlaces(pa.array([b""] * before + rows, pa.binary()).slice(before))
    for row in [*asked, *rows[::7]]:
        assert places.place(row) == bisect_left(rows, row)
        found = bisect_left(rows, row), bisect_right(rows, row)
        for _ in range(2):
            begin, end = places.find(row)
            assert (begin, end) == found if row in rows else begin == end
    start, stop = min(asked), max(asked)
    assert places.extent(RowRange(start, None)) == (bisect_left(rows, start), len(rows))
    if start < stop:
        assert places.extent(RowRange(start, stop)) == (bisect_left(rows, start), bisect_left(rows, stop))


def test_they_are_prepared_when_somebody_asks() -> None:
    places = RowPlaces(pa.array([b"a", b"b"], pa.binary()))
    assert not places.is_ready
    places.find(b"x")
    assert places.is_ready
