"""Statistics on Spark: exact counts by tablet, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import stelae
from stelae.spark.jobs.plots import Plotted, svg_of
from stelae.spark.jobs.statistics import stats
from tests.spark.tickets import Tickets, interrupting


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    groups = [stelae.columns("p", {"name": "string"}), stelae.cells("e", families=["click"])]
    users = db.create_table("users", key={"id": "string"}, groups=groups, splits=["m"])
    users.put_many([{"id": f"{letter}{i}", "name": "x"} for letter in "abz" for i in range(20)])
    users.put_many([{"id": f"a{i}", "name": "y", "click:a": b"1"} for i in range(5)])
    users.erase_many(["b0", "z0", "z1"])
    users.put({"id": "zz"})
    return users


def test_counts(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    tickets, told = Tickets(db), list[tuple[int, int]]()
    users.flush()
    users.split("b")
    result = stats(spark, db, "users", progress=lambda *each: told.append(each))
    assert [(t.begins, t.rows) for t in result.tablets] == [("", 20), ("b", 19), ("m", 19)]
    assert [t.rows for t in result.tablets] == [
        users.count(stop="b"),
        users.count(start="b", stop="m"),
        users.count(start="m"),
    ]
    # An erasure of a row is one record in each group.
    assert [t.erasures for t in result.tablets] == [0, 2, 4]
    assert [t.records for t in result.tablets] == [20 + 5 + 5, 20 + 2, 20 + 1 + 4]
    plain = users.stats()
    assert (result.records, result.erasures, result.files) == (plain.records, plain.erasures, plain.files)
    assert 0 <= plain.file_bytes - result.size_bytes < 10
    assert [round(t.versions_per_row, 2) for t in result.tablets] == [1.5, 1.05, 1.11]
    assert result.row_skew == pytest.approx(20 * 3 / 58)
    assert sum(result.share(t) for t in result.tablets) == pytest.approx(1)
    assert told[-1][0] == told[-1][1] > 0
    assert tickets.out == set()
    lines = str(result).splitlines()
    assert lines[1].split() == [
        "tablet",
        "from",
        "rows",
        "records",
        "versions/row",
        "erasures",
        "files",
        "size",
        "share",
    ]
    assert lines[3].split()[1:6] == ["b", "19", "22", "1.05", "2"]
    assert lines[5].split()[:4] == ["all", "58", "77", "1.22"]
    assert "<td>b</td><td>19</td>" in result._repr_html_()


def test_at_a_snapshot_and_of_nothing(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    then = db.now()
    users.erase_range(stop="~")
    assert stats(spark, db, "users", at=then).rows == 58
    assert stats(spark, db, "users").rows == 0
    db.create_table(
        "empty",
        key={"a": "int32", "b": "string"},
        groups=[stelae.columns("p", {"v": "int8"})],
        splits=[(7,), (9, "x" * 40)],
    )
    empty = stats(spark, db, "empty")
    assert (empty.rows, empty.records, empty.size_bytes, empty.row_skew, empty.versions_per_row) == (0, 0, 0, 1.0, 0.0)
    assert [t.begins for t in empty.tablets] == ["", "7", f"9, {'x' * 18}..."]
    with pytest.raises(stelae.NotFound, match="did you mean 'users'"):
        stats(spark, db, "user")
    tickets = Tickets(db)
    with pytest.raises(KeyboardInterrupt):
        stats(spark, db, "users", progress=interrupting(1))
    assert tickets.out == set()


def test_pictures(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    users.put({"id": "n<&", "name": "odd"})
    users.split("n<&")
    result = stats(spark, db, "users")
    result.plot(tmp_path / "users.svg")
    root = ElementTree.fromstring((tmp_path / "users.svg").read_text("utf-8"))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text is not None and text.endswith(": n<&") for text in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 9
    result.plot(str(tmp_path / "users.html"))
    page = (tmp_path / "users.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "<td>n&lt;&amp;</td>" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(stelae.InvalidArgument, match=r"ends in \.svg or \.html, not to 'users\.png'"):
        result.plot("users.png")


def test_a_picture_of_very_many_tablets() -> None:
    bars = [Plotted(str(number), number, number, 1.0) for number in range(1_000)]
    root = ElementTree.fromstring(svg_of("t", "w", bars))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "w; the 200 largest of 1,000 tablets" in texts
    assert "999" in texts
    assert "799" not in texts
    assert ElementTree.fromstring(svg_of("t", "w", [])) is not None
