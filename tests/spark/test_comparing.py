"""Two streams of rows compared: against a plain comparison of dicts, however the streams are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.spark.jobs.comparing import Comparison, RowStream, SomeRows, differs, wider
from tests.effort import examples

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("m", pa.map_(pa.string(), pa.binary()))])
Side = dict[int, tuple[int | None, dict[str, bytes]]]

sides = st.dictionaries(
    st.integers(0, 30),
    st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.dictionaries(st.sampled_from("xy"), st.binary(max_size=1))),
    max_size=25,
)


def stream(side: Side, cuts: list[int]) -> Iterator[SomeRows]:
    keys = sorted(side)
    edges = sorted({0, len(keys), *(cut for cut in cuts if cut < len(keys))})
    for start, stop in pairwise(edges):
        some = keys[start:stop]
        columns = [some, [side[key][0] for key in some], [sorted(side[key][1].items()) for key in some]]
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, SCHEMA.types, strict=True)]
        rows = pa.array([key.to_bytes(2, "big") for key in some], pa.binary())
        yield rows, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@settings(max_examples=examples(60))
@given(sides, sides, st.lists(st.integers(0, 25), max_size=4), st.lists(st.integers(0, 25), max_size=4))
def test_as_dicts_compare(here: Side, there: Side, cuts: list[int], other_cuts: list[int]) -> None:
    comparison = Comparison(["id"], ["a", "m"], samples_max=100)
    comparison.run(RowStream(stream(here, cuts)), RowStream(stream(there, other_cuts)))
    found = comparison.result(7)
    both = here.keys() & there.keys()
    different = {key for key in both if here[key] != there[key]}
    assert (found.rows_here, found.rows_there, found.size_bytes) == (len(here), len(there), 7)
    assert (found.only_here, found.only_there) == (len(here.keys() - both), len(there.keys() - both))
    assert found.different == len(different)
    assert found.by_column.get("a", 0) == sum(here[key][0] != there[key][0] for key in both)
    assert found.by_column.get("m", 0) == sum(here[key][1] != there[key][1] for key in both)
    assert [sample.key["id"] for sample in found.samples] == sorted(different | (here.keys() ^ there.keys()))
    for sample in found.samples:
        key = sample.key["id"]
        assert (sample.here is None, sample.there is None) == (key not in here, key not in there)
        if key in different:
            assert set(sample.columns) == {
                name for place, name in enumerate("am") if here[key][place] != there[key][place]
            }


def test_samples_are_few_and_say_what_differs() -> None:
    here: Side = {1: (1, {}), 2: (2, {}), 3: (None, {"x": b"1"})}
    there: Side = {2: (5, {}), 3: (None, {"x": b"2"}), 4: (1, {})}
    comparison = Comparison(["id"], ["a", "m"], samples_max=100)
    comparison.run(RowStream(stream(here, [])), RowStream(stream(there, [])))
    assert [str(sample) for sample in comparison.result(0).samples] == [
        "id=1: only here",
        "id=2: a 2 here, 5 there",
        "id=3: m [('x', b'1')] here, [('x', b'2')] there",
        "id=4: only there",
    ]
    few = Comparison(["id"], ["a"], samples_max=1)
    few.run(RowStream(stream(here, [])), RowStream(stream(there, [])))
    assert (len(few.result(0).samples), few.result(0).different) == (1, 1)


NAN = float("nan")


@pytest.mark.parametrize(
    ("type_", "one", "other", "expected"),
    [
        (pa.float64(), [1.0, NAN, 0.0, None], [1.0, NAN, -0.0, None], [False, False, True, False]),
        (pa.float32(), [NAN, 1.0], [NAN, None], [False, True]),
        (pa.string(), ["a", None, ""], ["a", "", None], [False, True, True]),
        (pa.list_(pa.float32(), 2), [[1, NAN], [0.0, 1], None], [[1, NAN], [-0.0, 1], None], [False, True, False]),
        (pa.list_(pa.string()), [["a"], [], None], [["a"], None, []], [False, True, True]),
        (pa.struct([("x", pa.float64())]), [{"x": NAN}, {"x": 1}], [{"x": NAN}, {"x": None}], [False, True]),
        (pa.map_(pa.string(), pa.float64()), [[("a", NAN)]], [[("b", NAN)]], [True]),
        (pa.decimal128(5, 2), [Decimal("1.10")], [Decimal("1.11")], [True]),
        (pa.bool_(), [True, False], [True, True], [False, True]),
    ],
    ids=str,
)
def test_values_by_their_bits(type_: Any, one: list[Any], other: list[Any], expected: list[bool]) -> None:
    here, there = pa.array(one, type_), pa.array(other, type_)
    found = differs(here, there)
    assert found is not None
    assert found.tolist() == expected
    assert differs(here, here) is None


def test_wider_types() -> None:
    assert differs(pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.int64())) is None
    found = differs(pa.array([1, 2], pa.int32()), pa.array([1, 2**40], pa.int64()))
    assert found is not None
    assert found.tolist() == [False, True]
    assert wider(pa.decimal128(5, 2), pa.decimal128(9, 2)) == pa.decimal128(9, 2)
    assert wider(pa.decimal128(5, 2), pa.decimal128(9, 3)) is None
    assert wider(pa.string(), pa.int32()) is None
    assert wider(pa.float32(), pa.float64()) == pa.float64()
