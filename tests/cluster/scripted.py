"""Stories on the simulated cluster, told step by step: two masters and three shards as users run them, programs that
are told what to call, and a script that kills, stops and cuts off whom it likes in between.

    async def story(stage: Stage) -> None:
        table = await stage.make_table(replicas=3)
        await stage.do(lambda db: db.table("t").put({"k": "a", "v": 1}))
        stage.world.kill("shard-1")
        ...

    play(story, seed=1)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import stelae
from stelae.master.cluster import ClusterMaster
from stelae.model.errors import Retryable, UnknownOutcome
from stelae.service.tables import TabletInfo
from stelae.sim.rng import SimRng
from stelae.sim.threads.thread import run_in_thread
from stelae.sim.world import ProcessPorts, SimWorld, WorldSettings, run_world
from stelae.tserver.cluster import ClusterShard
from tests.cluster import processes
from tests.cluster.processes import MASTERS, SHARDS, connect, run_master, run_shard, simulated_threads
from tests.cluster.simulated import silent_remains
from tests.sim.seeds import repeat

T = TypeVar("T")

STEPS_MAX = 600_000
LEASE_S = 2.0
BEGIN_S = 60.0
CALL_S = 120.0
CHECKS_MAX = 20
SOON = WorldSettings(restart_s=(0.2, 0.5))


@dataclass(slots=True)
class _Call:
    job: Callable[[stelae.Database], Any]
    answer: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Player:
    calls: asyncio.Queue[_Call] = field(default_factory=asyncio.Queue)

    def begin_anew(self) -> None:
        """In another life: what the one before still waits for at its queue would be given to nobody."""
        before, self.calls = self.calls, asyncio.Queue()
        while not before.empty():
            self.calls.put_nowait(before.get_nowait())


class Stage:
    """A cluster that has begun, and programs by name, each of which does one thing at a time."""

    def __init__(self, world: SimWorld, patience_s: float) -> None:
        self.world = world
        self._patience_s = patience_s
        self._players: dict[str, _Player] = {}

        self.masters: dict[str, ClusterMaster] = {}
        self.shards: dict[str, ClusterShard] = {}

    async def begin(self, shards: Sequence[str] = SHARDS) -> None:
        for name in MASTERS:
            self.world.add(name, partial(run_master, seen=self.masters))
            self.world.start(name)
        for name in shards:
            self.world.add(name, partial(run_shard, seen=self.shards))
            self.world.start(name)
        await self.until(lambda db: db.tables() is not None)

    @property
    def leading(self) -> str:
        """The master that leads; empty if none does now."""
        alive = (name for name in self.masters if self.world.is_alive(name))
        return next((name for name in alive if self.masters[name].guard is not None), "")

    async def do(self, job: Callable[[stelae.Database], T], who: str = "player") -> T:
        """Have a program call something, and wait for what comes of it; UnknownOutcome if the program dies."""
        return await self.start(job, who)

    def start(self, job: Callable[[stelae.Database], T], who: str = "player") -> asyncio.Future[T]:
        """Have a program call something, beside others."""
        if who not in self._players:
            self._players[who] = _Player()
            self.world.add(who, partial(self._play, self._players[who]))
            self.world.start(who)
        call = _Call(job, asyncio.get_running_loop().create_future())
        self._players[who].calls.put_nowait(call)
        if (process := self.world.process(who)) is not None:
            give_up = partial(call.fail, UnknownOutcome(f"the program {who} died"))
            call.answer.add_done_callback(lambda _: process.unwatch(give_up))
            process.watch(give_up)
        return call.answer

    async def _play(self, player: _Player, ports: ProcessPorts) -> None:
        db: stelae.Database | None = None
        player.begin_anew()
        while True:
            call = await player.calls.get()
            if call.answer.done():
                continue  # whoever asked was told that the program died
            try:
                if db is None:
                    db = await run_in_thread(ports.loop, self._connect, ports)
                result = await run_in_thread(ports.loop, call.job, db)
            except Exception as error:  # noqa: BLE001 - it is raised where the call was asked for
                call.fail(error)
            else:
                if not call.answer.done():
                    call.answer.set_result(result)

    def _connect(self, ports: ProcessPorts) -> stelae.Database:
        return connect(ports, self._patience_s)

    async def until(self, job: Callable[[stelae.Database], Any], who: str = "player") -> Any:
        """Until a call gives something, however often it is refused before."""
        async with asyncio.timeout(CALL_S):
            while True:
                try:
                    if found := await self.do(job, who):
                        return found
                except (Retryable, UnknownOutcome) as error:
                    self.world.story.tell(f"{who} is refused: {type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def surely(self, job: Callable[[stelae.Database], T], who: str = "player") -> T:
        """What a call gives when it is not refused any more."""
        (found,) = await self.until(lambda db: (job(db),), who)
        return found

    async def check(self, who: str = "player") -> None:
        """Nothing is wrong with the store, as soon as what was left half done is done."""
        for _ in range(CHECKS_MAX):
            if not await self.surely(lambda db: db.check().problems, who):
                return
            await asyncio.sleep(1.0)
        raise AssertionError(f"not in order: {await self.surely(lambda db: db.check().problems, who)}")

    # -- what scripts often do

    async def make_table(self, *, replicas: int = 1, splits: Sequence[str] = (), **options: Any) -> None:
        """A table `t` with key `k` and one column `v`."""

        def make(db: stelae.Database) -> bool:
            zone = None
            if replicas > 1:
                zone = "copies"
                db.create_zone(zone, replicas=replicas, min_replicas=min(2, replicas), if_not_exists=True)
            groups = [stelae.columns("g", {"v": "int64"})]
            given = {"key": {"k": "string"}, "groups": groups, "splits": list(splits), "zone": zone, **options}
            db.create_table("t", if_not_exists=True, **given)
            return True

        await self.until(make)
        await self.until(lambda db: len(db.table("t").tablets()) == len(splits) + 1)

    async def tablets(self) -> tuple[TabletInfo, ...]:
        found: tuple[TabletInfo, ...] = await self.until(lambda db: tuple(db.table("t").tablets()))
        return found

    async def leader(self, place: int = 0) -> str:
        """The process that leads a tablet of `t`, or has it alone."""
        return str((await self.tablets())[place].server.partition("/")[0])


@contextmanager
def a_world(seed: int) -> Iterator[None]:
    """Leases are long enough to be seen to stand still: masters look at those of shards twice a second."""
    with (
        mock.patch.object(processes, "LEASE_S_MIN", LEASE_S),
        mock.patch.object(processes, "LEASE_S_MAX", LEASE_S),
        silent_remains(),
        simulated_threads(SimRng(seed)),
    ):
        yield


def play(
    story: Callable[[Stage], Coroutine[Any, Any, T]],
    seed: int,
    *,
    patience_s: float = 20.0,
    settings: WorldSettings = SOON,
    shards: Sequence[str] = SHARDS,
) -> T:
    """What the story returns. What it raises stands with the story and the command that repeats it."""

    async def main(world: SimWorld) -> T:
        stage = Stage(world, patience_s)
        async with asyncio.timeout(BEGIN_S):
            await stage.begin(shards)
        return await story(stage)

    with a_world(seed):
        return run_world(main, seed, repeat=repeat(seed), settings=settings, steps_max=STEPS_MAX).result
