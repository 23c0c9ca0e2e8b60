"""One row at a time: keys, puts of dicts, erasures."""

from __future__ import annotations

import math
from collections import OrderedDict
from datetime import timedelta, timezone
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pytest

from stelae.client.intake.blocks import Sizes, small_blocks, weighed
from stelae.client.intake.mutations import erasures_of, key_of, key_values, mutations_of
from stelae.format.block import SMALL_MUTATIONS_MAX, SmallBlock
from stelae.model.declare import columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, ColumnId, Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Put, PutCell, WholeFamily, WholeRow
from stelae.model.schema import TableSchema
from stelae.storage.checks.blocks import check_block
from tests.client.samples import EVERYTHING, FLOATING, HASHED, MOMENT, PAIR, READING, USERS, WILD, every_type


def id_of(schema: TableSchema, name: str) -> ColumnId:
    return schema.column(name)[1].id


NAME, AGE, SCORE = (id_of(USERS, name) for name in ("name", "age", "score"))
ANN = Row(b"ann")


@pytest.mark.parametrize(
    "schema, key, values",
    [
        (USERS, "ann", {"id": "ann"}),
        (USERS, ("ann",), {"id": "ann"}),
        (USERS, {"id": "ann"}, {"id": "ann"}),
        (USERS, {"ID": "ann"}, {"id": "ann"}),
        (USERS, np.str_("ann"), {"id": "ann"}),
        (PAIR, ("a", 7), {"area": "a", "place": 7}),
        (PAIR, {"place": 7, "area": "a"}, {"area": "a", "place": 7}),
        (PAIR, {"Place": 7, "AREA": "a"}, {"area": "a", "place": 7}),
        (PAIR, ("a", np.int64(7)), {"area": "a", "place": 7}),
        (HASHED, 7, {"id": 7}),
        (FLOATING, -0.0, {"x": 0.0}),
        (FLOATING, 2, {"x": 2.0}),
    ],
    ids=str,
)
def test_keys_are_values_tuples_and_dicts(schema: TableSchema, key: object, values: dict[str, Any]) -> None:
    row = key_of(schema, key)
    assert row == schema.codec.encode(tuple(values.values()))
    assert key_values(schema, row) == values


