"""A metastore for one who may be followed by another: each transaction compares what says that it was not yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from stelae.model.errors import Deposed
from stelae.ports.metastore import (
    Change,
    Compare,
    Entry,
    LeaseId,
    Metastore,
    ModRevisionIs,
    RangeRead,
    Revision,
    TxnOutcome,
    ValueIs,
    WatchBatch,
)


class ComparedStore:
    """A `Metastore`. A transaction of one who was followed changes nothing, and raises what `refusal` says. What
    changes a store without a transaction (leases of keys) is left as it is: nothing is decided by it."""

    def __init__(self, store: Metastore, compare: Compare) -> None:
        self._store = store
        self._compare = compare

    def refusal(self, entry: Entry | None) -> Deposed:
        """`entry`: what the key that is compared holds instead."""
        raise NotImplementedError

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        outcome = await self._store.txn([*compares, self._compare], changes)
        if not outcome.succeeded:
            entry = await self._store.get(self._compare.key)
            if not self._holds(entry):
                raise self.refusal(entry)
        return outcome

    def _holds(self, entry: Entry | None) -> bool:
        match self._compare:
            case ModRevisionIs(_, revision):
                return entry is not None and entry.mod_revision == revision
            case ValueIs(_, value):
                return entry is not None and entry.value == value
            case _:
                return entry is None

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
