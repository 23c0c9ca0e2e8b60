"""What an operator asks of a master: that a node, or one of its shards, leads nothing any more, so that it can be
stopped and nobody notices.

That a shard is drained is written down with its incarnation, beside its life: whoever is the shard next, because the
node was started again, is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stelae.ports.metastore import Entry, Metastore, ModRevisionIs, PutKey
from stelae.registry.decoding import json_of, number_of
from stelae.registry.incarnations import SHARDS_PREFIX, ShardLife, life_key, lives_among, shard_key
from stelae.registry.masters.guard import GuardedStore
from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress

DRAINED = "/drained"


class DrainedServers(msgspec.Struct, frozen=True):
    """`shards`: those that lead nothing any more. `moved`: how many tablets they led before, which others lead now.
    `alone`: how many tablets have no other replica: their rows are away while the node is."""

    shards: tuple[str, ...]
    moved: int
    alone: int


def drained_among(entries: Sequence[Entry]) -> frozenset[str]:
    """The names of the shards that are drained in the life they have now, if these are all keys of shards."""
    marks = {entry.key: number_of(entry) for entry in entries if entry.key.endswith(DRAINED)}
    lives = lives_among(entries) if marks else ()
    return frozenset(each.name for each in lives if marks.get(_drained_key(each)) == each.incarnation)


async def read_drained(store: Metastore) -> frozenset[str]:
    """The names of the shards that are drained in the life they have now."""
    return drained_among((await store.range(SHARDS_PREFIX)).entries)


async def mark_drained(store: GuardedStore, lives: Sequence[ShardLife]) -> bool:
    """By the leading master. False if one of them was started again, or taken out, meanwhile: nothing happened then."""
    found = [await store.get(life_key(life.node, life.number)) for life in lives]
    if any(
        entry is None or json_of(entry, ShardLife, "the life of a shard").incarnation != life.incarnation
        for life, entry in zip(lives, found, strict=True)
    ):
        return False
    compares = [ModRevisionIs(entry.key, entry.mod_revision) for entry in found if entry is not None]
    marks = [PutKey(_drained_key(life), b"%d" % life.incarnation) for life in lives]
    return (await store.txn(compares, marks)).succeeded


def _drained_key(life: ShardLife) -> str:
    return shard_key(life.node, life.number, DRAINED)


class DrainMessage(Request, frozen=True):
    name: str


def _ask_drain(name: str) -> Asked:
    return DrainMessage(name), b""


def _carry_out_drain(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> DrainedServers:
    return master.drain_servers(asked.name, deadline=until)


DRAIN = Operation(
    "drain_servers",
    DrainMessage,
    _ask_drain,
    _carry_out_drain,
    codec_of("what was drained", DrainedServers),
    changes=True,
    is_long=True,
)
