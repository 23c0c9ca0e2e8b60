"""Scans of a table: exactly the rows and values of their snapshot, whatever happens under them, and no more work than
that takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.format import layout
from stelae.model import types as t
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import NotFound, SnapshotTooOld, TabletAway
from stelae.model.ids import GroupId, Row, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Columns, Erase, Mutation, Put, PutCell, WholeRow
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ALL_TIME, TimeRange, plan
from stelae.model.predicate.selectors import ALL_COLUMNS, ColumnSelector, Selectors, union_selectors
from stelae.model.predicate.vector import names_of
from stelae.model.ranges import EVERYTHING, NOTHING, RangeSet, RowRange, prefixed, single
from stelae.model.schema import CellsGroup, ColumnsGroup, TableSchema
from stelae.model.schema_checks import check_schema
from stelae.model.values import Value
from stelae.storage.files.blocks import Block
from stelae.storage.files.fragments import Fragment
from stelae.storage.memory.columns import MemoryOfColumns
from stelae.storage.read.scans import columns as scan_columns
from stelae.storage.read.scans import windows as scan_windows
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.tablet.changes import Emptied
from stelae.storage.tablet.state import altered
from stelae.storage.upkeep.estimate import describe
from stelae.storage.upkeep.picker import pick_all
from tests.effort import examples, tries
from tests.model.evaluate import evaluate
from tests.storage.engine import TABLE, Engine, expected
from tests.storage.plain import PlainTable
from tests.storage.workloads import (
    TIMES,
    WILD_FAMILIES,
    choose_alteration,
    choose_block,
    choose_rows,
    choose_schema,
)

ROWS = 60
FAT = "x" * 600
SYSTEM = {layout.TS, layout.TXN, layout.KIND, layout.MASK}
seeds = st.integers(0, 2**32 - 1)

NEVER: Mapping[int, Callable[[], None]] = {}

Found = dict[Row, dict[str, Value]]


def row(number: int) -> Row:
    return Row(b"%03d" % number)


class World:
    """A table of wide rows in small blocks, so that every file has many."""

    def __init__(self, *, with_cells: bool = False, seed: int = 0, rows: int = ROWS) -> None:
        groups = [columns("c", {"n": "int32", "text": "string"}, block_bytes=4096)]
        more = [cells("f", ["click"], block_bytes=4096)] if with_cells else []
        self.schema = declare({"id": "string"}, [*groups, *more])
        self.engine = Engine(self.schema, seed, page_bytes=4096)
        self.model = PlainTable(self.schema)
        self.n, self.text = (self.schema.column(name)[1].id for name in ("n", "text"))
        self.with_cells = with_cells
        self.put(range(rows))

    @property
    def visible(self) -> Txn:
        return self.engine.shard.visible

    def write(self, mutations: Sequence[Mutation]) -> None:
        self.engine.clock.advance(0.001)
        for txn, part in self.engine.write(mutations):
            self.model.commit(txn, part)

    def put(self, numbers: Iterable[int], value: int | None = None) -> None:
        """Rows of a number, all columns of each."""
        puts: list[Mutation] = []
        for number in numbers:
            n = number if value is None else value
            puts.append(Put(row(number), ((self.n, n), (self.text, f"{n:03d}{FAT}"))))
            if self.with_cells:
                puts += [PutCell(row(number), "click", qualifier, b"%d" % n * 60) for qualifier in ("a", "b")]
        self.write(puts)

    def flush(self) -> None:
        for state in self.engine.shard.tablets().values():
            for memory in self.engine.shard.state(state.tablet).memories:
                if not memory.is_empty:
                    self.engine.flush(state.tablet)
                    break

    def compact(self) -> None:
        """As much as the snapshots in use let go."""
        self.flush()
        self.engine.advance_horizon(self.visible)
        for tablet in self.engine.shard.tablets():
            for _ in self.schema.groups:
                self.engine.compact(tablet, whole_group=True)

    def alter(self, groups: tuple[ColumnsGroup, ...]) -> None:
        last_id = max(self.schema.last_id, *(group.id for group in groups))
        version = SchemaVersion(self.schema.version + 1)
        self.schema = check_schema(replace(self.schema, version=version, groups=groups, last_id=last_id))
        self.engine.alter(self.schema)
        self.model.alter(self.schema)

    def collect(self) -> None:
        self.engine.upkeep.save()
        self.engine.upkeep.collect_files()

    def tidy(self) -> None:
        self.compact()
        self.collect()

    def batches(self, scan: TableScan) -> Iterator[list[tuple[Row, dict[str, Value]]]]:
        """The snapshot is pinned from the first batch to the last."""
        with self.engine.shard.pinned(scan._request.asking.at, TABLE):
            for batch in scan:
                assert batch.rows.to_pylist() == batch.batch.column("id").cast("binary").to_pylist()
                yield self.engine.records_of(batch)

    def scan(
        self,
        at: Txn,
        columns_: Selectors = ALL_COLUMNS,
        rows: RangeSet = EVERYTHING,
        where: Expr | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> TableScan:
        request = ScanRequest(rows, columns_, self.engine.asking(at)(Txn(0)), where, reverse=reverse, limit=limit)
        return TableScan(self.engine.shard, TABLE, self.schema, request)


def all_of(batches: Iterable[list[tuple[Row, dict[str, Value]]]], *, reverse: bool = False) -> Found:
    """All rows that came: in order, none twice."""
    found = [each for batch in batches for each in batch]
    rows = [name for name, _ in found]
    assert rows == sorted(set(rows), reverse=reverse)
    return dict(sorted(found))


# -- things that happen under a scan


def happenings(world: World, random: Random) -> dict[str, Callable[[], None]]:
    engine, shard = world.engine, world.engine.shard

    def some_tablet() -> TabletId:
        return random.choice(sorted(shard.tablets()))

    def split() -> None:
        state = shard.state(some_tablet())
        at = row(random.randrange(1, ROWS))
        if at in state.rows and at != state.rows.start:
            engine.split(state.tablet, at)

    def join() -> None:
        states = sorted(shard.tablets().values(), key=lambda state: state.rows.start)
        if len(states) > 1:
            at = random.randrange(len(states) - 1)
            engine.join(states[at].tablet, states[at + 1].tablet)

    def truncate() -> None:
        world.model.truncate(engine.change(Emptied()))

    def erase() -> None:
        world.write([Erase(row(number), WholeRow()) for number in random.sample(range(ROWS), 5)])

    return {
        "put": lambda: world.put(random.sample(range(ROWS + 9), 5), random.randrange(1000)),
        "erase": erase,
        "flush": world.flush,
        "compact": world.compact,
        "compact and collect": world.tidy,
        "collect": world.collect,
        "split": split,
        "join": join,
        "truncate": truncate,
        "drop hidden": lambda: engine.upkeep.drop_hidden(some_tablet()),
    }


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("with_cells", [False, True], ids=["columns", "cells too"])
@given(seeds)
@settings(max_examples=examples(4))
def test_a_scan_gives_its_snapshot_whatever_happens_under_it(reverse: bool, with_cells: bool, seed: int) -> None:
    random = Random(seed)
    world = World(with_cells=with_cells, seed=seed % 1000)
    acts = happenings(world, random)
    for _ in range(random.randint(0, 6)):
        acts[random.choice(list(acts))]()
    at = world.visible
    wanted = expected(world.model, at)
    found: list[list[tuple[Row, dict[str, Value]]]] = []
    log = []
    for batch in world.batches(world.scan(at, reverse=reverse)):
        found.append(batch)
        for _ in range(random.randint(0, 3)):
            log.append(random.choice(list(acts)))
            acts[log[-1]]()
    assert all_of(found, reverse=reverse) == wanted, log
    assert all_of(world.batches(world.scan(world.visible))) == expected(world.model, world.visible)


def test_files_go_while_a_scan_reads_them() -> None:
    """Each batch comes from other files than the one before, which are gone."""
    world = World()
    world.flush()
    at, before = world.visible, names(world)
    scan = world.batches(world.scan(at))
    found = [next(scan)]
    for number in range(3):
        world.put(range(0, ROWS, 7), number)
        world.compact()
        world.collect()
        assert before.isdisjoint(names(world))
        before = names(world)
        found.append(next(scan))
    found += scan
    assert all_of(found) == expected(world.model, at)
    assert len(found) > 4


@pytest.mark.parametrize("seed", range(4))
def test_files_go_in_the_middle_of_a_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread compacts and collects while a block is being read: the new files are read instead."""
    world = World(seed=seed)
    world.flush()
    at = world.visible
    wanted = expected(world.model, at)
    reads = Reads(monkeypatch, before={2: lambda: replace_files(world), 5: lambda: replace_files(world)})
    assert all_of(world.batches(world.scan(at))) == wanted
    assert len(reads.blocks) > 5


