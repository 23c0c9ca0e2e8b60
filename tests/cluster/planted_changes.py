"""Bugs that are planted in the changes of many tablets, one at a time, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

from stelae.master.changes import coordinator
from stelae.master.changes.coordinator import ChangeCoordinator
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import Metastore
from stelae.registry.changes.sessions import ChangeSession, committed, raised, read_session
from stelae.tserver.changes import ShardChanges
from tests.cluster.planted import Planted


def _read_on_without_floor() -> AbstractContextManager[Any]:
    async def learn(store: Metastore, table: TableId, id_: str, at: Txn, _: Txn) -> ChangeSession | None:
        held = await read_session(store, table, id_)
        if held is None or not held.session.is_open:
            return None if held is None else held.session
        return raised(held.session, at)

    return mock.patch("stelae.tserver.changes.learn", learn)


def _not_above_the_floor() -> AbstractContextManager[Any]:
    def commit(session: ChangeSession, attempt: int, prepared: Sequence[Txn], last: Txn, now: Txn) -> ChangeSession:
        found = committed(msgspec.structs.replace(session, floor=TXN_MIN), attempt, prepared, last, now)
        return msgspec.structs.replace(found, floor=session.floor)

    return mock.patch.object(coordinator, "committed", commit)


def _not_above_what_was_prepared() -> AbstractContextManager[Any]:
    def commit(session: ChangeSession, attempt: int, prepared: Sequence[Txn], last: Txn, now: Txn) -> ChangeSession:
        return committed(session, attempt, (), last, Txn(min((*prepared, now)) - 1))

    return mock.patch.object(coordinator, "committed", commit)


def _answered_before_saved() -> AbstractContextManager[Any]:
    right = ShardChanges._prepare

    def prepare(self: ShardChanges, *args: Any) -> Any:
        with mock.patch.object(self._upkeep, "save"):
            return right(self, *args)

    return mock.patch.object(ShardChanges, "_prepare", prepare)


def _forgotten_early() -> AbstractContextManager[Any]:
    right = ChangeCoordinator._tell_server

    async def tell(self: ChangeCoordinator, *args: Any) -> bool:
        await right(self, *args)
        return True

    return mock.patch.object(ChangeCoordinator, "_tell_server", tell)


PLANTED_CHANGES = [
    Planted("read-on-without-floor", "whoever is in doubt reads on", 54, 400, _read_on_without_floor),
    Planted("not-above-the-floor", "a change happens below what readers were promised", 0, 100, _not_above_the_floor),
    Planted("not-above-prepared", "a change happens before it was prepared", 29, 400, _not_above_what_was_prepared),
    Planted("answered-before-saved", "it is prepared, and no config says so", 29, 100, _answered_before_saved),
    Planted("forgotten-early", "a record is deleted though a server has it prepared", 1, 100, _forgotten_early),
]
