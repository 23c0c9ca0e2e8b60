"""What every metastore does, alike."""

from __future__ import annotations

import asyncio
from math import inf, nan

import pytest

from stelae.model.errors import Closed, InvalidArgument, StelaeError
from stelae.ports.metastore import (
    OPS_MAX,
    TTL_S_MAX,
    TXN_BYTES_MAX,
    Change,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    ModRevisionIs,
    PutKey,
    Revision,
    TxnOutcome,
    ValueIs,
)
from tests.contract.metastores import Backend, World, backend, on_every_metastore, put

__all__ = ["backend"]


async def refused(call: object, error: type[StelaeError] = InvalidArgument) -> None:
    with pytest.raises(error):
        await call  # type: ignore[misc]


@on_every_metastore
async def test_key_that_was_never_put_is_none(world: World) -> None:
    store = await world.open()
    assert await store.get("key") is None
    assert (await store.range("")).entries == ()


@on_every_metastore
async def test_entry_tells_when_it_was_made_and_how_often_changed(world: World) -> None:
    store = await world.open()
    first = await put(store, "key", b"one")
    assert await store.get("key") == Entry("key", b"one", first, first, 1)
    await put(store, "other")
    second = await put(store, "key", b"\0\xff")
    assert await store.get("key") == Entry("key", b"\0\xff", first, second, 2)
    await store.txn([], [DeleteKey("key")])
    assert await store.get("key") is None
    again = await put(store, "key", b"")
    assert await store.get("key") == Entry("key", b"", again, again, 1)


@on_every_metastore
async def test_revision_grows_by_one_per_transaction_that_changes_anything(world: World) -> None:
    store = await world.open()
    start = await put(store, "key")
    once, twice = Revision(start + 1), Revision(start + 2)
    assert await store.txn([], [PutKey("a", b"1"), PutKey("b", b"2"), DeleteKey("key")]) == TxnOutcome(True, once)
    assert await store.txn([], [DeleteKey("key"), DeletePrefix("nothing")]) == TxnOutcome(True, once)
    assert await store.txn([IsAbsent("key")], []) == TxnOutcome(True, once)
    assert await store.txn([IsAbsent("a")], [PutKey("a", b"2")]) == TxnOutcome(False, once)
    assert await store.txn([IsAbsent("a")], []) == TxnOutcome(False, once)
    assert await put(store, "a", b"1") == twice
    assert (await store.range("")).revision == twice


@on_every_metastore
async def test_compare_holds_for_exactly_what_it_says(world: World) -> None:
    store = await world.open()
    gone = await put(store, "gone", b"value")
    await store.txn([], [DeleteKey("gone")])
    old = await put(store, "key", b"old")
    now = await put(store, "key", b"value")
    empty = await put(store, "empty", b"")
    cases: list[tuple[Compare, bool]] = [
        (IsAbsent("key"), False),
        (IsAbsent("gone"), True),
        (IsAbsent("never"), True),
        (IsAbsent("ke"), True),
        (ValueIs("key", b"value"), True),
        (ValueIs("key", b"old"), False),
        (ValueIs("key", b"value\0"), False),
        (ValueIs("key", b""), False),
        (ValueIs("empty", b""), True),
        (ValueIs("gone", b"value"), False),
        (ValueIs("gone", b""), False),
        (ValueIs("never", b""), False),
        (ModRevisionIs("key", now), True),
        (ModRevisionIs("key", old), False),
        (ModRevisionIs("key", Revision(empty + 5)), False),
        (ModRevisionIs("gone", gone), False),
        (ModRevisionIs("never", Revision(1)), False),
    ]
    for compare, holds in cases:
        assert (await store.txn([compare], [])).succeeded is holds, compare
        assert (await store.txn([compare], [PutKey("seen", b"")])).succeeded is holds, compare


@on_every_metastore
async def test_one_false_compare_stops_every_change(world: World) -> None:
    store = await world.open()
    revision = await put(store, "key", b"1")
    changes: list[Change] = [PutKey("key", b"2"), PutKey("new", b""), DeletePrefix("k/")]
    compares: list[Compare] = [ValueIs("key", b"1"), IsAbsent("new"), ModRevisionIs("key", Revision(revision + 1))]
    assert not (await store.txn(compares, changes)).succeeded
    assert await store.range("") == await store.range("", revision=revision)
    assert (await store.txn(compares[:2], changes)).succeeded
    assert [entry.value for entry in (await store.range("")).entries] == [b"2", b""]


@on_every_metastore
async def test_prefix_deletes_its_keys_and_no_others(world: World) -> None:
    store = await world.open()
    keys = ["a", "a/", "a/b", "a/é", "a/\U0010ffff", "a/\x7f", "a0", "b"]
    revision = (await store.txn([], [PutKey(key, b"") for key in keys])).revision
    assert (await store.txn([], [DeletePrefix("a/")])).revision == revision + 1
    assert [entry.key for entry in (await store.range("")).entries] == ["a", "a0", "b"]
    await store.txn([], [DeletePrefix("")])
    assert (await store.range("")).entries == ()


