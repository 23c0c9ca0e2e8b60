"""Leases of shards as a master sees them, and how it takes a shard away from a process that does not renew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stelae.model.errors import Deposed
from stelae.ports.metastore import Entry, Metastore, PutKey, Revision
from stelae.registry.incarnations import FencedStore, ShardFence, ShardIdentity, begin_shard
from stelae.registry.leases.fencing import fence_shard
from stelae.registry.leases.shard import ShardLease, lease_key, read_lease
from stelae.registry.leases.sight import ShardSight
from stelae.registry.masters.guard import GUARD_KEY, GuardedStore, HeldGuard, next_guard
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.rng import SimRng

KEY = lease_key("n1", 0)


def entry(revision: int, *, key: str = KEY, is_over: bool = False) -> Entry:
    value = ShardLease(1, revision, 1_000, 0, is_over).value
    return Entry(key, value, Revision(1), Revision(revision), revision)


@pytest.mark.parametrize(
    ("seen", "at_s", "silent"),
    [
        ([], 9.0, False),
        ([(0.0, entry(2))], 1.0, False),
        ([(0.0, entry(2)), (0.4, entry(2)), (0.8, entry(2)), (1.2, entry(2))], 1.2, True),
        ([(0.0, entry(2)), (0.4, entry(2)), (0.8, entry(3)), (1.2, entry(3))], 1.2, False),
        ([(0.0, entry(2)), (1.2, entry(2))], 1.2, False),
        ([(0.0, entry(2, is_over=True))], 0.0, True),
        ([(0.0, entry(2, key=KEY.replace("lease", "life")))], 9.0, False),
    ],
    ids=["never seen", "young", "old", "renewed", "not looked at", "closed in order", "another key"],
)
def test_a_shard_is_silent(seen: list[tuple[float, Entry]], at_s: float, silent: bool) -> None:
    sight = ShardSight()
    for now_s, found in seen:
        sight.note([found], now_s)
    assert sight.is_silent(KEY, at_s) is silent


def play(story: Callable[[Metastore, GuardedStore], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        store = SimMetastoreServer(loop, SimRng(1)).client("all")
        await story(store, await lead(store))

    simulate(main, 1)


async def lead(store: Metastore) -> GuardedStore:
    guard, unchanged = next_guard(await store.get(GUARD_KEY), "m", "")
    outcome = await store.txn([unchanged], [PutKey(GUARD_KEY, guard.value)])
    return GuardedStore(store, HeldGuard(guard, outcome.revision))


async def begin(store: Metastore, renewals: int = 1) -> tuple[ShardFence, Revision]:
    fence = await begin_shard(store, ShardIdentity("n1", "node-1", 0, "log-1"))
    return fence, await renew(store, fence, renewals)


async def renew(store: Metastore, fence: ShardFence, renewals: int) -> Revision:
    lease = ShardLease(fence.incarnation, renewals, 1_000, 0)
    return (await FencedStore(store, fence).txn([], [PutKey(KEY, lease.value)])).revision


def test_a_shard_that_is_fenced_renews_no_more_and_is_begun_again_with_a_greater_number() -> None:
    async def story(store: Metastore, master: GuardedStore) -> None:
        fence, revision = await begin(store)
        assert await fence_shard(master, "n1", 0, revision)
        with pytest.raises(Deposed, match=r"number 1, is shard node-1/0 no more: .*number 2"):
            await renew(store, fence, 2)
        entry = await read_lease(store, "n1", 0)
        assert entry is not None
        assert entry.mod_revision == revision
        again, _ = await begin(store)
        assert again.incarnation == 3

    play(story)


def test_a_shard_that_has_renewed_its_lease_meanwhile_is_not_fenced() -> None:
    async def story(store: Metastore, master: GuardedStore) -> None:
        fence, revision = await begin(store)
        await renew(store, fence, 2)
        assert not await fence_shard(master, "n1", 0, revision)
        await renew(store, fence, 3)

    play(story)


def test_a_master_that_was_followed_fences_nobody() -> None:
    async def story(store: Metastore, master: GuardedStore) -> None:
        fence, revision = await begin(store)
        await lead(store)
        with pytest.raises(Deposed):
            await fence_shard(master, "n1", 0, revision)
        await renew(store, fence, 2)

    play(story)


def test_a_shard_that_was_never_started_is_not_fenced() -> None:
    async def story(_: Metastore, master: GuardedStore) -> None:
        assert not await fence_shard(master, "n1", 0, Revision(1))

    play(story)
