"""Versions of the catalog that nobody needs any more, put together."""

from __future__ import annotations

from contextlib import suppress

from stelae.model.errors import SnapshotTooOld
from stelae.model.events import CatalogShortened, Listener
from stelae.ports.metastore import LeaseExpired
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import HistoryKept


class ShortHistory:
    """For the tasks of one event loop, of the master that leads."""

    def __init__(self, catalog: CatalogService, kept: HistoryKept, tell: Listener) -> None:
        self._catalog = catalog
        self._versions_max = kept.versions_max
        self._tell = tell
        self.look_s = kept.look_s

    async def shorten(self) -> None:
        """If there are many versions, and at least half as many can go. A master that leads no more does no harm:
        nothing goes that anybody needs."""
        first = self._catalog.earliest.version
        if self._catalog.latest.version - first < self._versions_max:
            return
        with suppress(SnapshotTooOld, LeaseExpired):  # somebody else was quicker, or the metastore too slow: next time
            left = await self._catalog.compact(gain_min=max(1, self._versions_max // 2))
            if left is not None:
                self._tell(CatalogShortened(left - first, left))
