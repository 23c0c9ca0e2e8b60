"""What an embedded store is made of, and its settings."""

from __future__ import annotations

import asyncio

import msgspec

from stelae.master.links import Aside
from stelae.master.settings import MasterSettings
from stelae.ports.blobs import BlobStore
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.storage.shard import ShardSettings


class World(msgspec.Struct, frozen=True):
    """The ports. Scans work ahead on `reading`; what the master asks of its server is done `aside`."""

    logs: LogFiles
    blobs: BlobStore
    metastore: Metastore
    clock: Clock
    rng: Rng
    loop: Loop
    reading: Executor | None
    aside: Aside = asyncio.to_thread


class StoreSettings(msgspec.Struct, frozen=True):
    """`author`: who changes the catalog. `pins_wait_s`: see `ServerSettings`."""

    shard: ShardSettings = msgspec.field(default_factory=ShardSettings)
    master: MasterSettings = msgspec.field(default_factory=MasterSettings)
    author: str = ""
    pins_wait_s: float = 5.0
