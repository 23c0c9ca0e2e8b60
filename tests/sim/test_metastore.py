"""The simulated metastore's faults: each kind happens, none breaks the contract, and all repeat by seed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from stelae.model.errors import Closed, Unavailable, UnknownOutcome
from stelae.ports.metastore import (
    Compacted,
    IsAbsent,
    KeyDeleted,
    KeyPut,
    LeaseExpired,
    ModRevisionIs,
    PutKey,
    Revision,
)
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import MetastoreFaults, SimMetastore, SimMetastoreServer
from stelae.sim.rng import SimRng

BAD = MetastoreFaults(delay_s_max=0.2, refused=0.1, request_lost=0.1, answer_lost=0.1, late=0.1, watch_cut=0.2)
SEEDS = range(60)


async def increment_once(store: SimMetastore, name: str) -> str:
    """Exactly once, whatever gets lost: the mark that it was done is in the same transaction."""
    while True:
        try:
            if await store.get(f"done/{name}") is not None:
                return "found done"
            counter = await store.get("counter")
            guard = IsAbsent("counter") if counter is None else ModRevisionIs("counter", counter.mod_revision)
            value = b"%d" % (1 if counter is None else int(counter.value) + 1)
            puts = [PutKey("counter", value), PutKey(f"done/{name}", b"")]
            if (await store.txn([guard, IsAbsent(f"done/{name}")], puts)).succeeded:
                return "acknowledged"
        except (Unavailable, UnknownOutcome):
            await asyncio.sleep(0.1)


def run_counters(seed: int) -> tuple[list[str], list[tuple[Revision, bytes]], float]:
    async def main(loop: SimLoop) -> tuple[list[str], list[tuple[Revision, bytes]], float]:
        server = SimMetastoreServer(loop, SimRng(seed), BAD)

        async def work(number: int) -> list[str]:
            store = server.client(f"worker-{number}")
            return [await increment_once(store, f"{number}/{each}") for each in range(5)]

        async def watch() -> list[tuple[Revision, bytes]]:
            seen: list[tuple[Revision, bytes]] = []
            async for batch in server.client("watcher").watch("counter", Revision(1)):
                for event in batch.events:
                    assert isinstance(event, KeyPut)
                    seen.append((batch.revision, event.entry.value))
                if len(seen) == 20:
                    break
            return seen

        async def cut_off() -> None:
            for number in range(4):
                server.partition(f"worker-{number}")
                await asyncio.sleep(3)
                server.heal(f"worker-{number}")
                server.restart()

        watching = asyncio.create_task(watch())
        cutting = asyncio.create_task(cut_off())
        results = await asyncio.gather(*[work(number) for number in range(4)])
        await cutting
        return [result for each in results for result in each], await watching, loop.time()

    return simulate(main, seed)


def test_counters_are_exact_and_watches_whole_whatever_is_lost() -> None:
    outcomes: Counter[str] = Counter()
    for seed in SEEDS:
        results, seen, _ = run_counters(seed)
        outcomes.update(results)
        assert [value for _, value in seen] == [b"%d" % number for number in range(1, 21)]
        assert [revision for revision, _ in seen] == list(range(2, 22))
    assert outcomes["found done"] > len(SEEDS)
    assert outcomes["acknowledged"] > len(SEEDS)


def test_run_repeats_by_seed() -> None:
    assert [run_counters(seed) for seed in range(5)] == [run_counters(seed) for seed in range(5)]
    assert len({run_counters(seed)[2] for seed in range(5)}) == 5


async def fate_of_put(server: SimMetastoreServer, loop: SimLoop) -> tuple[str, bool, bool]:
    """What the client was told, whether the put was there then, and whether it was in the end."""
    told = "done"
    before = server.revision
    try:
        await server.client("a").txn([], [PutKey("key", b"")])
    except UnknownOutcome:
        told = "unknown"
    except Unavailable:
        told = "not done"
    then = server.revision > before
    await asyncio.sleep(60)
    return told, then, server.revision > before


def fates(faults: MetastoreFaults) -> set[tuple[str, bool, bool]]:
    async def main(loop: SimLoop) -> set[tuple[str, bool, bool]]:
        server = SimMetastoreServer(loop, SimRng(1), faults)
        return {await fate_of_put(server, loop) for _ in range(100)}

    return simulate(main, seed=1)


def test_each_fault_does_what_it_says() -> None:
    assert fates(MetastoreFaults()) == {("done", True, True)}
    assert fates(MetastoreFaults(refused=1)) == {("not done", False, False)}
    assert fates(MetastoreFaults(request_lost=1)) == {("unknown", False, False)}
    assert fates(MetastoreFaults(answer_lost=1)) == {("unknown", True, True)}
    assert fates(MetastoreFaults(late=1)) == {
        ("done", True, True),
        ("unknown", True, True),
        ("unknown", False, True),
    }


def test_partitioned_client_reaches_nothing_until_healed() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(1))
        store, other = server.client("a"), server.client("b")
        watch = store.watch("", Revision(1))
        waiting = asyncio.ensure_future(anext(watch))
        server.partition("a")
        made = (await other.txn([], [PutKey("key", b"")])).revision
        with pytest.raises(Unavailable):
            await store.get("key")
        with pytest.raises(UnknownOutcome):
            await store.txn([], [PutKey("key", b"2")])
        assert server.revision == made
        assert not waiting.done()
        server.heal("a")
        assert (await waiting).revision == made
        assert await store.get("key") is not None

    simulate(main, seed=1)


def test_partition_under_way_loses_the_answer() -> None:
    async def main(loop: SimLoop) -> bool:
        server = SimMetastoreServer(loop, SimRng(1), MetastoreFaults(delay_s_max=0.5))
        putting = asyncio.ensure_future(server.client("a").txn([], [PutKey("key", b"")]))
        while server.revision == 1:
            await asyncio.sleep(0.001)
        server.partition("a")
        with pytest.raises(UnknownOutcome):
            await putting
        return True

    assert simulate(main, seed=1)


def test_leases_run_on_virtual_time_and_a_restart_lengthens_them() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(1), MetastoreFaults(delay_s_max=0))
        store = server.client("a")
        lease = await store.grant(10)
        revision = (await store.txn([], [PutKey("key", b"", lease)])).revision
        await asyncio.sleep(9)
        await store.keep_alive(lease)
        await asyncio.sleep(9)
        server.restart()
        await asyncio.sleep(9.9)
        assert await store.get("key") is not None
        batch = await anext(store.watch("", Revision(revision + 1)))
        assert batch.events == (KeyDeleted("key"),)
        assert loop.time() == 28
        with pytest.raises(LeaseExpired):
            await store.keep_alive(lease)

    simulate(main, seed=1)


def test_request_of_a_crashed_process_still_arrives() -> None:
    async def main(loop: SimLoop) -> set[Revision]:
        revisions = set()
        for number in range(20):
            server = SimMetastoreServer(loop, SimRng(number))

            async def write(store: SimMetastore) -> None:
                await store.txn([], [PutKey("key", b"")])
                await store.txn([], [PutKey("key", b"")])

            process = loop.spawn("writer", write(server.client("a")))
            await asyncio.sleep(0.008)
            process.crash()
            before = server.revision
            await asyncio.sleep(1)
            revisions.add(Revision(server.revision - before))
        return revisions

    assert simulate(main, seed=1) == {0, 1}


def test_cut_watch_may_find_its_place_compacted() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(1))
        store, other = server.client("a"), server.client("b")
        waiting = asyncio.ensure_future(anext(store.watch("quiet", Revision(2))))
        revision = (await other.txn([], [PutKey("key", b"")])).revision
        await asyncio.sleep(1)
        server.partition("a")
        await other.compact(revision)
        server.heal("a")
        with pytest.raises(Compacted):
            await waiting

    simulate(main, seed=1)


def test_closing_ends_a_watch_that_is_cut_off() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(1))
        store = server.client("a")
        server.partition("a")
        waiting = asyncio.ensure_future(anext(store.watch("", Revision(1))))
        await asyncio.sleep(5)
        await store.close()
        with pytest.raises(Closed):
            await waiting

    simulate(main, seed=1)


def test_a_metastore_that_is_away_answers_nobody_and_has_everything_when_it_comes_back() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(1))
        one, other = server.client("one"), server.client("other")
        await one.txn([], [PutKey("before", b"1")])
        batches = other.watch("", Revision(1))
        assert [event.entry.key for event in (await anext(batches)).events if isinstance(event, KeyPut)] == ["before"]
        watching = asyncio.create_task(anext(batches))
        server.go_away()
        for client in (one, other):
            with pytest.raises(UnknownOutcome):
                await client.txn([], [PutKey("meanwhile", b"2")])
            with pytest.raises(Unavailable):
                await client.get("before")
        assert server.revision == 2
        server.come_back()
        server.come_back()
        await one.txn([], [PutKey("after", b"3")])
        assert [event.entry.key for event in (await watching).events if isinstance(event, KeyPut)] == ["after"]
        assert await other.get("meanwhile") is None

    simulate(main, seed=1)
