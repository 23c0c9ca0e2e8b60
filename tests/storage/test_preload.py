"""In-memory groups are in the cache before anyone asks; blocks whose statistics rule them out are not read at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from stelae.model.declare import columns, declare
from stelae.model.ids import Micros, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Mutation, Put
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import plan
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import EVERYTHING
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.storage.files.cache import CachePriority
from stelae.storage.files.fragments import Fragment
from stelae.storage.files.preload import preload, rank_files
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.tablet.state import altered
from tests.storage.engine import TABLE, Engine

FIRST = TabletId(1)


def schema(*, in_memory: bool) -> TableSchema:
    hot = columns("hot", {"number": "int64", "text": "string"}, in_memory=in_memory, block_bytes=4096)
    cold = columns("cold", {"other": "string"}, block_bytes=4096)
    return declare({"id": "int64"}, [hot, cold])


def rows_of(table: TableSchema, numbers: Iterable[int]) -> list[Mutation]:
    ids = {name: table.column(name)[1].id for name in ("number", "text", "other")}
    return [
        Put(
            table.codec.encode((n,)),
            ((ids["number"], n), (ids["text"], f"text {n:04d}" * 5), (ids["other"], "x" * 50)),
        )
        for n in numbers
    ]


def engine_with(table: TableSchema, count: int = 600) -> Engine:
    engine = Engine(table)
    engine.write(rows_of(table, range(count)))
    engine.flush(FIRST)
    return engine


def test_files_of_in_memory_groups_are_read_into_the_cache_and_others_are_not() -> None:
    engine = engine_with(schema(in_memory=True))
    shard = engine.shard
    assert sorted(rank_files(shard, FIRST).values()) == [CachePriority.ONE_GROUP, CachePriority.ON_DEMAND]
    hot = shard.fragments.of(shard.state(FIRST).refs(engine.schema.groups[0].id)[0].source)  # type: ignore[arg-type]
    assert len(hot.starts) > 3
    assert preload(shard, FIRST) == len(hot.starts)
    assert shard.cache.stats().blocks == len(hot.starts)
    assert preload(shard, FIRST) == 0


def test_preloading_stops_where_the_cache_ends() -> None:
    engine = engine_with(schema(in_memory=True))
    engine.shard.cache.resize(10_000)
    assert 0 < preload(engine.shard, FIRST) < 10
    assert engine.shard.cache.stats().evictions == 0


def test_a_group_that_leaves_memory_is_ranked_anew() -> None:
    engine = engine_with(schema(in_memory=True))
    preload(engine.shard, FIRST)
    now = engine.schema
    groups = tuple(replace(group, options=replace(group.options, in_memory=False)) for group in now.groups)
    later = replace(now, version=SchemaVersion(now.version + 1), groups=groups)
    engine.schemas[later.version] = later
    engine.newest = later.version
    engine.upkeep.change(FIRST, lambda state: altered(state, later))
    assert set(rank_files(engine.shard, FIRST).values()) == {CachePriority.ON_DEMAND}
    assert engine.shard.cache.stats().bytes_by_priority[CachePriority.ONE_GROUP - 1] == 0


@pytest.mark.parametrize(
    ("text", "found", "read_at_most"),
    [
        ("number = 7", {7}, 1),
        ("number > 590", set(range(591, 600)), 2),
        ("text ~= 'text 0300'", {300}, 2),
        ("number > 10000", set(), 0),
        ("not number < 595", {595, 596, 597, 598, 599}, 2),
        ("number is null", set(), 0),
    ],
)
def test_blocks_that_cannot_match_are_not_read(
    text: str, found: set[int], read_at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = declare({"id": "int64"}, [columns("hot", {"number": "int64", "text": "string"}, block_bytes=4096)])
    ids = [column.id for group in table.groups if isinstance(group, ColumnsGroup) for column in group.columns]
    engine = Engine(table)
    values = [((ids[0], n), (ids[1], f"text {n:04d}" * 5)) for n in range(600)]
    engine.write([Put(table.codec.encode((n,)), value) for n, value in enumerate(values)])
    engine.flush(FIRST)
    read: set[int] = set()
    whole = Fragment.block

    def counted(self: Fragment, block: int, wanted: Iterable[str], keep: bool) -> object:
        read.add(block)
        return whole(self, block, wanted, keep)

    monkeypatch.setattr(Fragment, "block", counted)
    types = {"id": table.key[0].type} | {n: table.column(n)[1].type for n in ("number", "text")}
    where = plan(check_types(parse(text), types)).where
    at = engine.shard.visible
    request = ScanRequest(EVERYTHING, ALL_COLUMNS, Asking(at, Txn(0), Micros(0)), where)
    scan = TableScan(engine.shard, TABLE, engine.schema, request)
    numbers = {n for batch in scan for n in batch.batch["number"].to_pylist()}
    assert numbers == found
    assert len(read) <= read_at_most
