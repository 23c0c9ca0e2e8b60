"""One object store of many processes: what one of them does to itself, it does to no other."""

from __future__ import annotations

import pytest

from stelae.model.errors import Closed, NotFound, Unavailable
from stelae.sim.blobs import UNDONE_MAX, SimBlobServer, SimBlobStore
from stelae.sim.effects import Effects, SimCrash
from stelae.sim.rng import SimRng


def put(store: SimBlobStore, name: str, data: bytes = b"bytes") -> None:
    writer = store.create(name)
    writer.write(data)
    writer.commit()


def names(store: SimBlobStore) -> list[str]:
    return [info.name for info in store.list()]


def test_what_one_commits_or_deletes_others_see() -> None:
    server = SimBlobServer(SimRng(1))
    one, other = server.client(), server.client()
    put(one, "a/1")
    assert names(other) == ["a/1"]
    assert other.open("a/1").read(0, 5) == b"bytes"
    other.delete("a/1")
    with pytest.raises(NotFound):
        one.open("a/1")


def test_a_crash_ends_the_handles_of_one_client() -> None:
    server = SimBlobServer(SimRng(1))
    one, other = server.client(), server.client()
    put(one, "a")
    blobs = [store.open("a") for store in (one, other)]
    writers = [store.create(name) for store, name in ((one, "b"), (other, "c"))]
    one.crash()
    with pytest.raises(Closed):
        blobs[0].read(0, 1)
    with pytest.raises(Closed):
        writers[0].write(b"1")
    assert blobs[1].read(0, 1) == b"b"
    writers[1].commit()
    assert names(one) == ["a", "c"]


def test_a_process_that_dies_at_an_effect_leaves_others_alone() -> None:
    fates: set[bool] = set()
    for seed in range(20):
        server = SimBlobServer(SimRng(seed))
        one, other = server.client(Effects(crash_at=1)), server.client(Effects())
        with pytest.raises(SimCrash):
            put(one, "a")
        with pytest.raises(SimCrash):
            one.open("a")
        put(other, "b")
        one.crash()
        fates.add("a" in names(other))
        assert "b" in names(one)
    assert fates == {True, False}


def test_only_its_own_deletes_are_undone_by_a_crash() -> None:
    undone: set[str] = set()
    for seed in range(40):
        server = SimBlobServer(SimRng(seed))
        one, other = server.client(), server.client()
        for name in ("a", "b"):
            put(one, name)
        one.delete("a")
        other.delete("b")
        one.crash()
        found = names(other)
        assert found in ([], ["a"])
        undone.update(found)
    assert undone == {"a"}


def test_an_undone_delete_hides_nothing_that_came_after_it() -> None:
    for seed in range(20):
        server = SimBlobServer(SimRng(seed))
        one, other = server.client(), server.client()
        put(one, "a", b"old")
        one.delete("a")
        put(other, "a", b"new")
        one.crash()
        assert other.open("a").read(0, 3) == b"new"


def test_deletes_long_ago_are_not_undone() -> None:
    server = SimBlobServer(SimRng(1))
    store = server.client()
    for number in range(UNDONE_MAX + 10):
        put(store, f"{number:04}")
        store.delete(f"{number:04}")
    store.crash()
    assert names(store)
    assert min(names(store)) >= "0010"


def test_one_that_cannot_reach_the_store_is_alone_in_it() -> None:
    """Its commits and deletes happened, or did not."""
    happened: set[str] = set()
    for seed in range(30):
        server = SimBlobServer(SimRng(seed))
        one, other = server.client(), server.client()
        put(other, "b")
        writer = one.create("a")
        one.unavailable = 1.0
        for call in (writer.commit, lambda one=one: one.delete("b"), lambda one=one: one.open("b")):
            with pytest.raises(Unavailable):
                call()
        happened.add(",".join(names(other)))
        one.mend()
        put(one, "c")
    assert happened == {"", "a", "b", "a,b"}


def test_a_rate_of_failures_is_met_about_so_often() -> None:
    store = SimBlobServer(SimRng(1)).client()
    put(store, "a")
    store.unavailable = 0.2
    failed = 0
    for _ in range(1000):
        try:
            store.open("a")
        except Unavailable:
            failed += 1
    assert 150 < failed < 250


def test_images_are_alike_where_stores_are() -> None:
    one, other = SimBlobServer(SimRng(1)), SimBlobServer(SimRng(2))
    for server, order in ((one, "ab"), (other, "ba")):
        for name in order:
            put(server.client(), name)
    assert one.image() == other.image()
    put(one.client(), "c")
    assert one.image() != other.image()
