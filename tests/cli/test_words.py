"""How tables, keys, times and assignments are typed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from stelae.cli.words import declarations as d
from stelae.cli.words.keys import assignments, comma_listed, only_key, typed_at, typed_bound, typed_key
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import at_datetime

SIMPLE = declare({"id": "string"}, [columns("p", {"name": "string", "age": "int32"}), cells("e", ["click"])])
LONG = declare({"who": "string", "n": "int64"}, [columns("p", {"v": "string"})])
BYTES = declare({"id": "binary"}, [columns("p", {"v": "string"})])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id string", {"id": "string"}),
        ("a int32,b string not null", {"a": "int32", "b": "string not null"}),
        (
            'a decimal(5, 2) default 1, b struct<x: int32, y: map<string, int8>>, c string default "x, y"',
            {
                "a": "decimal(5, 2) default 1",
                "b": "struct<x: int32, y: map<string, int8>>",
                "c": 'string default "x, y"',
            },
        ),
        ("`odd, name` string, `a``b` int8", {"odd, name": "string", "a`b": "int8"}),
    ],
)
def test_columns(text: str, found: dict[str, str]) -> None:
    assert d.typed_columns(text, "--columns") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id", "column 'id' has no type; write id string"),
        ("a int32, a string", "column 'a' is there twice"),
        ("a int32,", "a name is missing"),
        (": int32", "does not begin with a name"),
    ],
)
def test_wrong_columns(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        d.typed_columns(text, "--columns")


def test_groups() -> None:
    assert d.by_group(["p: a struct<x: int32>", "`q r`:b int8"], "--columns", d.typed_columns, example="x") == [
        ("p", {"a": "struct<x: int32>"}),
        ("q r", {"b": "int8"}),
    ]
    assert d.cells_groups(["e: click, view", "all", "f: *"]) == [("e", ["click", "view"]), ("all", ["*"]), ("f", ["*"])]
    for text in ("a string", "", ": a string", "a struct<x: int32>"):
        with pytest.raises(InvalidArgument, match="begin with the group"):
            d.by_group([text], "--columns", d.typed_columns, example="p: a string")
    with pytest.raises(InvalidArgument, match="separate names by commas"):
        d.cells_groups(["e: click view"])
    with pytest.raises(InvalidArgument, match="given twice"):
        d.once_by_group(["p: a int8", "p: b int8"], "--add", d.typed_columns, example="p: a int8")


def test_keys_of_a_file_or_declared() -> None:
    assert d.key_names_or_types("a, b", "--key") == ["a", "b"]
    assert d.key_names_or_types("a string, b int8", "--key") == {"a": "string", "b": "int8"}
    with pytest.raises(InvalidArgument, match="has no type"):
        d.key_names_or_types("a string, b", "--key")


def test_renamings() -> None:
    assert d.renamings(["a=b", " c = d "], "--rename-column") == {"a": "b", "c": "d"}
    for text in ("a", "=b", "a="):
        with pytest.raises(InvalidArgument, match="--rename-column old=new"):
            d.renamings([text], "--rename-column")


@pytest.mark.parametrize(
    ("schema", "words", "key", "rest"),
    [
        (SIMPLE, ["ann", "x=1"], "ann", ["x=1"]),
        (SIMPLE, ["[1]"], "[1]", []),
        (SIMPLE, ['{"$binary": 1}'], '{"$binary": 1}', []),
        (LONG, ["ann", "7", "v=1"], ("ann", 7), ["v=1"]),
        (LONG, ['["ann", 7]', "v=1"], ("ann", 7), ["v=1"]),
        (LONG, ['{"N": 7, "who": "ann"}'], {"n": 7, "who": "ann"}, []),
        (BYTES, ["é"], "é".encode(), []),
        (BYTES, ['{"$binary": "AP8="}'], b"\x00\xff", []),
        (BYTES, ["{x}"], b"{x}", []),
    ],
)
def test_typed_keys(schema: Any, words: list[str], key: Any, rest: list[str]) -> None:
    assert typed_key(schema, words) == (key, rest)


@pytest.mark.parametrize(
    ("schema", "words", "message"),
    [
        (LONG, [], "which row? The key is who string, n int64"),
        (LONG, ["ann"], "the key has 2 parts (who string, n int64); given are 'ann'"),
        (LONG, ["ann", "x"], "key column 'n': 'x' is not a int64"),
        (LONG, ["ann", "1", "2"], "'2' is too much: the key is who, n"),
        (LONG, ['["ann"]'], "has 1 parts, the key has 2"),
        (LONG, ['["ann", 1, 2]'], "has 3 parts, the key has 2"),
        (LONG, ['{"x": 1}'], "'x' is no key column"),
        (LONG, ['["ann", "x"]'], "key column 'n': 'x' is not a int64"),
        (LONG, ["[1"], "is not JSON"),
    ],
)
def test_wrong_keys(schema: Any, words: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        only_key(schema, words)


def test_bounds() -> None:
    assert typed_bound(SIMPLE, None, "--start") is None
    assert typed_bound(SIMPLE, "[a", "--start") == "[a"
    assert typed_bound(LONG, "ann", "--start") == "ann"
    assert typed_bound(LONG, '["ann", 7]', "--start") == ("ann", 7)
    assert typed_bound(LONG, '["ann"]', "--start") == ("ann",)
    with pytest.raises(InvalidArgument, match="has 0 parts"):
        typed_bound(LONG, "[]", "--start")


def test_times() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert typed_at("117623699954860032") == 117623699954860032
    assert typed_at("2026-01-31T12:00:00Z") == at_datetime(moment)
    assert typed_at("2026-01-31 14:00:00+02:00") == at_datetime(moment)
    assert typed_at(None) is None
    for text, message in (
        ("2026-01-31", "has no time zone; write e.g. 2026-01-31T00:00:00Z"),
        ("now", "not a time"),
        ("9" * 50, "is not a txn"),
        ("-1", "not a time"),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(message)):
            typed_at(text)


def test_assignments() -> None:
    assert assignments(SIMPLE, ["name=a=b", "AGE=3", "click:x=1", "name2=z"]) == {
        "name": "a=b",
        "AGE": 3,
        "click:x": b"1",
        "name2": "z",
    }
    assert assignments(SIMPLE, ["name:=null", 'click:x:={"$binary": "AP8="}']) == {"name": None, "click:x": b"\x00\xff"}
    assert assignments(SIMPLE, ["name="]) == {"name": ""}
    for word, message in (
        ("age", "write column=value, or column:=JSON"),
        ("=3", "write column=value"),
        (":=3", "write column=value"),
        ("age=", "for NULL: age:=null"),
        ("age:=x", "is not JSON"),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(message)):
            assignments(SIMPLE, [word])
    with pytest.raises(InvalidArgument, match="given twice"):
        assignments(SIMPLE, ["age=1", "age=2"])


def test_names_with_commas() -> None:
    assert comma_listed(None) is None
    assert comma_listed(["a, b", "click:"]) == ["a", "b", "click:"]
    with pytest.raises(InvalidArgument, match="is empty"):
        comma_listed(["a,"])
