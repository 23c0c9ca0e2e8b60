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


async def check_shard(store: Metastore, node: str, number: int, log: str) -> None:
    """Before a shard opens its log. Corruption if it has its log elsewhere: opened here, it would lack its rows.
    InvalidArgument if the store has another shard: all tablets are in one log so far."""
    for life in await read_lives(store):
        if (life.node, life.number) != (node, number):
            raise InvalidArgument(
                f"the cluster has a shard already, {life.name}, and is served by one in this release: start that one"
            )
        _check_log(life, log)


async def register_shard(store: Metastore, node: str, node_name: str, number: int, log: str, address: str) -> ShardLife:
    """Begin another incarnation. The caller has the directory of the shard to itself. Corruption if the shard has its
    log elsewhere; AlreadyExists if another process is beginning one, too."""
    key = life_key(node, number)
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(key)
        before = None if entry is None else json_of(entry, ShardLife, "the life of a shard")
        if before is not None:
            _check_log(before, log)
        incarnation = 1 if before is None else before.incarnation + 1
        life = ShardLife(node, node_name, number, incarnation, log, address)
        compare = IsAbsent(key) if entry is None else ModRevisionIs(key, entry.mod_revision)
        if (await store.txn([compare], [PutKey(key, msgspec.json.encode(life))])).succeeded:
            return life
    raise AlreadyExists(f"shard {node_name}/{number} is being started by another process")


def _check_log(life: ShardLife, log: str) -> None:
    if life.log != log:
        raise Corruption(
            f"shard {life.name} keeps its log ({life.log}) in another directory than this one, whose log is {log}: "
            "start it there. Nothing was changed",
            life_key(life.node, life.number),
        )
