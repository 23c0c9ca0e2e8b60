"""Which columns are meant, and what a row has that has none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stelae


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stelae.Table]:
    with stelae.open(tmp_path_factory.mktemp("choices")) as db:
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
        ('column ~= "Click:"', ["k"], [{"k": "c"}]),
        ('column = "k"', ["v"], [{"k": "v"}]),
        ('column = "k"', None, [{"k": "c"}, {"k": "o"}, {"k": "v"}]),
        ('column ~= "" ', ["v"], [{"k": "v", "v": 1}]),
    ],
)
def test_a_row_without_the_columns_does_not_appear(
    table: stelae.Table, where: str, columns: list[str] | None, found: list[dict[str, Any]]
) -> None:
    assert list(table.scan(where, columns=columns)) == found
    assert table.scan(where, columns=columns).to_arrow().num_rows == len(found)
    rows = {row["k"]: row for row in table.scan(columns=columns)}
    assert [table.get(key, columns=columns) for key in "cov"] == [rows.get(key) for key in "cov"]


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
    assert list(table.scan(where)) == found


def test_the_case_of_the_wildcards_families_counts(table: stelae.Table) -> None:
    assert table.get("o", columns=["OTHER:"]) is None
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
