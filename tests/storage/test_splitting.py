"""A tablet is split where its bytes are halved, as far as its rows allow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.declare import cells, columns, declare
from stelae.model.ids import GroupId, Row, SchemaVersion, TabletId
from stelae.model.mutation import Erase, Mutation, Put, PutCell, WholeRow
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.storage.files.fragments import Fragment
from stelae.storage.memory.columns import MemoryOfColumns
from stelae.storage.tablet import splitting
from stelae.storage.tablet.splitting import BLOCKS_READ_MAX, WHOLE_BLOCKS_MAX, choose_split_row, size_of
from stelae.storage.tablet.state import TabletState, split, with_load, with_prepared
from tests.storage.engine import TABLE, Engine

PLAIN = declare({"id": "string"}, [columns("g", {"v": "binary"}, compression="none", block_bytes=4096)])
NUMBERED = declare({"id": "int64"}, [columns("g", {"v": "binary"}, block_bytes=4096)])
HASHED = declare({"id": "string"}, [columns("g", {"v": "binary"}, compression="none", block_bytes=4096)], hashed=True)
WIDE = declare(
    {"area": "string", "id": "string"},
    [
        columns("g", {"v": "binary"}, compression="none", block_bytes=4096),
        cells("c", compression="none", block_bytes=4096),
    ],
)
CELLS = declare({"id": "string"}, [cells("c", compression="none", block_bytes=4096)])
MOVABLE = declare({"id": "string"}, [columns("g", {"a": "binary", "b": "binary"})])
ONE = TabletId(1)
Writes = list[tuple[Row, int]]
Distribution = Callable[[random.Random], list[tuple[str, int]]]


def row_of(schema: TableSchema, text: str) -> Row:
    if schema is NUMBERED:
        return schema.codec.encode((int(text),))
    return schema.codec.encode(("area", text) if schema is WIDE else (text,))


def mutation(schema: TableSchema, row: Row, size: int, number: int) -> Mutation:
    value = random.Random(number).randbytes(size)
    first = schema.groups[0]
    if isinstance(first, ColumnsGroup) and (len(schema.groups) == 1 or number % 2):
        return Put(row, ((first.columns[0].id, value),))
    return PutCell(row, f"family{number % 3}", f"q{number}", value)


def even(chance: random.Random) -> list[tuple[str, int]]:
    return [(f"{i:05}", 100) for i in range(300)]


def few(chance: random.Random) -> list[tuple[str, int]]:
    return [(f"{i:05}", chance.randrange(1, 50)) for i in range(5)]


def large_first(chance: random.Random) -> list[tuple[str, int]]:
    return [(f"{i:05}", 2_000 if i < 40 else 10) for i in range(300)]


def large_last(chance: random.Random) -> list[tuple[str, int]]:
    return [(f"{i:05}", 2_000 if i >= 260 else 10) for i in range(300)]


def crowded(chance: random.Random) -> list[tuple[str, int]]:
    """Many keys near each other, few elsewhere."""
    return [(f"{int(chance.lognormvariate(3, 3)):015}", chance.randrange(10, 300)) for _ in range(300)]


def prefixes(chance: random.Random) -> list[tuple[str, int]]:
    return [("0" * 200 + f"{i:05}", chance.randrange(100)) for i in range(300)]


def hot(share: float, place: float) -> Distribution:
    """One row has so much of everything, in many versions."""

    def writes(chance: random.Random) -> list[tuple[str, int]]:
        count = 300
        return [(f"{count * place:05.0f}" if chance.random() < share else f"{i:05}", 80) for i in range(count)]

    return writes


DISTRIBUTIONS = {
    "even": even,
    "few": few,
    "large first": large_first,
    "large last": large_last,
    "crowded": crowded,
    "prefixes": prefixes,
    "hot in the middle": hot(0.4, 0.5),
    "hot at the start": hot(0.6, 0.0),
    "hot at the end": hot(0.6, 1.1),
    "very hot": hot(0.9, 0.3),
}
SCHEMAS = {"plain": PLAIN, "numbered": NUMBERED, "hashed": HASHED, "wide": WIDE, "cells": CELLS}
LAYOUTS = ("memory", "columnar memory", "compacted", "files", "files and memory")
CASES = [
    pytest.param(distribution, SCHEMAS[schema], layout, id=f"{name}, {schema}, {layout}")
    for i, (name, distribution) in enumerate(DISTRIBUTIONS.items())
    for schema, layout in zip((list(SCHEMAS) * 2)[i % 5 :], LAYOUTS, strict=False)
]


def filled(schema: TableSchema, writes: Writes, layout: str) -> Engine:
    engine = Engine(schema, page_bytes=4096)
    mutations = [mutation(schema, row, size, i) for i, (row, size) in enumerate(writes)]
    parts = 4 if "files" in layout or layout == "compacted" else 1
    for part in range(parts):
        for block in blocks_of(mutations[part::parts]):
            engine.write(block, nulls_written=True if layout == "columnar memory" else None)
        if layout != "memory" and layout != "columnar memory" and not (layout == "files and memory" and part == 3):
            engine.flush(ONE)
    if layout == "compacted":
        engine.compact_all(ONE)
    return engine


def blocks_of(mutations: Iterable[Mutation]) -> list[list[Mutation]]:
    """Each of one kind and in order, and no row twice: two versions of a row in one block would be one."""
    found: dict[tuple[type, int], list[Mutation]] = {}
    seen: dict[Row, int] = {}
    for each in sorted(mutations, key=lambda each: each.row):
        at = seen[each.row] = seen.get(each.row, -1) + 1
        found.setdefault((type(each), at), []).append(each)
    return list(found.values())


def weights(writes: Writes) -> dict[Row, int]:
    found: dict[Row, int] = {}
    for row, size in writes:
        found[row] = found.get(row, 0) + size + 2 * len(row) + 30
    return dict(sorted(found.items()))


def share_below(weighed: dict[Row, int], at: Row) -> float:
    return sum(weight for row, weight in weighed.items() if row < at) / sum(weighed.values())


def check_halves(state: TabletState, at: Row | None, weighed: dict[Row, int]) -> None:
    """Not much further from the half than the best that these rows allow."""
    best = min(abs(share_below(weighed, row) - 0.5) for row in list(weighed)[1:])
    assert at is not None
    assert at in state.rows
    assert at > state.rows.start
    share = share_below(weighed, at)
    assert 0 < share < 1
    assert abs(share - 0.5) <= best + 0.1
    if max(weighed.values()) <= 0.3 * sum(weighed.values()):
        assert 0.3 <= share <= 0.7


@pytest.mark.parametrize(("distribution", "schema", "layout"), CASES)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in part"])
def test_bytes_are_halved(
    distribution: Distribution, schema: TableSchema, layout: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(splitting, "WHOLE_BLOCKS_MAX", 0)
    chance = random.Random(11)
    writes = [(row_of(schema, text), size) for text, size in distribution(chance)]
    chance.shuffle(writes)
    engine = filled(schema, writes, layout)
    state, fragments = engine.shard.state(ONE), engine.shard.fragments
    at = choose_split_row(state, fragments)
    check_halves(state, at, weights(writes))
    assert choose_split_row(state, fragments) == at


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in part"])
def test_halves_are_split_again_until_single_rows_are_left(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where tablets share blocks and memory, and where a tablet's first row is its start."""
    if not whole:
        monkeypatch.setattr(splitting, "WHOLE_BLOCKS_MAX", 0)
    chance = random.Random(3)
    writes = [(row_of(PLAIN, f"{i:03}"), chance.randrange(10, 400)) for i in range(40)]
    engine = filled(PLAIN, writes, "files and memory" if whole else "files")
    weighed, done = weights(writes), list[TabletId]()
    while waiting := [state for state in engine.tablets() if state.tablet not in done]:
        state = waiting[0]
        mine = {row: weight for row, weight in weighed.items() if row in state.rows}
        at = choose_split_row(state, engine.shard.fragments)
        if at is None:
            assert len(mine) == 1
            done.append(state.tablet)
        else:
            check_halves(state, at, mine)
            engine.split(state.tablet, at)
    assert len(done) == len(weighed)


