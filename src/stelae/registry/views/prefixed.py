"""A part of a metastore that one process has to itself: all keys that begin as its do, called without that beginning.

The servers of a cluster share one metastore; each keeps its root, its log's mark, its horizons and its tickets below
`local/{node id}/{number}/`, under the names that an embedded store has them by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from stelae.ports.metastore import (
    Change,
    Compare,
    DeletePrefix,
    Entry,
    KeyDeleted,
    KeyPut,
    LeaseId,
    Metastore,
    RangeRead,
    Revision,
    TxnOutcome,
    WatchBatch,
)

LOCAL_PREFIX = "local/"


def local_prefix(node: str, number: int) -> str:
    """How the keys begin that a shard has to itself."""
    return f"{LOCAL_PREFIX}{node}/{number}/"


class PrefixedStore:
    """A `Metastore`. Revisions and leases are those of the whole."""

    def __init__(self, store: Metastore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        entry = await self._store.get(self._prefix + key, revision)
        return None if entry is None else self._short(entry)

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        first = None if start is None else self._prefix + start
        read = await self._store.range(self._prefix + prefix, start=first, limit=limit, revision=revision)
        return replace(read, entries=tuple(map(self._short, read.entries)))

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        return await self._store.txn(
            [replace(compare, key=self._prefix + compare.key) for compare in compares],
            [self._long(change) for change in changes],
        )

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        async for batch in self._store.watch(self._prefix + prefix, from_revision):
            yield replace(batch, events=tuple(map(self._short_event, batch.events)))

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

    def _short(self, entry: Entry) -> Entry:
        return replace(entry, key=entry.key.removeprefix(self._prefix))

    def _short_event(self, event: KeyPut | KeyDeleted) -> KeyPut | KeyDeleted:
        if isinstance(event, KeyPut):
            return KeyPut(self._short(event.entry))
        return KeyDeleted(event.key.removeprefix(self._prefix))

    def _long(self, change: Change) -> Change:
        if isinstance(change, DeletePrefix):
            return DeletePrefix(self._prefix + change.prefix)
        return replace(change, key=self._prefix + change.key)
