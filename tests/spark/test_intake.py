"""Batches of a frame become the records that the rule of puts says, or are refused where it refuses. No Spark is needed
for that: tasks get Arrow tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stelae.client.arguments.names import Names
from stelae.client.intake.rule import judged, judged_long
from stelae.client.intake.values import fit_value
from stelae.format import layout
from stelae.format.fragment.footer import FragmentSpec
from stelae.model.arrow_values import values_of
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros, TableId
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.schema import TableSchema
from stelae.model.types import parse_type
from stelae.spark.loading.intake import FrameShape, Intake
from tests.client.intake import givens
from tests.effort import examples

_NUMBERED = re.compile(r"^row number (\d+): ")
FIRST = 100


def recorded(shape: FrameShape, batch: pa.Table) -> dict[int, list[str]]:
    """By place in the frame: what the records of all groups say of a row, each thing once and in words."""
    found: dict[int, list[str]] = defaultdict(list)
    for id_, table in Intake(shape).records(batch, FIRST).items():
        spec = shape.file_specs[id_]
        places, rows = table.column(layout.TXN).to_pylist(), table.column(layout.ROW).to_pylist()
        for place, row, words in zip(places, rows, _said_by(spec, table), strict=True):
            found[place - FIRST] += [f"{row} {word}" for word in words]
    return {place: sorted(words) for place, words in found.items()}


def _said_by(spec: FragmentSpec, table: pa.Table) -> Iterable[list[str]]:
    times: list[Any] = [None] * table.num_rows
    if layout.TS in table.column_names:
        times = table.column(layout.TS).combine_chunks().view(pa.int64()).to_pylist()
    if spec.kind == "cells":
        parts = [table.column(name).to_pylist() for name in (layout.FAMILY, layout.QUALIFIER, layout.VALUE)]
        for family, qualifier, value, ts in zip(*parts, times, strict=True):
            yield [f"cell {family}:{qualifier} = {value} at {ts}"] if family else [f"exists at {ts}"]
        return
    columns = [
        (column.id, values_of(parse_type(column.type), _whole(table.column(column.name)))) for column in spec.columns
    ]
    for at, ts in enumerate(times):
        written = [(id_, values[at]) for id_, values in columns if spec.nulls == "written" or values[at] is not None]
        yield [f"column {id_} = {value!r} at {ts}" for id_, value in written] or [f"exists at {ts}"]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def in_words(schema: TableSchema, mutations: Sequence[Mutation]) -> list[str]:
    """The same of what a row says by the rule. The two zeros are one key there, and its row says which."""
    found: list[str] = []
    for mutation in mutations:
        match mutation:
            case Put(row, (), ts):
                found.append(f"{row!r} exists at {ts}")
            case Put(row, values, ts):
                found += [f"{row!r} column {ColumnId(id_)} = {value!r} at {ts}" for id_, value in values]
            case PutCell(row, family, qualifier, value, ts):
                found.append(f"{row!r} cell {family}:{qualifier} = {value!r} at {ts}")
            case _:
                raise AssertionError(mutation)
    return sorted(found)


def hold_to(shape: FrameShape, batch: pa.Table, expected: Sequence[list[Mutation] | str]) -> None:
    refused = [number for number, each in enumerate(expected) if isinstance(each, str)]
    event("refused" if refused else "said")
    try:
        found = recorded(shape, batch)
    except InvalidArgument as error:
        assert refused, f"refused what the rule says: {error}"
        named = _NUMBERED.match(str(error))
        assert (int(named[1]) in refused) if named else len(refused) == len(expected), (str(error), expected)
        return
    assert not refused, f"said what the rule refuses: {[expected[number] for number in refused]}"
    said = {n: in_words(shape.schema, each) for n, each in enumerate(expected) if not isinstance(each, str) and each}
    assert found == said


@settings(max_examples=examples(500))
@given(st.data(), givens.schemas(), st.booleans(), st.sampled_from([None, Micros(5)]))
def test_frames(data: st.DataObject, schema: TableSchema, skips_nulls: bool, ts: Micros | None) -> None:
    frame, rows = data.draw(givens.given_frames(schema))
    names = Names(schema)
    expected = givens.judgements(lambda row: judged(names, row, ts, fit_value, skip_nulls=skips_nulls), rows)
    hold_to(FrameShape(TableId(1), schema, tuple(frame.column_names), skips_nulls, ts=ts), frame, expected)


@settings(max_examples=examples(300))
@given(st.data(), givens.schemas(), st.booleans())
def test_long_frames(data: st.DataObject, schema: TableSchema, skips_nulls: bool) -> None:
    frame, rows = data.draw(givens.given_long_frames(schema))
    names = Names(schema)
    expected = givens.judgements(lambda row: judged_long(names, row, None, skip_nulls=skips_nulls), rows)
    has_times = any(name.casefold() in ("ts", "_ts") for name in frame.column_names)
    shape = FrameShape(TableId(1), schema, tuple(frame.column_names), skips_nulls, is_long=True, has_times=has_times)
    hold_to(shape, frame, expected)


def test_of_a_cell_that_a_row_says_twice_the_later_word_counts() -> None:
    schema = givens.WITH_CELLS
    frame = pa.table(
        {
            "id": ["a", "b"],
            "click:q": [b"1", b"1"],
            "click": pa.array([[("q", b"2")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    found = recorded(FrameShape(TableId(1), schema, tuple(frame.column_names)), frame)
    assert found == {0: ["b'a' cell click:q = b'2' at None"], 1: ["b'b' cell click:q = b'1' at None"]}
