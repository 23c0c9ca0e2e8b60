"""How a run of the simulated cluster ends: whether exactly the files are there that somebody needs; and, in some runs,
who is left for good, which has to be enough for all to go on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations

import msgspec

from stelae.master.cluster import ClusterMaster
from stelae.model.errors import Retryable, UnknownOutcome
from stelae.ports.blobs import BlobStore
from stelae.registry.replication.members import log_of, server_of
from stelae.registry.tablet_records import TABLETS_PREFIX, TabletPhase, TabletRecord
from stelae.sim.world import SimWorld
from stelae.storage.files.names import fragment_names
from stelae.tserver.cluster import ClusterShard
from tests.cluster.processes import MASTERS, SHARDS, sleep

_LOOKS_MAX = 60
_PAUSE_S = 1.0
CORES = 3
"""One run of so many with replicas ends with a core."""


def check_files(masters: Mapping[str, ClusterMaster], shards: Mapping[str, ClusterShard], blobs: BlobStore) -> None:
    """After a collection, in a thread of any process: what lies on the store is what the shards need together, no more
    and no less. They may be at work still, so it is looked at a few times."""
    garbage: set[str] = set()
    missing: set[str] = set()
    for _ in range(_LOOKS_MAX):
        with suppress(Retryable, UnknownOutcome):
            for master in masters.values():
                if master.guard is not None:
                    master.collect()
            needed = {name for shard in shards.values() for name in shard.files_needed().names}
            present = set(fragment_names(blobs))
            garbage, missing = present - needed, needed - present
            if not garbage and not missing:
                return
        sleep(_PAUSE_S)
    raise AssertionError(f"needed, and not there: {sorted(missing)}; there, and needed by nobody: {sorted(garbage)}")


def draw_core(world: SimWorld) -> tuple[str, ...]:
    """A master, and two shards that have two members of each tablet with replicas between them; none in most runs, and
    where there is no such pair."""
    rng = world.rng("core")
    if rng.below(CORES):
        return ()
    entries = world.metastore._state.range(TABLETS_PREFIX, None, None, None).entries
    records = [msgspec.msgpack.decode(entry.value, type=TabletRecord) for entry in entries]
    replicated = [each for each in records if each.replicas and each.phase is not TabletPhase.REPLACED]
    pairs = [pair for pair in combinations(SHARDS, 2) if all(_have_all(world, pair, each) for each in replicated)]
    if not pairs:
        return ()
    return (MASTERS[rng.below(len(MASTERS))], *pairs[rng.below(len(pairs))])


def _have_all(world: SimWorld, pair: tuple[str, ...], record: TabletRecord) -> bool:
    """Whether both are members of a tablet, with the disks that they have now."""
    logs = {f"{name}/0": f"log-{world.disk(name).wipes}-of-{name}" for name in pair}
    members = [each for each in record.replicas if logs.get(server_of(each)) == log_of(each)]
    return len(members) == len(pair)
