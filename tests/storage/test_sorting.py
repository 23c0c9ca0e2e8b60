"""Sorted runs into one stream: as if all records had been sorted at once, whatever is at hand of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stelae
from stelae.format import layout
from stelae.format.fragment.footer import FragmentSpec, spec_of
from stelae.model.declare import declare
from stelae.model.ids import TableId
from stelae.model.record import Kind
from stelae.storage.offline.sorting import SAMPLES_MAX, SAYS_NOTHING, Twice, first_at, merged, sorted_run, unique
from tests.effort import examples

_SCHEMA = declare({"k": "binary"}, [stelae.columns("g", {"v": "int64"}), stelae.cells("c", families=["f"])])


def spec(group: int = 0, **changes: Any) -> FragmentSpec:
    plain = spec_of(
        TableId(1), _SCHEMA, _SCHEMA.groups[group], nulls="written", has_ts=False, has_txn=True, has_kind=False
    )
    return msgspec.structs.replace(plain, **changes)


Record = tuple[bytes, int, int | None]
_KEPT = "kept place"
"""The place in the frame once more: in its own column it goes when each record stands once."""


def table(records: Sequence[Record]) -> pa.Table:
    rows = pa.array([row for row, _, _ in records], pa.binary())
    places, values = ([record[at] for record in records] for at in (1, 2))
    numbers = {"v": pa.array(values, pa.int64()), layout.TXN: pa.array(places, pa.int64())}
    numbers |= {_KEPT: numbers[layout.TXN]}
    return pa.table({layout.ROW: rows, "k": rows} | numbers)


def listed(tables: Any) -> list[Record]:
    return [(row[layout.ROW], row[_KEPT], row["v"]) for each in tables for row in each.to_pylist()]


_rows = st.binary(max_size=2) | st.sampled_from([b"12345678", b"12345678\x00", b"123456789"])
_runs = st.lists(st.lists(_rows, max_size=12), max_size=4)


@settings(max_examples=examples(60))
@given(runs=_runs, size=st.integers(1, 4))
def test_runs_are_merged(runs: list[list[bytes]], size: int) -> None:
    """Of each row the record with the greatest place; and how many there were besides."""
    places = iter(range(1_000))
    numbered = [[(row, place, -place) for row, place in zip(run, places, strict=False)] for run in runs]
    ready = [list(sorted_run(spec(), [table(run)])) for run in numbered if run]
    cut = [[whole.slice(at, size) for whole in run for at in range(0, whole.num_rows, size)] for run in ready]
    latest: dict[bytes, Record] = {}
    for record in sorted((record for run in numbered for record in run), key=lambda record: record[1]):
        latest[record[0]] = record
    twice = Twice()
    assert listed(merged(spec(), cut, twice)) == [latest[row] for row in sorted(latest)]
    assert twice.count == sum(map(len, runs)) - len(latest)
    assert len(twice.rows) <= SAMPLES_MAX
    for run, whole in zip([run for run in numbered if run], ready, strict=True):
        assert listed(whole) == sorted(run, key=lambda record: (record[0], -record[1]))


def test_each_column_from_the_latest_that_writes_it() -> None:
    records: list[Record] = [
        (b"a", 1, 7),
        (b"a", 3, None),
        (b"a", 2, 8),
        (b"b", 4, None),
        (b"b", 5, None),
        (b"c", 6, 9),
    ]
    skipping = spec(nulls="unwritten")
    assert listed(unique(skipping, [table(records)], Twice())) == [(b"a", 3, 8), (b"b", 5, None), (b"c", 6, 9)]
    assert listed(unique(spec(), [table(records)], Twice())) == [(b"a", 3, None), (b"b", 5, None), (b"c", 6, 9)]


PUT, ERASE, NOTHING = (int(kind) for kind in (Kind.PUT, Kind.ERASE_ROW, SAYS_NOTHING))


@pytest.mark.parametrize(
    ("records", "kept", "count"),
    [
        ([(1, "f", PUT), (1, "", NOTHING)], [(1, "f", PUT)], 0),
        ([(1, "f", PUT), (1, "", NOTHING), (2, "f", PUT), (2, "", NOTHING)], [(2, "f", PUT)], 1),
        ([(1, "f", PUT), (1, "", NOTHING), (2, "", ERASE)], [(2, "", ERASE)], 1),
        ([(2, "f", PUT), (2, "", NOTHING), (1, "", ERASE)], [(2, "f", PUT)], 1),
        ([(1, "", ERASE), (2, "", ERASE)], [(2, "", ERASE)], 1),
        ([(1, "", NOTHING), (2, "", NOTHING)], [], 0),
    ],
)
def test_rows_that_are_erased_and_put(
    records: list[tuple[int, str, int]], kept: list[tuple[int, str, int]], count: int
) -> None:
    """The latest word on a row is what counts, in a group of cells on all of its cells."""
    places, families, kinds = zip(*records, strict=True)
    rows = pa.array([b"k"] * len(records), pa.binary())
    given_ = pa.table(
        {
            layout.ROW: rows,
            layout.FAMILY: list(families),
            layout.QUALIFIER: ["" for _ in records],
            layout.TXN: pa.array(places, pa.int64()),
            _KEPT: pa.array(places, pa.int64()),
            layout.KIND: pa.array(kinds, pa.int8()),
        }
    )
    twice = Twice()
    found = [row for each in unique(spec(1, has_kind=True), [given_], twice) for row in each.to_pylist()]
    assert [(row[_KEPT], row[layout.FAMILY], row[layout.KIND]) for row in found] == kept
    assert twice.count == count


def test_the_first_place() -> None:
    rows = pa.array([b"a", b"b", b"b", b"c"], pa.binary())
    assert [first_at(rows, row) for row in (b"", b"a", b"b", b"bb", b"c", b"d")] == [0, 0, 1, 3, 3, 4]
    assert first_at(rows, b"a", 2) == 2
    assert first_at(rows.slice(0, 0), b"a") == 0
