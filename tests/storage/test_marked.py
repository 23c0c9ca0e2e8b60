"""Records of a file that are marked, few or many: the same places come out, and they take little room."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stelae.storage.offline.marked import Marked

RECORDS = 800
marks = st.sets(st.integers(0, RECORDS - 1), max_size=60) | st.builds(
    lambda start, stop: set(range(start, stop)), st.integers(0, RECORDS), st.integers(0, RECORDS)
)


def _marked(places: set[int], cuts: set[int]) -> Marked:
    """Added stretch by stretch, the last one first."""
    marked, bounds = Marked(), [0, *sorted(cuts), RECORDS]
    for start, stop in reversed([*pairwise(bounds)]):
        marked.add(np.array(sorted(each for each in places if start <= each < stop), np.int64))
    return marked


@given(marks, marks, st.sets(st.integers(1, RECORDS - 1), max_size=5), st.integers(0, RECORDS), st.integers(0, RECORDS))
def test_what_was_marked_is_found(some: set[int], more: set[int], cuts: set[int], start: int, stop: int) -> None:
    marked = _marked(some | more, cuts)
    assert marked.places(start, stop).tolist() == sorted(each for each in some | more if start <= each < stop)
    bits = np.zeros(RECORDS // 8, np.uint8)
    marked.mark(bits)
    assert set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()) == some | more


def test_many_take_a_bit_for_each_record_and_few_their_places() -> None:
    every, one = Marked(), Marked()
    every.add(np.arange(1_000_000, dtype=np.int64))
    one.add(np.array([5, 999_999], np.int64))
    assert every.size_bytes < 130_000
    assert one.size_bytes < 1_000
    assert every.places(999_990, 2_000_000).tolist() == list(range(999_990, 1_000_000))
