"""A simulated cluster whose catalog is put together after a few versions, again and again, and what that came to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

from stelae.assembly.processes import ProcessPorts
from stelae.assembly.shard import ShardWorld, open_shard
from stelae.catalog.value import CatalogVersion
from stelae.launch import steps
from stelae.ports.logfiles import LogFiles
from stelae.registry.catalog import following, version_pins
from stelae.registry.catalog.compaction import CatalogCompaction
from stelae.registry.catalog.needed import NeededVersion
from stelae.registry.catalog.settings import CatalogSettings, HistoryKept
from stelae.storage.replicas.naming import schemas_logged
from stelae.tserver.cluster import ClusterShard
from tests.cluster import processes

SHORT = HistoryKept(versions_max=3, look_s=0.5, settle_s=0.3)
LEASE_S = 3.0
"""So long does a process that died hold the versions that it needed."""


@dataclass(slots=True)
class Shortened:
    """`oldest`: with which versions the log began, one after the other. `lowered`: how often a shard's word was."""

    oldest: list[int] = field(default_factory=list)
    lowered: int = 0


def check_named(shard: ClusterShard, logs: LogFiles) -> None:
    """Whatever the shard's log names is known: also what it will need only when it leads, or never."""
    schemas = shard.catalog.schemas
    for table, version in schemas_logged(logs, [segment.name for segment in shard.server.shard.segments()]):
        if table in schemas and version < schemas.of(table)[0].version:
            oldest = schemas.of(table)[0].version
            raise AssertionError(f"{shard.server.name}: its log names version {version}; the oldest known is {oldest}")


@contextmanager
def short_histories(kept: HistoryKept = SHORT) -> Iterator[Shortened]:
    """Of the clusters that begin meanwhile."""
    found = Shortened()
    run, lower = CatalogCompaction.run, NeededVersion.lower_to

    def opened(ports: ProcessPorts, world: ShardWorld, *args: Any, **options: Any) -> ClusterShard:
        shard = open_shard(ports, world, *args, **options)
        check_named(shard, world.logs)
        return shard

    async def noted(self: CatalogCompaction, *args: Any) -> CatalogVersion | None:
        oldest = await run(self, *args)
        if oldest is not None:
            found.oldest.append(oldest)
        return oldest

    async def lowered(self: NeededVersion, version: CatalogVersion) -> None:
        await lower(self, version)
        found.lowered += 1

    with (
        mock.patch.object(processes, "HISTORY", kept),
        mock.patch.object(processes, "open_shard", opened),
        mock.patch.object(steps, "TEND_S", kept.look_s),
        mock.patch.object(version_pins, "PROGRESS_STEP", 1),
        mock.patch.object(following, "CatalogSettings", partial(CatalogSettings, lease_s=LEASE_S)),
        mock.patch.object(CatalogCompaction, "run", noted),
        mock.patch.object(NeededVersion, "lower_to", lowered),
    ):
        yield found
