"""A simulated machine to open embedded stores on."""

from __future__ import annotations

from collections.abc import Callable

from stelae.assembly.embedded import EmbeddedStore
from stelae.assembly.world import StoreSettings, World
from stelae.master.settings import MasterSettings
from stelae.model.events import Listener, tell_nobody
from stelae.registry.control import TabletReport
from stelae.sim.rng import SimRng
from stelae.storage.log.wal import WalSettings
from stelae.storage.shard import ShardSettings
from stelae.storage.upkeep.picker import PickerSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from tests.machines import SimMachine

GRACE_S = 3600.0
SETTINGS = StoreSettings(
    ShardSettings(
        cache_bytes=2**20,
        log=WalSettings(segment_bytes_max=2_000),
        serializer=SerializerSettings(seal_bytes=3_000, memory_bytes=12_000, log_bytes=20_000),
        picker=PickerSettings(),
    ),
    MasterSettings(grace_s=GRACE_S),
)


async def inline(job: Callable[..., TabletReport], /, *args: object) -> TabletReport:
    """An `Aside` without threads."""
    return job(*args)


class Machine(SimMachine):
    listener: Listener | None = None

    def open(self, settings: StoreSettings = SETTINGS) -> EmbeddedStore:
        loop = self.start()
        world = World(self.disk, self.blobs, self.metastore, self.clock, SimRng(self.lives * 1_000), loop, None, inline)
        return EmbeddedStore(world, settings, "simulated", listener=self.listener or tell_nobody)
