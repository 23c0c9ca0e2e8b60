"""What is known of jobs that have loaded something, and for how long."""

from __future__ import annotations

import asyncio

from stelae.model.ids import TableId, Txn
from stelae.registry.bulk_sessions import DONE_KEPT_MS, Attempt, LoadRecord, forget_jobs, read_loads, write_load
from stelae.registry.views.own import OwnWhole
from stelae.sim.effects import Effects
from stelae.sim.metastore_state import MetastoreState
from tests.machines import PlainMetastore

HERE, GONE = TableId(16), TableId(17)
NOW_MS = 10 * DONE_KEPT_MS


def test_jobs_are_forgotten_with_their_table_or_long_after_they_were_done() -> None:
    old_ms = NOW_MS - DONE_KEPT_MS - 1
    attempt = Attempt("a", 1, "p", 1, 0)  # type: ignore[arg-type]
    done = LoadRecord(HERE, "done", NOW_MS - DONE_KEPT_MS, 3, "t", Txn(5))
    changing = LoadRecord(HERE, "changing", old_ms, 3, "t", Txn(5), session="load-1")
    attempted = LoadRecord(HERE, "attempted", old_ms, 3, "t", Txn(5), attempt)
    old = LoadRecord(HERE, "old", old_ms, 3, "t", Txn(5))
    dropped = LoadRecord(GONE, "dropped", NOW_MS, 3, "t", Txn(5), session="load-2")

    async def run() -> None:
        store = OwnWhole(PlainMetastore(MetastoreState(), Effects()))
        for record in (done, changing, attempted, old, dropped):
            await write_load(store, record)
        assert await forget_jobs(store, lambda table: table == HERE, NOW_MS) == 2
        assert {record.job for record in await read_loads(store)} == {"done", "changing", "attempted"}
        assert await forget_jobs(store, lambda table: table == HERE, NOW_MS) == 0

    asyncio.run(run())
