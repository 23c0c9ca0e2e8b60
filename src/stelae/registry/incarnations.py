"""Who serves now: two metastore keys for each shard, written by the shard when it starts.

    shards/{node id}/{number}/fence    the number of its incarnation
    shards/{node id}/{number}/life     where it serves, and from which log

A shard that was taken out of the cluster has neither life nor lease, and a third key that stays for ever: `removed`
(`registry.leases.removals`).

Each start is another *incarnation*: its number grows, and the write compares what was there, so of two processes that
start as the same shard one fails. It is written before anything else is, and whatever the shard changes on the
metastore compares it (`FencedStore`): a process that another one has followed changes nothing any more. The *log* is
named by an id that lies in its directory: a shard that was registered with one log is never served from another, which
would be without its rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from stelae.model.errors import AlreadyExists, Corruption, Deposed, InvalidArgument
from stelae.ports.metastore import Entry, IsAbsent, Metastore, ModRevisionIs, PutKey, ValueIs
from stelae.registry.decoding import json_of, number_of
from stelae.registry.views.compared import ComparedStore

SHARDS_PREFIX = "shards/"
REMOVED = "/removed"
_LIFE = "/life"
_FENCE = "/fence"
_LOG = "/log"
_ATTEMPTS_MAX = 5


class ShardLife(msgspec.Struct, frozen=True):
    """`node`, `node_name`: the node's id, and what people call it. `address`: where it serves. `rack`: what it shares
    with other nodes that may fail with it; empty: nobody has said."""

    node: str
    node_name: str
    number: int
    incarnation: int
    log: str
    address: str
    rack: str = ""

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"


class RemovedShard(msgspec.Struct, frozen=True):
    """What is known for ever of a shard that was taken out of the cluster. `removed_ms`: when, by a master's clock."""

    node: str
    node_name: str
    number: int
    log: str
    removed_ms: int

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"


class ShardIdentity(msgspec.Struct, frozen=True):
    """`node`: the node's id, `node_name` its name. `log`: the id of the log in the shard's directory. `rack`: where the
    node stands; empty: nobody has said."""

    node: str
    node_name: str
    number: int
    log: str
    rack: str = ""

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"


def shard_key(node: str, number: int, what: str) -> str:
    return f"{SHARDS_PREFIX}{node}/{number}{what}"


def life_key(node: str, number: int) -> str:
    return shard_key(node, number, _LIFE)


def fence_key(node: str, number: int) -> str:
    return shard_key(node, number, _FENCE)


def log_key(node: str, number: int) -> str:
    """Which log a shard has that has lost one before: written when what it kept of the other is forgotten."""
    return f"{SHARDS_PREFIX}{node}/{number}{_LOG}"


async def read_lives(store: Metastore) -> tuple[ShardLife, ...]:
    """Of all shards of the cluster, there or away, by node and number."""
    return (await read_shards(store))[0]


async def read_shards(store: Metastore) -> tuple[tuple[ShardLife, ...], tuple[RemovedShard, ...]]:
    """The shards of the cluster, there or away, and those that were taken out of it."""
    entries = (await store.range(SHARDS_PREFIX)).entries
    gone = (json_of(entry, RemovedShard, "what was removed") for entry in entries if entry.key.endswith(REMOVED))
    return lives_among(entries), tuple(gone)


def lives_among(entries: Iterable[Entry]) -> tuple[ShardLife, ...]:
    """Of the shards of the cluster, there or away, if these are all keys of shards."""
    return tuple(json_of(entry, ShardLife, "the life of a shard") for entry in entries if entry.key.endswith(_LIFE))


async def check_shard(store: Metastore, shard: ShardIdentity, holds_alone: bool = True) -> None:
    """Before a shard opens its log. Corruption if it has its log elsewhere: opened here, it would lack its rows; unless
    others have all that it has (not `holds_alone`). InvalidArgument if another node has the name, or the node had
    another: records and configs know shards by name; or if it was taken out of the cluster."""
    node, node_name, number, log = shard.node, shard.node_name, shard.number, shard.log
    lives, gone = await read_shards(store)
    for removed in gone:
        _check_removed(removed, node, node_name, number)
    for life in lives:
        if life.node == node and life.node_name != node_name:
            raise InvalidArgument(
                f"this node was started as {life.node_name!r} before, and its tablets are known by that name: start it "
                f"with it, not as {node_name!r}"
            )
        if life.node != node and life.node_name == node_name:
            raise InvalidArgument(
                f"the cluster has another node that is called {node_name!r}, at {life.address}: give this one a name "
                "of its own"
            )
        if (life.node, life.number) == (node, number) and holds_alone:
            _check_log(life, log)


