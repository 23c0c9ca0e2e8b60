"""Take a shard away from the process that is it: what that changes afterwards, and its renewals, fail.

With one replica of each tablet nobody follows a shard but itself, started again: so nobody is fenced for silence. It is
for what an operator takes away.
"""

from __future__ import annotations

from stelae.ports.metastore import ModRevisionIs, PutKey, Revision
from stelae.registry.decoding import number_of
from stelae.registry.incarnations import fence_key
from stelae.registry.leases.shard import lease_key
from stelae.registry.masters.guard import GuardedStore


async def fence_shard(store: GuardedStore, node: str, number: int, lease: Revision) -> bool:
    """By a leading master that has seen the lease stand still at that revision for long enough. False if it was renewed
    meanwhile, or the shard is just being started: nothing happened then. Deposed if another master leads. Whoever
    begins to be the shard after this has a greater number still, and goes on above the lease's bound."""
    key = fence_key(node, number)
    entry = await store.get(key)
    if entry is None:
        return False
    compares = [ModRevisionIs(lease_key(node, number), lease), ModRevisionIs(key, entry.mod_revision)]
    return (await store.txn(compares, [PutKey(key, b"%d" % (number_of(entry) + 1))])).succeeded
