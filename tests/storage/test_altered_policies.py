"""Altered purge policies: what was purged stays so, what was not yet is judged by the new policy, and snapshots of the
time before are read as they were, whatever happens to files and tablets in between."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.model.declare import cells, columns, declare
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Row, SchemaVersion, Txn
from stelae.model.mutation import Cell, Columns, EraseVersion, Mutation, Put, PutCell
from stelae.model.purge import parse_purge
from stelae.model.schema import TableSchema
from stelae.storage.merge import alive as vectors
from stelae.storage.merge.rule import survivors
from tests.effort import examples
from tests.storage.engine import TABLE, Engine, check_engine, check_reads
from tests.storage.plain import PlainRow, PlainTable
from tests.storage.workloads import POLICIES, Choose

ROWS = [Row(b"a"), Row(b"m")]
ACTS = ("compact", "crash", "everything")


class World:
    """Both rows are always treated alike; between any two steps something happens to the files. What was seen at a
    snapshot once is asked for again after every step."""

    def __init__(self, kind: str, act: str, purge: str | None, choose: Choose | None = None) -> None:
        group = columns("g", {"n": "int32"}, purge=purge) if kind == "columns" else cells("g", ["f"], purge=purge)
        schema = declare({"id": "string"}, [group])
        self.is_cells = kind == "cells"
        self.engine, self.model = Engine(schema), PlainTable(schema)
        self.held: Txn | None = None
        self.seen: dict[Txn, dict[Row, PlainRow]] = {}
        self._act = act
        self._choose = choose
        self._number = 0

    @property
    def schema(self) -> TableSchema:
        return self.model.schema

    def put(self, value: int) -> Txn:
        if self.is_cells:
            return self._write(lambda row: PutCell(row, "f", "q", b"%d" % value))
        return self._write(lambda row: Put(row, ((self.schema.column("n")[1].id, value),)))

    def erase(self, version: Txn) -> Txn:
        """Exactly that one."""
        where = Cell("f", "q") if self.is_cells else Columns((self.schema.column("n")[1].id,))
        return self._write(lambda row: EraseVersion(row, where, micros_of(version)))

    def _write(self, mutation: Callable[[Row], Mutation]) -> Txn:
        self.engine.clock.advance(0.001)
        txns = []
        for row in ROWS:
            for txn, part in self.engine.write([mutation(row)]):
                self.model.commit(txn, part)
                txns.append(txn)
        self._between()
        return txns[-1]

    def alter(self, purge: str | None) -> None:
        until = self.engine.shard.clock.last
        (group,) = self.schema.groups
        options = replace(group.options, purge=None if purge is None else parse_purge(purge))
        group = replace(group, options=options.after(group.options, until))
        schema = replace(self.schema, version=SchemaVersion(self.schema.version + 1), groups=(group,))
        self.engine.alter(schema)
        self.model.alter(schema)
        self._between()

    def wait(self, milliseconds: int) -> None:
        self.engine.clock.advance(milliseconds / 1_000)
        self._between()

    def hold(self) -> Txn:
        self.held = self.engine.visible
        return self.held

    def history(self, at: Txn | None = None) -> list[object]:
        """The same of both rows, by every way to read; without `at`, now."""
        if at is None:
            at = self.engine.shard.clock.tick()
            self.engine.wait_for(at)
        check_reads(self.engine, self.model, ROWS, at, Random(at))
        found = [self.engine.history([row], at, limit=9).get(row) for row in ROWS]
        values = [[v.value for v in next(iter(row.versions.values()))] if row else [] for row in found]
        assert values[0] == values[1]
        return [int(value) for value in values[0]] if self.is_cells else values[0]

    def _between(self) -> None:
        acts = ("flush", "split", "compact", "kill", "join", "compact", "crash")
        act = acts[self._number % len(acts)] if self._act == "everything" else self._act
        act = self._choose(("nothing", "nothing", *acts)) if self._choose is not None else act
        self._number += 1
        engine = self.engine
        tablets = [state.tablet for state in engine.tablets()]
        match act:
            case "flush" | "compact":
                for tablet in tablets:
                    engine.flush(tablet)
                if act == "compact":
                    engine.advance_horizon(min(engine.visible, self.held or engine.visible))
                    for tablet in tablets:
                        engine.compact_all(tablet)
            case "split" if len(tablets) == 1:
                engine.split(tablets[0], ROWS[1])
            case "join" if len(tablets) > 1:
                engine.join(tablets[0], tablets[1])
            case "kill" | "crash":
                engine.clock.advance(0.001)
                engine.restart(act)
                engine.wait_for(engine.shard.clock.tick())
            case _:
                pass
        check_engine(engine, ROWS)
        for at, before in self.seen.items():
            if at >= engine.shard.horizon(TABLE):
                assert engine.history(ROWS, at, limit=9) == before, "a snapshot has changed"
        now = engine.visible
        self.seen[now] = engine.history(ROWS, now, limit=9)
        assert self.seen[now] == self.model.read(now, history=9)


each_world = pytest.mark.parametrize(
    ("kind", "act"),
    [pytest.param(kind, act, id=f"{kind}-{act}") for kind in ("columns", "cells") for act in ACTS],
)


@each_world
def test_loosened(kind: str, act: str) -> None:
    world = World(kind, act, "max-history=1")
    for value in (1, 2, 3):
        world.put(value)
    below = world.hold()
    world.alter("max-history=3")
    assert world.history() == [3], "what was purged does not come back"
    above = [world.put(value) for value in (4, 5, 6)]
    assert world.history() == [6, 5, 4]
    assert [world.history(at) for at in (below, *above)] == [[3], [4, 3], [5, 4, 3], [6, 5, 4]]


@each_world
def test_tightened_and_taken_away(kind: str, act: str) -> None:
    world = World(kind, act, None)
    for value in (1, 2, 3):
        world.put(value)
    below = world.hold()
    world.alter("max-history=2")
    assert world.history() == [3, 2]
    assert world.history(below) == [3, 2, 1], "a snapshot of before is as it was"
    world.put(4)
    between = world.hold()
    world.alter(None)
    world.put(5)
    assert world.history() == [5, 4, 3]
    assert world.history(between) == [4, 3]


@each_world
def test_an_erasure_brings_nothing_back_that_the_policy_before_had_purged(kind: str, act: str) -> None:
    world = World(kind, act, "max-history=1")
    world.put(1)
    second = world.put(2)
    world.alter(None)
    third = world.put(3)
    assert world.history() == [3, 2]
    world.erase(second)
    assert world.history() == [3]
    world.alter("max-history=1")
    world.erase(third)
    assert world.history() == []


@each_world
def test_an_erasure_makes_room_in_the_time_before_a_policy(kind: str, act: str) -> None:
    """Under the new policy alone, the second version would have pushed out the first."""
    world = World(kind, act, None)
    world.put(1)
    second = world.put(2)
    world.erase(second)
    world.alter("max-history=1")
    assert world.history() == [1]
    third = world.put(3)
    assert world.history() == [3]
    world.erase(third)
    assert world.history() == []


@each_world
def test_too_old_when_the_policy_ended(kind: str, act: str) -> None:
    """No commit came in its last moments, and the policy after it would keep both versions."""
    world = World(kind, act, "max-age=50ms")
    world.put(1)
    world.wait(30)
    world.put(2)
    young = world.hold()
    world.wait(30)
    world.engine.wait_for(world.engine.shard.clock.tick())
    world.alter("max-age=1d")
    assert world.history() == [2]
    assert world.history(young) == [2, 1]
    world.put(3)
    world.wait(500)
    assert world.history() == [3, 2]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(8))
def test_any_story(seed: int) -> None:
    random = Random(seed)
    world = World(random.choice(("columns", "cells")), "", random.choice(POLICIES), random.choice)
    versions: list[Txn] = []
    for number in range(random.randint(5, 20)):
        match random.choice(("put", "put", "put", "erase", "alter", "alter", "wait", "hold", "read")):
            case "put":
                versions.append(world.put(number))
            case "erase" if versions:
                world.erase(random.choice(versions[-3:]))
            case "alter":
                world.alter(random.choice(POLICIES))
            case "wait":
                world.wait(random.choice((1, 3, 20)))
            case "hold":
                world.hold()
            case _:
                world.history()
    world.history()


def test_whole_rows_are_judged_alike_by_get_and_scan() -> None:
    """A row that exists by its key alone goes by the policies of its group, past and present."""
    world = World("columns", "flush", "max-age=5ms")
    world._write(lambda row: Put(row, ()))
    assert set(world.engine.scan(world.engine.visible)) == set(ROWS)
    world.wait(20)
    world.engine.wait_for(world.engine.shard.clock.tick())
    world.alter(None)
    at = world.engine.shard.clock.tick()
    world.engine.wait_for(at)
    check_reads(world.engine, world.model, ROWS, at, Random(0))
    assert world.engine.scan(at) == {} == world.engine.newest_values(ROWS, at)


def test_a_group_that_kept_its_policy_is_judged_without_a_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is one at a snapshot from before its first alteration: neither pays for what others have altered."""
    asked: list[object] = []

    def noted(puts: object, erased: object, policy: object, read_us: object) -> object:
        asked.append(policy)
        return survivors(puts, erased, policy, read_us)  # type: ignore[arg-type]

    monkeypatch.setattr(vectors, "survivors", noted)
    world = World("cells", "nothing", "max-history=2")
    for value in (1, 2):
        world.erase(world.put(value))
    before = world.hold()
    world.alter("max-history=1")
    asked.clear()
    world.history(before)
    assert set(asked) == {parse_purge("max-history=2")}
    asked.clear()
    world.history()
    assert set(asked) == {world.schema.groups[0].options.purging}


