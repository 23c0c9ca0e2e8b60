"""Whoever leads changes of a table to their end: no two of them happen at one txn, whichever masters decide them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stelae.master.changes.coordinator import FLOOR_AHEAD_MS, ChangeCoordinator
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.ranges import ALL_ROWS
from stelae.ports.metastore import Metastore
from stelae.registry.changes.asking import ChangeReport, ChangeRequest, PrepareChange
from stelae.registry.changes.decisions import read_decided
from stelae.registry.changes.sessions import (
    TRUNCATION,
    ChangeKind,
    ChangeSession,
    ChangeState,
    begin_session,
    change_id,
    learn,
    read_session,
)
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.tickets import LoadedFile
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.process import ProcessClock
from stelae.sim.rng import SimRng
from tests.tserver.boxes import FewTables

TABLE = TableId(100)
MASTERS = 4


class _ReadAtOnce:
    """One server that has the whole table, and is read at one snapshot when all have prepared their changes there: the
    floor of each is raised to it."""

    def __init__(self, store: Metastore, snapshot: Txn) -> None:
        self._store = store
        self._snapshot = snapshot
        self._prepared = asyncio.Barrier(MASTERS)

    def records(self, table: TableId) -> Sequence[TabletRecord]:
        return [TabletRecord(TabletId(1), table, ALL_ROWS, TabletPhase.RUNNING, "s")]

    async def ask_change(
        self,
        server: str,
        request: ChangeRequest,
        files: Sequence[LoadedFile] = (),
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        if not isinstance(request, PrepareChange):
            return ChangeReport(server, is_held=False)
        await self._prepared.wait()
        await learn(self._store, request.table, request.id, self._snapshot, self._snapshot)
        return ChangeReport(server, is_held=True, rows=(ALL_ROWS,), at=Txn(1))


@pytest.mark.parametrize("seed", range(8))
def test_changes_with_one_floor_happen_at_different_txns_though_masters_know_nothing_of_each_other(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        metastore, clock = SimMetastoreServer(loop, SimRng(seed)), ProcessClock(loop)
        snapshot = pack(clock.wall_ms() + 4 * FLOOR_AHEAD_MS)
        server = _ReadAtOnce(metastore.client("s"), snapshot)

        async def change(number: int) -> ChangeSession:
            store, time = metastore.client(f"m{number}"), HybridClock(clock.wall_ms)
            coordinator = ChangeCoordinator(store, server, FewTables("t").info, clock, time)
            id_ = change_id(TRUNCATION, TABLE, f"{number:02x}")
            await begin_session(store, ChangeSession(id_, TABLE, ChangeKind.TRUNCATE, 2**62))
            held = await read_session(store, TABLE, id_)
            assert held is not None
            return await coordinator.commit(held, ChangeKind.TRUNCATE, ())

        done = await asyncio.gather(*(change(number) for number in range(MASTERS)))
        assert all(each.state is ChangeState.COMMITTED for each in done)
        assert sorted(each.txn for each in done) == [snapshot + 1 + number for number in range(MASTERS)]
        last, _ = await read_decided(metastore.client("judge"), TABLE)
        assert last == max(each.txn for each in done)

    simulate(main, seed)
