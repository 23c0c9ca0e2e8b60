"""Stories of loads, overwrites and truncations of a table with replicas: a change is held where its master is about to
take a step, or has taken it; somebody dies, sleeps, or loses a disk; then it goes on. All of the change happened or
nothing, at every snapshot, whoever leads then, and nothing of it is left behind.

Beside it a program reads the whole table again and again, at a snapshot each time, and each snapshot is read once more
in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

import stelae
from stelae.master.changes import coordinator
from stelae.master.changes.coordinator import ChangeCoordinator
from stelae.model.errors import Conflict, Retryable, SnapshotTooOld, UnknownOutcome
from stelae.model.ids import TableId, TabletId
from stelae.registry.changes.sessions import read_sessions
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.changes import ShardChanges
from tests.cluster.driver import backend_of
from tests.cluster.processes import MASTERS, SHARDS, sleep
from tests.cluster.stories import OTHER, PROGRAM, Stage
from tests.tserver.loading import written

SPLITS = ("m",)
KEYS = ("a", "f", "p", "x")
KINDS = ("load", "overwrite", "truncate")
PAUSE_S = 0.2
FORGOTTEN_S = 120.0
"""Of simulated time, until nothing is recorded of a change that is over."""

Seen = tuple[int | None, ...]


class Gate:
    """Where the first master that comes there is held while it leads a change to its end: before a step, or after."""

    def __init__(self, step: str, when: str) -> None:
        self._step = step
        self._when = when
        self.is_reached = False
        self._go = asyncio.Event()

    @contextmanager
    def shut(self) -> Iterator[None]:
        place: Any = coordinator if self._step == "forget_session" else ChangeCoordinator
        right = getattr(place, self._step)

        async def step(*args: Any) -> Any:
            if self._when == "before":
                await self._hold()
            found = await right(*args)
            if self._when == "after":
                await self._hold()
            return found

        with mock.patch.object(place, self._step, step):
            yield

    async def _hold(self) -> None:
        if not self.is_reached:
            self.is_reached = True
            await self._go.wait()

    def open(self) -> None:
        self._go.set()


class Changes:
    """What one story asks for, and what is seen meanwhile."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.txns: dict[int, tuple[set[Seen], Seen]] = {}
        """What may be there just before each change that is done, and what is at its txn."""
        self._seen: dict[int, Seen] = {}
        self._is_over = False
        self._watching = stage.ask(self._watch, by=OTHER)

    # -- changes

    def begin(self, kind: str, number: int) -> asyncio.Future[int]:
        """By a driver that tries again until it is done; or, of a truncation, until one was."""
        return self.stage.ask(partial(self._change, kind, number))

    async def do(self, kind: str, number: int, before: Seen) -> None:
        self.note(await self.begin(kind, number), kind, number, before)

    def note(self, txn: int, kind: str, number: int, before: Seen) -> None:
        """A table that was to be emptied may have been before: then whoever asked for it was not told."""
        after: Seen = (None if kind == "truncate" else number,) * len(KEYS)
        self.txns[txn] = {before, after} if kind == "truncate" else {before}, after

    def _change(self, kind: str, number: int, db: stelae.Database) -> int:
        while True:
            with suppress(Retryable, UnknownOutcome, Conflict):
                if kind == "truncate":
                    return int(db.truncate_table("t"))
                return self._load(db, number, replaces=kind == "overwrite")
            sleep(PAUSE_S)

    def _load(self, db: stelae.Database, number: int, *, replaces: bool) -> int:
        store, blobs = backend_of(db), self.stage.world.blobs_of(PROGRAM)
        ticket = store.begin_load(store.find("t").id, f"job {number}")
        if ticket.committed is not None:
            return ticket.committed
        files = [written(blobs, ticket, f"{at:02x}", {key: number}) for at, key in enumerate(KEYS)]
        return store.commit_load(ticket.ticket, files, replaces=replaces)

    # -- what is seen

    def _watch(self, db: stelae.Database) -> None:
        """While there is somebody to ask; who is refused asks again."""
        while not self._is_over:
            with suppress(Retryable, UnknownOutcome, SnapshotTooOld), db.snapshot() as snapshot:
                self._look(db, snapshot.txn)
            sleep(PAUSE_S)

    def _look(self, db: stelae.Database, txn: int) -> Seen:
        found = {row["k"]: row["v"] for row in db.table("t").scan(at=txn)}
        seen = tuple(found.get(key) for key in KEYS)
        assert len(set(seen)) == 1, f"at {txn} the keys have {seen}: half of a change"
        before = self._seen.setdefault(txn, seen)
        assert before == seen, f"at {txn} the keys had {before}, and have {seen}"
        return seen

    async def judge(self) -> None:
        """All is healed."""
        self._is_over = True
        await self._watching
        await self.stage.whole()
        for txn, (before, after) in self.txns.items():
            for at, expected in ((txn, {after}), (txn - 1, before)):
                seen = await self.stage.do(partial(self._look, txn=at))
                assert seen in expected, f"at {at}, of a change at {txn}, the keys have {seen}, and not {expected}"
        for txn in list(self._seen):
            with suppress(SnapshotTooOld):
                await self.stage.do(partial(self._look, txn=txn))
        await self._forgotten()
        await self.stage.judge()

    async def _forgotten(self) -> None:
        """Nothing is recorded, nor prepared anywhere, of what is over."""
        store = self.stage.world.metastore.client("judge")
        async with asyncio.timeout(FORGOTTEN_S):
            while await read_sessions(store):
                await asyncio.sleep(0.5)
        for name, shard in self.stage.shards.items():
            left = dict(shard.server.shard.unsettled)
            assert not left, f"{name} has {left} prepared, and no record is left"


