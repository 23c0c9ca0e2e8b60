"""The engine against the plain model, by a machine that does everything that can be done to a table, in any order.

After every step, every way to read gives what the model has: at the newest snapshot, and at one that is held. Scans
that began earlier go on one batch at a time, and give exactly the rows of their snapshot.

What is left out, because no answer would be wrong: that a column or family moves between groups with different purge
policies, now or before, once a compaction has dropped anything. The model then judges all of its history anew, and what
is dropped cannot come back. Before that, and among groups of one policy, all kinds of changes are made; policies are
altered at all times. A conditional write may also pass where only a commit older than a schema change stands against
it: a file that holds nothing which the schema still has is not looked at.

When it fails, hypothesis prints the steps as code. They are a test as they stand, once they are put into a function
below: every name in them is known in this module. `test_a_failure_as_it_is_printed` was made so; its ids are plain
numbers, hence `no_type_check`.
"""

# ruff: noqa: F401 - printed steps use more names than the machine does

from __future__ import annotations

import datetime
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, no_type_check

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from stelae.model.errors import Conflict, SchemaChanged, Unavailable
from stelae.model.ids import ColumnId, Row, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.purge import AllOf, AnyOf, MaxAge, MaxHistory, PastPolicy
from stelae.model.ranges import EVERYTHING, RangeSet
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, GroupOptions, KeyColumn, TableSchema
from stelae.model.schema_checks import BLOCK_BYTES_MIN, check_schema
from stelae.model.types import Array, Binary, Float, Int, String, Timestamp
from stelae.storage.read.scans.rows import RowBatch
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.shard import Commit
from stelae.storage.tablet.changes import Emptied, Loaded, TableChange
from stelae.storage.tablet.horizons import SnapshotPin
from tests.effort import examples
from tests.storage.engine import (
    TABLE,
    Engine,
    check_engine,
    check_reads,
    choose_columnar,
    choose_columns,
    choose_load,
    expected,
    large_block,
    names_of,
    selectors,
)
from tests.storage.plain import PlainTable
from tests.storage.workloads import (
    ALTERATIONS,
    WILD_FAMILIES,
    alterations,
    blocks,
    families_of,
    row_sets,
    schemas,
)

HELD_MAX = 4
SCANS_MAX = 3
TABLETS_MAX = 6


# -- what the steps are given


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSchema, list[Row]]:
    """A schema whose files have small blocks, and the rows that everything is about."""
    schema = draw(schemas())
    groups = [replace(group, options=replace(group.options, block_bytes=BLOCK_BYTES_MIN)) for group in schema.groups]
    schema = replace(schema, groups=tuple(groups))
    return schema, draw(row_sets(schema))


def _of_machine(choose: Any) -> Any:
    """A strategy that depends on what the machine has come to."""
    return st.runner().flatmap(choose)


def _chosen(build: Any) -> Any:
    @st.composite
    def drawn(draw: st.DrawFn, machine: TabletMachine) -> Any:
        def choose(options: Sequence[Any]) -> Any:
            return draw(st.sampled_from(options))

        return build(choose, machine.model.schema, machine.rows)

    return _of_machine(drawn)


BLOCKS = _of_machine(lambda machine: blocks(machine.model.schema, machine.rows))
COLUMNAR = _chosen(choose_columnar)
LOADS = _chosen(choose_load)
ROWS = _of_machine(lambda machine: st.sampled_from(machine.rows))
ALTERED = _of_machine(lambda machine: machine.alterations())
NUMBERS = st.integers(0, TABLETS_MAX - 1)


# -- what is judged by which policy


def _homes(schema: TableSchema) -> dict[ColumnId | str, Group]:
    """Of each column, family and family of the wildcard, and of rows that only exist."""
    found: dict[ColumnId | str, Group] = {"": schema.existence_group}
    for group in schema.groups:
        for part in group.columns if isinstance(group, ColumnsGroup) else group.families:
            found[part.id] = group
    return found


def is_neutral(old: TableSchema, new: TableSchema) -> bool:
    """Whether all that both have stays in its group, or moves to one that has always had the same policy."""
    before, after = _homes(old), _homes(new)
    declared = {f.name: f.id for g in old.groups if isinstance(g, CellsGroup) for f in g.families}
    for name in WILD_FAMILIES:
        if name in families_of(old) and name in families_of(new) and name not in declared:
            before[name], after[name] = old.family_group(name), new.family_group(name)
    both = [(group, after[member]) for member, group in before.items() if member in after]
    return all(a.id == b.id or a.options.purging == b.options.purging for a, b in both)


