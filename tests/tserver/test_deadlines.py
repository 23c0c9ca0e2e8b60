"""How long a server waits: for the disk until the caller's deadline, for room and for tablets not at all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec import structs

from stelae.adapters.clock import SystemClock
from stelae.adapters.ownership import Ownership
from stelae.assembly.world import StoreSettings
from stelae.client.intake.mutations import blocks_of
from stelae.launch.local import LocalStore
from stelae.model.errors import DeadlineExceeded, Overloaded, PartialWrite, UnknownOutcome
from stelae.model.ids import TableId, Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk
from stelae.service.tables import CreateAsk
from stelae.sim.effects import Effect
from tests.assembly.worlds import SETTINGS
from tests.tserver.stores import SCHEMA, Place, row

TINY = structs.replace(SETTINGS, shard=replace(SETTINGS.shard, unflushed_bytes_max=12_000))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def soon() -> Deadline:
    return Deadline(SystemClock(), 0.01)


@contextmanager
def stuck_disk(place: Place, table: TableId, key: int) -> Iterator[Future[Txn]]:
    """A write of another thread whose sync does not return until the end of this context."""
    entered, released = Event(), Event()

    def on_effect(effect: Effect) -> None:
        if effect.kind == "sync":
            entered.set()
            released.wait()

    before, place.machine.effects._on_effect = place.machine.effects._on_effect, on_effect
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(place.put, table, key)
            entered.wait()
            yield writing
        finally:
            place.machine.effects._on_effect = before
            released.set()
        writing.result()


@pytest.mark.parametrize("keys", [(2,), (2, 9)])
def test_a_write_whose_time_is_over_may_still_happen(place: Place, keys: tuple[int, ...]) -> None:
    info = place.create("t", 5)
    blocks = blocks_of(info.schema, [{"id": key, "a": key} for key in keys])
    called: list[str] = []
    place.store.wakes.log = lambda: called.append("log")
    with stuck_disk(place, info.id, 1):
        with pytest.raises(UnknownOutcome, match=r"may .* or not: it was not on disk within the 0.01 s"):
            place.store.write(info.id, blocks, deadline=soon())
        assert place.get(info.id, 2) is None, "what is not durable is shown to nobody"
    assert place.keys(info.id) == [1], "the thread that had the disk wrote what was its own"
    assert called == ["log"]
    place.store.log_step()
    assert place.keys(info.id) == [1, *keys]


def test_a_truncation_whose_time_is_over_may_still_happen(place: Place) -> None:
    info = place.create()
    place.put(info.id, 7)
    with stuck_disk(place, info.id, 1), pytest.raises(UnknownOutcome):
        place.store.truncate(info.id, deadline=soon())
    place.store.log_step()
    assert place.keys(info.id) == []


def test_a_write_without_a_deadline_takes_as_long_as_it_takes(place: Place) -> None:
    info = place.create()
    with ThreadPoolExecutor(1) as pool:
        with stuck_disk(place, info.id, 1):
            second = pool.submit(place.put, info.id, 2)
            while place.server.shard.wal._waiting == 0:
                assert not second.done()
        second.result()
    assert place.keys(info.id) == [1, 2]


def test_a_read_of_what_is_on_its_way_waits_until_its_deadline(place: Place) -> None:
    info = place.create()
    place.put(info.id, 7)
    with stuck_disk(place, info.id, 1):
        ahead = Txn(place.server.shard.clock.last + 1)
        ask = ScanAsk(ScanPredicate(), ahead)
        for read in (
            lambda: place.store.newest(info.id, row(7), ALL_COLUMNS, ahead, deadline=soon()),
            lambda: place.store.newest_many(info.id, [row(7)], ALL_COLUMNS, ahead, deadline=soon()),
            lambda: place.store.history(info.id, row(7), ALL_COLUMNS, 1, ahead, deadline=soon()),
            lambda: place.store.hold(info.id, ahead, deadline=soon()),
            lambda: next(iter(place.store.scan(info.id, ask, deadline=soon()))),
        ):
            with pytest.raises(DeadlineExceeded, match=r"was not all on disk within the 0.01 s"):
                read()
        assert place.get(info.id, 7) == 7, "what is read as of now waits for nothing"
    assert place.get(info.id, 1, at=ahead) == 1


def test_erasing_waits_for_those_who_may_hold_snapshots_until_its_deadline(place: Place) -> None:
    """After a crash, whoever holds a snapshot has a few seconds to say so."""
    info = place.create()
    place.put(info.id, 1)
    place.reopen("kill")
    deadline = Deadline(SystemClock(), 0.01)
    for wait in (
        lambda: place.store.compact(info.id, erase_now=True, deadline=deadline),
        lambda: place.store.begin_compaction(info.id, erase_now=True, deadline=deadline),
    ):
        with pytest.raises(DeadlineExceeded, match="others may hold snapshots"):
            wait()
    place.store.compact(info.id, deadline=deadline)


def test_a_full_store_says_so_at_once() -> None:
    place = Place(settings=TINY)
    info = place.create()
    called: list[str] = []
    place.store.wakes.full = lambda: called.append("flush")
    acknowledged = 0

    def fill() -> None:
        nonlocal acknowledged
        while True:
            place.put(info.id, acknowledged)
            acknowledged += 1

    with pytest.raises(Overloaded, match="wait to be written to files"):
        fill()
    assert place.keys(info.id) == list(range(acknowledged))
    called.clear()
    place.store.wait_for_room(0.0)
    assert called == ["flush"], "whoever waits calls for what makes room"
    place.server.wakes.full = lambda: place.server.flush(info.id)
    place.store.wait_for_room(3_600.0)
    place.put(info.id, acknowledged)
    assert place.keys(info.id) == list(range(acknowledged + 1))
    place.close()


def test_waiting_for_room_takes_no_longer_than_is_said(tmp_path: Path) -> None:
    """Also while the disk does not answer, by the clock that the store has."""
    ownership = Ownership.take(tmp_path, "")
    assert ownership is not None
    store = LocalStore(tmp_path, ownership, StoreSettings())
    info = store.create(CreateAsk("t", SCHEMA))
    wal, entered, released = store.server.shard.wal, Event(), Event()
    plain = wal._segments.write

    def stuck(*args: Any) -> None:
        entered.set()
        released.wait()
        plain(*args)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal._segments, "write", stuck)
        writing = pool.submit(store.write, info.id, blocks_of(info.schema, [{"id": 1, "a": 1}]))
        entered.wait()
        store.wait_for_room(0.01)
        assert not writing.done()
        released.set()
        writing.result()
    store.close()


def test_a_write_that_fills_the_store_says_how_much_of_it_is_in() -> None:
    place = Place(settings=TINY)
    info = place.create()
    blocks = [block for key in range(1_000) for block in blocks_of(info.schema, [{"id": key, "a": key}])]
    with pytest.raises(PartialWrite) as caught:
        place.store.write(info.id, blocks)
    assert isinstance(caught.value.__cause__, Overloaded)
    assert place.keys(info.id) == list(range(caught.value.durable)), "the first so many, and no other"
    future = place.store.submit(info.id, blocks[caught.value.durable :])
    place.store.log_step()
    assert isinstance(future.exception(), Overloaded | PartialWrite)
    place.close()
