"""A catalog service with settings of a test's own; stores follow theirs by `follow_catalog`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.model.hybrid import HybridClock
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import CatalogSettings


@asynccontextmanager
async def opened_catalog(store: Metastore, settings: CatalogSettings) -> AsyncIterator[CatalogService]:
    clock = SystemClock()
    service = CatalogService(store, clock, HybridClock(clock.wall_ms), SystemRng(), settings)
    await service.start()
    try:
        yield service
    finally:
        await service.close()
