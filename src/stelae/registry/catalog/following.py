"""The catalog as a process of a store follows it."""

from __future__ import annotations

from collections.abc import Callable

from stelae.model.hybrid import HybridClock
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.catalog.service import CatalogService, CatalogSettings

CATALOG_VERSIONS_MAX = 1_000
"""So many versions of the catalog are read again at every opening, before they are put together."""


async def follow_catalog(store: Metastore, clock: Clock, time: HybridClock, rng: Rng, author: str) -> CatalogService:
    """`author`: who changes it, if this process does."""
    # Older schemas are needed as long as blocks of them are in a log: who has the log compacts the catalog at its end.
    service = CatalogService(store, clock, time, rng, CatalogSettings(author=author, snapshot_every=2**62))
    await service.start()
    return service


def compaction_due(catalog: CatalogService, loop: Loop) -> Callable[[], None] | None:
    """What puts the versions of a catalog together, if it has many. Blocking, for whoever has emptied the log."""
    if catalog.latest.version - catalog.earliest.version < CATALOG_VERSIONS_MAX:
        return None

    def compact() -> None:
        loop.run(catalog.compact())

    return compact
