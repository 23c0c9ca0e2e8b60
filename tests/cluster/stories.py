"""Scripts in the simulated cluster: what happens is told step by step, and nothing else goes wrong.

    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        stage.world.kill(stage.leader)
        await stage.until(lambda: stage.leader != before)

    play(story)

There are two masters, three shards on hosts of their own, and a table `t` of one tablet, or more, with three replicas
each, of which two are needed. A script is a coroutine outside of all processes; what it asks of the store runs in a
program's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import stelae
from stelae.master.cluster import ClusterMaster
from stelae.model.ids import TabletId
from stelae.sim.rng import SimRng
from stelae.sim.threads.thread import run_in_thread
from stelae.sim.world import ProcessPorts, SimWorld, run_world
from stelae.storage.replicas.replica import Replica
from stelae.tserver.cluster import ClusterShard
from stelae.tserver.replication.led import Led
from tests.cluster import processes
from tests.cluster.processes import MASTERS, SHARDS, connect, run_master, run_shard, simulated_threads
from tests.cluster.revisions import check_revisions
from tests.cluster.simulated import no_alarms, silent_remains

T = TypeVar("T")

LEASE_S = 3.0
BEGIN_S = 0.5
SOON_S = 1.0
HANG_S = 120.0
"""Of simulated time."""
STEPS_MAX = 2_000_000
PROGRAM, OTHER = "program", "other"
"""Two programs: what the one has seen, the other need not know of."""


class Stage:
    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.masters: dict[str, ClusterMaster] = {}
        self.shards: dict[str, ClusterShard] = {}
        self.acknowledged: dict[str, int] = {}
        self.tablets = 1
        self._jobs: dict[str, asyncio.Queue[tuple[Callable[[stelae.Database], Any], bool, asyncio.Future[Any]]]] = {
            name: asyncio.Queue() for name in (PROGRAM, OTHER)
        }

    async def begin(self, replicas: int, min_replicas: int, splits: Sequence[str] = ()) -> None:
        for master in MASTERS:
            self.world.add(master, partial(run_master, seen=self.masters))
        for shard in SHARDS:
            self.world.add(shard, partial(run_shard, seen=self.shards))
        for name in self._jobs:
            self.world.add(name, self._serve, restarts=False)
        for name in (*MASTERS, *SHARDS):
            self.world.start(name)
        await asyncio.sleep(BEGIN_S)
        for name in self._jobs:
            self.world.start(name)
        groups = [stelae.columns("g", {"v": "int64"})]

        def make(db: stelae.Database) -> None:
            db.create_zone("copies", replicas=replicas, min_replicas=min_replicas)
            db.create_table("t", key={"k": "string"}, groups=groups, zone="copies", splits=list(splits))

        self.tablets = 1 + len(splits)
        await self.do(make)

    async def _serve(self, ports: ProcessPorts) -> None:
        db = await run_in_thread(ports.loop, connect, ports, HANG_S)
        hasty = await run_in_thread(ports.loop, connect, ports, SOON_S)
        asked: set[asyncio.Task[None]] = set()
        while True:
            job, is_hasty, answer = await self._jobs[ports.name].get()
            task = asyncio.create_task(self._carry_out(ports, hasty if is_hasty else db, job, answer))
            asked.add(task)
            task.add_done_callback(asked.discard)

    @staticmethod
    async def _carry_out(ports: ProcessPorts, db: stelae.Database, job: Any, answer: asyncio.Future[Any]) -> None:
        try:
            answer.set_result(await run_in_thread(ports.loop, job, db))
        except Exception as error:  # noqa: BLE001 - the script's
            answer.set_exception(error)

    # -- what a program asks

    def ask(
        self, job: Callable[[stelae.Database], T], *, is_hasty: bool = False, by: str = PROGRAM
    ) -> asyncio.Future[T]:
        """Asked at once; the script goes on meanwhile. `is_hasty`: by one who gives up after a second."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs[by].put_nowait((job, is_hasty, answer))
        return answer

    async def do(self, job: Callable[[stelae.Database], T]) -> T:
        return await self.ask(job)

    def put_later(self, row: str, value: int, *, by: str = PROGRAM) -> asyncio.Future[int]:
        """What is acknowledged is remembered, for `judge`."""
        answer: asyncio.Future[int] = self.ask(lambda db: int(db.table("t").put({"k": row, "v": value})), by=by)
        answer.add_done_callback(partial(self._note, row, value))
        return answer

    def _note(self, row: str, value: int, answer: asyncio.Future[int]) -> None:
        if answer.exception() is None:
            self.acknowledged[row] = value

    async def put(self, row: str, value: int, *, by: str = PROGRAM) -> int:
        return await self.put_later(row, value, by=by)

    async def get(self, row: str, *, by: str = PROGRAM) -> int | None:
        found = await self.ask(lambda db: db.table("t").get(row), by=by)
        return None if found is None else int(found["v"])

    async def rows(self, at: int | None = None) -> dict[str, int]:
        return await self.do(lambda db: {row["k"]: row["v"] for row in db.table("t").scan(at=at)})

    async def master(self, job: Callable[[ClusterMaster], T]) -> T:
        """Asked of the master that leads, in its process."""
        (leading,) = [each for each in self.masters.values() if each.guard is not None]
        return await self.ask(lambda _: job(leading))

    # -- what is there

    @property
    def replicas(self) -> dict[str, Replica]:
        """Of the table's tablet, by the name of the shard's process."""
        alive = {name: shard.server.shard.replicas for name, shard in self.shards.items() if self.world.is_alive(name)}
        return {name: next(iter(found.values())) for name, found in alive.items() if found}

    @property
    def led(self) -> dict[TabletId, tuple[str, Led]]:
        """By tablet of the table: the process that leads it in the greatest epoch, and is open, as that has it."""
        found: dict[TabletId, tuple[str, Led]] = {}
        for name in self.shards:
            hosting = self.shards[name].server.hosting if self.world.is_alive(name) else None
            for tablet, led in () if hosting is None else hosting.leading.led.items():
                if led.is_open and (tablet not in found or found[tablet][1].lead.epoch < led.lead.epoch):
                    found[tablet] = name, led
        return found

    def led_by(self, name: str) -> Led | None:
        """As the shard's process has it, of a table of one tablet; None: it does not lead."""
        hosting = self.shards[name].server.hosting if name in self.shards else None
        if hosting is None:
            return None
        return next(iter(hosting.leading.led.values()), None)

    @property
    def leader(self) -> str:
        """The process that leads in the greatest epoch, and is open; empty if none is."""
        led = {name: self.led_by(name) for name in self.shards if self.world.is_alive(name)}
        is_open = {name: each.lead.epoch for name, each in led.items() if each is not None and each.is_open}
        return max(is_open, key=lambda name: is_open[name], default="")

    @property
    def epoch(self) -> int:
        led = self.led_by(self.leader) if self.leader else None
        return 0 if led is None else led.lead.epoch

    @property
    def followers(self) -> list[str]:
        return [name for name in SHARDS if name != self.leader]

    def followers_of(self, name: str) -> list[str]:
        """All shards but one."""
        return [each for each in SHARDS if each != name]

    async def until(self, what: Callable[[], object], within_s: float = HANG_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not what():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError("it does not come") from None

    async def whole(self) -> None:
        """Until each tablet has all its replicas, and all are up to date."""

        def is_whole() -> bool:
            led = [each for _, each in self.led.values()]
            is_full = all(len(each.lead.members) == len(SHARDS) and not each.quorum.waiting for each in led)
            return len(led) == self.tablets and is_full

        await self.until(is_whole)

    async def judge(self) -> dict[str, int]:
        """All is healed: the table gets whole, what was acknowledged is there, and all replicas are the same."""
        await self.whole()
        found = await self.rows()
        lost = {row: value for row, value in self.acknowledged.items() if found.get(row) != value}
        assert not lost, f"acknowledged, and not there: {lost}; there is {found}"
        await self.check()
        check_revisions(self.world)
        return found

    async def check(self) -> None:
        """Nothing is wrong with the store."""

        def is_right(db: stelae.Database) -> bool:
            return not db.check().problems

        for _ in range(20):
            if await self.do(is_right):
                return
            await asyncio.sleep(1.0)
        raise AssertionError(await self.do(lambda db: db.check().problems))


def play(
    script: Callable[[Stage], Awaitable[None]],
    *,
    seed: int = 0,
    replicas: int = 3,
    min_replicas: int = 2,
    lease_s: float = LEASE_S,
    splits: Sequence[str] = (),
) -> None:
    """Play a script to its end; what goes wrong is raised, with what was done until then."""

    async def main(world: SimWorld) -> None:
        stage = Stage(world)
        await stage.begin(replicas, min_replicas, splits)
        await stage.until(lambda: len(stage.led) == stage.tablets)
        await script(stage)

    with (
        silent_remains(),
        simulated_threads(SimRng(seed)),
        mock.patch.object(processes, "_draw_lease_s", return_value=lease_s),
        no_alarms(),
    ):
        run_world(main, seed, repeat=f"seed={seed}", steps_max=STEPS_MAX)
