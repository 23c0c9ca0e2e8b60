"""Configs as META rows: after whatever happened to tablets, the rows say what they are now, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from stelae.assembly.world import StoreSettings
from stelae.model.errors import DiskFailed, InvalidArgument
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.registry.control import DeleteTablets, JoinTablets, SplitTablet
from stelae.registry.meta import META0, META1, META_SCHEMA, meta_row
from stelae.storage.tablet.config import TabletConfig, config_of
from stelae.storage.tablet.state import new_tablet
from stelae.tserver.configs import MetaConfigs, read_configs
from tests.tserver.stores import SCHEMA, Place, row

TABLE = TableId(5)
"""Below all that a catalog gives out: it may have been one that is forgotten."""


@pytest.fixture(params=[100, 0], ids=["row by row", "scanned"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Rows are read in both ways: a few in memory one by one, others by a scan."""
    monkeypatch.setattr("stelae.tserver.configs._FEW", request.param)
    made = Place()
    yield made
    made.close()


def rows(place: Place, table: TableId = META1) -> dict[TabletId, RowRange]:
    shard = place.server.shard
    return {config.tablet: config.rows for config in read_configs(shard.of_table(table), shard.fragments)}


def config(tablet: int, start: bytes, stop: bytes | None, resize: int = 0) -> TabletConfig:
    made = config_of(new_tablet(TabletId(tablet), TABLE, RowRange(start, stop), SCHEMA))
    return msgspec.structs.replace(made, resize=resize)


def saved(place: Place, configs: Sequence[TabletConfig], removed: Sequence[int] = ()) -> dict[TabletId, RowRange]:
    """The rows after a save, as they are and as a crash would leave them."""
    place.server.control._configs.save(configs, [TabletId(tablet) for tablet in removed])
    return rows(place)


def test_each_tablet_has_a_row(place: Place) -> None:
    place.create("t", 10, 20)
    assert list(rows(place).values()) == [RowRange(b"", row(10)), RowRange(row(10), row(20)), RowRange(row(20), None)]
    assert list(rows(place, META0).values()) == [RowRange(b"", None)]


def test_rows_after_a_split_and_a_join(place: Place) -> None:
    info = place.create()
    (whole,) = rows(place)
    place.server.ask(SplitTablet(whole, row(5), TabletId(700), TabletId(701)))
    assert rows(place) == {700: RowRange(b"", row(5)), 701: RowRange(row(5), None)}
    place.server.ask(JoinTablets(TabletId(700), TabletId(701), TabletId(702)))
    assert rows(place) == {702: RowRange(b"", None)}
    place.server.ask(DeleteTablets((TabletId(702),)))
    assert rows(place) == {}
    assert place.server.shard.of_table(info.id) == []


def test_a_row_that_another_took_over_is_not_erased(place: Place) -> None:
    """The one that leaves it, by becoming narrower or by going, no longer owns it."""
    assert saved(place, [config(1, b"", b"m"), config(2, b"m", None)]) == {
        1: RowRange(b"", b"m"),
        2: RowRange(b"m", None),
    }
    assert saved(place, [config(1, b"", b"g"), config(3, b"g", b"m", 1)]) == {
        1: RowRange(b"", b"g"),
        3: RowRange(b"g", b"m"),
        2: RowRange(b"m", None),
    }
    assert saved(place, [config(4, b"g", None, 2)], [2, 3]) == {1: RowRange(b"", b"g"), 4: RowRange(b"g", None)}
    assert saved(place, [], [1, 2, 4]) == {}


def test_a_tablet_that_ends_elsewhere_leaves_no_row_behind(place: Place) -> None:
    saved(place, [config(1, b"", b"m")])
    assert saved(place, [config(1, b"", b"g")]) == {1: RowRange(b"", b"g")}
    assert saved(place, [config(1, b"", None)]) == {1: RowRange(b"", None)}
    assert saved(place, [], [1]) == {}


def test_a_tablet_that_begins_elsewhere_keeps_its_row(place: Place) -> None:
    saved(place, [config(1, b"", None)])
    assert saved(place, [config(2, b"", b"g", 1), config(1, b"g", None)]) == {
        2: RowRange(b"", b"g"),
        1: RowRange(b"g", None),
    }


def test_all_rows_of_a_save_need_one_sync() -> None:
    place = Place(settings=StoreSettings())
    many = [config(number, b"%02d" % number, b"%02d" % (number + 1)) for number in range(10, 40)]
    assert place.count("sync", lambda: saved(place, many)) == 1
    assert len(rows(place)) == 30
    place.close()


def test_what_is_removed_goes_only_after_what_takes_over_is_durable() -> None:
    """A crash between the two leaves both; never neither."""
    place = Place(settings=StoreSettings())  # whose log is one piece: the second sync is that of the removal
    saved(place, [config(1, b"", b"m"), config(2, b"m", None)])
    place.machine.disk.fail("sync", DiskFailed, 2)
    with pytest.raises(DiskFailed):
        saved(place, [config(3, b"", None, 1)], [1, 2])
    assert rows(place) == {1: RowRange(b"", b"m"), 3: RowRange(b"", None)}
    assert saved(place, [config(3, b"", None, 1)], [1, 2]) == {3: RowRange(b"", None)}
    place.close()


def test_what_could_not_be_saved_is_saved_again(place: Place) -> None:
    place.machine.disk.fail("sync", DiskFailed)
    with pytest.raises(DiskFailed):
        saved(place, [config(1, b"", None)])
    assert rows(place) == {}
    assert saved(place, [config(1, b"", None)]) == {1: RowRange(b"", None)}


def test_the_root_is_saved_last_and_elsewhere(place: Place) -> None:
    """It refers to meta0, which refers to meta1, which refers to all others."""
    kept: list[TabletId] = []
    configs = MetaConfigs(lambda config: kept.append(config.tablet), "here")
    configs.attach(place.server.shard, [])
    root = config_of(new_tablet(TabletId(1), META0, RowRange(b"", None), META_SCHEMA))
    user = config(9, b"", None)
    place.machine.disk.fail("sync", DiskFailed)
    with pytest.raises(DiskFailed):
        configs.save([user, root], [])
    assert kept == []
    configs.save([user, root], [])
    assert kept == [1]
    assert configs.saved(TabletId(9)) == user
    configs.save([], [TabletId(9)])


def test_saving_before_there_is_a_shard_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="before there is a shard"):
        MetaConfigs(lambda _: None, "here").save([config(9, b"", None)], [])


def test_rows_of_a_table_that_is_gone_go_with_the_next_save(place: Place) -> None:
    """A crash just after the table was forgotten leaves its rows; nobody opens them, and they are cleared away."""
    place.give_out_ids(1000)
    saved(place, [config(900, b"", b"m"), config(901, b"m", None)])
    place.reopen()
    assert TabletId(900) not in place.server.shard.tablets()
    place.server.upkeep.save()
    assert rows(place) == {}


def test_the_row_of_a_range_is_that_of_its_end() -> None:
    assert meta_row(TABLE, RowRange(b"a", b"m")) == meta_row(TABLE, RowRange(b"b", b"m"))
    assert meta_row(TABLE, RowRange(b"a", None)) > meta_row(TABLE, RowRange(b"a", b"\xff" * 9))
