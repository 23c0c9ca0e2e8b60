"""How long a shard answers, and up to which time; one metastore key for each (see `registry.leases.held`):

    shards/{node id}/{number}/lease

The shard renews it and compares its own fence with each renewal (`registry.incarnations`). Whoever begins to be the
shard after it reads the lease once it has written another fence: no renewal of an earlier process comes after that.

The *bound* is a promise to whoever follows: no txn above it was given out, and nothing was answered at a snapshot above
it. So the follower's clock goes on above the bound, and what was read at any snapshot is the same for ever, however the
clocks of the two differ. It lies one duration ahead of the wall clock, so renewals that come in time never let anybody
wait. A clock that is ahead of the wall clock, because the shard was started again soon, gets a little more than it has:
starting again many times moves it no further ahead.
"""

from __future__ import annotations

import msgspec

from stelae.model.hybrid import COUNTER_BITS, pack
from stelae.model.ids import Txn
from stelae.ports.metastore import Entry, Metastore
from stelae.registry.decoding import json_of
from stelae.registry.incarnations import SHARDS_PREFIX

_LEASE = "/lease"
_ROOM_MS = 100
"""What a clock that is ahead of the wall clock may give out until the next renewal: 65,536 txns a millisecond."""


class ShardLease(msgspec.Struct, frozen=True):
    """`is_over`: given back, in order."""

    incarnation: int
    renewals: int
    duration_ms: int
    bound: int
    is_over: bool = False

    @property
    def value(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def holder(self) -> int:
        return self.incarnation


def lease_key(node: str, number: int) -> str:
    return f"{SHARDS_PREFIX}{node}/{number}{_LEASE}"


def is_lease(key: str) -> bool:
    """Whether a key below `shards/` is that of a lease."""
    return key.endswith(_LEASE)


def shard_lease_of(entry: Entry) -> ShardLease:
    return json_of(entry, ShardLease, "the lease of a shard")


async def read_lease(store: Metastore, node: str, number: int) -> Entry | None:
    """None: the shard never had one."""
    return await store.get(lease_key(node, number))


def next_bound(before: Txn, last: Txn, wall_ms: int, duration_ms: int) -> Txn:
    """Of a renewal that is asked for at that wall time, after a bound and a last txn of the shard's clock."""
    return max(before, pack(wall_ms + duration_ms), Txn(last + (_ROOM_MS << COUNTER_BITS)))