def dated(new: TableSchema, old: TableSchema, until: Txn) -> TableSchema:
    """With the policies that others take the place of, and up to when they counted."""
    before = {group.id: group.options for group in old.groups}
    groups = [
        replace(group, options=group.options.after(before[group.id], until)) if group.id in before else group
        for group in new.groups
    ]
    return check_schema(replace(new, groups=tuple(groups)))


def carried(mutations: Sequence[Mutation], old: TableSchema, new: TableSchema) -> tuple[Mutation, ...]:
    """What a prepared load holds, once the schema has changed."""
    columns = {c.id for g in new.groups if isinstance(g, ColumnsGroup) for c in g.columns}
    names = {f.id: f.name for g in new.groups if isinstance(g, CellsGroup) for f in g.families}
    declared = {f.name: f.id for g in old.groups if isinstance(g, CellsGroup) for f in g.families}
    kept: list[Mutation] = []
    for mutation in mutations:
        match mutation:
            case Put(row, values, ts):
                left = tuple((id_, value) for id_, value in values if id_ in columns)
                kept += [Put(row, left, ts)] if left else []
            case PutCell(row, family, qualifier, value, ts):
                name = names.get(declared[family]) if family in declared else family
                if name is not None and name in families_of(new):
                    kept.append(PutCell(row, name, qualifier, value, ts))
            case Erase() | EraseVersion():
                raise AssertionError("a load only puts")
    return tuple(kept)


WORK = {
    "flush": 6,
    "flush picked": 2,
    "seal": 1,
    "compact": 4,
    "compact all": 4,
    "drop hidden": 1,
    "save": 1,
    "save fails": 2,
    "collect log": 1,
    "collect files": 1,
    "tidy": 3,
    "truncate": 1,
}
"""What is done to tablets, and how often."""
WORKS = st.sampled_from([work for work, weight in WORK.items() for _ in range(weight)])


# -- the machine


@dataclass
class Queued:
    """A block, a load, or that the table was emptied: on its way to the log."""

    commit: Commit
    mutations: Sequence[Mutation] = ()
    change: TableChange | None = None


@dataclass
class Running:
    """A scan that is under way, and what it has not given out yet."""

    at: Txn
    columns: list[str] | None
    reverse: bool
    scan: TableScan = field(init=False)
    batches: Generator[RowBatch] = field(init=False)
    pin: SnapshotPin = field(init=False)
    version: SchemaVersion = field(init=False)
    names: list[str] = field(init=False)


