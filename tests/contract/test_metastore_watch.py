"""Watches and compaction, alike on every metastore: each change once, in order, none left out."""

from __future__ import annotations

import asyncio

import pytest

from stelae.ports.metastore import (
    Change,
    Compacted,
    DeleteKey,
    DeletePrefix,
    Entry,
    KeyDeleted,
    KeyPut,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
    WatchBatch,
)
from tests.contract.metastores import World, backend, on_every_metastore, put, take

__all__ = ["backend"]


def batch_of_one(key: str, value: bytes, revision: Revision) -> WatchBatch:
    return WatchBatch(revision, (KeyPut(Entry(key, value, revision, revision, 1)),))


@on_every_metastore
async def test_watch_from_the_past_tells_what_happened_then_what_happens(world: World) -> None:
    store = await world.open()
    await put(store, "a/0")
    first = await put(store, "a/1", b"1")
    await put(store, "b")
    second = await put(store, "a/2", b"2")
    watch = store.watch("a/", first)
    assert await take(watch, 2) == [batch_of_one("a/1", b"1", first), batch_of_one("a/2", b"2", second)]
    third = await put(store, "a/3", b"3")
    assert await take(watch, 1) == [batch_of_one("a/3", b"3", third)]


@on_every_metastore
async def test_watch_wakes_for_changes_of_others(world: World) -> None:
    store, other = await world.open(), await world.open()
    revision = (await store.range("")).revision
    waiting = asyncio.ensure_future(anext(store.watch("a/", Revision(revision + 1))))
    await put(other, "b")
    made = await put(other, "a/1", b"1")
    assert await waiting == batch_of_one("a/1", b"1", made)


@on_every_metastore
async def test_watch_from_the_future_waits_for_it(world: World) -> None:
    store = await world.open()
    revision = await put(store, "key", b"0")
    watch = store.watch("key", Revision(revision + 3))
    waiting = asyncio.ensure_future(anext(watch))
    for number in range(1, 5):
        await put(store, "key", b"%d" % number)
    assert (await waiting).revision == revision + 3
    assert (await anext(watch)).revision == revision + 4


@on_every_metastore
async def test_batch_is_all_that_a_transaction_changed_under_the_prefix_by_key(world: World) -> None:
    store = await world.open()
    start = (await store.txn([], [PutKey(f"a/{name}", b"1") for name in "dbz"] + [PutKey("c", b"")])).revision
    watch = store.watch("a/", Revision(start + 1))
    changes: list[Change] = [PutKey("a/e", b"e"), DeleteKey("a/d"), PutKey("b", b""), PutKey("a/a", b"a")]
    revision = (await store.txn([], [*changes, DeleteKey("a/none"), PutKey("a/b", b"2")])).revision
    await store.txn([], [PutKey("x", b""), DeleteKey("a/none")])
    await store.txn([], [DeletePrefix("a/"), PutKey("y", b"")])
    assert await take(watch, 2) == [
        WatchBatch(
            revision,
            (
                KeyPut(Entry("a/a", b"a", revision, revision, 1)),
                KeyPut(Entry("a/b", b"2", start, revision, 2)),
                KeyDeleted("a/d"),
                KeyPut(Entry("a/e", b"e", revision, revision, 1)),
            ),
        ),
        WatchBatch(Revision(revision + 2), tuple(KeyDeleted(f"a/{name}") for name in "abez")),
    ]


@on_every_metastore
async def test_empty_prefix_watches_all_and_watches_do_not_share(world: World) -> None:
    store = await world.open()
    revision = await put(store, "a")
    every, some = store.watch("", revision), store.watch("b", revision)
    await put(store, "b")
    await put(store, "c")
    assert [batch.revision - revision for batch in await take(every, 3)] == [0, 1, 2]
    assert [batch.revision - revision for batch in await take(some, 1)] == [1]
    again = store.watch("", Revision(revision + 2))
    assert [batch.revision - revision for batch in await take(again, 1)] == [2]


@on_every_metastore
async def test_waiting_no_longer_loses_nothing(world: World) -> None:
    store = await world.open()
    revision = await put(store, "key")
    watch = store.watch("key", Revision(revision + 1))
    for number in range(1, 6):
        waiting = asyncio.ensure_future(anext(watch))
        for _ in range(number):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        made = await put(store, "key", b"%d" % number)
        assert (await anext(watch)).revision == made


