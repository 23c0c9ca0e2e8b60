"""Processes that begin to be the same shard: the last one is it, and the others change nothing any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stelae.model.errors import Corruption, Deposed
from stelae.ports.metastore import IsAbsent, Metastore, PutKey
from stelae.registry.incarnations import FencedStore, ShardFence, begin_shard, life_key, read_lives, register_shard
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.rng import SimRng


def play(story: Callable[[Metastore], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        await story(SimMetastoreServer(loop, SimRng(1)).client("all"))

    simulate(main, 1)


async def begin(store: Metastore, log: str = "log-1") -> ShardFence:
    return await begin_shard(store, "n1", "node-1", 0, log)


def test_who_was_followed_changes_nothing() -> None:
    async def story(store: Metastore) -> None:
        first = await begin(store)
        assert (await FencedStore(store, first).txn([], [PutKey("meta/root", b"1")])).succeeded
        second = await begin(store)
        assert (first.incarnation, second.incarnation) == (1, 2)
        with pytest.raises(Deposed, match=r"number 1, is shard node-1/0 no more: .*number 2"):
            await FencedStore(store, first).txn([], [PutKey("meta/root", b"2")])
        with pytest.raises(Deposed):
            await register_shard(store, first, "first:1")
        entry = await store.get("meta/root")
        assert entry is not None
        assert entry.value == b"1"
        assert await read_lives(store) == ()
        life = await register_shard(store, second, "second:1")
        assert (life.incarnation, life.address) == (2, "second:1")
        assert await read_lives(store) == (life,)

    play(story)


def test_what_else_is_compared_is_told_as_it_is() -> None:
    async def story(store: Metastore) -> None:
        fenced = FencedStore(store, await begin(store))
        assert (await fenced.txn([IsAbsent("a")], [PutKey("a", b"")])).succeeded
        assert not (await fenced.txn([IsAbsent("a")], [PutKey("b", b"")])).succeeded
        assert await store.get("b") is None

    play(story)


def test_another_log_is_refused_before_anything_is_written() -> None:
    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        with pytest.raises(Corruption, match="keeps its log"):
            await begin(store, "log-2")
        assert (await begin(store)).incarnation == 2

    play(story)


def test_numbers_go_on_where_no_fence_was_written() -> None:
    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        await register_shard(store, await begin(store), "second:1")
        fence = life_key("n1", 0).replace("/life", "/fence")
        await store.txn([], [PutKey(fence, b"0")])
        assert (await begin(store)).incarnation == 3

    play(story)