def test_the_newest_values_in_memory_are_read_by_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an alteration or after it: no history is looked at. What a past policy has purged is not among them."""
    world = World("columns", "nothing", "max-age=50ms")
    engine = world.engine
    world.put(1)
    young = engine.visible
    world.alter("max-age=1h")
    with monkeypatch.context() as patched:
        patched.setattr("stelae.storage.read.points.columns.ColumnsReader._versions", None)
        for at in (young, engine.shard.clock.tick()):
            engine.wait_for(at)
            assert engine.newest_values(ROWS, at) == {row: {"n": 1} for row in ROWS}
        engine.flush(engine.tablets()[0].tablet)
        with pytest.raises(TypeError, match="not callable"):
            engine.newest_values(ROWS, young)
    world.alter("max-age=50ms")
    world.put(2)
    engine.clock.advance(0.1)
    engine.wait_for(engine.shard.clock.tick())
    world.alter(None)
    assert world.history() == []
    world.put(3)
    assert world.history() == [3]


def test_the_last_commit_of_a_reign_is_judged_by_it() -> None:
    """It was too old from the beginning, and the policy ended with it."""
    world = World("columns", "nothing", "max-age=50ms")
    n = world.schema.column("n")[1].id
    world.engine.clock.advance(1)
    long_ago = Micros(micros_of(world.engine.shard.clock.tick()) - 100_000)
    last = world._write(lambda row: Put(row, ((n, 1),), long_ago))
    world.alter(None)
    assert world.schema.groups[0].options.past[-1].until == last
    assert world.history() == []


def test_a_file_with_records_of_two_reigns_is_not_passed_on_as_it_lies() -> None:
    """Every row once, no erasures: but one was too old when the first policy ended."""
    world = World("columns", "nothing", "max-age=5ms")
    engine, n = world.engine, world.schema.column("n")[1].id
    (tablet,) = engine.tablets()

    def write(row: Row) -> None:
        for txn, part in engine.write([Put(row, ((n, 1),))]):
            world.model.commit(txn, part)

    write(ROWS[0])
    engine.clock.advance(0.02)
    engine.wait_for(engine.shard.clock.tick())
    world.alter(None)
    write(ROWS[1])
    engine.flush(tablet.tablet)
    engine.compact_all(tablet.tablet)
    (file,) = engine.tablets()[0].files().values()
    assert (file.stats.rows, file.stats.records) == (2, 2)
    assert list(engine.scan(engine.visible)) == ROWS[1:]
    check_reads(engine, world.model, ROWS, engine.visible, Random(0))


def test_rows_left_over_from_a_group_that_is_gone_go_by_all_policies_of_the_next() -> None:
    schema = declare({"id": "string"}, [columns("c", {"n": "int32"}), cells("g", ["f"], purge="max-age=5ms")])
    engine, model = Engine(schema), PlainTable(schema)
    tablet = engine.tablets()[0].tablet

    def alter(**options: object) -> Txn:
        old = model.schema
        group = old.groups[-1]
        changed = replace(group.options, **options).after(group.options, engine.shard.clock.tick())
        new = replace(old, version=SchemaVersion(old.version + 1), groups=(replace(group, options=changed),))
        engine.alter(new)
        model.alter(new)
        at = engine.shard.clock.tick()
        engine.wait_for(at)
        return at

    for txn, part in engine.write([Put(row, ()) for row in ROWS]):
        model.commit(txn, part)
    engine.flush(tablet)
    before = alter()
    engine.clock.advance(0.02)
    after = alter(purge=None)
    for at, there in ((before, ROWS), (after, [])):
        check_reads(engine, model, ROWS, at, Random(0))
        assert list(engine.scan(at)) == list(engine.newest_values(ROWS, at)) == there