@pytest.mark.parametrize(
    "changes",
    [
        [PutKey("a", b"1"), PutKey("a", b"1")],
        [PutKey("a", b"1"), DeleteKey("a")],
        [DeleteKey("a"), DeleteKey("a")],
        [PutKey("a/b", b"1"), DeletePrefix("a/")],
        [DeletePrefix("a/b"), DeleteKey("a/b")],
        [DeletePrefix("a/"), DeletePrefix("a/b")],
        [DeletePrefix("a"), DeletePrefix("a")],
        [DeletePrefix(""), PutKey("z", b"1")],
    ],
)
def test_no_key_is_changed_twice_in_one_transaction(backend: Backend, changes: list[Change]) -> None:
    async def story(world: World) -> None:
        store = await world.open()
        revision = await put(store, "a/b/c", b"there")
        await refused(store.txn([], changes))
        await refused(store.txn([IsAbsent("a/b/c")], changes))
        assert (await store.range("")).revision == revision

    backend.run(story)


@on_every_metastore
async def test_as_many_operations_as_allowed_and_no_more(world: World) -> None:
    store = await world.open()
    puts = [PutKey(f"key-{number:03}", b"") for number in range(OPS_MAX + 1)]
    assert (await store.txn([], puts[:OPS_MAX])).succeeded
    await refused(store.txn([], puts))
    compares = [ValueIs(put.key, b"") for put in puts[: OPS_MAX // 2]]
    assert (await store.txn(compares, puts[: OPS_MAX // 2])).succeeded
    await refused(store.txn(compares, puts[: OPS_MAX // 2 + 1]))
    assert len((await store.range("")).entries) == OPS_MAX


@on_every_metastore
async def test_as_many_bytes_as_allowed_and_no_more(world: World) -> None:
    store = await world.open()
    largest = bytes(range(256)) * (TXN_BYTES_MAX // 256)
    await refused(store.txn([], [PutKey("key", largest)]))
    await put(store, "key", largest[3:])
    entry = await store.get("key")
    assert entry is not None
    assert entry.value == largest[3:]
    half = largest[: TXN_BYTES_MAX // 2]
    await refused(store.txn([ValueIs("key", half)], [PutKey("other", half)]))
    assert not (await store.txn([ValueIs("key", half[3:])], [PutKey("other", half[5:])])).succeeded
    parts = [PutKey(f"part-{number:02}", half[: 32768 - 7]) for number in range(32)]
    assert (await store.txn([], parts)).succeeded
    await refused(store.txn([], [*parts, DeleteKey("x")]))


@on_every_metastore
async def test_what_makes_no_sense_is_refused_before_it_is_sent(world: World) -> None:
    store = await world.open()
    before = await put(store, "key")
    for key in ["", "\ud800", "a\udfff"]:
        await refused(store.get(key))
        await refused(store.txn([], [PutKey(key, b"")]))
        await refused(store.txn([], [DeleteKey(key)]))
        await refused(store.txn([IsAbsent(key)], []))
    await refused(store.range("\ud800"))
    await refused(store.range("", start="\ud800"))
    await refused(store.txn([], [DeletePrefix("\ud800")]))
    await refused(anext(store.watch("\ud800", before)))
    for revision in [Revision(0), Revision(-1)]:
        await refused(store.get("key", revision))
        await refused(store.range("", revision=revision))
        await refused(store.txn([ModRevisionIs("key", revision)], []))
        await refused(store.compact(revision))
        await refused(anext(store.watch("", revision)))
    for limit in [0, -1]:
        await refused(store.range("", limit=limit))
    for ttl_s in [0, -1, nan, inf, TTL_S_MAX + 1]:
        await refused(store.grant(ttl_s))
    assert (await store.range("")).revision == before


@on_every_metastore
async def test_old_revisions_read_as_they_were(world: World) -> None:
    store = await world.open()
    revision = await put(store, "a/1", b"1")
    changes: list[list[Change]] = [
        [PutKey("a/2", b"2"), PutKey("b", b"")],
        [PutKey("a/1", b"11")],
        [DeleteKey("a/1"), PutKey("a/3", b"3")],
        [PutKey("a/1", b"111")],
        [DeletePrefix("a/")],
        [PutKey("a/2", b"22")],
    ]
    seen = {revision: await store.range("a/")}
    for change in changes:
        revision = (await store.txn([], change)).revision
        seen[revision] = await store.range("a/")
    for revision, read in seen.items():
        assert await store.range("a/", revision=revision) == read
        there = {entry.key: entry for entry in read.entries}
        for key in ["a/1", "a/2", "a/3"]:
            assert await store.get(key, revision) == there.get(key)


@on_every_metastore
async def test_revision_yet_to_come_cannot_be_read(world: World) -> None:
    store = await world.open()
    ahead = Revision(await put(store, "key") + 1)
    await refused(store.get("key", ahead))
    await refused(store.range("", revision=ahead))
    await refused(store.compact(ahead))


@on_every_metastore
async def test_range_is_in_order_of_bytes_from_start_up_to_limit(world: World) -> None:
    store = await world.open()
    keys = ["p", "p\0", "p\0a", "p/", "pA", "pa", "p\x7f", "p\x80", "pé", "p\uffff", "p\U0001f600"]
    await store.txn([], [PutKey(key, key.encode()) for key in [*keys[::-1], "o", "q", "O"]])

    async def read(**asked: object) -> tuple[list[str], bool]:
        found = await store.range("p", **asked)  # type: ignore[arg-type]
        assert all(entry.value == entry.key.encode() for entry in found.entries)
        return [entry.key for entry in found.entries], found.more

    assert await read() == (keys, False)
    assert await read(start="") == (keys, False)
    assert await read(start="o") == (keys, False)
    assert await read(start="pa") == (keys[5:], False)
    assert await read(start="pa\0") == (keys[6:], False)
    assert await read(start="q") == ([], False)
    assert await read(start="z", limit=3) == ([], False)
    for limit in range(1, len(keys) + 2):
        assert await read(limit=limit) == (keys[:limit], limit < len(keys))
    assert await read(start="p\x7f", limit=2) == (["p\x7f", "p\x80"], True)


@on_every_metastore
async def test_pages_at_one_revision_are_one_snapshot(world: World) -> None:
    store, other = await world.open(), await world.open()
    keys = [f"key-{number:03}" for number in range(100)]
    await store.txn([], [PutKey(key, b"old") for key in keys])
    page = await store.range("key-", limit=7)
    revision = page.revision
    read = list(page.entries)
    while page.more:
        here = len(read)
        await other.txn([], [PutKey(keys[here // 2], b"new"), DeleteKey(keys[-1 - here]), PutKey(f"key-{here}x", b"")])
        page = await store.range("key-", start=read[-1].key + "\0", limit=7, revision=revision)
        assert page.revision == revision
        read += page.entries
    assert [(entry.key, entry.value) for entry in read] == [(key, b"old") for key in keys]


@on_every_metastore
async def test_large_range_is_whole(world: World) -> None:
    store = await world.open()
    value = bytes(60_000)
    for number in range(0, 304, 16):
        await store.txn([], [PutKey(f"key-{each:03}", value) for each in range(number, number + 16)])
    found = await store.range("key-")
    assert [entry.key for entry in found.entries] == [f"key-{number:03}" for number in range(304)]
    assert not found.more
    assert sum(len(entry.value) for entry in found.entries) > 16 << 20
    part = await store.range("key-", limit=300)
    assert (part.entries, part.more) == (found.entries[:300], True)


@on_every_metastore
async def test_acknowledged_change_is_seen_by_everyone_at_once(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    for number in range(30):
        value = b"%d" % number
        revision = await put(stores[number % 3], "key", value)
        entry = await stores[(number + 1) % 3].get("key")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (value, revision)
        assert (await stores[(number + 2) % 3].range("")).revision == revision


@on_every_metastore
async def test_counter_incremented_by_many_at_once_ends_exact(world: World) -> None:
    stores = [await world.open() for _ in range(3)]
    await put(stores[0], "counter", b"0")

    async def increment(number: int) -> None:
        store = stores[number % 3]
        for _ in range(5):
            while True:
                entry = await store.get("counter")
                assert entry is not None
                next_value = b"%d" % (int(entry.value) + 1)
                guard = ModRevisionIs("counter", entry.mod_revision)
                if (await store.txn([guard], [PutKey("counter", next_value)])).succeeded:
                    break

    await asyncio.gather(*[increment(number) for number in range(8)])
    entry = await stores[0].get("counter")
    assert entry is not None
    assert (entry.value, entry.version) == (b"40", 41)


@on_every_metastore
async def test_closed_metastore_refuses_everything_and_others_go_on(world: World) -> None:
    store, other = await world.open(), await world.open()
    revision = await put(store, "key")
    lease = await store.grant(60)
    await put(store, "bound", b"", lease)
    waiting = asyncio.ensure_future(anext(store.watch("never", revision)))
    unread = store.watch("", revision)
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    await refused(waiting, Closed)
    await refused(anext(unread), Closed)
    await refused(anext(store.watch("", revision)), Closed)
    await refused(store.get("key"), Closed)
    await refused(store.range(""), Closed)
    await refused(store.txn([], [PutKey("key", b"2")]), Closed)
    await refused(store.grant(1), Closed)
    await refused(store.keep_alive(lease), Closed)
    await refused(store.revoke(lease), Closed)
    await refused(store.compact(revision), Closed)
    assert (await other.range("")).revision == revision + 1
    assert await other.get("bound") is not None
    await other.revoke(lease)