class TabletMachine(RuleBasedStateMachine):
    @initialize(table=tables(), seed=st.integers(0, 7))
    def start(self, table: tuple[TableSchema, list[Row]], seed: int) -> None:
        schema, self.rows = table
        self.engine = Engine(schema, seed)
        self.model = PlainTable(schema)
        self.queued: list[Queued] = []
        self.held: list[Txn] = []
        self.running: list[Running] = []
        self.loads = 0
        self.load: tuple[Mutation, ...] | None = None
        self.has_dropped = False
        self.altered_at = Txn(0)
        self.steps = 0

    @property
    def is_started(self) -> bool:
        return hasattr(self, "engine")

    @property
    def is_loading(self) -> bool:
        return any(isinstance(each.change, Loaded) for each in self.queued)

    def tablet(self, number: int) -> TabletId:
        tablets = self.engine.tablets()
        return tablets[number % len(tablets)].tablet

    # writing

    @rule(first=BLOCKS, more=st.lists(BLOCKS, max_size=2), drain=st.sampled_from((True, True, False)))
    def write(self, first: tuple[Mutation, ...], more: list[tuple[Mutation, ...]], drain: bool) -> None:
        for block in (first, *more):
            self._queue(block)
        if drain:
            self.drain()

    @rule(letter=st.sampled_from("ab"))
    def write_large(self, letter: str) -> None:
        """Every row, one way or the other."""
        block = large_block(self.model.schema, self.rows, letter)
        if block:
            self._queue(block, True if letter == "a" else None)
            self.drain()

    @rule(block=COLUMNAR, drain=st.sampled_from((True, True, False)))
    def write_columnar(self, block: tuple[tuple[Mutation, ...], bool], drain: bool) -> None:
        self._queue(*block)
        if drain:
            self.drain()

    def _queue(self, block: Sequence[Mutation], nulls_written: bool | None = None) -> None:
        self.queued += [Queued(commit, part) for commit, part in self.engine.queue(block, nulls_written)]

    def drain(self) -> None:
        self.engine.shard.drain()
        self._settle()

    def _settle(self) -> None:
        """What has become durable is in the model from now on."""
        while self.queued and self.queued[0].commit.durable.done():
            done = self.queued.pop(0)
            txn = done.commit.durable.result()
            match done.change:
                case None | Loaded(replaces=False):
                    self.model.commit(txn, done.mutations)
                case Loaded():
                    self.model.overwrite(txn, done.mutations)
                case Emptied():
                    self.model.truncate(txn)

    @rule(block=BLOCKS, since=st.sampled_from(("now", "touched", "before it", "held", "horizon", "too old")))
    def write_if_unchanged(self, block: tuple[Mutation, ...], since: str) -> None:
        engine = self.engine
        for tablet, part in engine.tablets_of(block).items():
            touched = max(self._last_txn(mutation.row) for mutation in part)
            horizon = engine.shard.horizon(TABLE)
            max_txn = {
                "now": engine.shard.clock.last,
                "touched": touched,
                "before it": Txn(max(0, touched - 1)),
                "held": self.held[0] if self.held else engine.visible,
                "horizon": horizon,
                "too old": Txn(max(0, horizon - 1)),
            }[since]
            try:
                commit = engine.apply(tablet, part, max_txn)
            except Conflict:
                assert touched > max_txn or max_txn < horizon
            else:
                assert max_txn >= horizon
                assert touched <= max(max_txn, self.altered_at)
                self.queued.append(Queued(commit, part))
        self.drain()

    def _last_txn(self, row: Row) -> Txn:
        """Of what is on its way too: an emptied table touches every row."""
        waiting = [
            each.commit.txn
            for each in self.queued
            if isinstance(each.change, Emptied)
            or (isinstance(each.change, Loaded) and each.change.replaces)
            or any(mutation.row == row for mutation in each.mutations)
        ]
        return max([self.model.last_txn(row), *waiting])

    # upkeep

    @rule(works=st.lists(st.tuples(WORKS, NUMBERS), min_size=1, max_size=4))
    def tend(self, works: list[tuple[str, int]]) -> None:
        """What is done, and to which tablet."""
        for place, (work, number) in enumerate(works):
            if place:
                self.every_read_agrees()
            self._tend(work, number)

    tend_on = tend
    """Rules are drawn alike, and this matters most."""

    def _tend(self, work: str, number: int) -> None:
        engine, tablet = self.engine, self.tablet(number)
        match work:
            case "flush":
                engine.flush(tablet)
            case "flush picked":
                engine.flush_picked()
            case "seal":
                engine.upkeep.seal(tablet)
            case "compact":
                self._note_compaction()
                engine.compact(tablet)
            case "compact all":
                self._note_compaction()
                engine.compact_all(tablet)
            case "drop hidden":
                engine.upkeep.drop_hidden(tablet)
            case "save":
                engine.upkeep.save()
            case "save fails":
                engine.configs.fail(after=number)
                with suppress(Unavailable):
                    engine.upkeep.save()
                engine.configs.heal()
            case "collect log":
                engine.collect_log()
            case "collect files":
                engine.upkeep.collect_files()
            case "tidy":
                engine.tidy()
            case "truncate":
                self._change(Emptied(), drain=number % 2 == 0)
            case _:
                raise AssertionError(work)
        self._settle()

    def _change(self, change: TableChange, mutations: Sequence[Mutation] = (), *, drain: bool = True) -> None:
        self.queued.append(Queued(self.engine.upkeep.commit(TABLE, change), mutations, change))
        if drain:
            self.drain()

    def _note_compaction(self) -> None:
        if self.engine.shard.horizon(TABLE):
            self.has_dropped = True

    @rule(
        work=st.sampled_from(("flush", "compact all", "compact")),
        number=NUMBERS,
        by=st.one_of(
            st.tuples(st.just("_tend"), st.sampled_from(list(WORK)), NUMBERS),
            st.tuples(st.just("reshape"), ROWS | NUMBERS | ALTERED),
            st.tuples(st.just("write"), BLOCKS, st.just([]), st.booleans()),
            st.tuples(st.just("finish_load"), st.just("commit")),
        ),
    )
    def interrupted(self, work: str, number: int, by: tuple[Any, ...]) -> None:
        """Something else happens while a file is written."""
        step, *arguments = by
        with self.engine.meanwhile(lambda: getattr(self, step)(*arguments)):
            self._tend(work, number)

    @rule(change=ROWS | NUMBERS | ALTERED)
    def reshape(self, change: Row | int | TableSchema) -> None:
        """A split at a row, a join of a tablet with the next one, or another schema."""
        match change:
            case bytes():
                self._split(change)
            case int():
                self._join(change)
            case TableSchema():
                self._alter(change)

    def _split(self, at: Row) -> None:
        state = self.engine.shard.state_at(TABLE, at)
        if at > state.rows.start and len(self.engine.tablets()) < TABLETS_MAX:
            self.engine.split(state.tablet, at)

    def _join(self, number: int) -> None:
        tablets = self.engine.tablets()
        if len(tablets) > 1:
            left = number % (len(tablets) - 1)
            self.engine.join(tablets[left].tablet, tablets[left + 1].tablet)

    def alterations(self) -> st.SearchStrategy[TableSchema]:
        """One that must not be made is none."""
        old = self.model.schema
        made = alterations(old, (*ALTERATIONS, "set purge", "set purge")).map(lambda made: made[1])
        return made.map(lambda new: new if self._may_become(new) else old)

    def _may_become(self, new: TableSchema) -> bool:
        old = self.model.schema
        if type(old.existence_group) is not type(new.existence_group):
            return False
        return not self.has_dropped or is_neutral(old, new)

    def _alter(self, schema: TableSchema) -> None:
        """Blocks that wait were checked against the schema before: they come first. Some may have come since it was
        decided; and after some, the clock is seen to go on at once."""
        old = self.model.schema
        if schema.version != old.version + 1:
            return
        self.drain()
        engine = self.engine
        moments = (engine.shard.clock.last, engine.visible, *self.held)
        schema = dated(schema, old, max(moments[schema.version % len(moments)], engine.horizon))
        self.altered_at = self.engine.shard.clock.last
        if self.load is not None:
            self.load = carried(self.load, old, schema)
        self.engine.alter(schema)
        self.model.alter(schema)
        if schema.version % 3:
            engine.wait_for(engine.shard.clock.tick())

    # bulk loads

    @precondition(lambda self: self.is_started and self.load is None and not self.is_loading)
    @rule(load=LOADS)
    def prepare_load(self, load: tuple[Mutation, ...]) -> None:
        self.loads += 1
        self.engine.prepare_load(f"load {self.loads}", load)
        self.load = load

    @precondition(lambda self: self.is_started and self.load is not None)
    @rule(how=st.sampled_from(("commit", "commit", "queue", "replace", "abandon")))
    def finish_load(self, how: str) -> None:
        if self.load is None:
            return
        name, load, self.load = f"load {self.loads}", self.load, None
        if how == "abandon":
            self.engine.abandon_load(name)
        else:
            self._change(Loaded(name, replaces=how == "replace"), load, drain=how != "queue")

    # time

    @rule(
        what=st.sampled_from(("wait", "wait", "hold", "hold", "release", "read now", "advance horizon", "drain")),
        number=st.integers(0, HELD_MAX - 1),
    )
    def pass_time(self, what: str, number: int) -> None:
        engine = self.engine
        match what:
            case "wait":
                engine.clock.advance((0.001, 0.003, 0.02, 0.07)[number])
            case "hold":
                self.held = [*self.held, engine.visible][-HELD_MAX:]
            case "release":
                self.held = [at for place, at in enumerate(self.held) if place != number]
            case "read now":
                self._read_now()
            case "advance horizon":
                # Not above what is held; scans under way have pins.
                engine.advance_horizon(min([*self.held, engine.visible]))
                assert all(running.at >= engine.horizon for running in self.running)
            case _:
                self.drain()

    def _read_now(self) -> None:
        """At a time that nothing has happened at yet: whatever is on its way is waited for."""
        now = self.engine.shard.clock.tick()
        self.engine.wait_for(now)
        self._settle()
        self.engine.wait_for(now)
        assert self.engine.visible >= now
        check_reads(self.engine, self.model, self.rows, now, Random(self.steps))

    @rule(how=st.sampled_from(("close", "kill", "crash")), milliseconds=st.sampled_from((1, 0)))
    def restart(self, how: str, milliseconds: int) -> None:
        """In no time, snapshots of moments after the last commit are lost: their time comes again."""
        if how != "close":
            for lost in self.queued:
                if isinstance(lost.change, Loaded):
                    self.load = tuple(lost.mutations)  # prepared as before
            self.queued.clear()
        self.engine.clock.advance(milliseconds / 1_000)
        self.engine.restart(how)
        self._settle()
        if not milliseconds:
            self.held = [at for at in self.held if at <= self.engine.visible]
            self.running = [running for running in self.running if running.at <= self.engine.visible]
        for running in tuple(self.running):
            if running.version == self.model.schema.version:
                self._begin(running, running.scan.left)
            else:
                self._changed_under(running, running.scan.left)

    # scans that others interrupt

    @precondition(lambda self: self.is_started and len(self.running) < SCANS_MAX)
    @rule(reverse=st.booleans(), columns=st.none() | st.integers(0, 100))
    def begin_scan(self, reverse: bool, columns: int | None) -> None:
        """Of all columns, or of some."""
        names = None if columns is None else choose_columns(Random(columns), self.model.schema)
        self.running.append(Running(self.engine.visible, names, reverse))
        self._begin(self.running[-1], EVERYTHING)
        self._give_batch(self.running[-1])

    def _begin(self, running: Running, rows: RangeSet) -> None:
        running.scan = self.engine.table_scan(running.at, selectors(running.columns), rows, reverse=running.reverse)
        running.batches = (batch for batch in running.scan)
        running.pin = self.engine.shard.pin(running.at)
        running.version, running.names = self.model.schema.version, running.columns or names_of(self.model.schema)

    @precondition(lambda self: self.is_started and self.running)
    @rule(number=st.integers(0, SCANS_MAX - 1))
    def go_on_scanning(self, number: int) -> None:
        self._give_batch(self.running[number % len(self.running)])

    def _give_batch(self, running: Running) -> None:
        """What it gives is all there is of the rows that it has then done with."""
        before = running.scan.left
        try:
            batch = next(running.batches, None)
        except SchemaChanged:
            self._changed_under(running, before)
            return
        done = before.subtract(running.scan.left)
        if not done.is_empty:
            records = [] if batch is None else self.engine.records_of(batch)
            columns = running.columns if running.version == self.model.schema.version else running.names
            wanted = expected(self.model, running.at, columns)
            wanted = {row: wanted[row] for row in sorted(wanted, reverse=running.reverse) if row in done}
            assert list(records) == list(wanted.items())
        if batch is None:
            assert running.scan.left.is_empty
            self._end(running)

    def _changed_under(self, running: Running, left: RangeSet) -> None:
        """A scan of everything goes on with everything there is now; of others, the names may mean something else."""
        assert running.version != self.model.schema.version
        if running.columns is None:
            running.pin.close()
            self._begin(running, left)
        else:
            self._end(running)

    def _end(self, running: Running) -> None:
        running.pin.close()
        self.running.remove(running)

    def teardown(self) -> None:
        for running in self.running if self.is_started else ():
            running.batches.close()

    # what always holds

    @invariant()
    def every_read_agrees(self) -> None:
        self._settle()
        self.steps += 1
        rng = Random(self.steps)
        check_engine(self.engine, self.rows)
        check_reads(self.engine, self.model, self.rows, self.engine.visible, rng)
        if self.held:
            check_reads(self.engine, self.model, self.rows, rng.choice(self.held), rng)