# -- who is in the way

Fault = Callable[[Stage, Gate], Awaitable[None]]


def _led_by_others(stage: Stage, name: str) -> Callable[[], bool]:
    return lambda: len(stage.led) == stage.tablets and all(leader != name for leader, _ in stage.led.values())


def _some_leader(stage: Stage) -> str:
    return next(leader for leader, _ in stage.led.values())


async def leader_dies(stage: Stage, gate: Gate) -> None:
    """The change goes on at once; the leader comes back when others lead."""
    name = _some_leader(stage)
    stage.world.keep_down(name)
    gate.open()
    await stage.until(_led_by_others(stage, name))
    stage.world.let_up(name)


async def leader_dies_and_is_followed(stage: Stage, gate: Gate) -> None:
    """The change goes on when others lead."""
    name = _some_leader(stage)
    stage.world.keep_down(name)
    await stage.until(_led_by_others(stage, name))
    gate.open()
    stage.world.let_up(name)


async def leader_is_started_again(stage: Stage, gate: Gate) -> None:
    stage.world.kill(_some_leader(stage))
    gate.open()


async def leader_sleeps(stage: Stage, gate: Gate) -> None:
    """Until others lead."""
    name = _some_leader(stage)
    process = stage.world.start(name)
    process.pause()
    gate.open()
    await stage.until(_led_by_others(stage, name))
    process.resume()


async def leader_loses_its_disk(stage: Stage, gate: Gate) -> None:
    name = _some_leader(stage)
    stage.world.keep_down(name)
    stage.world.disk(name).wipe()
    gate.open()
    stage.world.let_up(name)


async def power_fails_everywhere(stage: Stage, gate: Gate) -> None:
    for name in SHARDS:
        stage.world.lose_power(name)
    gate.open()


async def master_dies(stage: Stage, gate: Gate) -> None:
    """And never goes on; another one finds what it left."""
    for name in MASTERS:
        if stage.masters[name].guard is not None:
            stage.world.kill(name)
    gate.open()


async def leader_and_master_die(stage: Stage, gate: Gate) -> None:
    name = _some_leader(stage)
    stage.world.keep_down(name)
    await master_dies(stage, gate)
    await stage.until(_led_by_others(stage, name))
    stage.world.let_up(name)


FAULTS: tuple[Fault, ...] = (
    power_fails_everywhere,
    leader_dies,
    leader_dies_and_is_followed,
    leader_is_started_again,
    leader_sleeps,
    leader_loses_its_disk,
    master_dies,
    leader_and_master_die,
)
MOMENTS = (
    ("_prepare", "before"),
    ("_prepare", "after"),
    ("_decide", "after"),
    ("_tell_server", "after"),
    ("forget_session", "before"),
)
"""Before anything is prepared; when all is; when it is decided, and nobody knows; when a server was told; when all
have let go of it."""


