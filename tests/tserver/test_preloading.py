"""Groups that are to be in memory, in a whole store: they are in the cache soon after it is opened, and stay there.

The steps are driven by hand, so nothing waits for anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from stelae.client.intake.mutations import blocks_of, key_of
from stelae.model.declare import columns, declare
from stelae.model.errors import NotCached
from stelae.model.ids import Row, TableId
from stelae.model.predicate.selectors import ALL_COLUMNS, ColumnSelector
from stelae.service.tables import AlterAsk, CreateAsk, OptionsAsk, TableInfo
from stelae.storage.upkeep.serializer import SerializerSettings
from tests.assembly.worlds import SETTINGS
from tests.tserver.stores import Place

QUIET = structs.replace(SETTINGS, shard=replace(SETTINGS.shard, serializer=SerializerSettings()))
ROWS = 2_000
HOT = (ColumnSelector("a", is_prefix=False), ColumnSelector("b", is_prefix=False))


def schema(*, in_memory: bool) -> Any:
    hot = columns("hot", {"a": "int64", "b": "string"}, in_memory=in_memory, block_bytes=16_384)
    return declare({"id": "int64"}, [hot, columns("cold", {"c": "string"}, block_bytes=16_384)])


def row(key: int) -> Row:
    return key_of(schema(in_memory=True), key)


def made(place: Place, name: str, *, in_memory: bool, rows: int = ROWS) -> TableInfo:
    info = place.store.create(CreateAsk(name, schema(in_memory=in_memory)))
    written(place, info, 0, rows)
    return info


def written(place: Place, info: TableInfo, start: int, rows: int) -> None:
    values = [{"id": n, "a": n, "b": f"text {n}" * 3, "c": "x" * 20} for n in range(start, start + rows)]
    place.store.write(info.id, blocks_of(place.store.info(info.id).schema, values))
    place.store.flush(info.id)


def settle(place: Place) -> int:
    """All that the store does by itself; how many steps it took."""
    steps = 0
    while place.store.flush_step() or place.store.compact_step():
        steps += 1
        assert steps < 10_000, "it never comes to an end"
    return steps


def in_cache(place: Place, table: TableId, keys: Any = range(0, ROWS, 37)) -> bool:
    """Whether these rows are read without touching a file."""
    try:
        found = [place.store.newest_cached(table, row(key), HOT)[1] for key in keys]
    except NotCached:
        return False
    assert [values and values["a"] for values in found] == list(keys)
    return True


def hot_bytes(place: Place, table: TableId) -> int:
    """What the group takes in memory."""
    shard = place.server.shard
    total = 0
    for state in shard.of_table(table):
        for ref in state.refs(state.schema.groups[0].id):
            if ref.file is not None:
                fragment = shard.fragments.of(ref.file)
                needed = fragment.needed(tuple(fragment.columns))
                total += sum(fragment.block(n, needed, keep=False).size_bytes for n in range(len(fragment.starts)))
    return total


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place(settings=QUIET)
    yield found
    found.close()


@pytest.mark.parametrize("how", ["closed", "kill"])
def test_after_opening_it_is_in_the_cache_and_read_from_there(place: Place, how: str) -> None:
    info, other = made(place, "t", in_memory=True), made(place, "u", in_memory=False)
    place.reopen(how)
    assert place.store.metrics()["cache_bytes"] == 0
    assert not in_cache(place, info.id)
    settle(place)
    assert place.store.metrics()["cache_bytes"] == hot_bytes(place, info.id) > 100_000
    assert in_cache(place, info.id)
    assert not in_cache(place, other.id)
    with pytest.raises(NotCached):
        place.store.newest_cached(info.id, row(1), ALL_COLUMNS)
    assert place.store.metrics()["cache_misses"] == 0, "nobody has asked for anything that was not there"


def test_a_step_is_small_and_flushes_go_on_beside_it(place: Place) -> None:
    info = made(place, "t", in_memory=True)
    place.reopen()
    sizes = [0]
    while place.store.compact_step():
        sizes.append(place.store.metrics()["cache_bytes"])
        place.store.flush_step()
    blocks = [after - before for before, after in pairwise(sizes) if after > before]
    assert len(blocks) > 5
    assert max(blocks) < 3 * hot_bytes(place, info.id) / len(blocks)


def test_after_a_flush_and_a_compaction_it_is_there_again(place: Place) -> None:
    info = made(place, "t", in_memory=True)
    settle(place)
    written(place, info, ROWS, 500)
    settle(place)
    assert in_cache(place, info.id, range(0, ROWS + 500, 37))
    place.store.compact(info.id)
    settle(place)
    assert in_cache(place, info.id, range(0, ROWS + 500, 37))
    assert place.store.metrics()["cache_bytes"] == hot_bytes(place, info.id), "what was merged is gone from the cache"


def test_other_tables_do_not_push_it_out(place: Place) -> None:
    info, other = made(place, "t", in_memory=True), made(place, "u", in_memory=False, rows=4 * ROWS)
    place.reopen()
    settle(place)
    place.server.shard.cache.resize(hot_bytes(place, info.id) + 100_000)
    for key in range(0, 4 * ROWS, 7):
        assert place.store.newest(other.id, row(key), ALL_COLUMNS)[1] is not None
    assert in_cache(place, info.id)
    assert place.store.metrics()["cache_bytes"] > hot_bytes(place, info.id), "they have what is left"


def test_what_is_larger_than_the_cache_comes_to_an_end() -> None:
    place = Place(settings=structs.replace(QUIET, shard=replace(QUIET.shard, cache_bytes=60_000)))
    info = made(place, "t", in_memory=True)
    place.reopen()
    settle(place)
    assert 30_000 < place.store.metrics()["cache_bytes"] <= 60_000
    assert not in_cache(place, info.id)
    assert settle(place) == 0
    for key in range(0, ROWS, 101):
        assert place.store.newest(info.id, row(key), HOT)[1] is not None
    assert settle(place) == 0
    place.close()


def test_it_waits_while_a_load_is_under_way(place: Place) -> None:
    info = made(place, "t", in_memory=True)
    place.reopen()
    ticket = place.store.begin_load(info.id, "job")
    settle(place)
    assert place.store.metrics()["cache_bytes"] == 0
    woken: list[bool] = []
    place.store.wakes.grown = lambda: woken.append(True)
    place.store.release(ticket.ticket)
    assert woken
    settle(place)
    assert in_cache(place, info.id)


def test_a_group_that_is_put_into_memory_is_read_and_one_taken_out_may_go(place: Place) -> None:
    info = made(place, "t", in_memory=False)
    settle(place)
    assert place.store.metrics()["cache_bytes"] == 0
    woken: list[bool] = []
    place.store.wakes.grown = lambda: woken.append(True)
    place.store.alter("t", AlterAsk(options={"hot": OptionsAsk(in_memory=True)}))
    assert woken, "it is not read at some time or other, but now"
    settle(place)
    assert in_cache(place, info.id)
    place.store.alter("t", AlterAsk(options={"hot": OptionsAsk(in_memory=False)}))
    settle(place)
    stats = place.server.shard.cache.stats()
    assert stats.bytes_by_priority == (0, 0, 0, stats.size_bytes)


def test_a_dropped_table_leaves_the_cache_and_comes_back_with_its_recall(place: Place) -> None:
    info = made(place, "t", in_memory=True)
    settle(place)
    place.store.drop("t")
    settle(place)
    assert place.server.shard.cache.stats().bytes_by_priority[0] == 0
    place.store.recall("t")
    settle(place)
    assert in_cache(place, info.id)
    assert place.server.shard.cache.stats().bytes_by_priority[0] == hot_bytes(place, info.id)