@pytest.mark.parametrize(
    "schema, key, complaint",
    [
        (USERS, None, "key column 'id': a key cannot be NULL"),
        (USERS, ["ann"], "key column 'id': ['ann'] (list) is not a string"),
        (USERS, 7, "key column 'id': 7 (int) is not a string"),
        (USERS, b"ann", "key column 'id': b'ann' (bytes) is not a string"),
        (USERS, ("a", "b"), "has 2 parts, the key has 1: id"),
        (USERS, {"name": "ann"}, "no value for 'id'"),
        (USERS, {"id": "ann", "name": "x"}, "'name' is not a key column"),
        (USERS, {"id": "ann", "ID": "bob"}, "key column 'id' is given twice"),
        (USERS, {7: "ann"}, "no value for 'id'"),
        (USERS, "a" * 5000, "its row has 5000 bytes; at most 4096 are allowed"),
        (PAIR, "a", "give a tuple or a dict of area, place"),
        (PAIR, ["a", 7], "give a tuple or a dict of area, place"),
        (PAIR, ("a", None), "key column 'place': a key cannot be NULL"),
        (PAIR, ("a", True), "key column 'place': True (bool) is not a int64"),
        (PAIR, ("a", 7.0), "key column 'place': 7.0 (float) is not a int64"),
        (PAIR, ("a", 2**63), "key column 'place': 9223372036854775808 (int) is not a int64: out of range"),
        (FLOATING, math.nan, "key column 'x': a key cannot be NaN"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_key_is_refused_with_its_column(schema: TableSchema, key: object, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        key_of(schema, key)
    assert complaint in str(caught.value)


def test_more_versions_than_a_block_says_are_refused() -> None:
    erasures = erasures_of(USERS, "ann", ["age"], versions=range(SMALL_MUTATIONS_MAX + 1))
    with pytest.raises(InvalidArgument, match=f"row 'ann': .* {SMALL_MUTATIONS_MAX + 1} mutations are too much"):
        list(small_blocks(USERS, [weighed(erasures)], Sizes(DEFAULT_LIMITS)))


def test_the_longest_key_is_a_setting() -> None:
    assert key_of(USERS, "abc", Limits(row_bytes_max=3)) == b"abc"
    with pytest.raises(InvalidArgument, match="its row has 4 bytes; at most 3"):
        key_of(USERS, "abcd", Limits(row_bytes_max=3))


@pytest.mark.parametrize(
    "row, said",
    [
        ({"id": "ann"}, [Put(ANN, ())]),
        ({"id": "ann", "name": "Ann", "age": 31}, [Put(ANN, ((NAME, "Ann"), (AGE, 31)))]),
        ({"score": 1, "id": "ann", "name": None}, [Put(ANN, ((NAME, None), (SCORE, 1.0)))]),
        ({"ID": "ann", "NAME": "Ann"}, [Put(ANN, ((NAME, "Ann"),))]),
        ({"id": "ann", "click:home": b"1"}, [PutCell(ANN, "click", "home", b"1")]),
        ({"id": "ann", "Click:Home": b"1"}, [PutCell(ANN, "click", "Home", b"1")]),
        ({"id": "ann", "click:a:b": b"1"}, [PutCell(ANN, "click", "a:b", b"1")]),
        ({"id": "ann", "click:": b""}, [PutCell(ANN, "click", "", b"")]),
        (
            {"id": "ann", "name": "Ann", "view:x": bytearray(b"2")},
            [Put(ANN, ((NAME, "Ann"),)), PutCell(ANN, "view", "x", b"2")],
        ),
        (
            {"id": "ann", "click": {"a": b"1", "b": b"2"}},
            [PutCell(ANN, "click", "a", b"1"), PutCell(ANN, "click", "b", b"2")],
        ),
        ({"id": "ann", "click:a": b"1", "click": {"a": b"2"}}, [PutCell(ANN, "click", "a", b"2")]),
        ({"id": "ann", "click": {"a": b"1"}, "CLICK:a": b"2"}, [PutCell(ANN, "click", "a", b"2")]),
        ({"id": "ann", "click": {}}, [Put(ANN, ())]),
        ({"id": "ann", "click": None}, [Put(ANN, ())]),
    ],
    ids=str,
)
def test_a_dict_says_its_columns_and_cells(row: dict[str, Any], said: list[Any]) -> None:
    assert mutations_of(USERS, row) == said
    assert mutations_of(USERS, OrderedDict(row)) == said
    check_block(USERS, SmallBlock(USERS.version, tuple(mutations_of(USERS, row))))


def test_the_wildcard_takes_any_family() -> None:
    row = WILD.codec.encode((1,))
    assert mutations_of(WILD, {"id": 1, "x:y": b"1", "CLICK:z": b"2"}) == [
        PutCell(row, "x", "y", b"1"),
        PutCell(row, "click", "z", b"2"),
    ]
    assert mutations_of(WILD, {"id": 1, "*": {"x:y": b"1", "click:q": b"2"}}) == [
        PutCell(row, "x", "y", b"1"),
        PutCell(row, "click", "q", b"2"),
    ]


def test_a_time_goes_to_everything() -> None:
    row = {"id": "ann", "name": "Ann", "click:a": b"1"}
    assert [mutation.ts for mutation in mutations_of(USERS, row, ts=5)] == [5, 5]  # type: ignore[union-attr]
    assert [mutation.ts for mutation in mutations_of(USERS, row)] == [None, None]  # type: ignore[union-attr]


def test_values_of_every_type_are_kept() -> None:
    for row in every_type():
        (put,) = mutations_of(EVERYTHING, row)
        assert isinstance(put, Put)
        names = {column.id: column.name for column in EVERYTHING.groups[0].columns}  # type: ignore[union-attr]
        assert {names[id_]: value for id_, value in put.values} == {k: v for k, v in row.items() if k != "id"}
        assert [id_ for id_, _ in put.values] == sorted(names)


@pytest.mark.parametrize(
    "row, complaint",
    [
        ({"name": "Ann"}, "no value for key column 'id'"),
        ({}, "no value for key column 'id'"),
        ({"id": None, "name": "Ann"}, "key column 'id': a key cannot be NULL"),
        ({"id": ["ann"]}, "key column 'id': ['ann'] (list) is not a string"),
        ({"id": "ann", "nme": "Ann"}, "row 'ann': no column 'nme'; did you mean 'name'?"),
        ({"id": "ann", "clik": {}}, "row 'ann': no column 'clik'; did you mean 'click'?"),
        ({"id": "ann", "clik:a": b""}, "row 'ann': no family 'clik'; did you mean 'click'?"),
        ({"id": "ann", ":a": b""}, "row 'ann': no family ''"),
        ({"id": "ann", "name:a": b""}, "row 'ann': family 'name': 'name' is a column, and no family"),
        ({"id": "ann", "*": {}}, "row 'ann': no column '*'"),
        ({"id": "ann", 7: 1}, "row 'ann': the name of a column is text, not 7"),
        ({"id": "ann", "age": True}, "row 'ann': column 'age': True (bool) is not a int32"),
        ({"id": "ann", "age": 31.0}, "row 'ann': column 'age': 31.0 (float) is not a int32"),
        ({"id": "ann", "age": 2**31}, "row 'ann': column 'age': 2147483648 (int) is not a int32: out of range"),
        ({"ID": "ann", "AGE": "x"}, "row 'ann': column 'age': 'x' (str) is not a int32"),
        ({"id": "ann", "name": "a", "Name": "b"}, "row 'ann': column 'Name' is given twice"),
        ({"id": "ann", "Id": "b"}, "column 'Id' is given twice"),
        ({"id": "ann", "name": "\ud800"}, "row 'ann': column 'name'"),
        ({"id": "ann", "click:a": None}, "row 'ann': column 'click:a': a cell has no NULL"),
        ({"id": "ann", "click": {"a": None}}, "row 'ann': column 'click:a': a cell has no NULL"),
        ({"id": "ann", "click:a": "x"}, "row 'ann': column 'click:a': 'x' (str) is not a binary"),
        ({"id": "ann", "click": b"x"}, "row 'ann': column 'click': b'x' (bytes) is not a map<string, binary>"),
        ({"id": "ann", "click:\ud800": b""}, "row 'ann': qualifier of family 'click'"),
        ({"id": "ann", "click:" + "q" * 5000: b""}, "row 'ann': qualifier of family 'click' has 5000 bytes"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_a_dict_that_is_no_row_is_refused(row: dict[Any, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mutations_of(USERS, row)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("row", [None, [("id", "ann")], "ann", 7], ids=str)
def test_only_a_dict_is_a_row(row: Any) -> None:
    with pytest.raises(InvalidArgument, match="a row is a dict of column to value"):
        mutations_of(USERS, row)


def test_a_compound_key_is_named_in_complaints() -> None:
    with pytest.raises(InvalidArgument, match=r"^row \('a', 7\): column 'number': 'x'"):
        mutations_of(PAIR, {"area": "a", "place": 7, "number": "x"})
    with pytest.raises(InvalidArgument, match=r"^no value for key column 'place'"):
        mutations_of(PAIR, {"area": "a", "number": 1})


def test_an_undeclared_family_has_a_name_that_could_be_declared() -> None:
    for name, complaint in (("_x:a", "leading underscore"), ("row:a", "the encoded key"), ("id:a", "is a column")):
        with pytest.raises(InvalidArgument, match=complaint):
            mutations_of(WILD, {"id": 1, name: b""})


@pytest.mark.parametrize("ts", [True, 1.5, "now", TS_MAX + 1, MOMENT], ids=str)
def test_a_time_is_whole_microseconds(ts: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"ts: .* is not a time"):
        mutations_of(USERS, {"id": "a"}, ts=ts)
    with pytest.raises(InvalidArgument, match=r"ts: .* is not a time"):
        erasures_of(USERS, "a", ts=ts)


MOMENTS = declare({"at": "timestamp"}, [columns("g", {"price": "decimal(5, 2)", "clock": "timestamp_ntz"})])


def test_moments_have_a_zone_and_readings_none() -> None:
    zone = timezone(timedelta(hours=2))
    assert mutations_of(MOMENTS, {"at": MOMENT.astimezone(zone)}) == mutations_of(MOMENTS, {"at": MOMENT})
    for row in ({"at": READING}, {"at": MOMENT, "clock": MOMENT}, {"at": MOMENT, "price": PyDecimal("1.005")}):
        with pytest.raises(InvalidArgument, match=r"no time zone|has a time zone|would be rounded"):
            mutations_of(MOMENTS, row)


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, [Erase(ANN, WholeRow())]),
        ({"ts": 5}, [Erase(ANN, WholeRow(), Micros(5))]),
        ({"columns": ["age"]}, [Erase(ANN, Columns((AGE,)))]),
        ({"columns": ["score", "NAME", "name"], "ts": 5}, [Erase(ANN, Columns((NAME, SCORE)), Micros(5))]),
        (
            {"columns": ["age", "click:", "view:x", "View:x"]},
            [Erase(ANN, Columns((AGE,))), Erase(ANN, WholeFamily("click")), Erase(ANN, Cell("view", "x"))],
        ),
        ({"columns": ("click:a:b",), "ts": 5}, [Erase(ANN, Cell("click", "a:b"), Micros(5))]),
        (
            {"columns": ["age", "click:a"], "versions": [5, 7]},
            [
                EraseVersion(ANN, Columns((AGE,)), Micros(5)),
                EraseVersion(ANN, Cell("click", "a"), Micros(5)),
                EraseVersion(ANN, Columns((AGE,)), Micros(7)),
                EraseVersion(ANN, Cell("click", "a"), Micros(7)),
            ],
        ),
    ],
    ids=str,
)
def test_erasures(given: dict[str, Any], said: list[Any]) -> None:
    assert erasures_of(USERS, "ann", **given) == said
    check_block(USERS, SmallBlock(USERS.version, tuple(erasures_of(USERS, "ann", **given))))


@pytest.mark.parametrize(
    "given, complaint",
    [
        ({"columns": "age"}, "columns= is a list of names, not 'age'"),
        ({"columns": []}, "columns= is empty"),
        ({"columns": ["agee"]}, "no column 'agee'; did you mean 'age'?"),
        ({"columns": ["id"]}, "'id' is a key column"),
        ({"columns": ["click"]}, "'click' is a family: say 'click:' for all of it"),
        ({"columns": [7]}, "the name of a column is text, not 7"),
        ({"versions": [5]}, "versions= are those of columns"),
        ({"columns": ["age"], "versions": []}, "versions= is empty"),
        ({"columns": ["age"], "versions": 5}, "versions= is a list of times, not 5"),
        ({"columns": ["age"], "versions": [1.5]}, "versions: 1.5 is not a time"),
        ({"columns": ["age"], "versions": [5], "ts": 5}, "but not both"),
        ({"columns": ["click:"], "versions": [5]}, "column 'click:': a family has no versions="),
    ],
    ids=str,
)
def test_what_is_no_erasure_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        erasures_of(USERS, "ann", **given)
    assert complaint in str(caught.value)
    with pytest.raises(InvalidArgument, match="key column 'id'"):
        erasures_of(USERS, 7)