def test_files_that_always_go_are_an_error_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than a scan that never ends."""
    world = World()
    world.flush()
    monkeypatch.setattr(world.engine.blobs, "_coin", lambda: False)
    Reads(monkeypatch, before=dict.fromkeys(range(100), lambda: replace_files(world)))
    with pytest.raises(NotFound):
        list(world.batches(world.scan(world.visible)))


def replace_files(world: World) -> None:
    world.put([0], 1)
    world.tidy()


def names(world: World) -> set[str]:
    return {info.name for info in world.engine.blobs.list("fragments/")}


def test_a_file_that_is_missing_for_no_reason_is_an_error() -> None:
    """Nothing changed, so asking again would not help."""
    world = World()
    world.flush()
    world.engine.tidy()
    for name in names(world):
        world.engine.blobs.delete(name)
    world.engine.restart("close")
    with pytest.raises(NotFound):
        list(world.scan(world.visible))


def test_rows_that_are_not_here_are_an_error() -> None:
    world = World(rows=5)
    world.engine.split(TabletId(1), row(2))
    with world.engine.shard.lock:
        world.engine.shard.install([], [TabletId(3)])
    scan = world.batches(world.scan(world.visible))
    assert [name for name, _ in next(scan)] == [row(0), row(1)]
    with pytest.raises(TabletAway):
        next(scan)
    with pytest.raises(TabletAway):
        next(iter(world.scan(world.visible, reverse=True)))


def test_a_column_that_comes_under_a_scan_does_not_disturb_it() -> None:
    """Every batch has the columns that were there when the scan began."""
    world = World()
    world.flush()
    at = world.visible
    scan = iter(world.scan(at))
    first = next(scan)
    schema = choose_alteration(Random(0).choice, world.schema, ["add column"])[1]
    world.engine.schemas[schema.version] = schema
    world.engine.newest = schema.version
    world.engine.upkeep.change(TabletId(1), lambda state: altered(state, schema))
    rest = list(scan)
    assert {tuple(batch.batch.schema.names) for batch in rest} == {tuple(first.batch.schema.names)}
    rows = [name for batch in (first, *rest) for name in batch.rows.to_pylist()]
    assert rows == [row(number) for number in range(ROWS)]
    numbers = [n for batch in (first, *rest) for n in batch.batch.column("n").to_pylist()]
    assert numbers == list(range(ROWS))


# -- going on later


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("text", [None, "n >= 30 and n != 41", "n < 0"])
def test_what_is_left_goes_on_exactly_where_a_scan_stopped(reverse: bool, text: str | None) -> None:
    world = World(with_cells=True)
    world.flush()
    world.put(range(0, ROWS, 9), 40)
    world.engine.split(TabletId(1), row(33))
    where = None if text is None else bound(world.schema, text)
    rows = RangeSet.of([RowRange(row(3), row(9)), RowRange(row(29), row(45)), single(row(57))])

    def scan(left: RangeSet) -> TableScan:
        return world.scan(world.visible, ALL_COLUMNS, left, where, reverse=reverse)

    whole = scan(rows)
    batches = list(world.batches(whole))
    assert whole.left == NOTHING
    for count in range(len(batches) + 1):
        first = scan(rows)
        running = world.batches(first)
        given_out = [next(running) for _ in range(count)]
        running.close()  # type: ignore[attr-defined]
        rest = list(world.batches(scan(first.left)))
        assert all_of([*given_out, *rest], reverse=reverse) == all_of(batches, reverse=reverse)
        assert all(name not in first.left for batch in given_out for name, _ in batch)
        assert rows.covers(first.left)


def test_a_scan_of_nothing_ends_at_once() -> None:
    world = World(rows=3)
    assert list(world.scan(world.visible, rows=NOTHING)) == []
    assert list(world.scan(world.visible, rows=RangeSet.of([RowRange(b"x", b"y")]))) == []
    assert all_of(world.batches(world.scan(Txn(0)))) == {}


# -- snapshots


def test_a_scan_whose_snapshot_is_pinned_reads_on() -> None:
    world = World()
    world.flush()
    at = world.visible
    wanted = expected(world.model, at)
    running = world.batches(world.scan(at))
    first = next(running)
    world.put(range(ROWS), 1)
    world.compact()
    assert world.engine.shard.horizon(TABLE) == at
    assert all_of([first, *running]) == wanted
    world.compact()
    assert world.engine.shard.horizon(TABLE) > at


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_scan_whose_snapshot_is_not_pinned_says_so_when_history_goes(reverse: bool) -> None:
    """It holds nothing back, and gives no rows of which something is gone."""
    world = World()
    world.flush()
    at = world.visible
    wanted = expected(world.model, at)
    running = iter(world.scan(at, reverse=reverse))
    found = world.engine.records_of(next(running))
    world.put(range(ROWS), 1)
    world.compact()
    assert world.engine.shard.horizon(TABLE) == world.visible
    with pytest.raises(SnapshotTooOld, match=str(at)):
        found += [each for batch in running for each in world.engine.records_of(batch)]
    assert dict(found).items() <= wanted.items()
    assert len(found) < len(wanted)


def test_a_snapshot_below_the_horizon_is_too_old() -> None:
    world = World(rows=3)
    old = world.visible
    world.put([0], 7)
    with world.engine.shard.pinned(old, TABLE):
        world.compact()
        assert world.engine.shard.horizon(TABLE) == old
        assert all_of(world.batches(world.scan(old))) == expected(world.model, old)
    world.compact()
    with pytest.raises(SnapshotTooOld, match=str(old)):
        list(world.scan(old))
    with pytest.raises(SnapshotTooOld), world.engine.shard.pinned(old, TABLE):
        pass
    assert all_of(world.batches(world.scan(world.visible))) == expected(world.model, world.visible)


# -- what is asked


def shown(model: PlainTable, at: Txn, asked: Selectors, time: TimeRange = ALL_TIME) -> Found:
    """What a read of these selectors gives: a row appears if it has any of it, or was put by its key alone."""
    exist = model.read(at, columns=[], time=time)
    typed = [c for g in model.schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    chosen = {column.name: column.default for column in typed if matched(asked, column.name)}
    found: Found = {}
    for name, each in model.read(at, time=time).items():
        values = {member: some[0].value for member, some in each.versions.items() if matched(asked, member)}
        if values or name in exist:
            found[name] = {**chosen, **values}
    return found


def matched(asked: Selectors, name: str) -> bool:
    return any(selector.matches(name) for selector in asked)


def choose_selectors(random: Random, schema: TableSchema) -> Selectors:
    """Names, cells, families, and beginnings of any of them."""
    typed = [c.name for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    texts = [*typed, *(f"{family}:{qualifier}" for family in WILD_FAMILIES for qualifier in ("", "q", "r"))]
    some = []
    for _ in range(random.randint(1, 3)):
        text, is_prefix = random.choice(texts), random.choice([True, False])
        some.append(ColumnSelector(text[: random.randint(0, len(text))] if is_prefix else text, is_prefix))
    return union_selectors(some)


def choose_ranges(random: Random, rows: Sequence[Row]) -> RangeSet:
    ranges = []
    for _ in range(random.randint(1, 3)):
        start, stop = sorted(random.choices(rows, k=2))
        ranges.append(random.choice([RowRange(start, stop), single(start), prefixed(start[:1]), RowRange(stop)]))
    return RangeSet.of(ranges)


def choose_world(random: Random) -> tuple[Engine, PlainTable, list[Row]]:
    """Some blocks, partly in files, in one tablet or two."""
    schema = choose_schema(random.choice)
    engine, model, rows = Engine(schema, random.randrange(1000)), PlainTable(schema), choose_rows(random.choice, schema)
    for _ in range(random.randint(1, 6)):
        engine.clock.advance(random.choice([0, 0.001, 0.02]))
        for txn, part in engine.write(choose_block(random.choice, schema, rows)):
            model.commit(txn, part)
        match random.choice(["", "", "flush", "flush", "compact", "split"]):
            case "flush":
                engine.flush(random.choice(sorted(engine.shard.tablets())))
            case "compact":
                engine.advance_horizon(engine.shard.visible)
                engine.compact(random.choice(sorted(engine.shard.tablets())), whole_group=True)
            case "split":
                at = random.choice(rows)
                state = engine.shard.state_at(TABLE, at)
                if at != state.rows.start:
                    engine.split(state.tablet, at)
            case _:
                continue
    return engine, model, rows


@given(seeds)
@settings(max_examples=examples(30))
def test_rows_columns_and_times_as_they_are_asked_for(seed: int) -> None:
    random = Random(seed)
    engine, model, rows = choose_world(random)
    at = engine.shard.visible
    for _ in range(3):
        asked = random.choice([ALL_COLUMNS, choose_selectors(random, model.schema)])
        ranges = random.choice([EVERYTHING, choose_ranges(random, rows)])
        start, stop = sorted(random.sample([time for time in TIMES if time is not None], 2))
        time = random.choice([ALL_TIME, TimeRange(start, stop)])
        reverse = random.choice([False, True])
        found = engine.scan(at, asked, ranges, time, reverse=reverse, plainly=random.choice([False, True]))
        wanted = {name: values for name, values in shown(model, at, asked, time).items() if name in ranges}
        assert found == wanted, (asked, ranges, time)
        assert list(found) == sorted(wanted, reverse=reverse)


# -- predicates


def types_of(schema: TableSchema) -> dict[str, t.ColumnType]:
    types: dict[str, t.ColumnType] = {column.name: column.type for column in schema.key}
    for group in schema.groups:
        match group:
            case ColumnsGroup():
                types |= {column.name: column.type for column in group.columns}
            case CellsGroup():
                names = ["*"] if group.wildcard else [family.name for family in group.families]
                types |= {f"{name}:": t.Binary() for name in names}
    return types


def bound(schema: TableSchema, text: str) -> Expr | None:
    return plan(check_types(parse(text), types_of(schema))).where


def matching(model: PlainTable, at: Txn, asked: Selectors, where: Expr) -> Found:
    """Rows of which the condition is true, among those that have anything of what is asked for or compared."""
    named = union_selectors([*asked, *(ColumnSelector(name, is_prefix=False) for name in names_of(where))])
    typed = [c for g in model.schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    defaults = {column.name: column.default for column in typed}
    found: Found = {}
    for name, values in shown(model, at, named).items():
        key = dict(zip(model.schema.codec.names, model.schema.codec.decode(name), strict=True))
        known = {**defaults, **key, **values, "row": name}
        if evaluate(where, known.get):
            found[name] = {member: value for member, value in values.items() if matched(asked, member)}
    return found


def mixed() -> TableSchema:
    return declare(
        {"id": "string"},
        [
            columns("c", {"n": "int32", "s": "string", "d": "int32 not null default 7"}),
            columns("e", {"f": "float64"}),
            cells("f", ["click"]),
            cells("g", ["view"]),
            cells("rest"),
        ],
    )


CONDITIONS = (
    "n = 1",
    "n != 1",
    "n is null",
    "n is not null and n < 3",
    "not n = 1",
    "n in (1, 2)",
    "d = 7",
    "d != 7",
    "d = 7 or n = 2",
    's ~= "a"',
    's = ""',
    "f > 0.5",
    "f is null",
    "not f > 0.5 or n > 1",
    'row >= "b" or n = 1',
    'id = "b" or id = "c" or n = 3',
    '`click:q` = b"x"',
    "`click:q` is null",
    "`click:q` is not null or `view:q` is not null",
    '`view:q` = b"x" and n is not null',
    '`wild:q` = b"x"',
    '`click:r` != b"x"',
)
ASKED: dict[str, Selectors] = {
    "all": ALL_COLUMNS,
    "n": (ColumnSelector("n", is_prefix=False),),
    "f": (ColumnSelector("f", is_prefix=False),),
    "click:": (ColumnSelector("click:", is_prefix=True),),
    "click:r": (ColumnSelector("click:r", is_prefix=False),),
    "view:, d": union_selectors([ColumnSelector("view:", is_prefix=True), ColumnSelector("d", is_prefix=False)]),
    "wild:r": (ColumnSelector("wild:r", is_prefix=False),),
}


def varied(random: Random) -> tuple[Engine, PlainTable]:
    """Rows of which each has some of everything."""
    schema = mixed()
    engine, model = Engine(schema), PlainTable(schema)
    ids = {name: schema.column(name)[1].id for name in "nsdf"}
    values: dict[str, list[Value]] = {
        "n": [1, 2, 3, None],
        "s": ["", "a", "ab", None],
        "d": [7, 8],
        "f": [0.25, 0.75, None],
    }
    for _ in range(4):
        puts: list[Mutation] = []
        for name in [Row(letter.encode()) for letter in "abcdefgh"]:
            some = [column for column in ids if random.random() < 0.4]
            typed = Put(name, tuple((ids[column], random.choice(values[column])) for column in some))
            named = [
                PutCell(name, f, random.choice("qr"), random.choice([b"x", b"y"])) for f in ("click", "view", "wild")
            ]
            rare: list[Mutation] = [Erase(name, WholeRow()), Put(name, ()), Erase(name, Columns((ids["n"],)))]
            puts += [typed] if some else []
            puts += random.sample(named, random.choice([0, 0, 1, 2]))
            puts += [random.choice(rare)] if random.random() < 0.1 else []
        for txn, part in engine.write(puts):
            model.commit(txn, part)
        if random.random() < 0.6:
            engine.flush(TabletId(1))
    return engine, model


@pytest.mark.parametrize("asked", list(ASKED))
def test_only_rows_of_which_the_condition_is_true(asked: str) -> None:
    for seed in range(tries(1)):
        engine, model = varied(Random(seed))
        at = engine.shard.visible
        for text in CONDITIONS:
            where = bound(model.schema, text)
            assert where is not None
            request = ScanRequest(EVERYTHING, ASKED[asked], engine.asking(at)(Txn(0)), where)
            scan = TableScan(engine.shard, TABLE, model.schema, request)
            found = [each for batch in scan for each in engine.records_of(batch)]
            assert dict(found) == matching(model, at, ASKED[asked], where), (seed, text)


BLOCKWISE = (
    "n = 31",
    "n >= 55",
    "n < 2 or n > 57",
    "n is null",
    "not n < 50",
    'text ~= "031"',
    'text > "057"',
    "n in (3, 44)",
)


@pytest.mark.parametrize("text", BLOCKWISE)
def test_blocks_without_a_match_are_not_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clean file; and what comes is the same as when all are read."""
    world = World()
    world.flush()
    where = bound(world.schema, text)
    assert where is not None
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        found = all_of(world.batches(world.scan(world.visible, where=where)))
    assert found == matching(world.model, world.visible, ALL_COLUMNS, where)
    assert len(reads.blocks) <= 4
    assert count_blocks(world) > 6


