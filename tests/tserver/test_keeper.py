"""What a server does by itself: when it flushes, compacts, cuts and joins, and how far history goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from stelae.format.log.copies import ReplicaKept, copy_record
from stelae.model.errors import DiskFull, NotFound, SnapshotTooOld, Unavailable
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Row, TableId, TabletId, Txn
from stelae.registry.known_tables import TableRules
from stelae.registry.replication.appending import AppendPart
from stelae.service.tables import AlterAsk
from stelae.storage.log.wal import WalSettings
from stelae.storage.replicas.replica import NOWHERE
from stelae.storage.upkeep.picker import PickerSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.tserver import short_log
from stelae.tserver.keeper import Keeper
from stelae.tserver.replication.following import Following
from tests.assembly.worlds import SETTINGS
from tests.storage.replicas.records import TABLE, TABLET, block, config, config_bytes
from tests.tserver.stores import Place, row

QUIET = structs.replace(
    SETTINGS, shard=replace(SETTINGS.shard, serializer=SerializerSettings(), picker=PickerSettings())
)
FOREVER_US = 10**15


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(settings=QUIET)
    yield made
    made.close()


class Asked:
    """A `Resizing` that writes down what it is asked."""

    def __init__(self) -> None:
        self.splits: list[tuple[TabletId, Row]] = []
        self.joins: list[tuple[TabletId, TabletId]] = []
        self.error: Exception | None = None

    def split(self, tablet: TabletId, at: Row) -> None:
        self.splits.append((tablet, at))
        if self.error is not None:
            raise self.error

    def join(self, left: TabletId, right: TabletId) -> None:
        self.joins.append((left, right))


def keeper(
    place: Place,
    asked: Asked | None = None,
    tablet_bytes: int = 2**30,
    retention_us: int = FOREVER_US,
    save: Callable[[TableId, Txn], None] = lambda table, txn: None,
) -> Keeper:
    rules = TableRules(retention_us, tablet_bytes)
    server = place.server
    return Keeper(server.shard, server.upkeep, server.flushing, lambda _: rules, save, asked or Asked())


def run(kept: Keeper) -> int:
    steps = 0
    while kept.compact_step():
        steps += 1
        assert steps < 100, "it never comes to an end"
    return steps


def files(place: Place, table: TableId) -> int:
    return sum(each.files for each in place.store.tablets(table))


def flushed(place: Place, table: TableId, *keys: int) -> None:
    place.put(table, *keys)
    place.server.flush(table)


# -- flushing and compacting


def test_nothing_is_flushed_before_it_is_due(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    assert not keeper(place).flush_step()
    assert files(place, info.id) == 0


def test_what_is_large_is_flushed_saved_and_its_log_goes() -> None:
    place = Place()
    info = place.create()
    kept = keeper(place)
    for number in range(30):
        place.put(info.id, *range(number, number + 20), a=number + 1)
    segments = len(place.server.shard.segments())
    while kept.flush_step():
        pass
    assert files(place, info.id) > 0
    assert len(place.server.shard.segments()) < segments
    place.reopen("power")
    assert place.keys(info.id) == list(range(49))
    assert place.get(info.id, 29) == 30
    place.close()


def test_a_save_that_fails_is_made_up_for_though_nothing_more_is_flushed() -> None:
    place = Place()
    info = place.create()
    kept = keeper(place)
    for number in range(30):
        place.put(info.id, *range(20), a=number + 1)
    while place.server.flushing.flush_due() is not None:
        kept._unsaved = True
    segments = len(place.server.shard.segments())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.server.upkeep, "save", _full)
        with pytest.raises(DiskFull):
            kept.flush_step()
    assert len(place.server.shard.segments()) == segments, "the log goes only when configs are saved"
    assert not kept.flush_step()
    assert len(place.server.shard.segments()) < segments
    place.close()


def _full() -> None:
    raise DiskFull("simulated")


def test_files_are_merged_when_there_are_many(place: Place) -> None:
    info = place.create()
    kept = keeper(place)
    for key in range(12):
        flushed(place, info.id, key)
    assert files(place, info.id) == 12
    assert run(kept) == 0, "nobody said that it has grown"
    kept.note_growth(state.tablet for state in place.server.shard.of_table(info.id))
    assert run(kept) > 0
    assert files(place, info.id) < 5
    assert place.machine.files() == place.server.upkeep.needed_files()
    assert place.keys(info.id) == list(range(12))


def test_a_new_keeper_looks_at_all_that_have_files(place: Place) -> None:
    info = place.create()
    for key in range(12):
        flushed(place, info.id, key)
    assert run(keeper(place)) > 0
    assert files(place, info.id) < 5


def test_a_tablet_that_is_gone_is_forgotten(place: Place) -> None:
    kept = keeper(place)
    kept.note_growth([TabletId(999)])
    assert kept.compact_step()
    assert not kept.compact_step()


def test_a_table_that_is_gone_is_left_alone(place: Place) -> None:
    info = place.create()
    for key in range(12):
        flushed(place, info.id, key)
    server = place.server
    kept = Keeper(server.shard, server.upkeep, server.flushing, lambda _: None, lambda table, txn: None, Asked())
    run(kept)
    assert files(place, info.id) == 12


def test_garbage_is_collected_again_if_it_could_not_be(place: Place) -> None:
    info = place.create()
    kept = keeper(place)
    for key in range(12):
        flushed(place, info.id, key)
    kept.note_growth(state.tablet for state in place.server.shard.of_table(info.id))
    place.machine.blobs.fail("list", Unavailable)
    with pytest.raises(Unavailable):
        run(kept)
    assert len(place.machine.files()) > files(place, info.id)
    run(kept)
    assert place.machine.files() == place.server.upkeep.needed_files()


# -- sizes


def log_bytes(place: Place) -> int:
    return sum(info.size_bytes for info in place.server.shard.segments())


def test_a_few_rows_do_not_hold_a_long_log_while_nobody_writes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_log, "_LOG_LONG_BYTES", 10_000)
    table = place.create().id
    kept = keeper(place)
    place.put(table, *range(1_000))
    place.server.flushing.flush(table)
    place.put(table, 7, a=70)
    assert log_bytes(place) > 10_000
    run(kept)
    assert log_bytes(place) > 10_000, "something was written since it last looked"
    place.put(table, 8, a=80)
    run(kept)
    run(kept)
    assert log_bytes(place) < 10_000
    place.reopen("kill")
    assert (place.get(table, 7), place.get(table, 8), place.get(table, 9)) == (70, 80, 9)
    assert len(place.keys(table)) == 1_000


def test_a_short_log_is_left_alone(place: Place) -> None:
    table = place.create().id
    kept = keeper(place)
    place.put(table, 1)
    for _ in range(3):
        run(kept)
    assert files(place, table) == 0


def test_a_large_tablet_is_split(place: Place) -> None:
    info, asked = place.create(), Asked()
    flushed(place, info.id, *range(100))
    kept = keeper(place, asked, tablet_bytes=100)
    kept.note_growth(state.tablet for state in place.server.shard.of_table(info.id))
    run(kept)
    (only,) = place.server.shard.of_table(info.id)
    ((tablet, at),) = asked.splits
    assert tablet == only.tablet
    assert row(0) < at < row(99)
    asked.error = NotFound("the master says no")
    kept.note_growth([tablet])
    run(kept)
    assert len(asked.splits) == 2


def test_small_neighbours_are_joined_if_a_split_made_them(place: Place) -> None:
    info, asked = place.create("t", 50), Asked()
    flushed(place, info.id, *range(100))
    kept = keeper(place, asked)
    kept.note_growth(state.tablet for state in place.server.shard.of_table(info.id))
    run(kept)
    assert asked.joins == [], "these are as they were made"
    place.store.split(info.id, row(20))
    first, second, third = place.server.shard.of_table(info.id)
    kept.note_growth([first.tablet, second.tablet, third.tablet])
    run(kept)
    assert asked.joins == [(first.tablet, second.tablet)]


def test_neighbours_that_would_soon_be_split_again_are_not_joined(place: Place) -> None:
    info, asked = place.create(), Asked()
    flushed(place, info.id, *range(100))
    place.store.split(info.id, row(50))
    states = place.server.shard.of_table(info.id)
    total = sum(each.size_bytes for each in place.store.tablets(info.id))
    for tablet_bytes, joins in ((2 * total - 2, 0), (2 * total + 2, 1)):
        kept = keeper(place, asked, tablet_bytes=tablet_bytes)
        kept.note_growth([states[0].tablet])
        run(kept)
        assert len(asked.joins) == joins


# -- history


def test_a_horizon_is_durable_before_anybody_goes_by_it(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    shard = place.server.shard
    seen: list[Txn] = []

    def save(table: TableId, txn: Txn) -> None:
        assert table == info.id
        assert shard.horizon(info.id) < txn
        seen.append(txn)

    kept = keeper(place, retention_us=0, save=save)
    rules = kept.rules(info.id)
    assert rules is not None
    assert kept.advance_horizon(info.id, rules, to_now=True) == shard.horizon(info.id) == shard.visible == seen[-1]
    kept.advance_horizon(info.id, rules, to_now=True)
    assert len(seen) == 1, "what is saved is not saved again"


def test_a_horizon_that_is_not_saved_is_not_advanced(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    errors = [Unavailable("the metastore is away")]
    saved: list[Txn] = []

    def save(table: TableId, txn: Txn) -> None:
        if errors:
            raise errors.pop()
        saved.append(txn)

    kept = keeper(place, retention_us=0, save=save)
    rules = kept.rules(info.id)
    assert rules is not None
    with pytest.raises(Unavailable):
        kept.advance_horizon(info.id, rules, to_now=True)
    assert place.server.shard.horizon(info.id) == TXN_MIN
    assert kept.advance_horizon(info.id, rules, to_now=True) == saved[0]


def test_retention_keeps_what_is_young_enough(place: Place) -> None:
    info = place.create()
    old = place.put(info.id, 1, a=1)
    place.machine.pass_s(20)
    place.put(info.id, 1, a=2)
    kept = keeper(place, retention_us=30_000_000)
    rules = kept.rules(info.id)
    assert rules is not None
    kept.advance_horizon(info.id, rules)
    assert place.get(info.id, 1, at=old) == 1
    place.machine.pass_s(20)
    now = place.put(info.id, 2)
    kept.advance_horizon(info.id, rules)
    with pytest.raises(SnapshotTooOld):
        place.get(info.id, 1, at=old)
    assert place.get(info.id, 1, at=now) == 2


@pytest.mark.parametrize("how", ["kill", "power", "closed"])
def test_dropped_history_is_not_read_after_reopening(place: Place, how: str) -> None:
    info = place.create()
    old = place.put(info.id, 1, a=1)
    place.put(info.id, 1, a=2)
    place.store.compact(info.id, erase_now=True)
    place.reopen(how)
    with pytest.raises(SnapshotTooOld):
        place.get(info.id, 1, at=old)
    with pytest.raises(SnapshotTooOld):
        place.store.pin(old)
    assert place.get(info.id, 1) == 2


def test_a_horizon_never_goes_back(place: Place) -> None:
    """Also not in the metastore, when a longer retention comes after a reopening."""
    info = place.create()
    old = place.put(info.id, 1, a=1)
    place.put(info.id, 1, a=2)
    place.store.compact(info.id, erase_now=True)
    place.store.alter("t", AlterAsk(properties={"retention": "90d"}))
    for _ in range(2):
        place.reopen()
        flushed(place, info.id, 3)
        place.store.server.keeper.note_growth(state.tablet for state in place.server.shard.of_table(info.id))
        run(place.store.server.keeper)
        with pytest.raises(SnapshotTooOld):
            place.get(info.id, 1, at=old)


def test_a_pin_holds_history(place: Place) -> None:
    info = place.create()
    old = place.put(info.id, 1, a=1)
    with_pin = place.store.pin(old)
    place.put(info.id, 1, a=2)
    place.store.flush(info.id)
    place.store.compact(info.id, erase_now=True)
    assert place.get(info.id, 1, at=old) == 1
    with_pin.close()
    with_pin.close()
    place.store.compact(info.id, erase_now=True)
    with pytest.raises(SnapshotTooOld):
        place.get(info.id, 1, at=old)


def test_horizons_of_tables_that_are_gone_go(place: Place) -> None:
    info, other = place.create(), place.create("u")
    for table in (info.id, other.id):
        place.put(table, 1)
        place.store.compact(table, erase_now=True)
    place.store.drop("t")
    place.machine.pass_s(10_000)
    place.store.compact_step()
    place.reopen()
    read = place.store.world.loop.run(place.machine.metastore.range("horizon/"))
    assert [entry.key for entry in read.entries] == [f"horizon/{other.id:016x}"]
    with pytest.raises(NotFound):
        place.store.info(info.id)


# -- what leaders elsewhere have flushed


def test_the_log_of_a_shard_that_only_follows_does_not_grow_while_leaders_flush() -> None:
    place = Place(settings=structs.replace(QUIET, shard=replace(QUIET.shard, log=WalSettings(segment_bytes_max=4_096))))
    shard, following, kept = place.server.shard, Following(place.server.shard), keeper(place)
    while kept.compact_step():
        continue
    whole = ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config_bytes(), ())
    following.host(TABLE, TABLET, 1, whole)
    sizes, index = [], 0
    for _ in range(20):
        for _ in range(10):
            sent = [block(1, index + 1, bytes(1_000)), config(1, index + 2, stable=index + 1)]
            prev = (1 if index else 0, index)
            part = AppendPart(TABLET, TABLE, 1, prev, index)
            following.append([part], [[copy_record(record) for record in sent]])
            index += 2
        kept.compact_step()
        sizes.append(len(shard.segments()))
    assert max(sizes) <= 2 * sizes[0] + 10, sizes
    assert len(shard.replicas[TABLET].tail) < 5
    place.close()
