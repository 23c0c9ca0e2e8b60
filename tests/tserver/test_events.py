"""What happens is told: each event once, with its sizes, by nobody who holds a lock; and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from msgspec import structs

from stelae.assembly.world import StoreSettings
from stelae.model import events
from stelae.model.errors import DiskFailed, DiskFull, Overloaded
from stelae.model.events import (
    Collected,
    Compacted,
    DiskRefused,
    Event,
    Flushed,
    LeaseLost,
    Listeners,
    LogCollected,
    OwnerLost,
    Recovered,
    ShardRemoved,
    StoreFilled,
    TableAltered,
    TableCreated,
    TableDropped,
    TableForgotten,
    TableRecalled,
    TabletsJoined,
    TabletSplit,
    TicketExpired,
    TookOver,
)
from stelae.model.ids import TableId
from stelae.registry.telling.counts import IN_MASTERS, IN_SHARDS, IN_STORES, EventCounts
from stelae.service.exposition import METRICS
from stelae.service.tables import AlterAsk
from stelae.storage.files.trash import TRASH
from tests.assembly.worlds import GRACE_S, SETTINGS
from tests.tserver.stores import Place, row


class Heard(Place):
    """A store whose events are written down. Whoever tells one holds no lock."""

    def __init__(self, settings: StoreSettings = SETTINGS) -> None:
        self.events: list[Event] = []
        super().__init__(1, settings, self.hear)

    def hear(self, event: Event) -> None:
        if not isinstance(event, Recovered):
            assert not self.server.shard.lock._is_owned()  # type: ignore[attr-defined]
            assert not self.server.upkeep._saving._line
        self.events.append(event)

    def told(self, *kinds: type) -> list[Any]:
        """Those that were told since this was asked last."""
        events, self.events = self.events, []
        return [event for event in events if isinstance(event, kinds)]


@pytest.fixture
def place() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.close()


def test_an_opened_store_says_what_it_found(place: Heard) -> None:
    (first,) = place.told(Recovered)
    assert (first.server, first.tablets, first.was_closed) == ("embedded", 0, True)
    info = place.create("t", 5)
    place.put(info.id, 1, 9)
    place.reopen("kill")
    (killed,) = place.told(Recovered)
    assert (killed.tablets, killed.was_closed) == (4, False)
    assert killed.memory_bytes > 0
    assert killed.log_bytes == sum(segment.size_bytes for segment in place.server.shard.segments())
    place.reopen("closed")
    (closed,) = place.told(Recovered)
    assert closed.was_closed


def test_flushes_compactions_and_what_they_leave(place: Heard) -> None:
    info = place.create()
    tablet = place.server.shard.of_table(info.id)[0].tablet
    place.put(info.id, 1, 2, 3)
    place.told()
    place.store.flush(info.id)
    flushed, *others = [event for event in place.told(Flushed) if event.table == info.id]
    assert others == []
    assert (flushed.tablets, flushed.files, flushed.records) == ((tablet,), 1, 3)
    assert flushed.size_bytes == place.store.stats(info.id).file_bytes
    place.put(info.id, 2)
    place.store.compact(info.id, erase_now=True)
    told = place.told(Compacted, Collected, LogCollected)
    (merged,) = [event for event in told if isinstance(event, Compacted)]
    assert (merged.tablet, merged.files, merged.read_records, merged.records) == (tablet, 2, 4, 3)
    assert merged.size_bytes == place.store.stats(info.id).file_bytes < merged.read_bytes
    collected = [event for event in told if isinstance(event, Collected)]
    assert sum(event.files for event in collected) >= 2
    assert sum(event.size_bytes for event in collected) >= merged.read_bytes
    assert sum(event.segments for event in told if isinstance(event, LogCollected)) > 0
    numbers = place.store.metrics()
    assert numbers["compactions"] == 1
    assert numbers["compacted_bytes"] == merged.size_bytes
    assert numbers["flushes"] >= 2
    assert numbers["flushed_records"] >= 4
    assert numbers["collected_files"] == sum(event.files for event in collected)


def test_lives_of_tables(place: Heard) -> None:
    info = place.create("t", 5)
    place.store.alter("t", AlterAsk(add={"data": {"b": "int32"}}))
    place.store.split(info.id, row(8))
    place.store.join(info.id, row(5))
    place.store.drop("t")
    place.store.recall("t", "u")
    place.store.drop("u")
    place.machine.pass_s(int(GRACE_S))
    place.store.compact_step()
    told = place.told(
        TableCreated, TableAltered, TabletSplit, TabletsJoined, TableDropped, TableRecalled, TableForgotten
    )
    shown = [(type(event).__name__, getattr(event, "name", ""), getattr(event, "tablets", "")) for event in told]
    name, new_name = info.name, info.name.replace("t", "u")
    assert shown == [
        ("TableCreated", name, 2),
        ("TableAltered", name, ""),
        ("TabletSplit", "", ""),
        ("TabletsJoined", "", ""),
        ("TableDropped", name, ""),
        ("TableRecalled", new_name, ""),
        ("TableDropped", new_name, ""),
        ("TableForgotten", "", 2),
    ]
    assert {event.table for event in told} == {info.id}
    numbers = place.store.metrics()
    assert [numbers[name] for name in ("tables_created", "tables_dropped", "splits", "joins")] == [1, 2, 1, 1]


def test_tickets_that_nobody_renews(place: Heard) -> None:
    info = place.create()
    held = place.store.hold(info.id, ttl_s=10.0)
    loading = place.store.begin_load(info.id, "job", ttl_s=10.0)
    merging = place.store.begin_compaction(info.id, ttl_s=10.0)
    place.machine.pass_s(11)
    while place.store.compact_step():
        pass
    assert place.told(TicketExpired) == [
        TicketExpired("hold", held.ticket),
        TicketExpired("load", loading.ticket),
        TicketExpired("compaction", merging.ticket),
    ]
    place.store.compact_step()
    assert place.told(TicketExpired) == []


def test_a_full_store_says_so_once_for_each_time_it_fills() -> None:
    place = Heard(settings=structs.replace(SETTINGS, shard=replace(SETTINGS.shard, unflushed_bytes_max=12_000)))
    info = place.create()
    key = 0

    def fill() -> None:
        nonlocal key
        while True:
            place.put(info.id, key)
            key += 1

    for _ in range(2):
        for _ in range(3):
            with pytest.raises(Overloaded):
                fill()
        (full,) = place.told(StoreFilled)
        assert full.unflushed_bytes == place.server.shard.unflushed_bytes()
        place.store.flush(info.id)
    assert place.store.metrics()["overloads"] == 2
    place.close()


def test_what_the_disk_refuses_is_told(place: Heard) -> None:
    info = place.create()
    place.machine.disk.fail("sync", DiskFailed)
    with pytest.raises(DiskFailed):
        place.put(info.id, 1)
    (refused,) = place.told(DiskRefused)
    assert refused.during == "the log"
    assert "simulated fault at sync" in refused.words
    for number in range(60):
        place.put(info.id, number)
    place.machine.blobs.fail("commit", DiskFull)
    with pytest.raises(DiskFull):
        place.store.flush_step()
    assert [event.during for event in place.told(DiskRefused)] == ["a flush"]
    assert place.store.metrics()["disk_errors"] == 2


def fill(place: Heard, table: TableId) -> None:
    for key in range(10_000):
        place.put(table, key)


def test_memory_that_is_full_because_the_disk_is_says_so_at_once() -> None:
    """Nobody waits for room that no flush can make. It is told once, until a flush goes through."""
    place = Heard(settings=structs.replace(SETTINGS, shard=replace(SETTINGS.shard, unflushed_bytes_max=12_000)))
    info = place.create()
    with pytest.raises(Overloaded):
        fill(place, info.id)
    for _ in range(3):
        place.machine.blobs.fail("create", DiskFull)
        with pytest.raises(DiskFull):
            place.store.flush_step()
        with pytest.raises(DiskFull, match=r"memory is full of rows that cannot be written to files: .*create"):
            fill(place, info.id)
        refused = place.store.submit(info.id, place.blocks(info.id, 1))
        assert isinstance(refused.exception(), DiskFull)
    assert [event.during for event in place.told(DiskRefused)] == ["a flush"]
    while place.store.flush_step():
        pass
    place.put(info.id, 1)
    with pytest.raises(Overloaded):
        fill(place, info.id)
    assert place.store.metrics()["disk_errors"] == 1
    place.close()


def test_a_log_that_is_refused_again_and_again_is_told_once(place: Heard) -> None:
    info = place.create()
    for _ in range(2):
        for _ in range(3):
            place.machine.disk.fail("append", DiskFull)
            with pytest.raises(DiskFull):
                place.put(info.id, 1)
        assert [event.during for event in place.told(DiskRefused)] == ["the log"]
        place.put(info.id, 1)


def test_a_full_disk_is_given_the_room_of_what_was_put_aside(place: Heard) -> None:
    info = place.create()
    for key in range(2):
        place.put(info.id, key)
        place.store.flush(info.id)
    place.store.compact(info.id)
    aside = list(place.machine.blobs.list(TRASH))
    assert aside
    place.machine.disk.fail("append", DiskFull)
    with pytest.raises(Overloaded, match="what was put aside on it was deleted"):
        place.put(info.id, 1)
    assert list(place.machine.blobs.list(TRASH)) == []
    place.put(info.id, 1)
    place.machine.disk.fail("append", DiskFull)
    with pytest.raises(DiskFull):
        place.put(info.id, 1)


def test_what_a_submitted_write_meets_is_told_too(place: Heard) -> None:
    info = place.create()
    place.machine.disk.fail("sync", DiskFailed)
    future = place.store.submit(info.id, place.blocks(info.id, 1))
    place.store.log_step()
    assert isinstance(future.exception(), DiskFailed)
    assert [event.during for event in place.told(DiskRefused)] == ["the log"]


# -- whoever listens


def test_a_listener_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        heard.append(event)
        raise ValueError("nobody expects this")

    place = Place(listener=broken)
    info = place.create()
    place.put(info.id, 1)
    place.store.flush(info.id)
    assert place.keys(info.id) == [1]
    assert {type(event) for event in heard} >= {Recovered, TableCreated, Flushed}
    assert "a listener failed to hear of Recovered" in caplog.text
    assert "nobody expects this" in caplog.text
    place.close()


def test_one_listener_does_not_keep_others_from_hearing() -> None:
    heard: list[Event] = []

    def broken(_: Event) -> None:
        raise ValueError("simulated")

    failures: list[Exception] = []
    tell = Listeners(broken, heard.append, on_failure=lambda _, error: failures.append(error))
    tell(Collected(1, 10))
    assert heard == [Collected(1, 10)]
    assert [str(error) for error in failures] == ["simulated"]
    Listeners(broken)(Collected(1, 10))


def test_every_kind_of_event_is_in_the_union() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and hasattr(kind, "__struct_fields__")}
    kinds -= {kind for kind in kinds if kind.__module__ != events.__name__}
    assert set(get_args(Event)) == kinds


@pytest.mark.parametrize("kinds", [IN_STORES, IN_SHARDS, IN_MASTERS])
def test_what_can_happen_is_counted_where_it_can(kinds: frozenset[type[Event]]) -> None:
    counts = EventCounts(kinds)
    before = counts.numbers()
    assert before.keys() <= METRICS.keys()
    for event in (LeaseLost("n1/0", "no answer", is_final=False), OwnerLost(), TookOver(0.5), ShardRemoved("n2/0", 3)):
        counts(event)
    grown = {name: value for name, value in counts.numbers().items() if value != before[name]}
    expected: dict[type[Event], dict[str, float]] = {
        LeaseLost: {"leases_lost": 1},
        OwnerLost: {"owners_lost": 1},
        TookOver: {"takeovers": 1, "takeover_seconds": 0.5},
        ShardRemoved: {"shards_removed": 1},
    }
    assert grown == {name: number for kind in expected.keys() & kinds for name, number in expected[kind].items()}
    assert grown
