"""What `compact(erase_now=True)` promises: what is erased or purged is in no file of the store afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.spark.jobs.compacting import _merge
from tests.client.places import Place

SECRET = b"SECRETSECRETSECRET"
ROW = {"id": "a", "s": SECRET, "f:q": SECRET}
NEW = {"id": "a", "s": b"new", "f:q": b"new"}
OLD_US = 2 * 3_600 * 1_000_000
"""So long ago is older than an hour."""
Work = Callable[[stelae.Database, stelae.Table], object]


def files_with_secrets(path: Path) -> list[str]:
    files = [each for each in path.rglob("*") if each.is_file()]
    return [str(each.relative_to(path)) for each in files if SECRET in each.read_bytes()]


def make_table(db: stelae.Database, purge: str | None = None) -> stelae.Table:
    db.create_table("other", {"id": "string"}, [stelae.columns("g", {"s": "binary"})]).put({"id": "x"})
    groups = [
        stelae.columns("g", {"s": "binary", "n": "int64"}, purge=purge, compression="none"),
        stelae.cells("c", ["f"], purge=purge, compression="none"),
    ]
    return db.create_table("t", {"id": "string"}, groups)


def put_old(_: stelae.Database, table: stelae.Table) -> None:
    table.put(ROW, ts=time.time_ns() // 1_000 - OLD_US)
    table.put({"id": "b"})


def put_many(_: stelae.Database, table: stelae.Table) -> None:
    """In columnar blocks, and twice."""
    for value in (SECRET, b"new"):
        table.put_many([{"id": f"{number:05}", "s": value} for number in range(2_000)])


def put(row: dict[str, Any], ts: int | None = None) -> Work:
    return lambda _, table: table.put(row, ts=ts)


def erase(columns: list[str] | None = None, versions: list[int] | None = None) -> Work:
    return lambda _, table: table.erase("a", columns, versions=versions)


def alter(**changes: Any) -> Work:
    return lambda db, _: db.alter_table("t", **changes)


def flush(_: stelae.Database, table: stelae.Table) -> None:
    table.flush()


def split(_: stelae.Database, table: stelae.Table) -> None:
    table.split("m")


def join(db: stelae.Database, _: stelae.Table) -> None:
    backend: Any = db._session.backend
    backend.join(backend.find("t").id, b"m")


B = put({"id": "b"})
Z = put({"id": "z", "s": b"1"})
CASES: dict[str, tuple[str | None, list[Work]]] = {
    "erased": (None, [put(ROW), erase()]),
    "flushed, erased": (None, [put(ROW), flush, erase()]),
    "erased, flushed": (None, [put(ROW), erase(), flush]),
    "compacted, erased": (None, [put(ROW), B, lambda _, t: t.compact(), erase(), flush]),
    "overwritten": ("max-history=1", [put(ROW), put(NEW)]),
    "overwritten, flushed": ("max-history=1", [put(ROW), put(NEW), flush]),
    "flushed, overwritten": ("max-history=1", [put(ROW), flush, put(NEW)]),
    "many overwritten": ("max-history=1", [put_many, flush]),
    "of age": ("max-age=1h", [put_old]),
    "of age, flushed": ("max-age=1h", [put_old, flush]),
    "of age, compacted": ("max-age=1h", [put_old, lambda _, t: t.compact()]),
    "of age or number": ("max-age=1h or max-history=3", [put_old, flush]),
    "policy given later": (None, [put_old, flush, alter(purge={"g": "max-age=1h", "c": "max-age=1h"})]),
    "truncated": (None, [put(ROW), flush, lambda db, _: db.truncate_table("t")]),
    "column dropped": (None, [put(ROW), B, flush, erase(["f:"]), alter(drop=["s"])]),
    "family dropped": (
        None,
        [put(ROW), flush, erase(["s"]), alter(add_families={"c": ["f2"]}), alter(drop_families=["f"])],
    ),
    "group dropped": (None, [put(ROW), flush, erase(["s"]), alter(drop_groups=["c"])]),
    "one version": (None, [put(ROW, 5), put(NEW, 7), erase(["s", "f:q"], [5])]),
    "split, erased": (None, [put(ROW), Z, flush, split, erase()]),
    "erased, split": (None, [put(ROW), Z, flush, erase(), split]),
    "split and joined": (None, [put(ROW), Z, flush, split, erase(), join]),
    "moved": (
        None,
        [put(ROW), flush, alter(add_groups=[stelae.columns("h", {"k": "int64"})]), alter(move={"h": ["s"]}), erase()],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_gone_is_in_no_file(place: Place, case: str) -> None:
    purge, steps = CASES[case]
    with place.open(timeout_s=30) as db:
        table = make_table(db, purge)
        for step in steps:
            step(db, table)
        shown = (table.get("a"), list(table.scan()))
        assert table.compact(erase_now=True) == ()
        assert (table.get("a"), list(table.scan())) == shown
        assert files_with_secrets(place.files) == []
    assert files_with_secrets(place.files) == []


def test_what_is_seen_stays(place: Place) -> None:
    with place.open(timeout_s=30) as db:
        table = make_table(db)
        table.put(ROW)
        table.put(NEW)
        assert table.compact(erase_now=True) == ()
        assert [each.value for each in table.history("a")["s"]] == [b"new", SECRET]


def test_who_still_has_it_is_named(place: Place) -> None:
    with place.open(timeout_s=30) as db:
        table = make_table(db)
        table.put(ROW)
        with db.snapshot() as snapshot:
            hold = db._session.backend.hold(db._session.backend.find("t").id)
            table.erase("a")
            kept = table.compact(erase_now=True)
            assert len(kept) == 2
            assert kept[0].startswith("the snapshot of 20")
            assert hold.ticket in kept[1]
            assert table.get("a", at=snapshot) == ROW | {"n": None}
        db._session.backend.release(hold.ticket)
        assert table.compact(erase_now=True) == ()
        assert files_with_secrets(place.files) == []


def test_files_that_others_are_merging_are_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.open(timeout_s=30) as db:
        table = make_table(db)
        table.put(ROW)
        table.flush()
        table.erase("a")
        table.flush()
        backend: Any = db._session.backend
        info = backend.find("t")
        ticket = backend.begin_compaction(info.id)
        assert ticket.works
        by_hand = backend.server._by_hand
        plain = by_hand._waiting.wait
        naps: list[float] = []

        def wait(seconds: float) -> bool:
            if not naps:
                backend.release(ticket.ticket)
            naps.append(seconds)
            return bool(plain(0))

        monkeypatch.setattr(by_hand._waiting, "wait", wait)
        assert table.compact(erase_now=True) == ()
        assert naps
        assert backend.newest(info.id, b"a", ALL_COLUMNS)[1] is None
        assert files_with_secrets(place.files) == []


def test_a_job_that_erases_leaves_nothing_either(place: Place) -> None:
    """The parts of a compaction that others carry out, here by hand."""
    with place.open(timeout_s=30) as db:
        table = make_table(db, "max-history=1")
        put_many(db, table)
        table.put(ROW)
        table.put(NEW)
        backend: Any = db._session.backend
        ticket = backend.begin_compaction(backend.find("t").id, full=False, erase_now=True)
        assert ticket.kept_by == ()
        assert ticket.works
        for work in ticket.works:
            assert backend.adopt(ticket.ticket, work.number, _merge(ticket, work).file)
        backend.release(ticket.ticket)
        assert table.get("a") == NEW | {"n": None}
        assert files_with_secrets(place.files) == []


@pytest.mark.parametrize("partition", ["range", "hash"])
def test_a_key_that_was_erased_is_no_boundary_that_the_store_chose(place: Place, partition: Any) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    with place.open() as db:
        columns = stelae.columns("g", {"v": "int64"}, compression="none")
        table = db.create_table("t", {"email": "string"}, [columns], partition=partition)
        table.put_many([{"email": f"{a}{b}-{SECRET.decode()}", "v": 1} for a in letters for b in letters])
        table.split()
        table.flush()
        table.split()
        assert len(table.tablets()) == 3
        for row in [row["email"] for row in table.scan()]:
            table.erase(row)
        assert table.compact(erase_now=True) == ()
    assert files_with_secrets(place.files) == []


def test_a_key_that_was_erased_and_is_a_boundary_is_named(place: Place) -> None:
    with place.open() as db:
        table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})], splits=["m"])
        table.put_many([{"id": "ann"}, {"id": "bob"}, {"id": "zoe"}])
        table.split("bob")
        assert table.compact(erase_now=True) == ()
        table.erase("bob")
        (told,) = table.compact(erase_now=True)
        assert "begins at the key of a row that is gone" in told
        assert "bob" in told