def test_the_parts_of_a_split_weigh_what_the_tablet_did() -> None:
    writes = [(row_of(NUMBERED, f"{i}"), 100) for i in range(600)]
    engine = filled(NUMBERED, writes, "files and memory")
    state, fragments = engine.shard.state(ONE), engine.shard.fragments
    at = choose_split_row(state, fragments)
    assert at is not None
    left, right = split(state, at, TabletId(2), TabletId(3), 1)
    sizes = [size_of(part, fragments) for part in (left, right)]
    whole = size_of(state, fragments)
    assert 0.95 * whole < sum(sizes) < 1.15 * whole
    assert all(0.35 * whole < size < 0.65 * whole for size in sizes)


def moved(schema: TableSchema) -> TableSchema:
    """The second column in a group of its own."""
    group = schema.groups[0]
    assert isinstance(group, ColumnsGroup)
    apart = ColumnsGroup(GroupId(schema.last_id + 1), "apart", group.columns[1:])
    groups = (replace(group, columns=group.columns[:1]), apart)
    return replace(schema, version=SchemaVersion(schema.version + 1), groups=groups, last_id=schema.last_id + 1)


def test_sizes_are_those_of_files_and_memory() -> None:
    engine = Engine(MOVABLE, page_bytes=4096)
    group = MOVABLE.groups[0]
    assert isinstance(group, ColumnsGroup)
    a, b = (column.id for column in group.columns)
    engine.write([Put(Row(b"%03d" % i), ((a, b"x" * 50), (b, b"y" * 50))) for i in range(100)])
    state = engine.shard.state(ONE)
    assert size_of(state, engine.shard.fragments) == state.active.size_bytes > 10_000
    engine.flush(ONE)
    state = engine.shard.state(ONE)
    in_files = sum(file.seal.size_bytes for file in state.files().values())
    assert size_of(state, engine.shard.fragments) == in_files > 1_000
    engine.alter(moved(MOVABLE))
    state = engine.shard.state(ONE)
    assert len([ref for _, refs in state.groups for ref in refs if ref.file is not None]) == 2
    assert size_of(state, engine.shard.fragments) == in_files


