"""Compaction on Spark: the same content before and after, whatever goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import stelae
from stelae.spark.jobs.compacting import CompactionResult, compact
from tests.effort import HANG_S
from tests.spark.tickets import Tickets, interrupting

ROWS = 300


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    """Three tablets of two groups, each of several files: updates, erasures, old times, rows that only exist."""
    users = db.create_table(
        "users",
        key={"id": "int64"},
        groups=[
            stelae.columns("profile", {"name": "string", "age": "int32"}, purge="max-history=2"),
            stelae.cells("events", families=["click"]),
        ],
        splits=[100, 200],
    )
    for turn in range(3):
        users.put_many([{"id": i, "name": f"{turn}-{i}", "click:home": b"%d" % turn} for i in range(turn, ROWS)])
        users.put_many([{"id": i, "age": turn} for i in range(0, ROWS, 7)])
        users.flush()
    users.erase_many(range(0, ROWS, 11))
    users.put({"id": 11, "name": "of old"}, ts=5)
    users.erase(12, columns=["click:"])
    users.put({"id": ROWS})
    return users


def content(table: stelae.Table, at: int | None = None) -> pa.Table:
    return table.scan(at=at).to_arrow()


def histories(table: stelae.Table) -> list[Any]:
    return [table.history(key, limit=5) for key in (0, 7, 11, 12, 150, 299, 300)]


def test_the_same_before_and_after_while_others_write(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    tickets, ended, began = Tickets(db), Event(), Event()

    def write() -> list[int]:
        written: list[int] = []
        while not ended.is_set():
            key = 1_000 + len(written)
            users.put({"id": key, "name": str(key)})
            written.append(key)
            began.set()
        return written

    with db.snapshot() as then, ThreadPoolExecutor(1) as pool:
        before, past = content(users, then.txn), histories(users)
        writing = pool.submit(write)
        assert began.wait(HANG_S)
        try:
            told: list[tuple[int, int]] = []
            result = compact(spark, db, "users", progress=lambda *each: told.append(each))
        finally:
            ended.set()
        assert content(users, then.txn).equals(before)
        assert histories(users) == past
        written = writing.result()
    assert users.count(start=1_000) == len(written)
    assert users.get(written[-1]) == {"id": written[-1], "name": str(written[-1]), "age": None}
    assert (result.works, result.refused, result.files_after) == (6, 0, 6)
    assert result.files_before > 6
    assert result.bytes_after < result.bytes_before == told[-1][0] == told[-1][1]
    assert tickets.out == set()
    assert db.check().problems == ()
    assert f"files    {result.files_before} -> 6" in str(result)


def test_what_is_erased_goes(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    before = content(users)
    compact(spark, db, "users", erase_now=True)
    assert users.stats().erasures == 0
    assert content(users).equals(before)
    again = compact(spark, db, "users")
    assert again.works == 0
    assert str(again) == "table users: nothing to compact"


def test_what_is_worth_it(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    users.compact()
    users.put({"id": 1, "name": "one more"})
    assert compact(spark, db, "users", full=False).works == 0
    assert compact(spark, db, "users").works > 0


@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupt_leaves_the_store_as_it_was(
    spark: Any, db: stelae.Database, users: stelae.Table, after: int
) -> None:
    tickets, before, past = Tickets(db), content(users), histories(users)
    with pytest.raises(KeyboardInterrupt):
        compact(spark, db, "users", progress=interrupting(after))
    assert (tickets.out, tickets.given) == (set(), 1)
    assert content(users).equals(before)
    assert histories(users) == past
    assert db.check().problems == ()
    assert compact(spark, db, "users").refused == 0
    assert content(users).equals(before)


def test_a_tablet_that_changed_too_much_refuses(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    before = content(users)
    cuts = [50]

    def split(_done: int, _total: int) -> None:
        if cuts:
            users.split(cuts.pop())

    result = compact(spark, db, "users", progress=split)
    assert result.refused == 2
    assert "6, 2 of no use any more" in str(result)
    assert content(users).equals(before)
    assert db.check().problems == ()


def test_wrong_tables(spark: Any, db: stelae.Database, users: stelae.Table) -> None:
    with pytest.raises(stelae.NotFound, match="did you mean 'users'"):
        compact(spark, db, "user")
    with pytest.raises(stelae.InvalidArgument, match="not a database"):
        compact(spark, "users", "users")  # type: ignore[arg-type]
    assert CompactionResult("t", seconds=75.0, works=1).summary.facts[-1] == ("time", "1 min 15 s")
