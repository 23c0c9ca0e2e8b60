"""Processes that begin to be the same shard: the last one is it, and the others change nothing any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stelae.model.errors import Corruption, Deposed, InvalidArgument
from stelae.ports.metastore import IsAbsent, Metastore, PutKey
from stelae.registry.incarnations import (
    FencedStore,
    ShardFence,
    ShardIdentity,
    begin_shard,
    check_shard,
    life_key,
    log_key,
    read_lives,
    register_shard,
)
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.rng import SimRng


def play(story: Callable[[Metastore], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        await story(SimMetastoreServer(loop, SimRng(1)).client("all"))

    simulate(main, 1)


def identity(log: str) -> ShardIdentity:
    return ShardIdentity("n1", "node-1", 0, log)


async def begin(store: Metastore, log: str = "log-1") -> ShardFence:
    return await begin_shard(store, identity(log))


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
            await check_shard(store, identity("log-2"))
        await check_shard(store, identity("log-1"))
        again = await begin(store)
        assert (again.incarnation, again.is_new_log) == (2, False)

    play(story)


def test_another_log_is_served_where_others_have_all_that_was_in_the_first() -> None:
    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        await check_shard(store, identity("log-2"), holds_alone=False)
        lost = await begin(store, "log-2")
        assert (lost.incarnation, lost.is_new_log, lost.log) == (2, True, "log-2")
        life = await register_shard(store, lost, "second:1")
        assert life.log == "log-2"
        with pytest.raises(Corruption, match=r"keeps its log \(log-2\)"):
            await check_shard(store, identity("log-1"))
        assert not (await begin(store, "log-2")).is_new_log

    play(story)


def test_a_log_is_new_until_what_was_kept_of_the_other_is_forgotten() -> None:
    """It may crash before that, and after it before it says where it serves: then nothing is forgotten again."""

    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        assert (await begin(store, "log-2")).is_new_log
        again = await begin(store, "log-2")
        assert again.is_new_log
        await FencedStore(store, again).txn([], [PutKey(log_key("n1", 0), b"log-2")])
        after = await begin(store, "log-2")
        assert (after.incarnation, after.is_new_log) == (4, False)
        await register_shard(store, after, "second:1")
        assert (await begin(store, "log-3")).is_new_log

    play(story)


def test_a_shard_that_never_served_has_no_log_before() -> None:
    async def story(store: Metastore) -> None:
        assert not (await begin(store)).is_new_log
        assert not (await begin(store, "log-2")).is_new_log

    play(story)


@pytest.mark.parametrize("holds_alone", [True, False])
def test_names_are_checked_whoever_has_its_rows(holds_alone: bool) -> None:
    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        with pytest.raises(InvalidArgument, match="was started as 'node-1' before"):
            await check_shard(store, ShardIdentity("n1", "node-2", 0, "log-1"), holds_alone)
        with pytest.raises(InvalidArgument, match="another node that is called 'node-1'"):
            await check_shard(store, ShardIdentity("n2", "node-1", 0, "log-1"), holds_alone)

    play(story)


def test_numbers_go_on_where_no_fence_was_written() -> None:
    async def story(store: Metastore) -> None:
        await register_shard(store, await begin(store), "first:1")
        await register_shard(store, await begin(store), "second:1")
        fence = life_key("n1", 0).replace("/life", "/fence")
        await store.txn([], [PutKey(fence, b"0")])
        assert (await begin(store)).incarnation == 3

    play(story)
