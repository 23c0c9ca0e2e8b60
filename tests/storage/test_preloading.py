"""In-memory groups are in the cache before anyone asks; blocks whose statistics rule them out are not read at all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from stelae.model.declare import cells, columns, declare
from stelae.model.ids import Micros, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import plan
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import EVERYTHING
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.storage.files.blocks import Block
from stelae.storage.files.cache import CachePriority
from stelae.storage.files.fragments import Fragment
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.tablet.changes import Loaded
from stelae.storage.upkeep.preloading import Preloading
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


def engine_with(table: TableSchema, count: int = 600, cache_bytes: int = 10**6) -> Engine:
    engine = Engine(table)
    engine.shard.cache.resize(cache_bytes)
    engine.write(rows_of(table, range(count)))
    engine.flush(FIRST)
    return engine


def file_of(engine: Engine, group: int = 0) -> Fragment:
    """The only file of a group."""
    (ref,) = (ref for ref in engine.tablets()[0].refs(engine.schema.groups[group].id) if ref.file is not None)
    assert ref.file is not None
    return engine.shard.fragments.of(ref.file)


def cached(engine: Engine, fragment: Fragment) -> int:
    """How many blocks of it are in the cache, with all of its columns."""
    needed = fragment.needed(tuple(fragment.columns))
    return sum(fragment.cached(block, needed) is not None for block in range(len(fragment.starts)))


class Counted:
    """How many blocks are read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks = 0
        whole = Fragment._read

        def counted(fragment: Fragment, block: int, columns: Iterable[str]) -> Block:
            self.blocks += 1
            return whole(fragment, block, columns)

        monkeypatch.setattr(Fragment, "_read", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def run(preloading: Preloading) -> int:
    steps = 0
    while preloading.step():
        steps += 1
        assert steps < 1_000, "it never comes to an end"
    return steps


def ranked_bytes(engine: Engine, rank: CachePriority = CachePriority.ONE_GROUP) -> int:
    return engine.shard.cache.stats().bytes_by_priority[rank - 1]


def test_in_memory_groups_are_read_into_the_cache_block_by_block_and_others_are_not(reads: Counted) -> None:
    engine = engine_with(schema(in_memory=True))
    preloading = Preloading(engine.shard)
    hot, cold = file_of(engine), file_of(engine, 1)
    assert len(hot.starts) > 3
    reads.blocks = 0
    while preloading.step():
        assert reads.blocks <= 1, "a step reads one block"
        reads.blocks = 0
    assert (cached(engine, hot), cached(engine, cold)) == (len(hot.starts), 0)
    assert (hot.priority, cold.priority) == (CachePriority.ONE_GROUP, CachePriority.ON_DEMAND)
    assert ranked_bytes(engine) == engine.shard.cache.size_bytes
    assert run(preloading) == 0


def test_nothing_is_done_for_groups_that_are_not_in_memory(reads: Counted) -> None:
    engine = engine_with(schema(in_memory=False))
    reads.blocks = 0
    assert run(Preloading(engine.shard)) == 0
    assert reads.blocks == 0


def test_a_group_larger_than_the_cache_is_read_as_far_as_it_goes_and_no_further(reads: Counted) -> None:
    engine = engine_with(schema(in_memory=True), cache_bytes=12_000)
    preloading = Preloading(engine.shard)
    hot = file_of(engine)
    reads.blocks = 0
    run(preloading)
    assert 0 < cached(engine, hot) < len(hot.starts)
    assert reads.blocks == cached(engine, hot) + 1, "the one that did not fit was read to know it"
    assert engine.shard.cache.stats().evictions == 0
    assert run(preloading) == 0


def test_when_it_is_full_other_files_are_not_tried_for_blocks_as_large(reads: Counted) -> None:
    table = schema(in_memory=True)
    engine = engine_with(table, cache_bytes=12_000)
    for start in range(1_000, 4_000, 600):
        engine.write(rows_of(table, range(start, start + 600)))
        engine.flush(FIRST)
    reads.blocks = 0
    run(Preloading(engine.shard))
    assert reads.blocks <= engine.shard.cache.stats().blocks + 2


def test_other_tables_take_no_room_from_what_is_in_memory() -> None:
    engine = engine_with(schema(in_memory=True))
    run(Preloading(engine.shard))
    engine.shard.cache.resize(engine.shard.cache.size_bytes)
    held, cold = ranked_bytes(engine), file_of(engine, 1)
    for block in range(len(cold.starts)):
        cold.block(block, cold.needed(tuple(cold.columns)), keep=True)
    assert ranked_bytes(engine) == held
    assert cached(engine, cold) == 0


def test_room_is_made_by_what_is_not_in_memory() -> None:
    engine = engine_with(schema(in_memory=True))
    cold = file_of(engine, 1)
    for block in range(len(cold.starts)):
        cold.block(block, cold.needed(tuple(cold.columns)), keep=True)
    engine.shard.cache.resize(engine.shard.cache.size_bytes * 5 // 4)
    run(Preloading(engine.shard))
    hot = file_of(engine)
    assert cached(engine, hot) == len(hot.starts)
    assert cached(engine, cold) < len(cold.starts)


def test_what_is_flushed_later_is_read_and_what_is_there_is_not_read_again(reads: Counted) -> None:
    table = schema(in_memory=True)
    engine = engine_with(table)
    preloading = Preloading(engine.shard)
    run(preloading)
    before = {ref.file.name for ref in engine.tablets()[0].refs(table.groups[0].id) if ref.file is not None}
    engine.write(rows_of(table, range(1_000, 1_200)))
    engine.flush(FIRST)
    (new,) = (r.file for r in engine.tablets()[0].refs(table.groups[0].id) if r.file and r.file.name not in before)
    reads.blocks = 0
    assert run(preloading) > 0
    fragment = engine.shard.fragments.of(new)
    assert reads.blocks == cached(engine, fragment) == len(fragment.starts)


def test_a_compaction_gives_the_room_of_what_it_replaced(reads: Counted) -> None:
    """Also before its files are deleted: they may still be read at older snapshots."""
    table = schema(in_memory=True)
    engine = engine_with(table, 300)
    engine.write(rows_of(table, range(300, 600)))
    engine.flush(FIRST)
    preloading = Preloading(engine.shard)
    run(preloading)
    engine.shard.cache.resize(engine.shard.cache.size_bytes * 5 // 4)
    engine.compact_all(FIRST)
    reads.blocks = 0
    run(preloading)
    hot = file_of(engine)
    assert reads.blocks == cached(engine, hot) == len(hot.starts)
    engine.tidy()
    run(preloading)
    assert cached(engine, hot) == len(hot.starts)
    assert ranked_bytes(engine) == engine.shard.cache.size_bytes


def test_a_split_reads_nothing_again(reads: Counted) -> None:
    table = schema(in_memory=True)
    engine = engine_with(table)
    preloading = Preloading(engine.shard)
    run(preloading)
    reads.blocks = 0
    engine.split(FIRST, table.codec.encode((300,)))
    run(preloading)
    assert reads.blocks == 0
    hot = file_of(engine)
    assert cached(engine, hot) == len(hot.starts)


def test_of_a_file_only_the_rows_of_tablets_that_are_here_are_read() -> None:
    table = schema(in_memory=True)
    engine = engine_with(table)
    engine.split(FIRST, table.codec.encode((300,)))
    left, right = engine.tablets()
    with engine.shard.lock:
        engine.shard.install([], [right.tablet])
    run(Preloading(engine.shard))
    hot = file_of(engine)
    here = [hot.range_of(block).overlaps(left.rows) for block in range(len(hot.starts))]
    assert cached(engine, hot) == sum(here) < len(hot.starts)


def test_a_group_that_leaves_memory_is_ranked_anew_and_one_that_comes_is_read() -> None:
    engine = engine_with(schema(in_memory=True))
    preloading = Preloading(engine.shard)
    run(preloading)
    now = engine.schema
    kept = [replace(group.options, in_memory=group.name == "cold") for group in now.groups]
    groups = tuple(replace(group, options=options) for group, options in zip(now.groups, kept, strict=True))
    engine.alter(replace(now, version=SchemaVersion(now.version + 1), groups=groups))
    run(preloading)
    hot, cold = file_of(engine), file_of(engine, 1)
    assert (hot.priority, cold.priority) == (CachePriority.ON_DEMAND, CachePriority.ONE_GROUP)
    assert cached(engine, cold) == len(cold.starts)
    assert ranked_bytes(engine, CachePriority.ON_DEMAND) > 0
    assert ranked_bytes(engine) + ranked_bytes(engine, CachePriority.ON_DEMAND) == engine.shard.cache.size_bytes


def test_of_a_file_that_is_partly_in_memory_those_columns_are_read() -> None:
    """After `text` moved to a group that is in memory, the file of the other has it still."""
    engine = engine_with(schema(in_memory=False))
    now = engine.schema
    hot, cold = now.groups
    assert isinstance(hot, ColumnsGroup)
    assert isinstance(cold, ColumnsGroup)
    number, text = hot.columns
    moved = replace(cold, columns=(*cold.columns, text), options=replace(cold.options, in_memory=True))
    groups = (replace(hot, columns=(number,)), moved)
    engine.alter(replace(now, version=SchemaVersion(now.version + 1), groups=groups))
    run(Preloading(engine.shard))
    fragment = file_of(engine)
    assert fragment.priority is CachePriority.PARTLY
    block = fragment.cached(0, ())
    assert block is not None
    assert "text" in block.columns
    assert "number" not in block.columns


def test_a_load_is_read_once_it_is_committed_under_its_txn() -> None:
    table = schema(in_memory=True)
    engine = Engine(table)
    engine.shard.cache.resize(10**6)
    preloading = Preloading(engine.shard)
    ids = {name: table.column(name)[1].id for name in ("number", "text")}
    puts: list[Mutation] = [
        Put(table.codec.encode((n,)), ((ids["number"], n), (ids["text"], "text"))) for n in range(200)
    ]
    engine.prepare_load("load", puts)
    assert run(preloading) == 0, "nobody sees it yet"
    engine.change(Loaded("load", False))
    assert run(preloading) > 0
    hot = file_of(engine)
    assert hot.file.txn is not None
    assert cached(engine, hot) == len(hot.starts)
    assert ranked_bytes(engine) == engine.shard.cache.size_bytes


def test_a_file_that_cannot_be_read_is_passed_over_and_not_tried_for_ever() -> None:
    table = schema(in_memory=True)
    engine = engine_with(table)
    engine.write(rows_of(table, range(1_000, 1_200)))
    engine.flush(FIRST)
    refs = [ref.file for ref in engine.tablets()[0].refs(table.groups[0].id) if ref.file is not None]
    engine.shard.fragments.forget([file.name for file in refs])
    engine.blobs.delete(refs[0].name)
    preloading = Preloading(engine.shard)
    run(preloading)
    fragment = engine.shard.fragments.of(refs[1])
    assert cached(engine, fragment) == len(fragment.starts)


def test_cells_are_read_ahead_too() -> None:
    table = declare({"id": "int64"}, [cells("hot", ["f"], in_memory=True, block_bytes=4096), cells("cold")])
    engine = Engine(table)
    engine.shard.cache.resize(10**6)
    keys = [table.codec.encode((n,)) for n in range(300)]
    engine.write([PutCell(key, family, "q", b"x" * 50) for key in keys for family in ("f", "g")])
    engine.flush(FIRST)
    run(Preloading(engine.shard))
    hot, cold = file_of(engine), file_of(engine, 1)
    assert cached(engine, hot) == len(hot.starts)
    assert (hot.priority, cached(engine, cold)) == (CachePriority.ONE_GROUP, 0)


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