def held(kind: str, step: str, when: str, fault: Fault) -> Callable[[Stage], Awaitable[None]]:
    """The story of a change that is held, and who is in its way then."""

    async def story(stage: Stage) -> None:
        changes, before = Changes(stage), (1,) * len(KEYS)
        await changes.do("load", 1, (None,) * len(KEYS))
        gate = Gate(step, when)
        with gate.shut():
            changing = changes.begin(kind, 2)
            await stage.until(lambda: gate.is_reached)
            stage.world.story.tell(f"the change is held {when} {step}")
            await fault(stage, gate)
            changes.note(await changing, kind, 2, before)
        await changes.do("load", 3, changes.txns[max(changes.txns)][1])
        await changes.judge()

    return story


async def heirs_are_asked(stage: Stage) -> None:
    """A leader loses its disk when a change is decided, and has nothing prepared when it is back. Whoever leads next is
    stopped before it has heard of the decision, and finds it when it goes on."""
    changes = Changes(stage)
    await changes.do("load", 1, (None,) * len(KEYS))
    gate, right = Gate("_decide", "after"), ShardChanges._adopt
    is_slow = True

    def adopt(self: ShardChanges, table: TableId, id_: str, *args: Any, **options: Any) -> None:
        if is_slow and id_ in self._shard.unsettled.get(table, ()):
            raise stelae.Unavailable("not now")
        right(self, table, id_, *args, **options)

    with gate.shut(), mock.patch.object(ShardChanges, "_adopt", adopt):
        changing = changes.begin("load", 2)
        await stage.until(lambda: gate.is_reached)
        name = _some_leader(stage)
        stage.world.keep_down(name)
        stage.world.disk(name).wipe()
        await stage.until(_led_by_others(stage, name))
        stage.world.let_up(name)
        gate.open()
        await changing
        await asyncio.sleep(10.0)
        assert await read_sessions(stage.world.metastore.client("judge")), "forgotten, and somebody has it prepared"
        is_slow = False
        changes.note(await changing, "load", 2, (1,) * len(KEYS))
    await changes.judge()


async def given_up_before_it_was_logged(stage: Stage) -> None:
    """A leader gives a tablet up between preparing a change in memory and logging that. Nothing fails, and it may lead
    the tablet again in the next epoch, with nothing prepared: it must not say that the change is."""
    changes = Changes(stage)
    await changes.do("load", 1, (None,) * len(KEYS))
    right, given_up = Upkeep.save, list[TabletId]()

    def save(self: Upkeep, wanted: Sequence[TabletId] = ()) -> None:
        if wanted and not given_up:
            given_up.append(wanted[0])
            name = next(name for name, led in stage.led.values() if led.tablet == wanted[0])
            hosting = stage.shards[name].server.hosting
            assert hosting is not None
            hosting.leading.step_down(wanted[0], "the story wants it")
        right(self, wanted)

    with mock.patch.object(Upkeep, "save", save):
        await changes.do("load", 2, (1,) * len(KEYS))
    assert given_up
    await changes.judge()


async def merged_and_without_power(stage: Stage) -> None:
    """Files are merged, and those they were made of are removed; then the power goes everywhere. Whoever leads next
    knows of the last config only by its log: nobody is there who could say that all members have it."""
    for number in range(3):
        await stage.put(f"a{number}", number)
        await stage.do(lambda db: db.table("t").flush())
    await stage.do(lambda db: db.table("t").compact())
    removed = 0
    while not removed:
        removed, _ = await stage.master(lambda master: master.collect())
        await asyncio.sleep(0.5)
    for name in SHARDS:
        stage.world.lose_power(name)
    await stage.judge()


def crashed(kind: str, part: str, steps: int) -> Callable[[Stage], Awaitable[None]]:
    """The story of a change in which somebody crashes so many steps after it was asked for, and is started again."""

    async def story(stage: Stage) -> None:
        changes = Changes(stage)
        await changes.do("load", 1, (None,) * len(KEYS))
        leaders = [leader for leader, _ in stage.led.values()]
        who = {
            "leader": leaders[0],
            "other": next(name for name in SHARDS if name != leaders[0]),
            "master": next(name for name in MASTERS if stage.masters[name].guard is not None),
        }[part]
        changing = changes.begin(kind, 2)
        process = stage.world.start(who)
        process.crash_at(process.steps + steps)
        changes.note(await changing, kind, 2, (1,) * len(KEYS))
        await changes.judge()

    return story