@pytest.mark.parametrize("layout", ["memory", "compacted"])
def test_there_must_be_two_rows(layout: str) -> None:
    rows = [row_of(PLAIN, "a"), row_of(PLAIN, "b")]
    for writes, expected in (([], None), ([(rows[0], 9)], None), ([(rows[0], 9), (rows[0], 20)], None)):
        engine = filled(PLAIN, writes, layout)
        assert choose_split_row(engine.shard.state(ONE), engine.shard.fragments) is expected
    engine = filled(PLAIN, [(rows[1], 9), (rows[0], 5_000)], layout)
    assert choose_split_row(engine.shard.state(ONE), engine.shard.fragments) == rows[1]


def test_a_row_that_only_memory_has_parts_a_tablet_of_one_row() -> None:
    engine = filled(PLAIN, [(row_of(PLAIN, "a"), 4_000)] * 60, "compacted")
    state = engine.shard.state(ONE)
    assert sum(len(engine.shard.fragments.of(file).starts) for file in state.files().values()) > WHOLE_BLOCKS_MAX
    assert choose_split_row(engine.shard.state(ONE), engine.shard.fragments) is None
    engine.write([mutation(PLAIN, row_of(PLAIN, "b"), 1, 1)])
    assert choose_split_row(engine.shard.state(ONE), engine.shard.fragments) == row_of(PLAIN, "b")


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_memory_is_weighed_where_it_weighs_enough(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 400
    count = int(500 * share)
    low = [(row_of(PLAIN, f"0{i:03}"), size) for i in range(500 - count)]
    high = [(row_of(PLAIN, f"1{i:03}"), size) for i in range(count)]
    engine = filled(PLAIN, low, "compacted")
    engine.write([mutation(PLAIN, row, size, i) for i, (row, _) in enumerate(high)])
    if share < 0.1:
        monkeypatch.setattr(MemoryOfColumns, "raw", None)
    state = engine.shard.state(ONE)
    at = choose_split_row(state, engine.shard.fragments)
    check_halves(state, at, weights([*low, *high]))


def test_a_small_tablet_is_weighed_record_by_record() -> None:
    """The last block has one record, and a third of the bytes."""
    large = [(row_of(PLAIN, "x0"), 3_000), (row_of(PLAIN, "x1"), 3_800)]
    engine = filled(PLAIN, [*((row_of(PLAIN, f"{i:03}"), 10) for i in range(60)), *large], "compacted")
    assert choose_split_row(engine.shard.state(ONE), engine.shard.fragments) == row_of(PLAIN, "x1")


def test_a_file_without_records_has_no_weight() -> None:
    engine = filled(PLAIN, [(row_of(PLAIN, f"{i}"), 10) for i in range(4)], "compacted")
    group = PLAIN.groups[0]
    sink = engine.blobs.create("fragments/empty")
    footer, seal = FragmentWriter(sink, spec_of(TABLE, PLAIN, group, has_txn=False), group.options).close()
    sink.commit()
    state = engine.shard.state(ONE)
    before = choose_split_row(state, engine.shard.fragments)
    loaded = with_prepared(state, "load", {group.id: [FragmentFile("fragments/empty", seal, footer.stats)]})
    loaded = with_load(loaded, "load", engine.visible)
    assert len(loaded.files()) == 2
    assert choose_split_row(loaded, engine.shard.fragments) == before is not None


def test_shared_memory_counts_where_its_rows_are() -> None:
    engine = filled(PLAIN, [(row_of(PLAIN, text), 100) for text in "abcd"], "memory")
    whole = size_of(engine.shard.state(ONE), engine.shard.fragments)
    engine.split(ONE, row_of(PLAIN, "d"))
    left, right = (size_of(state, engine.shard.fragments) for state in engine.tablets())
    assert whole > left > right > 0


def test_erasures_have_weight_too() -> None:
    engine = Engine(PLAIN, page_bytes=4096)
    engine.write([Erase(row_of(PLAIN, f"{i:02}"), WholeRow()) for i in range(20)])
    engine.flush(ONE)
    at = choose_split_row(engine.shard.state(ONE), engine.shard.fragments)
    assert at is not None
    assert row_of(PLAIN, "07") <= at <= row_of(PLAIN, "13")


class Reads:
    """Counts the blocks that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        block = Fragment.block

        def counted(fragment: Fragment, *args: object, **options: object) -> object:
            self.count += 1
            return block(fragment, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Fragment, "block", counted)


def test_of_many_blocks_few_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout, count, least, most in (("compacted", 1_000, 1, 1), ("files", 300, 1, 8)):
        writes = [(row_of(PLAIN, f"{i:05}"), 300) for i in range(count)]
        engine = filled(PLAIN, writes, layout)
        state, fragments = engine.shard.state(ONE), engine.shard.fragments
        assert sum(len(fragments.of(file).starts) for file in state.files().values()) > WHOLE_BLOCKS_MAX
        reads = Reads(monkeypatch)
        check_halves(state, choose_split_row(state, fragments), weights(writes))
        assert least <= reads.count <= most
        monkeypatch.undo()


def test_no_more_blocks_are_read_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heaviest are: two files have most of the bytes, and others reach across them. As many again may be read to
    find the row before."""
    light = [[(row_of(PLAIN, f"{i:03}{part:02}"), 5) for i in (0, 300, 800, 900)] for part in range(15)]
    heavy = [[(row_of(PLAIN, f"6{i:02}{part:02}"), 280) for i in range(12)] for part in (90, 91)]
    engine = Engine(PLAIN, page_bytes=4096)
    for writes in (*light, *heavy):
        engine.write([mutation(PLAIN, row, size, i) for i, (row, size) in enumerate(writes)])
        engine.flush(ONE)
    state, fragments = engine.shard.state(ONE), engine.shard.fragments
    weighed = weights([each for writes in (*light, *heavy) for each in writes])
    for allowed in (2, BLOCKS_READ_MAX):
        monkeypatch.setattr(splitting, "BLOCKS_READ_MAX", allowed)
        reads = Reads(monkeypatch)
        check_halves(state, choose_split_row(state, fragments), weighed)
        assert 0 < reads.count <= 2 * allowed
        monkeypatch.undo()
