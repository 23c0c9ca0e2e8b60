"""Take a shard out of its cluster for good: nobody is asked for it any more, and nobody may ever be it again.

    shards/{node id}/{number}/removed

The mark is kept for ever, with the shard's fence: a process that is started from the directory of the shard, today or
in a year, is refused (`registry.incarnations`), and so is a node that would take the name. What the shard had for
itself on the metastore goes in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stelae.ports.metastore import Compare, DeleteKey, DeletePrefix, IsAbsent, Metastore, ModRevisionIs, PutKey
from stelae.registry.decoding import number_of
from stelae.registry.incarnations import REMOVED, RemovedShard, ShardLife, fence_key, life_key, read_lives, shard_key
from stelae.registry.leases.shard import lease_key
from stelae.registry.leases.sight import ShardSight
from stelae.registry.masters.draining import DRAINED
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.views.prefixed import local_prefix


async def find_shards(store: Metastore, name: str) -> tuple[ShardLife, ...]:
    """Those of a node, or the one, that are called so."""
    return tuple(life for life in await read_lives(store) if name in (life.name, life.node_name))


async def remove_shard(store: GuardedStore, life: ShardLife, sight: ShardSight, now_ms: int) -> bool:
    """By a leading master that has seen the shard's lease stand still for long enough. False if it was renewed
    meanwhile, or the shard is just being started, or is gone already: nothing happened then. Deposed if another master
    leads."""
    fence, lease = fence_key(life.node, life.number), lease_key(life.node, life.number)
    key = life_key(life.node, life.number)
    fenced, living = await store.get(fence), await store.get(key)
    if fenced is None or living is None:
        return False
    seen = sight.seen.get(lease)
    compares: Sequence[Compare] = [
        IsAbsent(lease) if seen is None or seen.revision is None else ModRevisionIs(lease, seen.revision),
        ModRevisionIs(fence, fenced.mod_revision),
        ModRevisionIs(key, living.mod_revision),
    ]
    mark = RemovedShard(life.node, life.node_name, life.number, life.log, now_ms)
    outcome = await store.txn(
        compares,
        [
            PutKey(fence, b"%d" % (number_of(fenced) + 1)),
            PutKey(shard_key(life.node, life.number, REMOVED), msgspec.json.encode(mark)),
            DeleteKey(key),
            DeleteKey(lease),
            DeleteKey(shard_key(life.node, life.number, DRAINED)),
            DeletePrefix(local_prefix(life.node, life.number)),
        ],
    )
    return outcome.succeeded