TestMachine = TabletMachine.TestCase
TestMachine.settings = settings(max_examples=examples(60), stateful_step_count=30)


@no_type_check
def test_a_failure_as_it_is_printed() -> None:
    """Of a group that is gone the log still has blocks. This stopped the shard from opening."""
    state = TabletMachine()
    state.start(
        seed=0,
        table=(
            TableSchema(
                version=1,
                key=(KeyColumn(id=1, name="id", type=String()),),
                groups=(
                    ColumnsGroup(
                        id=2,
                        name="g0",
                        columns=(Column(id=3, name="number", type=Int(bits=32), nullable=True, default=None),),
                        options=GroupOptions(
                            compression="zstd", block_bytes=4096, in_memory=False, bloom=True, purge=None
                        ),
                    ),
                    CellsGroup(
                        id=4,
                        name="g1",
                        families=(),
                        wildcard=True,
                        options=GroupOptions(
                            compression="zstd", block_bytes=4096, in_memory=False, bloom=True, purge=None
                        ),
                    ),
                ),
                hashed=False,
                last_id=4,
            ),
            [b"", b"a"],
        ),
    )
    state.every_read_agrees()
    state.write(drain=True, first=(PutCell(row=b"a", family="wild", qualifier="q", value=b"x", ts=None),), more=[])
    state.every_read_agrees()
    state.reshape(
        change=TableSchema(
            version=2,
            key=(KeyColumn(id=1, name="id", type=String()),),
            groups=(
                ColumnsGroup(
                    id=2,
                    name="g0",
                    columns=(Column(id=3, name="number", type=Int(bits=32), nullable=True, default=None),),
                    options=GroupOptions(compression="zstd", block_bytes=4096, in_memory=False, bloom=True, purge=None),
                ),
            ),
            hashed=False,
            last_id=4,
        )
    )
    state.every_read_agrees()
    state.restart(how="kill", milliseconds=1)
    state.every_read_agrees()
    state.teardown()
