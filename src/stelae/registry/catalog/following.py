"""The catalog as a process of a store follows it."""

from __future__ import annotations

from collections.abc import Callable

from stelae.model.hybrid import HybridClock
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import VERSIONS_MAX, CatalogSettings


async def follow_catalog(store: Metastore, clock: Clock, time: HybridClock, rng: Rng, author: str) -> CatalogService:
    """`author`: who changes it, if this process does."""
    # Older schemas are needed as long as a log names them: who knows all logs compacts the catalog, when it is long.
    service = CatalogService(store, clock, time, rng, CatalogSettings(author=author, snapshot_every=2**62))
    await service.start()
    return service


def compaction_due(catalog: CatalogService, loop: Loop) -> Callable[[], None] | None:
    """What puts the versions of a catalog together, if it has many. Blocking, for whoever has emptied the log."""
    if catalog.latest.version - catalog.earliest.version < VERSIONS_MAX:
        return None

    def compact() -> None:
        loop.run(catalog.compact())

    return compact
