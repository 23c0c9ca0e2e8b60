"""Programs that use a simulated cluster while it is disturbed, one that makes and drops tables, and one that looks at
what is left when all is healed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import stelae
from stelae.launch.steps import TEND_S
from stelae.master.cluster import ClusterMaster
from stelae.model.errors import InvalidArgument, Retryable, SnapshotTooOld, UnknownOutcome
from stelae.model.ids import Row
from stelae.model.schema import ColumnsGroup
from stelae.sim.links import USUAL_DELAYS
from stelae.sim.metastore import NO_FAULTS
from stelae.sim.nemesis import Nemesis, Swarm, draw_swarm
from stelae.sim.threads.thread import SimThread, run_in_thread
from stelae.sim.world import ProcessPorts, SimWorld
from stelae.tserver.cluster import ClusterShard
from tests.cluster.ending import check_files, draw_core
from tests.cluster.history import History
from tests.cluster.marks import LOADED, Marks
from tests.cluster.processes import (
    MASTERS,
    PATIENCE_S_MAX,
    SHARDS,
    connect,
    draw_patience_s,
    run_master,
    run_shard,
    sleep,
)
from tests.cluster.revisions import check_revisions

ROWS = ("a", "m", "x")
COUNTERS = ("b", "z")
CLIENTS = 2
THREADS = 2
CALLS = 10
CHANGES = 2
LOADS = 4
FAULTS_MAX = 16
GAP_S_MAX = 0.3
LASTING_S_MAX = 4.0
PAUSE_S_MAX = 0.1
SYNC_S_MAX = 0.4
PROGRESS_S = 300.0
START_S = 0.5
BEGIN_S = 60.0
CHECKS_MAX = 4
WIPE_S_MAX = 3.0


def _draw_dense(world: SimWorld, kinds: Sequence[str]) -> Swarm:
    """Faults while the programs work, which is not for long."""
    swarm = draw_swarm(world.rng("swarm"), kinds, faults_max=FAULTS_MAX)
    gap_s, lasting_s = min(swarm.gap_s_max, GAP_S_MAX), min(swarm.lasting_s_max, LASTING_S_MAX)
    return replace(swarm, gap_s_max=gap_s, lasting_s_max=lasting_s)


@dataclass
class Cluster:
    """`replicas`: how many of each tablet, of which all but one must be there for a write. `is_eager`: programs flush
    the table again and again, so that what was written lies in files, and the log is short. `alters`: the operator
    does little else than to alter the table. `loads`: another table is loaded and emptied meanwhile, and split."""

    replicas: int = 1
    is_eager: bool = False
    alters: bool = False
    loads: bool = False
    history: History = field(default_factory=History)
    marks: Marks = field(default_factory=Marks)
    masters: dict[str, ClusterMaster] = field(default_factory=dict)
    shards: dict[str, ClusterShard] = field(default_factory=dict)
    core: tuple[str, ...] = ()
    """The masters and shards that are left in the end, and have to do; if it is empty, all are."""
    _busy: dict[str, int] = field(default_factory=dict)
    _handles: WeakKeyDictionary[stelae.Database, stelae.Table] = field(default_factory=WeakKeyDictionary)

    def _shards(self, world: SimWorld) -> tuple[str, ...]:
        """As many as this run has."""
        return SHARDS if self.replicas > 1 else SHARDS[: 1 + world.rng("shards").below(len(SHARDS))]

    def _pacify(self, world: SimWorld) -> None:
        """Nothing is late or lost between processes, nor on the way to the disk."""
        world.transport.links.delays, world.metastore.faults = USUAL_DELAYS, NO_FAULTS
        for shard in self._shards(world):
            world.disk(shard).pace.slow_s_max = 0.0

    def _draw_aims(self, world: SimWorld, others: Sequence[str]) -> list[str]:
        """Whom the faults concern: always the shards, and in every other run some of the others."""
        rng = world.rng("aims")
        share = rng.fraction() if rng.below(2) else 0.0
        return [*self._shards(world), *(name for name in others if rng.fraction() < share)]

    async def disturbed(self, world: SimWorld, kinds: Sequence[str]) -> History:
        """Faults while programs work; then all is healed: they must come to their ends, and what is left be right."""
        for name in MASTERS:
            world.add(name, partial(run_master, seen=self.masters))
        for name in self._shards(world):
            world.add(name, partial(run_shard, seen=self.shards))
        names = [f"client-{number}" for number in range(CLIENTS)]
        for name in names:
            world.add(name, partial(self._run, work=self._use, calls=CALLS))
        names.append("operator")
        world.add("operator", partial(self._run, work=self._operate, calls=CHANGES * (3 if self.alters else 1)))
        if self.loads:
            names.append("driver")
            world.add("driver", partial(self._run, work=self._load, calls=LOADS))
        world.add("first", partial(self._run, work=self._make, calls=1), restarts=False)
        world.add("judge", partial(self._run, work=self._judge, calls=1), restarts=False)
        await self._begin(world)
        for name in names:
            world.start(name)
        wiping = asyncio.create_task(self._wipe_one(world))
        nemesis = Nemesis(world, _draw_dense(world, kinds), self._draw_aims(world, [*MASTERS, *names]))
        await nemesis.run()
        await wiping
        self.core = draw_core(world) if self.replicas > 1 else ()
        nemesis.end((*self.core, *names, "first", "judge") if self.core else None)
        self._pacify(world)
        world.story.tell(f"only {', '.join(self.core)} are left" if self.core else "all is healed")
        await self._until_done(names, PROGRESS_S)
        world.story.tell("all programs are done")
        world.start("judge")
        await self._until_done(["judge"], PROGRESS_S)
        self.history.check()
        self.marks.check()
        check_revisions(world)
        return self.history

    async def _wipe_one(self, world: SimWorld) -> None:
        """In every other run one shard loses its disk: others have what was on it."""
        rng = world.rng("wipe")
        if self.replicas > 1 and rng.below(2):
            await asyncio.sleep(rng.fraction() * WIPE_S_MAX)
            shard = SHARDS[rng.below(len(SHARDS))]
            world.kill(shard)
            world.disk(shard).wipe()
            world.story.tell(f"{shard} is killed and gets an empty disk")

    async def _begin(self, world: SimWorld) -> None:
        """In peace: it is not the first start that is tried, there are many more."""
        self._pacify(world)
        for name in (*MASTERS, *self._shards(world)):
            world.start(name)
        await asyncio.sleep(START_S)
        world.start("first")
        await self._until_done(["first"], BEGIN_S)
        world.story.tell("the table is there")
        world.transport.links.delays, world.metastore.faults = world.settings.delays, world.settings.metastore
        for shard in self._shards(world):
            world.disk(shard).pace.slow_s_max = SYNC_S_MAX * world.rng("syncs").fraction()

    async def _until_done(self, names: Sequence[str], within_s: float) -> None:
        left = self.history.calls_left
        try:
            async with asyncio.timeout(within_s):
                while any(left.get(name, 1) or self._busy.get(name) for name in names):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"no progress within {within_s} s: {left}") from None

    async def _run(self, ports: ProcessPorts, work: Any, calls: int) -> None:
        self.history.calls_left.setdefault(ports.name, calls)
        await run_in_thread(ports.loop, self._call_all, ports, work)
        await asyncio.Event().wait()

    def _call_all(self, ports: ProcessPorts, work: Any) -> None:
        db = self._connect(ports, is_hasty=work in (self._use, self._operate))
        if work == self._use:
            for number in range(1, THREADS):
                SimThread(ports.loop, partial(self._work, ports, db, work), f"{ports.name}/{number}").start()
        self._work(ports, db, work)

    @staticmethod
    def _connect(ports: ProcessPorts, *, is_hasty: bool) -> stelae.Database:
        while True:
            try:
                return connect(ports, draw_patience_s(ports.rng) if is_hasty else PATIENCE_S_MAX)
            except Retryable:
                sleep(1.0)

    def _work(self, ports: ProcessPorts, db: stelae.Database, work: Any) -> None:
        left = self.history.calls_left
        is_hasty = work in (self._use, self._operate)
        while left[ports.name]:
            if is_hasty:
                left[ports.name] -= 1  # though it is killed in the middle
                with self._counted(ports.name), suppress(Retryable, UnknownOutcome, SnapshotTooOld):
                    work(ports, db)
            else:
                work(ports, db)
                left[ports.name] -= 1
            sleep(ports.rng.fraction() * PAUSE_S_MAX)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """A call under way; whoever is killed leaves here, too."""
        self._busy[name] = self._busy.get(name, 0) + 1
        try:
            yield
        finally:
            self._busy[name] -= 1

    # -- programs

    def _make(self, _: ProcessPorts, db: stelae.Database) -> None:
        groups = [stelae.columns("g", {"v": "int64"}), stelae.columns("h", {"w": "int64"})]
        while True:
            with suppress(Retryable, UnknownOutcome):
                zone = None
                if self.replicas > 1:
                    zone, least = "copies", self.replicas - 1
                    db.create_zone(zone, replicas=self.replicas, min_replicas=least, if_not_exists=True)
                db.create_table(
                    "t", key={"k": "string"}, groups=groups, splits=["c", "m"], zone=zone, if_not_exists=True
                )
                if self.loads:
                    self.marks.make(db, zone)
                return

    def _use(self, ports: ProcessPorts, db: stelae.Database) -> None:
        rng, history, who = ports.rng, self.history, ports.name
        table = self._table(ports, db)
        row = ROWS[rng.below(len(ROWS))]
        value = history.value()
        if self.loads and not rng.below(3):
            self.marks.look(db)
        if self.is_eager:
            with suppress(Retryable, UnknownOutcome):
                table.flush()
        match rng.below(16):
            case 0 | 1 | 2:
                history.record(who, "put", {row: value}, lambda: table.put({"k": row, "v": value}))
            case 3:
                history.record(who, "erase", {row: None}, lambda: table.erase(row))
            case 4:
                job = partial(table.put, {"k": row, "v": value}, if_absent=True)
                history.record(who, "absent", {row: value}, job)
            case 5 | 6:
                found = history.record(who, "get", {row: None}, lambda: _get(table, row))
                if found is not None and found[0].get(row) is not None:
                    values, txn = found
                    job = partial(table.put, {"k": row, "v": value}, if_unchanged_since=txn)
                    history.record(who, "swap", {row: (values[row], value)}, job)
            case 7 | 8 | 9 | 10:
                counter = COUNTERS[rng.below(len(COUNTERS))]
                history.record(who, "add", {counter: 1}, lambda: table.increment(counter, {"v": 1})["v"])
            case 11 | 12:
                history.record(who, "get", {row: None}, lambda: _get(table, row))
            case 13:
                history.record(who, "get", dict.fromkeys(ROWS), lambda: (dict(_scan(table)), None))
            case 14:
                given = {each: history.value() for each in ROWS}
                rows = [{"k": each, "v": put} for each, put in given.items()]
                history.record(who, "put", given, lambda: table.put_many(rows) and None)
            case _:
                self._look_back(ports, db, table)

    def _table(self, ports: ProcessPorts, db: stelae.Database) -> stelae.Table:
        """Mostly the handle that the program has: finding a table anew takes a master."""
        if db not in self._handles or not ports.rng.below(4):
            self._handles[db] = db.table("t")
        return self._handles[db]

    def _look_back(self, ports: ProcessPorts, db: stelae.Database, table: stelae.Table) -> None:
        """Snapshots, one's own and those of others, stay as they are."""
        with db.snapshot() as snapshot:
            self.history.keep_snapshot(snapshot.txn, _scan(table, snapshot))
            if ports.rng.below(2):
                table.flush()
            sleep(ports.rng.fraction() * 3)
            self.history.keep_snapshot(snapshot.txn, _scan(table, snapshot))
        known = list(self.history.snapshots)
        txn = known[ports.rng.below(len(known))]
        self.history.keep_snapshot(txn, _scan(table, txn))

    def _load(self, ports: ProcessPorts, db: stelae.Database) -> None:
        self.marks.change(db, ports)

    def _operate(self, ports: ProcessPorts, db: stelae.Database) -> None:
        rng, history = ports.rng, self.history
        there = [name for name, made in history.tables.items() if made.is_there]
        match 3 if self.alters and rng.below(2) else rng.below(6):
            case 0 | 1:
                name = f"d{len(history.tables)}"
                groups = [stelae.columns("g", {"v": "int64"})]
                zone = "copies" if self.replicas > 1 else None
                job = partial(db.create_table, name, key={"k": "string"}, groups=groups, splits=["m"], zone=zone)
                history.change(history.tables, name, is_there=True, job=job)
            case 2 if there:
                name = there[rng.below(len(there))]
                history.change(history.tables, name, is_there=False, job=partial(db.drop_table, name))
            case 3:
                name = f"x{len(history.columns)}"
                job = partial(db.alter_table, "t", add={"g": {name: "int64"}})
                history.change(history.columns, name, is_there=True, job=job)
            case 4 if rng.below(2):
                db.table(self._some_table(ports)).split("fhpt"[rng.below(4)])
            case 4:
                self._join(ports, db)
            case _:
                db.table(self._some_table(ports)).compact()
        history.see(history.tables, db.tables(), "table")
        history.see(history.columns, _columns(db), "column")

    def _some_table(self, ports: ProcessPorts) -> str:
        return LOADED if self.loads and ports.rng.below(2) else "t"

    def _join(self, ports: ProcessPorts, db: stelae.Database) -> None:
        """Two tablets, unless they are of two shards."""
        table = db.table(self._some_table(ports))
        starts = [Row(each.start) for each in table.tablets()][1:]
        if starts:
            at = starts[ports.rng.below(len(starts))]
            with suppress(InvalidArgument):
                db._session.ask(lambda backend, until: backend.join(table._id, at, deadline=until))

    def _judge(self, ports: ProcessPorts, db: stelae.Database) -> None:
        """All is healed: everything must go well. Where only a core is left, once that serves."""
        if self.core:
            self._wait_for_core(ports, db)
        history, table = self.history, db.table("t")
        for row in (*ROWS, *COUNTERS):
            assert history.record(ports.name, "get", {row: None}, partial(_get, table, row)) is not None
            versions = [each.value for each in table.history(row, columns=["v"]).get("v", [])]
            history.see_versions(row, versions, is_counter=row in COUNTERS)
        rows = _scan(table)
        assert history.record(ports.name, "get", dict.fromkeys(ROWS), lambda: (dict(rows), None)) is not None
        for txn in list(history.snapshots):
            try:
                history.keep_snapshot(txn, _scan(table, txn))
            except SnapshotTooOld:
                continue
        history.see(history.tables, db.tables(), "table")
        history.see(history.columns, _columns(db), "column")
        if self.loads:
            self.marks.judge(db)
        if self.core:
            return  # what is left has only to serve
        self._wait_for_order(db)
        check_files(self.masters, self.shards, ports.blobs)
        for name in [name for name in db.tables() if name in history.tables]:
            made = db.table(name)
            for key in ("a", "z"):
                made.put({"k": key, "v": 1})
                assert made.get(key) is not None, f"table {name}"

    def _wait_for_core(self, ports: ProcessPorts, db: stelae.Database) -> None:
        """Until each row was written and read: who is not of the core is dead or stopped, and does not come back."""
        for row in ROWS:
            for f in ("put", "get"):
                while not self._ask_once(ports, db, f, row):
                    sleep(PAUSE_S_MAX)

    def _ask_once(self, ports: ProcessPorts, db: stelae.Database, f: str, row: str) -> bool:
        table, value = self._table(ports, db), self.history.value()
        if f == "get":
            return self.history.record(ports.name, f, {row: None}, partial(_get, table, row)) is not None
        job = partial(table.put, {"k": row, "v": value})
        return self.history.record(ports.name, f, {row: value}, job) is not None

    @staticmethod
    def _wait_for_order(db: stelae.Database) -> None:
        """A change of tables that was left half done is done by the master when it next looks."""
        report = db.check()
        for _ in range(CHECKS_MAX):
            if not report.problems:
                return
            sleep(TEND_S)
            report = db.check()
        raise AssertionError(f"not in order: {report.problems}")


def _get(table: stelae.Table, row: str) -> tuple[dict[str, Any], int | None]:
    found = table.get(row, columns=["v"])
    return ({}, None) if found is None else ({row: found["v"]}, found.txn)


def _scan(table: stelae.Table, at: Any = None) -> tuple[tuple[str, Any], ...]:
    with table.scan(columns=["v"], at=at) as scan:
        found = tuple((row["k"], row["v"]) for row in scan)
    keys = [key for key, _ in found]
    assert keys == sorted(set(keys)), f"not every row once, in order: {keys}"
    return found


def _columns(db: stelae.Database) -> list[str]:
    groups = db.table("t").schema.groups
    return [column.name for group in groups if isinstance(group, ColumnsGroup) for column in group.columns]
