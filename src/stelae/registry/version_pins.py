"""Which catalog versions are still needed, and by whom: the guard of compaction.

Every process holds, under a lease, the oldest version it needs: the one it has applied, or an older one it has pinned.
Compaction announces its target first, then looks at what is held. A pin compares that no announced target lies above
it; so either the compaction sees the pin, or the pin is refused. A process that dies is forgotten with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stelae.catalog.value import CatalogVersion
from stelae.model.errors import SnapshotTooOld, Unavailable
from stelae.ports.metastore import (
    Compare,
    IsAbsent,
    LeaseExpired,
    LeaseId,
    Metastore,
    ModRevisionIs,
    PutKey,
    UnknownOutcome,
)
from stelae.ports.rng import Rng
from stelae.registry import update_log as log

PROGRESS_STEP = 64
"""A process reports how far it has come every so many versions: each report is a write."""

_ATTEMPTS_MAX = 20


class VersionPins:
    def __init__(self, store: Metastore, rng: Rng, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._lease: LeaseId | None = None
        self._key = f"{log.IN_USE_PREFIX}{rng.token(12).hex()}"
        self._applied = CatalogVersion(0)
        self._reported = CatalogVersion(0)
        self._pinned: list[CatalogVersion] = []

    async def start(self, applied: CatalogVersion) -> None:
        self._applied = applied
        await self._hold(self._needed)

    @property
    def _needed(self) -> CatalogVersion:
        return min([self._applied, *self._pinned])

    async def progress(self, applied: CatalogVersion) -> None:
        """This process knows all versions up to `applied`, and needs none before but what it has pinned."""
        self._applied = applied
        if self._needed - self._reported >= PROGRESS_STEP:
            await self._let_go()

    async def _let_go(self) -> None:
        """Hold no more than is needed. What cannot be said now is said at the next step: holding more is safe."""
        try:
            if self._needed > self._reported and self._lease is not None:
                await self._hold(self._needed)
        except Unavailable:
            return

    @asynccontextmanager
    async def pin(self, version: CatalogVersion) -> AsyncIterator[None]:
        """The version, and all after it, can be had while the pin is held. SnapshotTooOld if it cannot be."""
        self._pinned.append(version)
        try:
            if version < self._reported:
                await self._hold(self._needed)
            yield
        finally:
            self._pinned.remove(version)
            await self._let_go()

    async def oldest(self) -> CatalogVersion | None:
        """The oldest version anybody holds."""
        read = await self._store.range(log.IN_USE_PREFIX)
        return min((CatalogVersion(int(entry.value)) for entry in read.entries), default=None)

    async def keep_alive(self) -> None:
        """Until cancelled. A lease that was lost is taken anew, if compaction has not passed this process by."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if self._lease is not None:
                    await self._store.keep_alive(self._lease)
            except LeaseExpired:
                self._lease = None
                await self._hold(self._needed)
            except Unavailable:
                continue

    async def close(self) -> None:
        """Holds nothing any more."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._store.revoke(lease)
            except Unavailable:
                return  # it runs out by itself

    async def _hold(self, version: CatalogVersion) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                if self._lease is None:
                    self._lease = await self._store.grant(self._lease_s)
                if await self._try_hold(version, self._lease):
                    self._reported = version
                    return
            except LeaseExpired:
                self._lease = None
            except UnknownOutcome:
                pass  # holding the same version twice is holding it once
            await asyncio.sleep(0.01 * (attempt + 1))
        raise Unavailable(f"catalog version {version} could not be held: the metastore kept changing")

    async def _try_hold(self, version: CatalogVersion, lease: LeaseId) -> bool:
        head = await log.read_head(self._store)
        announced = await self._store.get(log.COMPACTING_KEY)
        oldest = max(head.oldest, int(announced.value) if announced else 0)
        if version < oldest:
            raise SnapshotTooOld(f"catalog version {version} was compacted away; the oldest kept is {oldest}")
        unchanged: Compare = (
            ModRevisionIs(log.COMPACTING_KEY, announced.mod_revision) if announced else IsAbsent(log.COMPACTING_KEY)
        )
        outcome = await self._store.txn(
            [unchanged, head.snapshot_unchanged()],
            [PutKey(self._key, log.number_value(version), lease)],
        )
        return outcome.succeeded
