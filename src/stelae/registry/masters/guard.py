"""What a master that leads is known by, one metastore key:

    master/guard

It is written anew by every master that begins to lead, with a number that grows. Whatever a leading master changes on
the metastore compares it, and whatever it asks of servers carries the number: so a master that another one has followed
changes nothing any more, however long it slept, and however late what it sent arrives. The address is where the others
find it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from stelae.model.errors import Deposed
from stelae.ports.metastore import (
    Change,
    Compare,
    Entry,
    IsAbsent,
    LeaseId,
    Metastore,
    ModRevisionIs,
    RangeRead,
    Revision,
    TxnOutcome,
    WatchBatch,
)
from stelae.registry.decoding import json_of

GUARD_KEY = "master/guard"


class MasterGuard(msgspec.Struct, frozen=True):
    master: str
    number: int
    address: str

    @property
    def value(self) -> bytes:
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class HeldGuard:
    """A guard as the master has it that wrote it."""

    guard: MasterGuard
    revision: Revision

    @property
    def unchanged(self) -> Compare:
        return ModRevisionIs(GUARD_KEY, self.revision)


def guard_of(entry: Entry) -> MasterGuard:
    return json_of(entry, MasterGuard, "the master's guard")


async def read_guard(store: Metastore) -> MasterGuard | None:
    """None: no master has led yet."""
    entry = await store.get(GUARD_KEY)
    return None if entry is None else guard_of(entry)


def next_guard(entry: Entry | None, master: str, address: str) -> tuple[MasterGuard, Compare]:
    """Of the master that follows whoever wrote the entry; and what must hold when it is written."""
    if entry is None:
        return MasterGuard(master, 1, address), IsAbsent(GUARD_KEY)
    return MasterGuard(master, guard_of(entry).number + 1, address), ModRevisionIs(GUARD_KEY, entry.mod_revision)


class GuardedStore:
    """A `Metastore` for whatever a master changes while it leads: each transaction compares the guard, and raises
    Deposed, having changed nothing, if another master has begun to lead. What changes a store without a transaction
    (leases of keys) is not for masters' decisions, and is left as it is."""

    def __init__(self, store: Metastore, held: HeldGuard) -> None:
        self._store = store
        self._held = held

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        outcome = await self._store.txn([*compares, self._held.unchanged], changes)
        if not outcome.succeeded:
            entry = await self._store.get(GUARD_KEY)
            if entry is None or entry.mod_revision != self._held.revision:
                follower = "nobody" if entry is None else guard_of(entry).master
                raise Deposed(f"master {self._held.guard.master} leads no more: {follower} does")
        return outcome

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        return await self._store.get(key, revision)

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        return await self._store.range(prefix, start=start, limit=limit, revision=revision)

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        return self._store.watch(prefix, from_revision)

    async def grant(self, ttl_s: float) -> LeaseId:
        return await self._store.grant(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> None:
        await self._store.revoke(lease)

    async def compact(self, revision: Revision) -> None:
        await self._store.compact(revision)

    async def close(self) -> None:
        """The store is not this one's to close."""
