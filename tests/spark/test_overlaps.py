"""Files of tasks that knew nothing of each other: what stands twice among them is found, and one of it remains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest

import stelae
from stelae.model.errors import InvalidArgument
from tests.spark.by_hand import load_by_hand, with_options

_numbers = count()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path_factory.mktemp("store")) as database:
        yield database


@pytest.fixture
def table(db: stelae.Database) -> stelae.Table:
    groups = [stelae.columns("g", {"v": "int64"}), stelae.cells("c", families=["f"])]
    return db.create_table(f"t{next(_numbers)}", {"k": "int64"}, groups)


def part(keys: list[int], value: int | None) -> pa.Table:
    return pa.table({"k": keys, "v": pa.array([value] * len(keys), pa.int64())})


# The first file reaches around the second, so that the third meets it only by what lies before that.
PARTS = {
    "neighbours": [part([1, 2], 1), part([2, 3], 2)],
    "around": [part([0, 50, 100], 1), part([10, 20], 2), part([50, 60], 3)],
    "one row": [part([7], 1), part([7], 2)],
}


@pytest.mark.parametrize("name", list(PARTS))
def test_said_twice(db: stelae.Database, table: stelae.Table, name: str) -> None:
    parts = PARTS[name]
    latest = {key: number for number, each in enumerate(parts, 1) for key in each.column("k").to_pylist()}
    again = next(key for key, number in latest.items() if key in parts[0].column("k").to_pylist() and number > 1)
    with pytest.raises(InvalidArgument, match=f"1 row of the frame say again what another says, as of {again};"):
        load_by_hand(db, table._info.name, parts)
    assert table.count() == 0
    _, reports = load_by_hand(db, table._info.name, parts, with_options(duplicates="last"))
    assert sum(report.twice for report in reports) == 1
    assert {row["k"]: row["v"] for row in table.scan()} == latest
    # The last task is the one with the greatest number, whatever its rows are.
    load_by_hand(db, table._info.name, parts[::-1], with_options(duplicates="last", mode="overwrite"))
    assert {row["k"]: row["v"] for row in table.scan()} == latest | {again: 1}


def test_files_that_do_not_meet_stay_as_they_are(db: stelae.Database, table: stelae.Table) -> None:
    _, reports = load_by_hand(db, table._info.name, [part([1, 4], 1), part([2, 3], 2), part([9], 3)])
    assert sum(report.twice for report in reports) == 0
    assert table.stats().files == 3
    assert [row["k"] for row in table.scan()] == [1, 2, 3, 4, 9]


def test_each_column_across_tasks(db: stelae.Database, table: stelae.Table) -> None:
    """With nulls left out, the latest task that writes the column."""
    options = with_options(duplicates="last", nulls="skip")
    load_by_hand(db, table._info.name, [part([1, 2], 5), part([1], None)], options)
    assert {row["k"]: row["v"] for row in table.scan()} == {1: 5, 2: 5}


def test_different_cells_of_a_row(db: stelae.Database, table: stelae.Table) -> None:
    cells = pa.map_(pa.string(), pa.binary())
    first = pa.table({"k": [1], "f": pa.array([[("p", b"1"), ("q", b"1")]], cells)})
    second = pa.table({"k": [1], "f": pa.array([[("r", b"2")]], cells)})
    load_by_hand(db, table._info.name, [first, second])
    found = table.get(1, columns=["f:"])
    assert found is not None
    assert dict(found) == {"k": 1, "f:p": b"1", "f:q": b"1", "f:r": b"2"}
    with pytest.raises(InvalidArgument, match="as of 1;"):
        load_by_hand(db, table._info.name, [first, first])
