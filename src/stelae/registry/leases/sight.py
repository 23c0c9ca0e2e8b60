"""Shards as a leading master sees them, by their leases: which of them answer.

A master times leases by its own clock, from when it saw the last renewal. It begins without having seen anything, so it
calls nobody silent before it has led for a lease's length. Silence takes nothing away from a shard: with one replica of
each tablet nobody else has its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stelae.ports.clock import Clock
from stelae.ports.metastore import Entry, Metastore, Revision
from stelae.registry.incarnations import SHARDS_PREFIX
from stelae.registry.leases.held import Standstill
from stelae.registry.leases.shard import ShardLease, is_lease, shard_lease_of


class SeenShard(msgspec.Struct):
    lease: ShardLease
    standstill: Standstill = msgspec.field(default_factory=Standstill)

    @property
    def revision(self) -> Revision | None:
        """Of the lease's key: what fencing the shard compares."""
        return self.standstill.revision

    @property
    def duration_s(self) -> float:
        return self.lease.duration_ms / 1_000


class ShardSight:
    """Keys are those of leases: `lease_key`. A shard that never had a lease is not seen."""

    def __init__(self) -> None:
        self.seen: dict[str, SeenShard] = {}

    async def look(self, store: Metastore, clock: Clock) -> Sequence[Entry]:
        """To be called several times in a lease's length (`leases.LOOKS`). All keys of shards, as they were read."""
        read = await store.range(SHARDS_PREFIX)
        self.note(read.entries, clock.monotonic_s())
        return read.entries

    def note(self, entries: Iterable[Entry], now_s: float) -> None:
        """All keys of shards, as they were just read, and the time by this process's own clock."""
        before, self.seen = self.seen, {}
        for entry in entries:
            if is_lease(entry.key):
                self.seen[entry.key] = _noted(before.get(entry.key), entry, now_s)

    def is_silent(self, key: str, now_s: float) -> bool:
        """Whether the shard has not renewed its lease for so long that it answers no more until it is heard of again.
        One that closed in order is silent; of one that was never seen it is not known."""
        seen = self.seen.get(key)
        return seen is not None and (seen.lease.is_over or seen.standstill.is_over(now_s, seen.duration_s))


def _noted(before: SeenShard | None, entry: Entry, now_s: float) -> SeenShard:
    if before is not None and before.revision == entry.mod_revision:
        seen = before
    else:
        seen = SeenShard(shard_lease_of(entry))
    seen.standstill.note(entry.mod_revision, now_s, seen.duration_s)
    return seen