@on_every_metastore
async def test_many_changes_come_in_whole_batches(world: World) -> None:
    store = await world.open()
    start = await put(store, "a")
    for number in range(30):
        value = bytes(300 * number)
        await store.txn([], [PutKey(f"key-{each:03}", value) for each in range(100)])
    await store.txn([], [DeletePrefix("key-")])
    batches = await take(store.watch("key-", Revision(start + 1)), 31)
    assert [batch.revision - start for batch in batches] == list(range(1, 32))
    assert [len(batch.events) for batch in batches] == [100] * 31
    assert batches[-1].events == tuple(KeyDeleted(f"key-{each:03}") for each in range(100))


@on_every_metastore
async def test_watch_under_concurrent_writers_has_no_gap_and_no_repeat(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    start = await put(stores[0], "w/0", b"")
    acked: dict[Revision, str] = {}

    async def write(store: Metastore, name: str) -> None:
        for number in range(40):
            acked[await put(store, f"w/{name}", b"%d" % number)] = f"w/{name}"
            if number % 7 == 0:
                await put(store, f"x/{name}")

    async def watch(store: Metastore) -> list[WatchBatch]:
        return await take(store.watch("w/", Revision(start + 1)), 160)

    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(watch(store)) for store in stores]
        for number in range(4):
            group.create_task(write(stores[number % 3], f"{number}"))
        late = [group.create_task(watch(store)) for store in stores]
    seen = [each.result() for each in watches + late]
    assert all(batches == seen[0] for batches in seen)
    told = [
        (batch.revision, event.entry.key) for batch in seen[0] for event in batch.events if isinstance(event, KeyPut)
    ]
    assert told == sorted(acked.items())


@on_every_metastore
async def test_compaction_forgets_the_past_and_keeps_the_present(world: World) -> None:
    store = await world.open()
    first = await put(store, "key", b"1")
    await put(store, "stays", b"old")
    await put(store, "gone", b"1")
    await put(store, "key", b"2")
    middle = (await store.txn([], [DeleteKey("gone")])).revision
    last = await put(store, "key", b"3")
    at_middle, now = await store.range("", revision=middle), await store.range("")
    await store.compact(middle)
    for revision in range(first, middle):
        with pytest.raises(Compacted) as caught:
            await store.get("key", Revision(revision))
        assert (caught.value.asked, caught.value.oldest) == (revision, middle)
        with pytest.raises(Compacted) as caught:
            await store.range("", revision=Revision(revision))
        assert (caught.value.asked, caught.value.oldest) == (revision, middle)
    assert await store.range("", revision=middle) == at_middle
    assert await store.range("", revision=last) == now
    assert await store.range("") == now
    assert (await store.txn([ModRevisionIs("key", last)], [])).succeeded
    await store.compact(middle)
    await store.compact(first)
    assert await store.range("", revision=middle) == at_middle
    await store.compact(last)
    assert await store.range("", revision=last) == now
    again = await put(store, "gone", b"2")
    assert await store.get("gone") == Entry("gone", b"2", again, again, 1)


@on_every_metastore
async def test_watch_of_what_was_compacted_says_so_and_ends(world: World) -> None:
    store = await world.open()
    first = await put(store, "key", b"1")
    middle = (await store.txn([], [DeleteKey("key")])).revision
    last = await put(store, "key", b"2")
    await store.compact(middle)
    for revision in (first, middle):
        watch = store.watch("key", revision)
        for _ in range(2):
            with pytest.raises(Compacted) as caught:
                await anext(watch)
            assert (caught.value.asked, caught.value.oldest) == (revision, middle + 1)
    assert await take(store.watch("key", last), 1) == [batch_of_one("key", b"2", last)]


@on_every_metastore
async def test_compaction_of_what_a_watch_has_delivered_leaves_it_alone(world: World) -> None:
    store = await world.open()
    start = await put(store, "key", b"0")
    watch = store.watch("key", start)
    assert (await anext(watch)).revision == start
    for number in range(1, 6):
        await put(store, "other", b"%d" % number)
        made = await put(store, "key", b"%d" % number)
        assert (await anext(watch)).revision == made
        await store.compact(made)
    gone = (await store.txn([], [DeleteKey("key")])).revision
    assert await anext(watch) == WatchBatch(gone, (KeyDeleted("key"),))
