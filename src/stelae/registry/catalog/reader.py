"""The catalog's history, read once, for looking at it: no following, no lease, nothing written. A history that is
compacted while it is read raises Unavailable: read it again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from stelae.catalog.entries import Update
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.errors import NotFound, SnapshotTooOld
from stelae.model.hybrid import to_datetime
from stelae.model.ids import Txn
from stelae.ports.metastore import Metastore
from stelae.registry.catalog import update_log as log


class HistoryStep(msgspec.Struct, frozen=True):
    before: Catalog
    update: Update
    after: Catalog


class CatalogReader:
    def __init__(self, store: Metastore) -> None:
        self._store = store

    async def history(self) -> AsyncIterator[HistoryStep]:
        """Every version that is kept, oldest first, each with the one before."""
        head = await log.read_head(self._store)
        before = await log.read_base(self._store, head)
        async for update in log.read_updates(self._store, before.version, head):
            after = log.apply_checked(before, update)
            yield HistoryStep(before, update, after)
            before = after

    async def latest(self) -> Catalog:
        head = await log.read_head(self._store)
        catalog = await log.read_base(self._store, head)
        async for update in log.read_updates(self._store, catalog.version, head):
            catalog = log.apply_checked(catalog, update)
        return catalog

    async def version(self, wanted: CatalogVersion) -> Catalog:
        """Raises SnapshotTooOld or NotFound if that version is compacted away or not there yet."""
        head = await log.read_head(self._store)
        if wanted > head.version:
            raise NotFound(f"there is no catalog version {wanted}; the newest is {head.version}")
        if wanted < head.oldest:
            raise SnapshotTooOld(f"catalog version {wanted} was compacted away; the oldest kept is {head.oldest}")
        catalog = await log.read_base(self._store, head)
        async for update in log.read_updates(self._store, catalog.version, head):
            if catalog.version == wanted:
                break
            catalog = log.apply_checked(catalog, update)
        return catalog

    async def at(self, ts: Txn) -> Catalog:
        """The catalog active at a time that has passed."""
        head = await log.read_head(self._store)
        catalog = await log.read_base(self._store, head)
        if catalog.activation > ts:
            raise SnapshotTooOld(
                f"the catalog of {to_datetime(ts)} was compacted away; the oldest kept begins at "
                f"{to_datetime(catalog.activation)}"
            )
        async for update in log.read_updates(self._store, catalog.version, head):
            if update.activation > ts:
                break
            catalog = log.apply_checked(catalog, update)
        return catalog
