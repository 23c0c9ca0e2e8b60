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
    Metastore,
    PutKey,
    Revision,
    WatchBatch,
)
from tests.contract.metastores import World, backend, on_every_metastore, put

__all__ = ["backend"]

SHORT_S = 0.3
LONG_S = 600.0


async def bound(store: Metastore, *puts: dict[str, bytes]) -> tuple[LeaseId, Revision]:
    """A lease that runs out soon, keys bound to it by one transaction after the other, and the last one's revision.
    Where the machine is too slow for that, the lease is longer."""
    ttl_s = SHORT_S
    while True:
        lease, revision = await store.grant(ttl_s), Revision(0)
        try:
            for some in puts:
                changes = [PutKey(key, value, lease) for key, value in some.items()]
                revision = (await store.txn([], changes)).revision
        except LeaseExpired:
            ttl_s *= 4
        else:
            return lease, revision


@on_every_metastore
async def test_lease_that_runs_out_takes_its_keys_in_one_revision(world: World) -> None:
    store, other = await world.open(), await world.open()
    await put(store, "stays")
    lease, revision = await bound(store, {"b": b"", "a": b"1"}, {"c": b""})
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


async def outlives(store: Metastore, other: Metastore, ttl_s: float) -> bool:
    """Whether of two leases the one that is kept alive stays, though the other one was granted for longer."""
    kept, measure = await store.grant(ttl_s), await store.grant(ttl_s + 1)
    await store.txn([], [PutKey("kept", b"", kept), PutKey("measure", b"", measure)])
    start = (await store.range("")).revision

    async def keep() -> None:
        while True:
            assert await other.keep_alive(kept) >= ttl_s
            await asyncio.sleep(0.1)

    keeping = asyncio.ensure_future(keep())
    batch = await anext(store.watch("", Revision(start + 1)))
    keeping.cancel()
    await asyncio.wait([keeping])
    is_there = await store.get("kept") is not None
    await store.revoke(kept)
    await store.revoke(measure)
    return is_there and batch.events == (KeyDeleted("measure"),)


@on_every_metastore
async def test_lease_kept_alive_outlives_its_ttl(world: World) -> None:
    """A machine that is too busy to keep it alive in time tries again with more of it."""
    store, other = await world.open(), await world.open()
    assert await outlives(store, other, 3) or await outlives(store, other, 12) or await outlives(store, other, 48)


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
    lease = await store.grant(LONG_S)
    await put(store, "long", b"", lease)
    _, revision = await bound(store, {"short": b""})
    await store.close()
    batch = await anext(other.watch("", Revision(revision + 1)))
    assert batch.events == (KeyDeleted("short"),)
    await put(other, "more", b"", lease)
    await other.revoke(lease)
    assert (await other.range("")).entries == ()
