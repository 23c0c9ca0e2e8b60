"""Which columns are meant, and what a row has that has none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stelae
from tests.client.places import Place


@pytest.fixture(scope="module")
def table(shared_place: Place) -> Iterator[stelae.Table]:
    with shared_place.open() as db:
        yield filled(db)


def filled(db: stelae.Database) -> stelae.Table:
    groups = [
        stelae.columns("values", {"v": "int64", "Wide": "int64"}),
        stelae.cells("declared", families=["Click"]),
        stelae.cells("others", families=["*"]),
    ]
    made = db.create_table("choices", key={"k": "string"}, groups=groups)
    made.put({"k": "v", "v": 1})
    made.put({"k": "c", "Click:x": b"1"})
    made.put({"k": "o", "other:x": b"2", "Other:x": b"3"})
    return made


@pytest.mark.parametrize(
    "where, columns, found",
    [
        ('column ~= "Click:"', ["v"], []),
        ('column = "v"', ["Wide"], []),
        ('column = "v" and column = "Wide"', None, []),
        ('column = "v"', ["v", "Wide"], [{"k": "v", "v": 1}]),
        ('column ~= "Click:"', ["k"], [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ('column = "k"', ["v"], [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ('column = "k"', None, [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ('column ~= "" ', ["v"], [{"k": "v", "v": 1}]),
    ],
)
def test_rows_having_one_of_the_columns(
    table: stelae.Table, where: str, columns: list[str] | None, found: list[dict[str, Any]]
) -> None:
    """Every row has its key."""
    assert list(table.scan(where, columns=columns, rows="having")) == found
    assert table.scan(where, columns=columns, rows="having").to_arrow().num_rows == len(found)
    rows = {row["k"]: row for row in table.scan(columns=columns, rows="having")}
    assert [table.get(key, columns=columns, rows="having") for key in "cov"] == [rows.get(key) for key in "cov"]
    assert table.get_many(list("cov"), columns=columns, rows="having") == [rows.get(key) for key in "cov"]


@pytest.mark.parametrize(
    "where, columns, found",
    [
        ('column ~= "Click:"', ["v"], [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ('column = "v"', None, [{"k": "c", "v": None}, {"k": "o", "v": None}, {"k": "v", "v": 1}]),
        (None, ["Click:"], [{"k": "c", "Click:x": b"1"}, {"k": "o"}, {"k": "v"}]),
        (None, ["Other:"], [{"k": "c"}, {"k": "o", "Other:x": b"3"}, {"k": "v"}]),
        (None, ["k"], [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ("v is null", ["v"], [{"k": "c", "v": None}, {"k": "o", "v": None}]),
        ("v is null", ["Wide"], [{"k": "c", "Wide": None}, {"k": "o", "Wide": None}]),
        ("v = 1", ["Click:"], [{"k": "v"}]),
        ("not v = 1", ["Click:"], []),
        ("`Click:x` is null", ["v"], [{"k": "o", "v": None}, {"k": "v", "v": 1}]),
        ("v is null or k = 'v'", ["Wide"], [{"k": key, "Wide": None} for key in "cov"]),
    ],
)
def test_columns_choose_what_is_shown_and_not_which_rows(
    table: stelae.Table, where: str | None, columns: list[str] | None, found: list[dict[str, Any]]
) -> None:
    assert list(table.scan(where, columns=columns)) == found
    assert list(table.scan(where, columns=columns, reverse=True)) == found[::-1]
    assert list(table.scan(where, columns=columns, limit=2)) == found[:2]
    assert table.count(where) == len(found)
    rows, token = table.scan(where, columns=columns).page(1)
    while token:
        more, token = table.scan(where, columns=columns, after=token).page(1)
        rows += more
    assert rows == found
    if where is None:
        assert [table.get(key, columns=columns) for key in "cov"] == found
        assert table.get_many(list("covx"), columns=columns) == [*found, None]


@pytest.mark.parametrize("rows", ["some", "hving", None, True])
def test_rows_that_cannot_be_are_told(table: stelae.Table, rows: Any) -> None:
    for read in (lambda **given: table.get("c", **given), table.scan):
        with pytest.raises(stelae.InvalidArgument, match="rows= is 'all' or 'having'"):
            read(rows=rows)
    with pytest.raises(stelae.InvalidArgument, match="rows= is 'all' or 'having'"):
        table.get_many(["c"], rows=rows)


def test_what_equals_a_default_was_written_or_not(place: Place) -> None:
    """Only versions tell: a row has a column if NULL or its default was written."""
    with place.open() as db:
        groups = [stelae.columns("a", {"d": "int64 default 7", "n": "int64"}), stelae.columns("b", {"x": "int64"})]
        table = db.create_table("t", key={"k": "string"}, groups=groups)
        table.put_many([{"k": "default", "d": 7}, {"k": "null", "n": None}])
        table.put({"k": "other", "x": 1})
        table.put({"k": "key"})
        keys = ["default", "key", "null", "other"]
        for _ in range(2):
            every = [{"k": key, "d": 7} for key in keys]
            assert list(table.scan(columns=["d"])) == table.get_many(keys, columns=["d"]) == every
            having = [{"k": "default", "d": 7, "n": None}, {"k": "null", "d": 7, "n": None}]
            assert list(table.scan(columns=["d", "n"], rows="having")) == having
            found = table.get_many(keys, columns=["d", "n"], rows="having")
            assert found == [having[0], None, having[1], None]
            assert list(table.scan("x = 1", columns=["d"], rows="having")) == []
            assert list(table.scan("x = 1", columns=["d"])) == [{"k": "other", "d": 7}]
            assert list(table.scan("d = 7", columns=["x"], rows="having")) == [{"k": "other", "x": 1}]
            assert table.count("d = 7") == table.count("n is null") == 4
            table.flush()


@pytest.mark.parametrize(
    "where, found",
    [
        ('column ~= "cLICK:"', [{"k": "c", "Click:x": b"1"}]),
        ('column ~= "cLICK:X"', []),
        ('column ~= "cLIC:"', []),
        ('column ~= "CL"', [{"k": "c", "Click:x": b"1"}]),
        ('column = "click:x"', [{"k": "c", "Click:x": b"1"}]),
        ('column ~= "V"', [{"k": "v", "v": 1}]),
        ('column ~= "wI" and column ~= "WIDE"', []),
        ('column ~= "Other:"', [{"k": "o", "Other:x": b"3"}]),
        ('column ~= "ot"', [{"k": "o", "other:x": b"2"}]),
    ],
)
def test_the_case_of_declared_names_does_not_count(
    table: stelae.Table, where: str, found: list[dict[str, Any]]
) -> None:
    assert list(table.scan(where, rows="having")) == found


def test_the_case_of_the_wildcards_families_counts(table: stelae.Table) -> None:
    assert table.get("o", columns=["OTHER:"]) == {"k": "o"}
    assert table.get("o", columns=["OTHER:"], rows="having") is None
    assert table.get("o", columns=["Other:"]) == {"k": "o", "Other:x": b"3"}
    assert table.get("c", columns=["CLICK:"]) == {"k": "c", "Click:x": b"1"}


@pytest.mark.parametrize(
    "asked, names",
    [
        ({}, ["k", "v", "Wide", "Click", "*"]),
        ({"columns": ["click:"]}, ["k", "Click"]),
        ({"columns": ["Click:x", "v"]}, ["k", "v", "Click"]),
        ({"columns": ["other:x"]}, ["k", "*"]),
        ({"columns": ["v"]}, ["k", "v"]),
        ({"where": 'column ~= "Click:"'}, ["k", "Click"]),
        ({"where": 'column ~= "Click:" and history = 2'}, ["k", "Click"]),
        ({"where": 'column ~= "Clic"'}, ["k", "Click", "*"]),
    ],
    ids=str,
)
def test_the_wildcards_column_is_there_if_it_may_hold_what_was_asked_for(
    table: stelae.Table, asked: dict[str, Any], names: list[str]
) -> None:
    scan = table.scan(**asked)
    assert scan.schema.names == names
    assert [batch.schema.names for batch in scan.batches()] == [names]
    assert scan.to_arrow().column_names == names
