"""What a scan gives, as dicts and as frames."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.client.api.rows import Row, Version, pandas_of, polars_of, rows_of_batch, table_of
from stelae.model.arrow_values import array_of
from stelae.model.declare import columns, declare
from stelae.model.ids import Micros, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.values import coerce
from stelae.storage.read.scans.shapes import output_schema
from tests.client.samples import EVERYTHING, USERS, WILD, every_type
from tests.effort import examples
from tests.strategies import column_types, values

TXN = Txn(77)
MAPS = pa.map_(pa.string(), pa.binary())


def scanned(schema: Any, **arrays: pa.Array) -> pa.RecordBatch:
    """A batch as a scan gives it."""
    expected = output_schema(schema, ALL_COLUMNS)
    return pa.RecordBatch.from_arrays([arrays[name] for name in expected.names], schema=expected)


def users_batch() -> pa.RecordBatch:
    return scanned(
        USERS,
        id=pa.array(["ann", "bob"]),
        name=pa.array(["Ann", None]),
        age=pa.array([31, 0], pa.int32()),
        score=pa.array([0.5, None]),
        click=pa.array([[("a", b"1"), ("b:c", b"2")], []], MAPS),
        view=pa.array([[], [("", b"3")]], MAPS),
    )


def test_rows_are_dicts_with_flat_cells() -> None:
    rows = rows_of_batch(USERS, users_batch(), TXN)
    assert rows == [
        {"id": "ann", "name": "Ann", "age": 31, "score": 0.5, "click:a": b"1", "click:b:c": b"2"},
        {"id": "bob", "name": None, "age": 0, "score": None, "view:": b"3"},
    ]
    assert [row.txn for row in rows] == [77, 77]
    assert rows_of_batch(USERS, users_batch().slice(1), TXN) == rows[1:]
    assert rows_of_batch(USERS, users_batch().slice(0, 0), TXN) == []


def test_the_wildcards_cells_have_their_whole_names() -> None:
    batch = scanned(
        WILD,
        id=pa.array([1, 2, 3]),
        click=pa.array([[("q", b"1")], [], None], MAPS),
        **{"*": pa.array([[("x:y", b"2"), ("x:z", b"3")], None, [("w:", b"")]], MAPS)},
    )
    expected = [{"id": 1, "click:q": b"1", "x:y": b"2", "x:z": b"3"}, {"id": 2}, {"id": 3, "w:": b""}]
    assert rows_of_batch(WILD, batch, TXN) == expected
    assert rows_of_batch(WILD, batch.slice(1), TXN) == expected[1:]


def test_values_have_the_form_they_are_kept_in() -> None:
    rows = every_type()
    types = {field.name: field.type for field in output_schema(EVERYTHING, ALL_COLUMNS)}
    arrays = {"id": pa.array([row["id"] for row in rows], types["id"])}
    for group in EVERYTHING.groups:
        for column in group.columns:  # type: ignore[union-attr]
            arrays[column.name] = array_of(column.type, [row[column.name] for row in rows])
    found = rows_of_batch(EVERYTHING, scanned(EVERYTHING, **arrays), TXN)
    assert repr([dict(row) for row in found]) == repr(rows)


@settings(max_examples=examples(60))
@given(st.data())
def test_any_value_comes_out_as_it_was(data: st.DataObject) -> None:
    type_ = data.draw(column_types)
    schema = declare({"id": "int64"}, [columns("g", {"x": str(type_)})])
    given_ = data.draw(st.lists(st.none() | values(type_), min_size=1, max_size=4))
    kept = [None if value is None else coerce(type_, value, "x") for value in given_]
    array = array_of(type_, kept)
    batch = scanned(schema, id=pa.array(range(len(kept)), pa.int64()), x=array)
    found = rows_of_batch(schema, batch, TXN)
    assert repr([row["x"] for row in found]) == repr(kept)


def test_a_row_is_a_dict_that_knows_its_txn() -> None:
    row = Row({"id": "ann", "age": 31})
    row.txn = TXN
    assert row == {"id": "ann", "age": 31}
    assert row.txn == 77
    assert repr(row) == "Row({'id': 'ann', 'age': 31}, txn=77)"
    assert type(row | {"age": 32}) is dict
    for same in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert same == row
        assert type(same) is type(row)
        assert same.txn == 77
    assert pd.DataFrame([row]).to_dict("records") == [{"id": "ann", "age": 31}]
    with pytest.raises(AttributeError):
        row.tnx = 5  # type: ignore[attr-defined]


def test_a_version_says_what_it_is() -> None:
    version = Version("Ann", Micros(5), TXN)
    value, ts, txn, erased = version
    assert (value, ts, txn, erased) == ("Ann", 5, 77, False)
    assert repr(version) == "Version(value='Ann', ts=5, txn=77, erased=False)"
    assert pickle.loads(pickle.dumps(version)) == version


def test_batches_become_one_table() -> None:
    batch = users_batch()
    table = table_of(batch.schema, iter([batch, batch.slice(1)]))
    assert table.num_rows == 3
    assert table["id"].to_pylist() == ["ann", "bob", "bob"]


def test_nothing_found_has_its_columns_all_the_same() -> None:
    for schema in (USERS, WILD, EVERYTHING):
        expected = output_schema(schema, ALL_COLUMNS)
        empty = table_of(expected, [])
        assert empty.schema == expected
        assert empty.num_rows == 0
        assert list(pandas_of(empty).columns) == expected.names
        assert polars_of(empty).columns == expected.names
    assert pandas_of(table_of(output_schema(USERS, ALL_COLUMNS), [])).dtypes["age"] == "int32"


def test_frames_of_a_scan() -> None:
    batch = users_batch()
    frame = pandas_of(table_of(batch.schema, [batch]))
    assert list(frame.columns) == batch.schema.names
    assert frame["age"].dtype == "int32"
    assert frame["click"].tolist() == [{"a": b"1", "b:c": b"2"}, {}]
    polar = polars_of(table_of(batch.schema, [batch]))
    assert isinstance(polar, pl.DataFrame)
    assert polar["name"].to_list() == ["Ann", None]


def test_ints_with_gaps_are_not_rounded_in_pandas() -> None:
    table = pa.table({"a": pa.array([2**63 - 1, None]), "b": pa.array([1, None], pa.int8()), "c": [1, 2]})
    frame = pandas_of(table)
    assert [str(kind) for kind in frame.dtypes] == ["Int64", "Int8", "int64"]
    assert frame["a"].tolist() == [2**63 - 1, pd.NA]
    assert list(frame.columns) == ["a", "b", "c"]
