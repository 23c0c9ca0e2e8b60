"""Which catalog versions are still needed, and by whom: the guard of compaction.

Every process holds, under a lease, the oldest version it needs: the one it has applied, or an older one it has pinned.
Compaction announces its target first, then looks at what is held. Whoever takes hold of a version anew, or of an older
one than before, compares that no announced target lies above it; so either the compaction sees the hold, or the hold is
refused. Letting go of older versions needs no such care. A process that dies is forgotten with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stelae.catalog.value import CatalogVersion
from stelae.model.errors import SnapshotTooOld, Unavailable, UnknownOutcome
from stelae.ports.metastore import Compare, IsAbsent, LeaseExpired, LeaseId, Metastore, ModRevisionIs, PutKey
from stelae.ports.rng import Rng
from stelae.registry.catalog import update_log as log
from stelae.registry.decoding import number_of
from stelae.service.deadlines import Deadline

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
        self._held: CatalogVersion | None = None
        self._pinned: list[CatalogVersion] = []
        self._changing = asyncio.Lock()

    async def start(self, applied: CatalogVersion) -> None:
        self._applied = applied
        await self._hold_needed()

    async def progress(self, applied: CatalogVersion) -> None:
        """This process knows all versions up to `applied`, and needs none before but what it has pinned."""
        self._applied = applied
        if self._held is not None and self._needed - self._held >= PROGRESS_STEP:
            await self._let_go()

    @asynccontextmanager
    async def pin(self, version: CatalogVersion, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """The version, and all after it, can be had while the pin is held. SnapshotTooOld if it cannot be."""
        self._pinned.append(version)
        covered = True
        try:
            async with self._changing:
                covered = self._held is not None and self._held <= version
            if not covered:
                await self._hold_needed(deadline)
            yield
        finally:
            self._pinned.remove(version)
            if not covered:
                await self._let_go()

    async def oldest(self) -> CatalogVersion | None:
        """The oldest version anybody holds."""
        read = await self._store.range(log.IN_USE_PREFIX)
        return min((CatalogVersion(number_of(entry)) for entry in read.entries), default=None)

    async def keep_alive(self) -> None:
        """Until cancelled. A lease that was lost is taken anew, once this process has come further than compaction."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if self._lease is None:
                    await self._hold_needed()
                else:
                    await self._store.keep_alive(self._lease)
            except LeaseExpired:
                self._lease, self._held = None, None
            except (Unavailable, UnknownOutcome, SnapshotTooOld):
                continue  # tried again in a third of the lease; by then the catalog was read on, or cannot be

    async def close(self) -> None:
        """Holds nothing any more."""
        lease, self._lease, self._held = self._lease, None, None
        if lease is not None:
            try:
                await self._store.revoke(lease)
            except (Unavailable, UnknownOutcome):
                return  # it runs out by itself

    @property
    def _needed(self) -> CatalogVersion:
        return min([self._applied, *self._pinned])

    async def _let_go(self) -> None:
        """Hold no more than is needed. What cannot be said now is said later: holding more is safe, and a hold that was
        lost is the business of `keep_alive`."""
        try:
            if self._held is not None and self._needed > self._held:
                await self._hold_needed()
        except (Unavailable, UnknownOutcome, SnapshotTooOld):
            return

    async def _hold_needed(self, deadline: Deadline | None = None) -> None:
        async with self._changing:
            for attempt in range(_ATTEMPTS_MAX):
                version = self._needed
                try:
                    if self._lease is None:
                        self._lease = await self._store.grant(self._lease_s)
                    if await self._try_hold(version, self._lease):
                        self._held = version
                        return
                except LeaseExpired:
                    self._lease, self._held = None, None
                except UnknownOutcome:
                    self._held = None  # what stands there now is not known: take hold as if anew
                if deadline is not None and deadline.is_over:
                    break
                await asyncio.sleep(0.01 * (attempt + 1))
        raise Unavailable(f"catalog version {self._needed} could not be held: the metastore kept changing")

    async def _try_hold(self, version: CatalogVersion, lease: LeaseId) -> bool:
        put = PutKey(self._key, log.number_value(version), lease)
        if self._held is not None and version >= self._held:
            await self._store.txn([], [put])
            return True
        return await take_hold(self._store, version, put)


async def take_hold(store: Metastore, version: CatalogVersion, put: PutKey) -> bool:
    """Write down that somebody needs a version from now on, if no compaction has passed it or is about to. False: one
    began or ended meanwhile; look again. SnapshotTooOld: it is gone, or may be soon."""
    head = await log.read_head(store)
    announced = await store.get(log.COMPACTING_KEY)
    oldest = max(head.oldest, number_of(announced) if announced else 0)
    if version < oldest:
        raise SnapshotTooOld(f"catalog version {version} was compacted away; the oldest kept is {oldest}")
    unchanged: Compare = (
        ModRevisionIs(log.COMPACTING_KEY, announced.mod_revision) if announced else IsAbsent(log.COMPACTING_KEY)
    )
    outcome = await store.txn([unchanged, head.snapshot_unchanged()], [put])
    return outcome.succeeded
