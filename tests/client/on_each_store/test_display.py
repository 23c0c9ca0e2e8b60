"""Scans as other libraries take them, what notebooks show, and times in messages."""

from __future__ import annotations

import re
import sys
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import stelae
from stelae.service.deadlines import Deadline
from tests.client.on_each_store.worlds import put_before


@pytest.fixture
def filled(users: stelae.Table) -> stelae.Table:
    users.put_many([{"id": f"u{n:03d}", "name": f"<b>{n}</b>", "age": n} for n in range(50)])
    users.put({"id": "u000", "click:home": b"1"})
    return users


def test_other_libraries_take_a_scan_as_it_is(filled: stelae.Table) -> None:
    scan = filled.scan(stelae.col("age") < 10, columns=["age"])
    assert pa.table(scan) == scan.to_arrow()
    assert pl.DataFrame(scan).height == 10
    assert pa.RecordBatchReader.from_stream(scan).read_all().num_rows == 10


def test_a_notebook_shows_rows(filled: stelae.Table) -> None:
    row = filled.get("u000")
    assert row is not None
    shown = row._repr_html_()
    assert "<td>name</td><td>&lt;b&gt;0&lt;/b&gt;</td>" in shown
    assert "<td>score</td><td>NULL</td>" in shown
    assert re.search(r"<caption>Row at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z \(txn \d+\)", shown)


def test_a_notebook_shows_the_first_rows_of_a_scan(filled: stelae.Table) -> None:
    shown = filled.scan(columns=["name", "age"])._repr_html_()
    assert shown.count("<tr>") == 21
    assert "the first 20 rows" in shown
    assert "&lt;b&gt;3&lt;/b&gt;" in shown
    assert "3 rows" in filled.scan(limit=3)._repr_html_()
    assert "0 rows" in filled.scan(prefix="nobody")._repr_html_()
    assert "<table>" in filled._repr_html_()


def test_errors_say_when_and_what_to_do(db: stelae.Database, filled: stelae.Table) -> None:
    row = filled.get("u001")
    assert row is not None
    before = db.now()
    filled.put({"id": "u001", "age": 2})
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z \(txn \d+\)"
    with pytest.raises(stelae.Conflict, match=rf"changed at {time}, after {time}; read it again"):
        filled.put({"id": "u001", "age": 3}, if_unchanged_since=row.txn)
    filled.compact(erase_now=True)
    words = rf"the snapshot of {time} is older .* begins at {time}: read at a newer"
    with pytest.raises(stelae.SnapshotTooOld, match=words):
        filled.get("u001", at=before)


class Silent:
    """A store that answers nothing, and notes until when it might have."""

    place, is_local = "somewhere", False

    def __init__(self) -> None:
        self.asked: list[tuple[str, Deadline | None]] = []

    def __getattr__(self, name: str) -> Any:
        def ask(*_: object, deadline: Deadline | None = None) -> None:
            self.asked.append((name, deadline))
            raise stelae.DeadlineExceeded("nobody answers")

        return ask


def test_what_is_shown_waits_for_nobody(db: stelae.Database, filled: stelae.Table) -> None:
    answering = db._session.backend
    silent: Any = Silent()
    db._session.backend = silent
    shown = [repr(filled), filled._repr_html_(), repr(db), db._repr_html_()]
    db._session.backend = answering
    assert [name for name, _ in silent.asked] == ["info", "info", "names", "names"], "each is asked once"
    assert all(deadline is not None and deadline.seconds <= 1 for _, deadline in silent.asked)
    assert "tablets" not in shown[0]
    assert "name string" in shown[0]
    assert "<caption>users</caption>" in shown[1]
    assert "not answering now" in shown[2]
    assert "not answering now" in shown[3]
    assert "3 tablets" in repr(filled)


def test_what_is_shown_has_one_deadline(db: stelae.Database, filled: stelae.Table) -> None:
    asked: list[Deadline | None] = []
    backend: Any = put_before(db)

    def noting(plain: Any) -> Any:
        def ask(*args: Any, deadline: Deadline | None = None) -> Any:
            asked.append(deadline)
            return plain(*args, deadline=deadline)

        return ask

    backend.info, backend.stats = noting(backend.behind.info), noting(backend.behind.stats)
    assert "3 tablets" in repr(filled)
    assert "3 tablets" in filled._repr_html_()
    assert asked[0] is asked[1]
    assert asked[2] is asked[3]


def test_one_is_not_many(db: stelae.Database) -> None:
    table = db.create_table("t", {"id": "string"}, [stelae.cells("c")])
    table.put({"id": "a"})
    shown = [repr(table), table._repr_html_(), repr(db), db._repr_html_(), repr(db.describe("t"))]
    shown.append(table.scan()._repr_html_())
    assert [found for text in shown for found in re.findall(r"\b1 (tables|tablets|rows)\b", text)] == []


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named(
    filled: stelae.Table, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(stelae.InvalidArgument, match=f"{library} is not installed: pip install {library}"):
        getattr(filled.scan(), f"to_{library}")()


def test_a_scan_shows_what_was_asked_and_when(filled: stelae.Table) -> None:
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z \(txn \d+\)"
    for scan, asked in (
        (filled.scan(), "all rows"),
        (filled.scan(stelae.col("age") > 3, columns=["name"], limit=2), "age > 3, columns=['name'], limit=2"),
        (filled.scan("age > 3", prefix="u", reverse=True), "age > 3, prefix='u', reverse=True"),
    ):
        assert re.fullmatch(rf"<Scan of 'users' at {time}: {re.escape(asked)}>", repr(scan))
        assert f": {asked.replace('>', '&gt;').replace(chr(39), '&#x27;')}&gt;; " in scan._repr_html_()


def test_a_batch_shows_how_much_waits(filled: stelae.Table) -> None:
    batch = filled.batch(seconds_max=1_000)
    batch.put({"id": "u900"})
    assert repr(batch) == "<Batch of 'users': 1 change not written yet>"
    batch.close()
    assert repr(batch) == "<Batch of 'users': closed>"


def test_a_conflict_names_the_row_once(filled: stelae.Table) -> None:
    row = filled.get("u001")
    assert row is not None
    filled.put({"id": "u001", "age": 2})
    with pytest.raises(stelae.Conflict) as caught:
        filled.put({"id": "u001", "age": 3}, if_unchanged_since=row.txn)
    assert str(caught.value).count("u001") == 1