def test_what_a_file_says_of_a_column_that_went_elsewhere_does_not_count() -> None:
    """n was moved to a group of its own, erased there in one row, and moved back: the first file, which still has it
    in all rows, is not asked for it any more, and so must not be left out for it either."""
    world = World(rows=2)
    c = world.schema.groups[0]
    assert isinstance(c, ColumnsGroup)
    world.flush()
    apart = (
        ColumnsGroup(c.id, c.name, c.columns[1:], c.options),
        ColumnsGroup(GroupId(90), "other", c.columns[:1], c.options),
    )
    world.alter(apart)
    world.write([Erase(row(1), Columns((world.n,)))])
    world.flush()
    world.engine.advance_horizon(world.visible)
    state = world.engine.shard.state(TabletId(1))
    picked = pick_all(describe(state, apart[1], world.visible, world.engine.shard.fragments))
    assert picked is not None
    world.engine.upkeep.compact(TabletId(1), apart[1].id, picked)
    world.alter((c,))
    where = bound(world.schema, "n is null")
    assert where is not None
    assert list(matching(world.model, world.visible, ALL_COLUMNS, where)) == [row(1)]
    assert list(all_of(world.batches(world.scan(world.visible, where=where)))) == [row(1)]


# -- how much is read


class Reads:
    """Which columns of which blocks are read from files, and how many blocks are held at once. `before`: what happens
    just before the so manieth read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Mapping[int, Callable[[], None]] = NEVER) -> None:
        self.blocks: list[tuple[str, int, tuple[str, ...]]] = []
        self.columns: set[str] = set()
        self._alive: weakref.WeakSet[Block] = weakref.WeakSet()
        self._is_acting = False
        original, due = Fragment.block, dict(before)

        def block(fragment: Fragment, number: int, columns: Iterable[str], keep: bool) -> Block:
            wanted = tuple(columns)
            if not self._is_acting:
                self.blocks.append((fragment.file.name, number, wanted))
                self.columns |= set(wanted)
                self._is_acting = True
                due.pop(len(self.blocks), lambda: None)()
                self._is_acting = False
            found = original(fragment, number, wanted, keep)
            self._alive.add(found)
            return found

        monkeypatch.setattr(Fragment, "block", block)

    @property
    def held(self) -> int:
        return len(self._alive)


def count_blocks(world: World) -> int:
    files = [file for state in world.engine.shard.tablets().values() for file in state.files().values()]
    return sum(len(world.engine.shard.fragments.of(file).starts) for file in files)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("with_cells", [False, True], ids=["columns", "cells too"])
@given(seeds)
@settings(max_examples=examples(4))
def test_a_limited_scan_gives_the_first_rows_of_all(reverse: bool, with_cells: bool, seed: int) -> None:
    """Whatever lies where, however many rows, and wherever it stops and goes on."""
    random = Random(seed)
    world = World(with_cells=with_cells, seed=seed % 1000)
    acts = happenings(world, random)
    for _ in range(random.randint(0, 6)):
        acts[random.choice(list(acts))]()
    at = world.visible
    where = random.choice([None, bound(world.schema, "n >= 30 and n != 41")])
    rows = random.choice([EVERYTHING, RangeSet.of([RowRange(row(3), row(9)), RowRange(row(29), row(45))])])
    whole = [each for batch in world.batches(world.scan(at, rows=rows, where=where, reverse=reverse)) for each in batch]
    for limit in (0, 1, 2, len(whole) // 2, len(whole), len(whole) + 1):
        scan = world.scan(at, rows=rows, where=where, reverse=reverse, limit=limit)
        found = [each for batch in world.batches(scan) for each in batch]
        assert found == whole[:limit]
        rest = world.scan(at, rows=scan.left, where=where, reverse=reverse)
        assert [each for batch in world.batches(rest) for each in batch] == whole[limit:]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("where", [None, "n >= 0"])
def test_who_wants_a_few_rows_reads_a_few_blocks(
    reverse: bool, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(rows=3 * ROWS)
    world.flush()
    world.put(range(0, 3 * ROWS, 9), 1)
    world.flush()
    condition = None if where is None else bound(world.schema, where)
    assert count_blocks(world) > 30
    reads, planned = Reads(monkeypatch), list[range]()
    original = scan_windows.Piece.__init__

    def piece(self: Any, ref: Any, fragment: Any, blocks: range, rows: Any) -> None:
        planned.append(blocks)
        original(self, ref, fragment, blocks, rows)

    monkeypatch.setattr(scan_windows.Piece, "__init__", piece)
    found = all_of(world.batches(world.scan(world.visible, where=condition, reverse=reverse, limit=2)), reverse=reverse)
    wanted = sorted(expected(world.model, world.visible).items(), reverse=reverse)[:2]
    assert found == dict(sorted(wanted))
    assert len(reads.blocks) <= 4
    assert len(planned) <= 10, "blocks are not even planned that nobody will read"


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_who_wants_a_few_rows_of_memory_does_not_go_through_all(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(rows=3 * ROWS)
    seen: list[Sequence[Row]] = []
    original = MemoryOfColumns.newest_records

    def newest_records(memory: MemoryOfColumns, rows: Sequence[Row], *rest: Any) -> Any:
        seen.append(rows)
        return original(memory, rows, *rest)

    monkeypatch.setattr(MemoryOfColumns, "newest_records", newest_records)
    found = all_of(world.batches(world.scan(world.visible, reverse=reverse, limit=2)), reverse=reverse)
    assert list(found) == ([row(3 * ROWS - 2), row(3 * ROWS - 1)] if reverse else [row(0), row(1)])
    assert sum(map(len, seen)) == 2


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_memory_takes_the_place_of_what_it_lies_over(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts of all columns, some of them of new rows: nothing is merged, and a merge of the same gives the same."""
    world = World()
    world.flush()
    old = world.visible
    for value in (1, 2):
        world.put([*range(value, ROWS, 7), ROWS + value], value)
    at = world.visible
    world.put([0, 1, ROWS + 5], 9)
    merges: list[Any] = []
    original = scan_columns.window_slabs

    def window_slabs(window: Any, wanted: Any, *, keep: bool) -> Any:
        merges.append(window)
        return original(window, wanted, keep=keep)

    monkeypatch.setattr(scan_columns, "window_slabs", window_slabs)
    for snapshot in (old, at, world.visible):
        passed = [batch.batch for batch in world.scan(snapshot, reverse=reverse)]
        assert merges == []
        with monkeypatch.context() as patch:
            patch.setattr(scan_columns, "is_plain", lambda *_: False)
            patch.setattr(MemoryOfColumns, "newest_records", lambda *_: None)
            merged = [batch.batch for batch in world.scan(snapshot, reverse=reverse)]
        assert merges
        merges.clear()
        assert pa.Table.from_batches(passed) == pa.Table.from_batches(merged)
        found = all_of(world.batches(world.scan(snapshot, reverse=reverse)), reverse=reverse)
        assert found == expected(world.model, snapshot)


