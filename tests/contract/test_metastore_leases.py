"""Leases, alike on every metastore. Nothing here measures time: what is waited for is the deletion itself."""

from __future__ import annotations

import asyncio

import pytest

from stelae.ports.metastore import (
    DeleteKey,
    Entry,
    IsAbsent,
    KeyDeleted,
    LeaseExpired,
    LeaseId,
    PutKey,
    Revision,
    WatchBatch,
)
from tests.contract.metastores import World, backend, on_every_metastore, put

__all__ = ["backend"]

SHORT_S = 0.3
LONG_S = 60.0


@on_every_metastore
async def test_lease_that_runs_out_takes_its_keys_in_one_revision(world: World) -> None:
    store, other = await world.open(), await world.open()
    lease = await store.grant(SHORT_S)
    await store.txn([], [PutKey("b", b"", lease), PutKey("stays", b""), PutKey("a", b"1", lease)])
    revision = await put(store, "c", b"", lease)
    batch = await anext(other.watch("", Revision(revision + 1)))
    assert batch == WatchBatch(Revision(revision + 1), (KeyDeleted("a"), KeyDeleted("b"), KeyDeleted("c")))
    assert [entry.key for entry in (await store.range("")).entries] == ["stays"]
    assert (await store.range("", revision=revision)).entries[0] == Entry(
        "a", b"1", Revision(revision - 1), Revision(revision - 1), 1, lease
    )
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    with pytest.raises(LeaseExpired):
        await other.txn([], [PutKey("a", b"2", lease)])
    await other.revoke(lease)
    assert (await store.range("")).revision == revision + 1


@on_every_metastore
async def test_lease_kept_alive_outlives_its_ttl(world: World) -> None:
    store, other = await world.open(), await world.open()
    kept, measure = await store.grant(3), await store.grant(4)
    await store.txn([], [PutKey("kept", b"", kept), PutKey("measure", b"", measure)])
    start = (await store.range("")).revision

    async def keep() -> None:
        while True:
            assert await other.keep_alive(kept) >= 3
            await asyncio.sleep(0.1)

    keeping = asyncio.ensure_future(keep())
    batch = await anext(store.watch("", Revision(start + 1)))
    keeping.cancel()
    assert batch.events == (KeyDeleted("measure"),)
    assert await store.get("kept") is not None
    await store.revoke(kept)


@on_every_metastore
async def test_keep_alive_tells_the_ttl(world: World) -> None:
    store = await world.open()
    lease = await store.grant(LONG_S)
    assert await store.keep_alive(lease) == LONG_S
    rounded = await store.grant(LONG_S + 0.25)
    assert LONG_S + 0.25 <= await store.keep_alive(rounded) <= LONG_S + 1
    assert lease != rounded
    await store.revoke(lease)
    await store.revoke(rounded)


@on_every_metastore
async def test_revoked_lease_takes_its_keys_and_is_gone(world: World) -> None:
    store, other = await world.open(), await world.open()
    lease, empty = await store.grant(LONG_S), await store.grant(LONG_S)
    await store.txn([], [PutKey("b", b"", lease), PutKey("a", b"", lease)])
    revision = await put(store, "stays")
    await other.revoke(lease)
    batch = await anext(store.watch("", Revision(revision + 1)))
    assert batch == WatchBatch(Revision(revision + 1), (KeyDeleted("a"), KeyDeleted("b")))
    await store.revoke(lease)
    await store.revoke(empty)
    await store.revoke(LeaseId(123456789))
    assert (await store.range("")).revision == revision + 1
    for gone in (lease, empty, LeaseId(123456789)):
        with pytest.raises(LeaseExpired):
            await store.keep_alive(gone)


@on_every_metastore
async def test_put_with_a_lease_that_is_gone_changes_nothing(world: World) -> None:
    store = await world.open()
    lease = await store.grant(LONG_S)
    await store.revoke(lease)
    revision = await put(store, "key", b"1")
    with pytest.raises(LeaseExpired):
        await store.txn([], [PutKey("other", b""), DeleteKey("key"), PutKey("bound", b"", lease)])
    assert not (await store.txn([IsAbsent("key")], [PutKey("bound", b"", lease)])).succeeded
    read = await store.range("")
    assert (read.revision, [entry.key for entry in read.entries]) == (revision, ["key"])


@on_every_metastore
async def test_key_leaves_its_lease_when_put_again(world: World) -> None:
    store = await world.open()
    first, second = await store.grant(LONG_S), await store.grant(LONG_S)
    await store.txn([], [PutKey(key, b"", first) for key in ("freed", "moved", "deleted", "bound")])
    await store.txn([], [PutKey("freed", b""), PutKey("moved", b"", second), DeleteKey("deleted")])
    await put(store, "deleted")
    leases = {entry.key: entry.lease for entry in (await store.range("")).entries}
    assert leases == {"freed": None, "moved": second, "deleted": None, "bound": first}
    await store.revoke(first)
    assert [entry.key for entry in (await store.range("")).entries] == ["deleted", "freed", "moved"]
    await store.revoke(second)
    assert [entry.key for entry in (await store.range("")).entries] == ["deleted", "freed"]


@on_every_metastore
async def test_lease_goes_on_when_the_one_that_took_it_closes(world: World) -> None:
    store, other = await world.open(), await world.open()
    lease, short = await store.grant(LONG_S), await store.grant(SHORT_S)
    await put(store, "long", b"", lease)
    revision = await put(store, "short", b"", short)
    await store.close()
    batch = await anext(other.watch("", Revision(revision + 1)))
    assert batch.events == (KeyDeleted("short"),)
    await put(other, "more", b"", lease)
    await other.revoke(lease)
    assert (await other.range("")).entries == ()
