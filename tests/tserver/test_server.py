"""A server's tablets: what each request gets in each state, and what happens if it is asked twice or fails half-way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stelae.catalog.commands.tables import TableName
from stelae.client.intake.mutations import blocks_of
from stelae.model.errors import DiskFailed, DiskFull, StelaeError, TabletAway
from stelae.model.ids import TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.registry.alterations import commands_of
from stelae.registry.control import (
    AlterTable,
    CreateTablets,
    DeleteTablets,
    JoinTablets,
    LoadTable,
    NewTablet,
    SplitTablet,
    UnloadTable,
    reported_ids,
)
from stelae.service.tables import AlterAsk
from stelae.tserver.lives import Life
from tests.tserver.stores import Place, row


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def tablets(place: Place, table: int) -> list[TabletId]:
    return [state.tablet for state in place.server.shard.of_table(table)]  # type: ignore[arg-type]


# -- unloading and loading


def test_while_a_table_is_unloaded_it_is_read_and_not_written(place: Place) -> None:
    info = place.create("t", 10)
    place.put(info.id, 1, 20)
    seen: list[object] = []

    def look() -> None:
        seen.append(place.server.life(tablets(place, info.id)[0]))
        seen.append(place.get(info.id, 1))
        with pytest.raises(TabletAway, match="takes no writes: it is leaving this server"):
            place.put(info.id, 2)

    with place.at_effect("commit", look):
        place.server.ask(UnloadTable(info.id))
    assert seen == [Life.FLUSHING, 1]
    assert place.server.shard.of_table(info.id) == []
    with pytest.raises(TabletAway):
        place.get(info.id, 1)
    with pytest.raises(TabletAway):
        place.put(info.id, 2)


def test_unloading_and_loading_twice(place: Place) -> None:
    info = place.create("t", 10)
    place.put(info.id, 1, 20)
    before = tablets(place, info.id)
    for _ in range(2):
        assert place.server.ask(UnloadTable(info.id)).tablets == ()
        assert {place.server.life(tablet) for tablet in before} == {Life.UNKNOWN}
    for _ in range(2):
        assert reported_ids(place.server.ask(LoadTable(info.id))) == set(before)
        assert {place.server.life(tablet) for tablet in before} == {Life.ACTIVE}
    place.put(info.id, 2)
    assert place.keys(info.id) == [1, 2, 20]
    place.reopen()
    assert place.keys(info.id) == [1, 2, 20]


def test_an_unload_that_a_full_disk_stops_is_ended_by_the_load(place: Place) -> None:
    """Otherwise the tablets would refuse writes for ever."""
    info = place.create()
    place.put(info.id, 1)
    place.machine.blobs.fail("commit", DiskFull)
    with pytest.raises(DiskFull):
        place.server.ask(UnloadTable(info.id))
    (tablet,) = tablets(place, info.id)
    assert place.server.life(tablet) is Life.FLUSHING
    assert place.get(info.id, 1) == 1
    place.server.ask(LoadTable(info.id))
    assert place.server.life(tablet) is Life.ACTIVE
    place.put(info.id, 2)
    assert place.keys(info.id) == [1, 2]


def test_a_load_that_fails_can_be_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place.create()
    place.put(info.id, 1)
    place.server.ask(UnloadTable(info.id))

    def broken(tablet: TabletId) -> None:
        raise DiskFailed(f"the config of {tablet} cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(place.server.control._configs, "saved", broken)
        with pytest.raises(DiskFailed):
            place.server.ask(LoadTable(info.id))
    place.server.ask(LoadTable(info.id))
    assert place.keys(info.id) == [1]


# -- creating and deleting


def test_creating_twice_keeps_what_was_written(place: Place) -> None:
    info = place.create()
    (tablet,) = tablets(place, info.id)
    place.put(info.id, 1)
    report = place.server.ask(CreateTablets((NewTablet(tablet, info.id, ALL_ROWS),)))
    assert reported_ids(report) == {tablet}
    assert place.keys(info.id) == [1]


def test_a_creation_whose_config_is_not_saved_leaves_nothing(place: Place) -> None:
    info = place.create()
    (old,) = tablets(place, info.id)
    place.server.ask(DeleteTablets((old,)))
    new = NewTablet(TabletId(900), info.id, ALL_ROWS)
    place.machine.disk.fail("sync", DiskFailed)
    with pytest.raises(DiskFailed):
        place.server.ask(CreateTablets((new,)))
    assert place.server.life(new.tablet) is Life.UNKNOWN
    assert tablets(place, info.id) == []
    other = NewTablet(TabletId(901), info.id, ALL_ROWS)
    assert reported_ids(place.server.ask(CreateTablets((other,)))) == {other.tablet}
    assert place.server.life(other.tablet) is Life.ACTIVE
    place.server.ask(DeleteTablets((other.tablet,)))


def test_a_table_is_created_on_a_disk_that_fails_once(place: Place) -> None:
    """The master's part and the server's together: one tablet is given up, another takes its place."""
    place.machine.disk.fail("sync", DiskFailed)
    info = place.create()
    place.put(info.id, 1)
    place.reopen()
    assert place.keys(info.id) == [1]
    assert [each.phase for each in place.store.tablets(info.id)] == ["running"]
    assert len(place.store.master.maps.all()) == 1


def test_deleting_twice_and_what_was_unloaded(place: Place) -> None:
    info, other = place.create("t", 10), place.create("u")
    place.put(info.id, 1, 20)
    place.put(other.id, 5)
    ids = tuple(tablets(place, info.id))
    place.server.ask(UnloadTable(info.id))
    for _ in range(2):
        place.server.ask(DeleteTablets(ids))
    assert reported_ids(place.server.ask(LoadTable(info.id))) == frozenset()
    place.server.upkeep.collect_files()
    assert place.machine.files() == place.server.upkeep.needed_files()
    assert place.keys(other.id) == [5]


# -- altering


def test_an_alteration_goes_through_every_version(place: Place) -> None:
    """A tablet that is two versions behind ends as one that took both: `a` is another column by then."""
    info = place.create()
    place.put(info.id, 1)
    place.store.flush(info.id)
    place.put(info.id, 2)
    catalog = place.store.catalog
    for change in (AlterAsk(rename_columns={"a": "b"}), AlterAsk(add={"data": {"a": "int32"}}), AlterAsk(drop=("b",))):
        place.store.world.loop.run(catalog.execute(*commands_of(TableName.parse("t"), change)))
    assert {state.schema.version for state in place.server.shard.of_table(info.id)} == {info.schema.version}
    for _ in range(2):
        (reported,) = place.server.ask(AlterTable(info.id)).tablets
        assert reported.schema_version == catalog.latest.tables[info.id].schema.version
    assert [place.get(info.id, key) for key in (1, 2)] == [None, None]
    place.put(info.id, 2, a=7)
    assert place.get(info.id, 2) == 7
    place.reopen()
    assert [place.get(info.id, key) for key in (1, 2)] == [None, 7]


# -- splitting and joining


def test_splitting_and_joining_twice(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1, 5, 9)
    (whole,) = tablets(place, info.id)
    split = SplitTablet(whole, row(5), TabletId(700), TabletId(701))
    assert place.server.ask(split) == place.server.ask(split)
    assert place.server.life(whole) is Life.UNKNOWN
    join = JoinTablets(TabletId(700), TabletId(701), TabletId(702))
    assert place.server.ask(join) == place.server.ask(join)
    assert tablets(place, info.id) == [702]
    assert place.keys(info.id) == [1, 5, 9]
    place.give_out_ids(800)
    place.reopen()
    assert place.keys(info.id) == [1, 5, 9]


@pytest.mark.parametrize("keys", [[3], [1, 3, 7, 9]])
def test_a_tablet_that_is_split_on_the_way_to_it_is_found_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, keys: list[int]
) -> None:
    info = place.create("t", 5)
    left = tablets(place, info.id)[0]
    todo, plain = [left], place.server.shard.apply

    def split_first(*args: Any, **options: Any) -> Any:
        if todo:
            place.server.ask(SplitTablet(todo.pop(), row(2), TabletId(700), TabletId(701)))
        return plain(*args, **options)

    monkeypatch.setattr(place.server.shard, "apply", split_first)
    place.put(info.id, *keys)
    assert place.keys(info.id) == keys


def test_a_block_that_meets_another_schema_half_way_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first part is in: the second is carried to whatever schema its tablet has, also if the catalog is ahead."""
    info = place.create("t", 5)
    blocks = blocks_of(info.schema, [{"id": key, "a": key} for key in (1, 9)])
    todo, plain = [0, 1], place.server.shard.apply
    catalog = place.store.catalog

    def execute(change: AlterAsk) -> None:
        place.store.world.loop.run(catalog.execute(*commands_of(TableName.parse("t"), change)))

    def alter_between(*args: Any, **options: Any) -> Any:
        if not options.get("urgent") and todo and todo.pop(0):
            execute(AlterAsk(add={"data": {"b": "int32"}}))
            place.server.ask(AlterTable(info.id))
            execute(AlterAsk(drop=("a",)))
        return plain(*args, **options)

    monkeypatch.setattr(place.server.shard, "apply", alter_between)
    place.store.write(info.id, blocks)
    assert [place.get(info.id, key) for key in (1, 9)] == [1, 9]
    place.server.ask(AlterTable(info.id))


# -- flushing


def test_memories_that_tablets_share_are_flushed_oldest_first(place: Place) -> None:
    """After a join and a split, a memory lies over older ones of both sides."""
    info = place.create("t", 10)
    place.put(info.id, 1)
    place.put(info.id, 11)
    place.store.join(info.id, row(10))
    place.put(info.id, *range(2, 10), *range(12, 30))
    place.store.split(info.id, row(10))
    place.put(info.id, 3)
    place.server.flushing.flush_down_to(0)
    assert all(memory.is_empty for state in place.server.shard.of_table(info.id) for memory in state.memories)
    assert place.keys(info.id) == [*range(1, 10), *range(11, 30)]


def test_a_failed_save_is_made_up_for_by_the_next(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    place.machine.disk.fail("sync", DiskFailed, 2)
    with pytest.raises(StelaeError):
        place.store.flush(info.id)
    place.server.upkeep.save()
    place.reopen("power")
    assert place.keys(info.id) == [1]