def test_a_clean_file_is_passed_on_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the columns asked for, each block once, and nothing of what a merge would need."""
    world = World()
    world.flush()
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        found = all_of(world.batches(world.scan(world.visible)))
        assert reads.columns == {"id", "n", "text"}
        assert sorted(reads.blocks) == sorted(set(reads.blocks))
        assert len(reads.blocks) == count_blocks(world)
        reads = Reads(patch)
        narrow = all_of(world.batches(world.scan(world.visible, (ColumnSelector("n", is_prefix=False),))))
        assert reads.columns == {"id", "n"}
    assert found == expected(world.model, world.visible)
    assert narrow == expected(world.model, world.visible, ["n"])


def test_passing_on_gives_what_a_merge_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.flush()
    passed = [batch.batch for batch in world.scan(world.visible)]
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        patch.setattr(scan_columns, "is_plain", lambda *_: False)
        merged = [batch.batch for batch in world.scan(world.visible)]
        assert reads.columns >= {layout.TS, layout.TXN}
    assert [batch.schema for batch in passed] == [batch.schema for batch in merged]
    assert passed == merged


@pytest.mark.parametrize("inserts", [False, True], ids=["updates", "inserts too"])
def test_a_newer_file_takes_the_place_of_what_it_lies_over(inserts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of what a merge would need, nor any block twice; a merge of the same gives the same."""
    world = World(rows=ROWS // 2)
    world.put(range(ROWS // 2 + 9, ROWS))
    world.flush()
    between = range(ROWS // 2, ROWS // 2 + 9) if inserts else ()
    for value in (1, 2):
        world.put([*range(value, ROWS // 2, 7), *between, *range(ROWS // 2 + 9, ROWS, 3)], value)
        world.flush()
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        found = [batch.batch for batch in world.scan(world.visible)]
        assert reads.columns == {"id", "n", "text"}
        assert sorted(reads.blocks) == sorted(set(reads.blocks))
        patch.setattr(scan_columns, "is_plain", lambda *_: False)
        merged = [batch.batch for batch in world.scan(world.visible)]
        assert reads.columns >= {layout.TS, layout.TXN}
    assert found == merged
    assert all_of(world.batches(world.scan(world.visible))) == expected(world.model, world.visible)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_only_the_windows_that_something_new_reaches_are_merged(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row is erased in memory: all blocks but its own are still passed on."""
    world = World()
    world.flush()
    world.write([Erase(row(ROWS // 2), WholeRow())])
    merged = []
    original = scan_columns.window_slabs

    def window_slabs(window: Any, wanted: Any, *, keep: bool) -> Any:
        if window.pieces:
            merged.append(window.rows)
        return original(window, wanted, keep=keep)

    monkeypatch.setattr(scan_columns, "window_slabs", window_slabs)
    reads = Reads(monkeypatch)
    found = all_of(world.batches(world.scan(world.visible, reverse=reverse)), reverse=reverse)
    assert found == expected(world.model, world.visible)
    assert 1 <= len(merged) <= 2
    assert any(row(ROWS // 2) in rows for rows in merged)
    assert len(reads.blocks) <= count_blocks(world) + 1


@pytest.mark.parametrize("with_cells", [False, True], ids=["columns", "cells too"])
def test_a_scan_holds_a_few_blocks_at_a_time(with_cells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: of three files that lie across each other, in each group."""
    world = World(with_cells=with_cells, rows=0)
    for start in range(3):
        world.put(range(start, 3 * ROWS, 3))
        world.flush()
    reads = Reads(monkeypatch)
    held = []
    found = []
    for batch in world.batches(world.scan(world.visible)):
        held.append(reads.held)
        found.append(batch)
    groups = len(world.schema.groups)
    assert len(reads.blocks) == len(set(reads.blocks)), "each block is read once"
    assert len(reads.blocks) > 20 * groups
    assert max(held) <= 2 * 3 * groups
    assert max(len(batch) for batch in found) < ROWS
    assert reads.held == 0
    assert all_of(found) == expected(world.model, world.visible)


def test_a_scan_that_stops_early_has_read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.flush()
    reads = Reads(monkeypatch)
    next(iter(world.scan(world.visible)))
    assert len(reads.blocks) == 1
    next(iter(world.scan(world.visible, rows=RangeSet.of([single(row(30))]))))
    assert len(reads.blocks) == 2


def test_a_row_larger_than_a_block() -> None:
    """Its versions lie in many blocks, which are read together."""
    world = World(rows=3)
    for value in range(30):
        world.put([1], value)
    world.flush()
    assert count_blocks(world) > 1
    before = world.visible
    world.put([1], 99)
    for at in (before, world.visible):
        assert all_of(world.batches(world.scan(at))) == expected(world.model, at)
        assert all_of(world.batches(world.scan(at, reverse=True)), reverse=True) == expected(world.model, at)
