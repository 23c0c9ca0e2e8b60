"""What goes by its age: as old as it is at the snapshot that is read, whoever reads it, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

import stelae
from stelae.adapters.executor import ThreadExecutor
from stelae.client.api.aio.table import AsyncTable
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.service.backend import Backend
from stelae.sim.rng import SimRng
from tests.assembly.worlds import Machine
from tests.client.on_each_store.worlds import put_before

POLICIES = ["max-age=1h", "max-history=5 or (max-history=9 or max-age=1h)"]


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine(1)
    yield made
    made.end("closed")


@pytest.fixture
def db(machine: Machine) -> Iterator[stelae.Database]:
    backend = cast(Backend, machine.open())
    with stelae.Database(Session(backend, Patience(machine.clock, SimRng(1), 10))) as database:
        yield database


@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_is_what_it_was_at_its_own_snapshot(machine: Machine, db: stelae.Database, policy: str) -> None:
    groups = [stelae.columns("g", {"v": "int64"}, purge=policy), stelae.columns("h", {"w": "int64"})]
    table = db.create_table("t", key={"k": "string"}, groups=groups)
    written = table.put({"k": "a", "v": 1, "w": 1})
    young = {"k": "a", "v": 1, "w": 1}
    assert table.get("a") == young
    machine.pass_s(3_601)  # nothing is written meanwhile
    for columns in (None, ["v"], ["w", "v"]):
        row = table.get("a", columns=columns)
        assert row == ({"k": "a", "v": None} if columns == ["v"] else {"k": "a", "v": None, "w": 1})
        assert row is not None
        assert table.get("a", columns=columns, at=row.txn) == row
        assert table.get_many(["a"], columns=columns) == [row]
        assert table.get_many(["a"], columns=columns, at=db.now()) == [row]
        assert table.get("a", columns=columns, rows="having") == (None if columns == ["v"] else row)
    (row,) = table.get_many(["a", "b"])[:1]
    assert row is not None
    assert table.get_many(["a"], at=row.txn) == [row]
    assert table.get("a", at=written) == young
    assert list(table.scan(at=row.txn)) == [row]


def test_a_row_is_what_it_was_in_an_event_loop_too(machine: Machine, db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64"}, purge="max-age=1h"), stelae.columns("h", {"w": "int64"})]
    plain = db.create_table("t", key={"k": "string"}, groups=groups)
    plain.put({"k": "a", "v": 1, "w": 1})
    machine.pass_s(3_601)
    executor = ThreadExecutor(1, 10)
    table = AsyncTable(AsyncSession(db._session, executor), plain._info)

    async def read() -> tuple[stelae.Row | None, stelae.Row | None]:
        row = await table.get("a")
        return row, await table.get("a", at=getattr(row, "txn", None))

    row, again = asyncio.run(read())
    executor.close()
    assert row == again == {"k": "a", "v": None, "w": 1}


def test_a_snapshot_that_is_dropped_under_a_read_is_taken_anew(db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64"}, purge="max-age=1h")]
    table = db.create_table("t", key={"k": "string"}, groups=groups)
    table.put({"k": "a", "v": 1})
    failing = put_before(db)
    failing.plans["newest"] = [stelae.SnapshotTooOld("dropped"), stelae.SnapshotTooOld("dropped")]
    failing.plans["newest_many"] = [stelae.SnapshotTooOld("dropped")]
    assert table.get("a") == {"k": "a", "v": 1}
    assert table.get_many(["a"]) == [{"k": "a", "v": 1}]
    assert (failing.calls["newest"], failing.calls["newest_many"]) == (3, 2)
    failing.plans["newest"] = [stelae.SnapshotTooOld("dropped")] * 3
    with pytest.raises(stelae.SnapshotTooOld):
        table.get("a", at=db.now())


def test_a_row_is_read_at_its_snapshot_and_not_at_the_time_it_is_read(machine: Machine, db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64"}, purge="max-age=1h")]
    table = db.create_table("t", key={"k": "string"}, groups=groups)
    written = table.put({"k": "a", "v": 1})
    machine.pass_s(3_601)
    failing: Any = put_before(db)
    failing.now = lambda *_, **__: written  # as if something had been on its way ever since
    failing.plans["newest"] = [stelae.SnapshotTooOld("not at once")]
    row = table.get("a")
    assert row is not None
    assert (row, row.txn) == ({"k": "a", "v": 1}, written)
