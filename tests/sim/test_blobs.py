from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import (
    AlreadyExists,
    Closed,
    DiskFull,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StelaeError,
    Unavailable,
)
from stelae.sim.blobs import BlobCall, SimBlobStore
from stelae.sim.effects import Effect, Effects, SimCrash
from stelae.sim.rng import SimRng

SEEDS = range(100)


def put(store: SimBlobStore, name: str, data: bytes = b"bytes") -> None:
    writer = store.create(name)
    writer.write(data)
    writer.commit()


def put_and_delete(store: SimBlobStore, name: str) -> None:
    put(store, name)
    store.delete(name)


def contents(store: SimBlobStore) -> dict[str, bytes]:
    return {info.name: store.open(info.name).read(0, info.size_bytes) for info in store.list()}


def outcomes(run: Callable[[SimBlobStore], object]) -> Counter[object]:
    return Counter(run(SimBlobStore(SimRng(seed))) for seed in SEEDS)


def test_committed_objects_survive_every_crash() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a/b")
        store.create("a/c").write(b"never committed")
        store.crash()
        return str(contents(store))

    assert outcomes(fate).keys() == {str({"a/b": b"bytes"})}


@pytest.mark.parametrize("error", [Unavailable, DiskFull])
def test_lost_answer_of_a_commit_leaves_it_done_or_not(error: type[StelaeError]) -> None:
    def fate(store: SimBlobStore) -> object:
        store.fail("commit", error)
        with pytest.raises(error):
            put(store, "a")
        found = str(contents(store))
        store.crash()
        assert str(contents(store)) == found
        return found

    assert outcomes(fate).keys() == {str({}), str({"a": b"bytes"})}


def test_lost_answer_never_replaces_an_object() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a", b"first")
        store.fail("commit", Unavailable)
        with pytest.raises(Unavailable):
            put(store, "a", b"second")
        with pytest.raises(AlreadyExists):
            put(store, "a", b"third")
        return str(contents(store))

    assert outcomes(fate).keys() == {str({"a": b"first"})}


def test_certain_refusal_of_a_commit_changes_nothing() -> None:
    def fate(store: SimBlobStore) -> object:
        store.fail("commit", PermissionDenied)
        with pytest.raises(PermissionDenied):
            put(store, "a")
        return str(contents(store))

    assert outcomes(fate).keys() == {"{}"}


def test_delete_may_be_undone_by_a_crash_but_only_by_the_next() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a")
        store.delete("a")
        assert contents(store) == {}
        store.crash()
        found = str(contents(store))
        store.crash()
        assert str(contents(store)) == found
        return found

    assert outcomes(fate).keys() == {str({}), str({"a": b"bytes"})}


def test_undone_delete_never_replaces_a_later_object() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a", b"old")
        store.delete("a")
        put(store, "a", b"new")
        store.delete("a")
        store.crash()
        return str(contents(store))

    assert outcomes(fate).keys() == {str({}), str({"a": b"new"})}


def test_lost_answer_of_a_delete_leaves_it_done_or_not() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a")
        store.fail("delete", Unavailable)
        with pytest.raises(Unavailable):
            store.delete("a")
        return str(contents(store))

    assert outcomes(fate).keys() == {str({}), str({"a": b"bytes"})}


def test_open_blob_outlives_its_name_or_not_and_stays_with_it() -> None:
    def fate(store: SimBlobStore) -> object:
        put(store, "a", b"old")
        blob = store.open("a")
        store.delete("a")
        put(store, "a", b"new")
        answers = set()
        for _ in range(3):
            try:
                answers.add(blob.read(0, 3))
            except NotFound:
                answers.add(b"not found")
        return tuple(answers)

    assert outcomes(fate).keys() == {(b"old",), (b"not found",)}


def test_every_call_fails_on_demand_and_in_its_turn() -> None:
    store = SimBlobStore(SimRng(0))
    put(store, "a")
    blob = store.open("a")
    calls: dict[BlobCall, Callable[[], object]] = {
        "create": lambda: store.create("b"),
        "write": lambda: store.create("b").write(b"bytes"),
        "open": lambda: store.open("a"),
        "read": lambda: blob.read(0, 1),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete("c"),
    }
    for kind, call in calls.items():
        store.fail(kind, Unavailable, nth=2)
        call()
        with pytest.raises(Unavailable):
            call()
        call()


def test_failed_write_ends_the_writer() -> None:
    store = SimBlobStore(SimRng(0))
    writer = store.create("a")
    store.fail("write", DiskFull)
    with pytest.raises(DiskFull):
        writer.write(b"bytes")
    with pytest.raises(Closed):
        writer.commit()
    assert contents(store) == {}


def test_crash_ends_writers_and_readers() -> None:
    store = SimBlobStore(SimRng(0))
    put(store, "a")
    blob, writer = store.open("a"), store.create("b")
    store.crash()
    with pytest.raises(Closed):
        blob.read(0, 1)
    with pytest.raises(Closed):
        writer.write(b"bytes")
    with pytest.raises(Closed):
        writer.commit()
    writer.abort()


def test_no_object_is_the_directory_of_another() -> None:
    store = SimBlobStore(SimRng(0))
    put(store, "a/b")
    for name in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(InvalidArgument, match=name):
            put(store, name)
    put(store, "a-b")
    assert contents(store).keys() == {"a/b", "a-b"}


def test_crash_inside_an_effect_finds_either_state() -> None:
    for crash_at, states in ((1, [{}, {"a": b"bytes"}]), (2, [{"a": b"bytes"}, {}])):
        seen = set()
        for seed in SEEDS:
            effects = Effects(crash_at=crash_at)
            store = SimBlobStore(SimRng(seed), effects)
            with pytest.raises(SimCrash):
                put_and_delete(store, "a")
            with pytest.raises(SimCrash):
                store.open("a")
            store.crash()
            assert effects.count == crash_at
            seen.add(str(contents(store)))
        assert seen == {str(state) for state in states}


STEPS = st.lists(st.tuples(st.sampled_from(["put", "lose", "delete", "crash"]), st.sampled_from("abc")))


@given(st.integers(0, 2**32), STEPS)
def test_same_seed_and_calls_give_the_same_objects(seed: int, steps: list[tuple[str, str]]) -> None:
    def run() -> tuple[list[Effect], dict[str, bytes]]:
        seen: list[Effect] = []
        store = SimBlobStore(SimRng(seed), Effects(on_effect=seen.append))
        for number, (kind, name) in enumerate(steps):
            match kind:
                case "crash":
                    store.crash()
                case "delete":
                    store.delete(name)
                case _:
                    if kind == "lose":
                        store.fail("commit", Unavailable)
                    try:
                        put(store, name, b"%d" % number)
                    except (AlreadyExists, Unavailable):
                        continue
        return seen, contents(store)

    assert run() == run()