class ShardFence(msgspec.Struct, frozen=True):
    """An incarnation of a shard, as the process has it that began it."""

    node: str
    node_name: str
    number: int
    log: str
    incarnation: int
    is_new_log: bool = False
    """The shard had another log before: that is gone, and all that was in it lies with others."""
    rack: str = ""

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"

    @property
    def key(self) -> str:
        return fence_key(self.node, self.number)

    @property
    def value(self) -> bytes:
        return b"%d" % self.incarnation


class FencedStore(ComparedStore):
    """A `Metastore` for whatever a shard changes: Deposed once another process has begun to be it."""

    def __init__(self, store: Metastore, fence: ShardFence) -> None:
        super().__init__(store, ValueIs(fence.key, fence.value))
        self._fence = fence

    def refusal(self, entry: Entry | None) -> Deposed:
        begun = "nobody is" if entry is None else f"one that was started after it is (number {number_of(entry)})"
        return Deposed(
            f"this process, number {self._fence.incarnation}, is shard {self._fence.name} no more: {begun}. It changes "
            "nothing any more: end it"
        )


async def begin_shard(store: Metastore, shard: ShardIdentity) -> ShardFence:
    """Begin another incarnation. The caller has the directory of the shard to itself, and has asked `check_shard`.
    AlreadyExists if another process is beginning one, too."""
    fence = ShardFence(shard.node, shard.node_name, shard.number, shard.log, 0, rack=shard.rack)
    for _ in range(_ATTEMPTS_MAX):
        entry, life = await store.get(fence.key), await _read_life(store, shard.node, shard.number)
        kept = await store.get(log_key(shard.node, shard.number))
        known = kept.value.decode() if kept is not None else shard.log if life is None else life.log
        fence = replace(fence, is_new_log=known != shard.log)
        before = max(0 if entry is None else number_of(entry), 0 if life is None else life.incarnation)
        begun = replace(fence, incarnation=before + 1)
        compare = IsAbsent(fence.key) if entry is None else ModRevisionIs(fence.key, entry.mod_revision)
        if (await store.txn([compare], [PutKey(fence.key, begun.value)])).succeeded:
            return begun
    raise AlreadyExists(f"shard {fence.name} is being started by another process")


async def register_shard(store: Metastore, fence: ShardFence, address: str) -> ShardLife:
    """Say where the incarnation serves. Deposed if another process has begun one since."""
    key = life_key(fence.node, fence.number)
    life = ShardLife(fence.node, fence.node_name, fence.number, fence.incarnation, fence.log, address, fence.rack)
    await FencedStore(store, fence).txn([], [PutKey(key, msgspec.json.encode(life))])
    return life


async def _read_life(store: Metastore, node: str, number: int) -> ShardLife | None:
    entry = await store.get(life_key(node, number))
    return None if entry is None else json_of(entry, ShardLife, "the life of a shard")


def _check_removed(removed: RemovedShard, node: str, node_name: str, number: int) -> None:
    if (removed.node, removed.number) == (node, number):
        raise InvalidArgument(
            f"shard {removed.name} was taken out of the cluster for good, and what is in its directory is no part of "
            "it any more. Start a node with another name, and a directory of its own"
        )
    if removed.node != node and removed.node_name == node_name:
        raise InvalidArgument(
            f"a node that was called {node_name!r} was taken out of the cluster: give this one another name"
        )


def _check_log(life: ShardLife, log: str) -> None:
    if life.log != log:
        raise Corruption(
            f"shard {life.name} keeps its log ({life.log}) in another directory than this one, whose log is {log}: "
            "start it there. Nothing was changed",
            life_key(life.node, life.number),
        )
