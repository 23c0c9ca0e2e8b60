"""Who serves now: one metastore key for each shard, written by the shard when it starts.

    shards/{node id}/{number}/life

Each start is another *incarnation*: its number grows, and the write compares what was there, so of two processes that
start as the same shard one fails. The *log* is named by an id that lies in its directory: a shard that was registered
with one log is never served from another, which would be without its rows.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import AlreadyExists, Corruption, InvalidArgument
from stelae.ports.metastore import IsAbsent, Metastore, ModRevisionIs, PutKey
from stelae.registry.decoding import json_of

SHARDS_PREFIX = "shards/"
_LIFE = "/life"
_ATTEMPTS_MAX = 5


class ShardLife(msgspec.Struct, frozen=True):
    """`node`, `node_name`: the node's id, and what people call it. `address`: where it serves."""

    node: str
    node_name: str
    number: int
    incarnation: int
    log: str
    address: str

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"


def life_key(node: str, number: int) -> str:
    return f"{SHARDS_PREFIX}{node}/{number}{_LIFE}"


async def read_lives(store: Metastore) -> tuple[ShardLife, ...]:
    """Of all shards that were ever started, by node and number."""
    read = await store.range(SHARDS_PREFIX)
    return tuple(
        json_of(entry, ShardLife, "the life of a shard") for entry in read.entries if entry.key.endswith(_LIFE)
    )


async def check_log(store: Metastore, node: str, number: int, log: str) -> None:
    """Corruption if the shard has its log elsewhere: before anything is read of this one."""
    entry = await store.get(life_key(node, number))
    if entry is not None:
        _check_same_log(json_of(entry, ShardLife, "the life of a shard"), log)


def _check_same_log(before: ShardLife, log: str) -> None:
    if before.log != log:
        raise Corruption(
            f"shard {before.name} keeps its log ({before.log}) in another directory than this one, whose log is "
            f"{log}: start it there. Nothing was changed",
            life_key(before.node, before.number),
        )


async def register_shard(store: Metastore, node: str, node_name: str, number: int, log: str, address: str) -> ShardLife:
    """Begin another incarnation. The caller has the directory of the shard to itself. Corruption if the shard has its
    log elsewhere; AlreadyExists if another process is beginning one, too."""
    key = life_key(node, number)
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(key)
        before = None if entry is None else json_of(entry, ShardLife, "the life of a shard")
        if before is not None:
            _check_same_log(before, log)
        incarnation = 1 if before is None else before.incarnation + 1
        life = ShardLife(node, node_name, number, incarnation, log, address)
        compare = IsAbsent(key) if entry is None else ModRevisionIs(key, entry.mod_revision)
        if (await store.txn([compare], [PutKey(key, msgspec.json.encode(life))])).succeeded:
            return life
    raise AlreadyExists(f"shard {node_name}/{number} is being started by another process")


async def check_name(store: Metastore, node: str, node_name: str) -> None:
    """InvalidArgument if another node goes by that name."""
    for life in await read_lives(store):
        if life.node_name == node_name and life.node != node:
            raise InvalidArgument(f"another node of the cluster is called {node_name!r}: choose another name")
