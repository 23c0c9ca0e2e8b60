"""The store as a whole: what is said of tables that go away, what opening needs, and what ending it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from stelae.assembly.embedded import EmbeddedStore
from stelae.client.intake.mutations import blocks_of
from stelae.model.declare import columns, declare
from stelae.model.errors import Closed, DiskFull, InvalidArgument, NotFound, TabletAway, Unavailable
from stelae.model.ids import TableId
from stelae.registry.control import UnloadTable
from stelae.service.backend import Backend
from stelae.service.spaces import AlterZoneAsk, CreateZoneAsk, DropZoneAsk
from stelae.service.tables import AlterAsk, CreateAsk
from stelae.storage.upkeep.serializer import SerializerSettings
from tests.assembly.worlds import SETTINGS
from tests.tserver.stores import Place, row

WORK: dict[str, Callable[[EmbeddedStore, TableId], object]] = {
    "truncate": lambda store, table: store.truncate(table),
    "split": lambda store, table: store.split(table),
    "split at": lambda store, table: store.split(table, row(3)),
    "stats": lambda store, table: store.stats(table),
    "flush": lambda store, table: store.flush(table),
    "compact": lambda store, table: store.compact(table),
    "join": lambda store, table: store.join(table, row(5)),
}


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


@pytest.mark.parametrize("what", WORK)
def test_a_dropped_table_is_said_to_be_dropped(place: Place, what: str) -> None:
    info = place.create("t", 5)
    place.store.drop("t")
    with pytest.raises(NotFound, match=r"table 'main.t' was dropped|table '.*t' was dropped"):
        WORK[what](place.store, info.id)


@pytest.mark.parametrize("what", ["truncate", "split", "split at"])
def test_tablets_that_are_not_here_are_said_to_be_away(place: Place, what: str) -> None:
    """As between a drop and its end: no other error than one that says so."""
    info = place.create("t", 5)
    place.server.ask(UnloadTable(info.id))
    with pytest.raises(TabletAway):
        WORK[what](place.store, info.id)


def test_rows_where_no_tablet_begins_are_not_joined_at(place: Place) -> None:
    info = place.create("t", 5)
    for at in (b"", row(4), row(6)):
        with pytest.raises(InvalidArgument, match="no tablet begins at row"):
            place.store.join(info.id, at)  # type: ignore[arg-type]


def test_what_is_known_of_a_table_follows_its_zone(place: Place) -> None:
    info = place.create()
    place.store.change_spaces(CreateZoneAsk("fast"))
    place.store.alter("t", AlterAsk(zone="fast"))
    assert place.store.info(info.id).zone == "fast"
    place.store.change_spaces(AlterZoneAsk("fast", rename="quick"))
    assert place.store.info(info.id).zone == "quick"
    assert place.store.info(info.id) is place.store.find("t"), "the same as long as nothing changes"


def test_tablets_are_cut_when_their_zone_says_that_they_are_too_large() -> None:
    place = Place(settings=structs.replace(SETTINGS, shard=replace(SETTINGS.shard, serializer=SerializerSettings())))
    schema = declare({"id": "int64"}, [columns("data", {"a": "binary"}, compression="none")])
    info = place.store.create(CreateAsk("t", schema))
    place.store.write(info.id, blocks_of(schema, [{"id": key, "a": bytes([key % 256]) * 5_000} for key in range(500)]))
    place.store.flush(info.id)
    while place.store.compact_step():
        pass
    assert len(place.store.tablets(info.id)) == 1
    woken: list[bool] = []
    place.store.wakes.grown = lambda: woken.append(True)
    place.store.change_spaces(AlterZoneAsk("default", tablet_bytes=2**20))
    assert woken
    while place.store.compact_step():
        pass
    assert len(place.store.tablets(info.id)) == 2
    place.close()


def test_a_store_is_a_backend_without_a_call_in_between(place: Place) -> None:
    backend: Backend = place.store
    assert backend.newest == place.server.newest
    assert backend.write == place.server.write
    assert backend.find == place.store.desk.find


def test_everything_is_refused_after_the_end() -> None:
    place = Place()
    info = place.create("t", 5)
    place.close()
    place.store.close()
    jobs: list[Callable[[], object]] = [
        *(lambda work=work: work(place.store, info.id) for work in WORK.values()),
        lambda: place.create("u"),
        lambda: place.store.drop("t"),
        lambda: place.store.recall("t"),
        lambda: place.store.alter("t", AlterAsk(drop=("a",))),
        lambda: place.put(info.id, 1),
        lambda: place.get(info.id, 1),
        place.store.names,
        place.store.spaces,
        lambda: place.store.change_spaces(DropZoneAsk("fast")),
        place.store.check,
        place.store.pin,
    ]
    for job in jobs:
        with pytest.raises(Closed, match="is closed"):
            job()


def test_a_store_is_opened_for_reading_though_its_disk_is_full(place: Place) -> None:
    """A dropped table has yet to be written to files: that waits."""
    info, other = place.create(), place.create("u")
    place.put(info.id, 1)
    place.put(other.id, 2)
    place.machine.blobs.fail("commit", DiskFull)
    with pytest.raises(DiskFull):
        place.store.drop("u")
    place.machine.end("kill")
    for nth in range(1, 4):
        place.machine.blobs.fail("commit", DiskFull, nth)
    place.store = place.machine.open()
    assert place.keys(info.id) == [1]
    assert place.store.master.has_work
    place.machine.blobs._faults = type(place.machine.blobs._faults)()
    assert place.keys(place.store.recall("u").id) == [2]
    place.store.desk.tend()
    assert not place.store.master.has_work


def test_a_store_that_does_not_open_leaves_nothing_open(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place.create()
    place.put(info.id, 1)
    place.machine.end("kill")

    def broken(*_: object) -> None:
        raise Unavailable("simulated")

    with monkeypatch.context() as patch:
        patch.setattr("stelae.tserver.server.Keeper", broken)
        with pytest.raises(Unavailable, match="simulated"):
            place.machine.open()
    place.machine.end("closed")
    place.store = place.machine.open()
    assert place.keys(info.id) == [1]


def test_a_close_that_cannot_write_files_loses_nothing(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    for nth in range(1, 5):
        place.machine.blobs.fail("commit", DiskFull, nth)
    place.store.close()
    place.machine.end("closed")
    place.machine.blobs._faults = type(place.machine.blobs._faults)()
    place.store = place.machine.open()
    assert place.keys(info.id) == [1]
