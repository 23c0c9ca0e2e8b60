"""A process that dies at each of its effects in turn: whatever was acknowledged is there, whole and once.

One workload does everything. In the midst of each of its effects on disk, store and configs, a copy of its world is
taken, in which the power goes, or only the process. What was on its way then is there wholly or not at all, and nothing
later is there without it. The engine goes on, leaves no file behind that nobody needs, and is the same when it is
opened once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
from msgspec import structs

from stelae.model.declare import cells, columns, declare
from stelae.model.ids import ColumnId, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Mutation
from stelae.model.schema import Column, ColumnsGroup, TableSchema
from stelae.model.types import Int
from stelae.sim.effects import SimCrash
from stelae.storage.shard import Commit
from stelae.storage.tablet.changes import Emptied, Loaded, TableChange
from tests.effort import tries
from tests.storage.engine import HISTORY, TABLE, Engine, check_engine, check_reads, choose_columnar, choose_load
from tests.storage.plain import PlainTable
from tests.storage.workloads import choose_block

SCHEMA = declare(
    {"id": "string"},
    [
        columns("base", {"number": "int32", "text": "string", "level": "int32 not null default 7"}),
        cells("rest", purge="max-history=1 or max-age=60ms"),
    ],
)
ROWS = [SCHEMA.codec.encode((key,)) for key in ("a", "ab", "b", "c", "d", "e")]
PARTS = 4


def with_column(schema: TableSchema, name: str) -> TableSchema:
    id_ = ColumnId(schema.last_id + 1)
    group = schema.groups[0]
    assert isinstance(group, ColumnsGroup)
    wider = structs.replace(group, columns=(*group.columns, Column(id_, name, Int(64))))
    return structs.replace(
        schema, version=SchemaVersion(schema.version + 1), groups=(wider, *schema.groups[1:]), last_id=id_
    )


def without_column(schema: TableSchema, name: str) -> TableSchema:
    group = schema.groups[0]
    assert isinstance(group, ColumnsGroup)
    left = structs.replace(group, columns=tuple(column for column in group.columns if column.name != name))
    return structs.replace(schema, version=SchemaVersion(schema.version + 1), groups=(left, *schema.groups[1:]))


@dataclass
class Event:
    """A block or a change that was accepted, or another schema. `told`: it was acknowledged."""

    txn: Txn
    mutations: Sequence[Mutation] = ()
    change: TableChange | None = None
    schema: TableSchema | None = None
    told: bool = False


class World:
    """An engine, and everything it was asked to do."""

    def __init__(self, seed: int, crash_at: int | None = None) -> None:
        self.random = Random(99)
        self.events: list[Event] = []
        self.held: list[Txn] = []
        self.waiting: list[tuple[Event, Commit]] = []
        self.loads: dict[str, Sequence[Mutation]] = {}
        self.engine = Engine(SCHEMA, seed, crash_at=crash_at, page_bytes=(64, 4096, 256)[seed % 3])

    def fork(self, seed: int) -> World:
        other = copy(self)
        other.random = deepcopy(self.random)
        other.events = [replace(event) for event in self.events]
        other.held = list(self.held)
        other.engine = self.engine.fork(seed)
        return other

    # what is done

    def queue(self, mutations: Sequence[Mutation], nulls_written: bool | None = None) -> None:
        for commit, part in self.engine.queue(mutations, nulls_written):
            self._accepted(Event(commit.txn, part), commit)

    def change(self, change: TableChange) -> None:
        commit = self.engine.upkeep.commit(TABLE, change)
        mutations = self.loads[change.load] if isinstance(change, Loaded) else ()
        self._accepted(Event(commit.txn, mutations, change), commit)
        self.drain()

    def _accepted(self, event: Event, commit: Commit) -> None:
        self.events.append(event)
        self.waiting.append((event, commit))

    def drain(self) -> None:
        self.engine.shard.drain()
        for event, commit in self.waiting:
            event.told = commit.durable.result(timeout=0) == commit.txn
        self.waiting.clear()
        self.engine.clock.advance(0.001)

    def write(self) -> None:
        self.queue(choose_block(self.random.choice, self.engine.schema, ROWS))
        self.drain()

    def write_columnar(self) -> None:
        self.queue(*choose_columnar(self.random.choice, self.engine.schema, ROWS))
        self.drain()

    def write_together(self) -> None:
        """Several blocks, and several groups of the log, in one go."""
        for _ in range(3):
            self.queue(choose_block(self.random.choice, self.engine.schema, ROWS))
        self.queue(*choose_columnar(self.random.choice, self.engine.schema, ROWS))
        self.drain()

    def prepare(self, load: str) -> None:
        self.loads[load] = choose_load(self.random.choice, self.engine.schema, ROWS)
        self.engine.prepare_load(load, self.loads[load])

    def alter(self, change: Callable[[TableSchema, str], TableSchema], name: str) -> None:
        schema = change(self.engine.schema, name)
        self.events.append(Event(self.engine.shard.clock.last, schema=schema, told=True))
        self.engine.alter(schema)

    def hold(self) -> None:
        self.held.append(self.engine.visible)

    def restart(self, how: str) -> None:
        self.engine.clock.advance(0.001)
        self.engine.restart(how)

    # what is there then

    def model(self, events: Sequence[Event]) -> PlainTable:
        model = PlainTable(SCHEMA)
        for event in events:
            if event.schema is not None:
                model.alter(event.schema)
            elif isinstance(event.change, Emptied):
                model.truncate(event.txn)
            elif isinstance(event.change, Loaded) and event.change.replaces:
                model.overwrite(event.txn, event.mutations)
            else:
                model.commit(event.txn, event.mutations)
        return model

    def settle(self) -> PlainTable:
        """The model of what was told, and of what is there of that which was on its way."""
        told = [event for event in self.events if event.told]
        undecided = [event for event in self.events if not event.told]
        assert not told or all(event.txn > told[-1].txn for event in undecided)
        there = [event for event in undecided if self._is_there(event)]
        assert there == undecided[: len(there)], "a block is there without one before it"
        self.events = [*told, *there]
        for event in there:
            event.told = True
        self.waiting.clear()
        return self.model(self.events)

    def _is_there(self, event: Event) -> bool:
        states = self.engine.tablets()
        blocks = {txn for state in states for memory in state.memories for txn in memory.txns}
        loads = {file.txn for state in states for file in state.files().values()}
        return event.txn in blocks | loads | {floor for state in states for floor in state.floors}

    def check(self, *, all_reads: bool = True) -> None:
        """At the newest snapshot, and at one that was held before."""
        model, engine = self.settle(), self.engine
        check_engine(engine, ROWS)
        held = [at for at in self.held if at >= engine.horizon]
        for at in [engine.visible, *held[-1:]]:
            if all_reads:
                check_reads(engine, model, ROWS, at, self.random)
            else:
                assert engine.history(ROWS, at, limit=HISTORY) == model.read(at, history=HISTORY)

    def check_tidy(self) -> None:
        """Once everything is in files and saved, there is nothing but what is needed."""
        engine = self.engine
        for state in engine.tablets():
            engine.flush(state.tablet)
        engine.tidy()
        states = engine.tablets()
        needed = {name for state in states for name in state.files()}
        assert {info.name for info in engine.blobs.list("fragments/")} == needed
        assert sorted(engine.configs.saved) == sorted(state.tablet for state in states)
        (last,) = engine.shard.segments()
        assert [info.name for info in engine.disk.list()] == [last.name]
        assert engine.shard.unflushed_bytes() == 0


def tablet(world: World, number: int) -> TabletId:
    return world.engine.tablets()[number].tablet


def work(world: World) -> None:
    """Everything, some of it several times; the log is rolled by size on the way."""
    engine = world.engine
    world.write()
    world.write_columnar()
    world.write_together()
    engine.flush(tablet(world, 0))
    world.write_columnar()
    world.hold()
    engine.flush(tablet(world, 0))
    engine.compact_all(tablet(world, 0))
    engine.upkeep.save()
    world.write()
    engine.split(tablet(world, 0), ROWS[3])
    world.write_together()
    engine.flush(tablet(world, 1))
    engine.tidy()
    world.write()
    world.alter(with_column, "more")
    world.write_together()
    engine.split(tablet(world, 1), ROWS[5])
    engine.split(tablet(world, 0), ROWS[1])
    engine.upkeep.save()
    world.write_columnar()
    world.restart("kill")
    for number in range(4):
        engine.flush(tablet(world, number))
    world.hold()
    world.prepare("one")
    world.write()
    world.change(Loaded("one"))
    engine.join(tablet(world, 1), tablet(world, 2))
    world.write_together()
    engine.advance_horizon(world.held[-1])
    engine.compact_all(tablet(world, 1))
    engine.tidy()
    world.restart("close")
    world.write()
    world.alter(without_column, "number")
    world.write_columnar()
    engine.flush(tablet(world, 0))
    engine.join(tablet(world, 0), tablet(world, 1))
    world.change(Emptied())
    world.write_together()
    engine.flush(tablet(world, 0))
    engine.upkeep.save()
    world.hold()
    engine.advance_horizon(engine.visible)
    engine.upkeep.drop_hidden(tablet(world, 0))
    engine.compact_all(tablet(world, 0))
    world.prepare("two")
    world.write()
    world.change(Loaded("two", replaces=True))
    engine.tidy()
    world.write_together()
    engine.flush(tablet(world, 1))
    engine.tidy()
    world.write()


@cache
def moments() -> list[World]:
    """The world in the midst of every effect of the work."""
    world, found = World(0), list[World]()
    world.engine.watch = lambda _: found.append(world.fork(0))
    work(world)
    return found


def test_the_workload_without_a_crash() -> None:
    world = World(0)
    work(world)
    assert all(event.told for event in world.events)
    assert {type(event.change) for event in world.events} == {type(None), Emptied, Loaded}
    world.check()
    world.check_tidy()
    world.check()


@pytest.mark.parametrize("seed", range(tries(1)))
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", ["crash", "kill"])
def test_a_process_dies_at_each_effect(how: str, part: int, seed: int) -> None:
    assert len(moments()) >= 150
    for number in range(part, len(moments()), PARTS):
        lives_on(moments()[number].fork(seed * 1_000 + number), how, all_reads=number % 17 == 0)


@pytest.mark.parametrize("how", ["crash", "kill"])
def test_a_process_that_really_dies(how: str) -> None:
    """Whatever it still tries to do then comes to nothing."""
    made = World(0).engine.effects.count
    for number in range(1, len(moments()) + 1, 16):
        world = World(number, crash_at=made + number)
        with pytest.raises(SimCrash):
            work(world)
        lives_on(world, how, all_reads=False)


def lives_on(world: World, how: str, *, all_reads: bool) -> None:
    world.restart(how)
    world.check(all_reads=all_reads)
    world.write()
    world.write_columnar()
    world.check_tidy()
    world.restart("crash")
    world.check(all_reads=False)
