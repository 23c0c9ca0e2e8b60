"""Compaction of the catalog's log: a snapshot takes the place of the versions before it.

In order: announce the target (under a lease, so a compactor that dies is forgotten); look which versions processes hold
and shards need, and come down to the oldest; write the snapshot's chunks; reveal them by one compare-and-set; then
delete what the snapshot has replaced, and let the metastore forget the revisions before the last snapshot but one:
whoever follows has come further than that, or reads on from the log. A crash at any point leaves the old log or the new
one, and chunks that the next compaction removes.

Chunks that nothing names are deleted only while this compaction is still the announced one, so never under another
compactor's hands; chunks of an update only if its version is in the snapshot, so never before it is appended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from stelae.catalog.serial.snapshot import encode_snapshot
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.errors import Deposed, Unavailable
from stelae.ports.metastore import (
    OPS_MAX,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
)
from stelae.ports.rng import Rng
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog.needed import read_needed
from stelae.registry.catalog.version_pins import VersionPins
from stelae.registry.chunks import write_chunks
from stelae.registry.views.compared import ComparedStore

_DELETES = OPS_MAX // 2


class _Announced(ComparedStore):
    """The metastore, as long as a compaction is the announced one."""

    def refusal(self, entry: Entry | None) -> Deposed:
        return Deposed(f"another compaction of the catalog is announced, or none: {entry and entry.value!r}")


class CatalogCompaction(msgspec.Struct, frozen=True):
    store: Metastore
    rng: Rng
    pins: VersionPins
    catalog_of: Callable[[CatalogVersion], Catalog]
    lease_s: float = 60.0

    async def run(self, target: CatalogVersion, gain_min: int = 1) -> CatalogVersion | None:
        """Compact up to the target, or the oldest version needed if that is older. The version the log now begins with;
        None if that would not leave out `gain_min` versions, or someone else is at it."""
        head = await log.read_head(self.store)
        if not head.oldest < target <= head.version or await self._find_needed(target) < head.oldest + gain_min:
            return None
        lease = await self.store.grant(self.lease_s)
        try:
            announced = await self.store.txn(
                [IsAbsent(log.COMPACTING_KEY)], [PutKey(log.COMPACTING_KEY, log.number_value(target), lease)]
            )
            if not announced.succeeded:
                return None
            return await self._compact_announced(target, ModRevisionIs(log.COMPACTING_KEY, announced.revision))
        finally:
            with suppress(Unavailable):  # then it runs out by itself
                await self.store.revoke(lease)

    async def _compact_announced(self, target: CatalogVersion, still_announced: Compare) -> CatalogVersion | None:
        """Compact as far as nobody needs the versions before; up to which, or None if there was nothing to do."""
        head = await log.read_head(self.store)
        version = await self._find_needed(target)
        if version <= head.oldest:
            return None
        prefix = f"{log.SNAPSHOT_CHUNKS}{self.rng.token(12).hex()}/"
        try:
            chunks = encode_snapshot(self.catalog_of(version))
            manifest = await write_chunks(_Announced(self.store, still_announced), prefix, chunks)
        except Deposed:
            return None
        made = await self.store.get(log.update_key(version))
        mark = log.SnapshotMark(version, manifest, made.mod_revision if made else 0)
        revealed = await self.store.txn(
            [still_announced, head.snapshot_unchanged()], [PutKey(log.SNAPSHOT_KEY, log.mark_value(mark))]
        )
        if not revealed.succeeded:
            return None
        await self._delete_updates(version)
        await self._delete_chunks(version, prefix, still_announced)
        if head.snapshot and head.snapshot.revision:
            await self.store.compact(Revision(head.snapshot.revision))
        return version

    async def _find_needed(self, target: CatalogVersion) -> CatalogVersion:
        """The target, or the oldest version before it that somebody needs. Processes are asked before shards: one that
        follows the catalog takes hold of it before it becomes a shard."""
        held = await self.pins.oldest()
        needed = await read_needed(self.store, self.catalog_of(target))
        return needed if held is None else min(needed, held)

    async def _delete_updates(self, version: CatalogVersion) -> None:
        while True:
            page = await self.store.range(log.UPDATE_PREFIX, limit=_DELETES)
            old = [DeleteKey(entry.key) for entry in page.entries if log.version_of_key(entry.key) <= version]
            if old:
                await self.store.txn([], old)
            if len(old) < len(page.entries) or not page.more:
                return

    async def _delete_chunks(self, version: CatalogVersion, kept: str, still_announced: Compare) -> None:
        for prefix in await log.chunk_prefixes(self.store, log.SNAPSHOT_CHUNKS):
            if prefix != kept:
                await self.store.txn([still_announced], [DeletePrefix(prefix)])
        for prefix in await log.chunk_prefixes(self.store, log.UPDATE_CHUNKS):
            if prefix < f"{log.UPDATE_CHUNKS}{version + 1:020d}":
                await self.store.txn([], [DeletePrefix(prefix)])
