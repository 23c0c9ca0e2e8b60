"""Where files lie over each other, against looking at every row."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.ranges import RowRange
from stelae.storage.files.extents import extent_of, layered
from stelae.storage.tablet.state import Ref
from tests.effort import examples

ROWS = [bytes([first, *second]) for first in range(4) for second in ((), (0,), (1,))]
SEAL = FragmentSeal(0, 0, 0, 0, 0)


@st.composite
def references(draw: st.DrawFn) -> list[Ref]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        first, last = sorted(draw(st.tuples(st.sampled_from(ROWS), st.sampled_from(ROWS))))
        start, stop = draw(st.sampled_from([b"", *ROWS])), draw(st.sampled_from([None, *ROWS]))
        stats = FragmentStats(records=1, rows=1, first_row=first, last_row=last)
        found.append(Ref(FragmentFile(f"{number}", SEAL, stats), RowRange(start, stop), frozenset()))
    return found


@settings(max_examples=examples(400))
@given(references())
def test_stretches(refs: list[Ref]) -> None:
    stretches = list(layered(refs))
    for row in ROWS:
        expected = {ref.source for ref in refs if row in extent_of(ref)}
        found = [reaching for rows, reaching in stretches if row in rows]
        assert [{ref.source for ref in reaching} for reaching in found] == ([expected] if expected else [])
    assert [rows.start for rows, _ in stretches] == sorted(rows.start for rows, _ in stretches)
