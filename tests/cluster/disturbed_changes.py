"""One run of servers that change a table together, by its seed: loads, overwrites and truncations are begun, committed
again and left alone, rows are read at all kinds of snapshots and written on conditions, tablets are split; meanwhile
processes die and stop, coordinators follow each other, and answers of everybody are lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from unittest import mock

from stelae.master.changes import coordinator
from stelae.model.errors import Conflict, InvalidArgument, Retryable, UnknownOutcome
from stelae.model.hybrid import TXN_MIN, pack
from stelae.model.ids import Txn
from stelae.ports.metastore import KeyPut, Revision
from stelae.registry.changes.sessions import CHANGES_PREFIX, ChangeKind, ChangeSession, ChangeState
from stelae.registry.decoding import json_of
from stelae.sim.metastore import NO_FAULTS, MetastoreFaults
from stelae.sim.rng import SimRng
from stelae.sim.world import SimWorld, WorldRun, WorldSettings, run_world
from tests.cluster.changing import COORDINATORS, SERVERS, SWAPS, Changing, swapped
from tests.cluster.processes import simulated_threads
from tests.sim.seeds import repeat

CHANGES = 6
DRIVERS = 2
READERS = 2
FAULTS = 8
GAP_S = 1.2
PAUSE_S = 0.2
CALLS_QUICK = 40
PROGRESS_S = 300.0
STEPS_MAX = 400_000
LATE = (Retryable, UnknownOutcome)


def _draw_settings(rng: SimRng) -> WorldSettings:
    def rate(most: float) -> float:
        return rng.fraction() * most if rng.below(2) else 0.0

    faults = MetastoreFaults(0.001 + rng.fraction() * 0.1, rate(0.05), rate(0.05), rate(0.05), rate(0.05), 0.0)
    return WorldSettings(
        metastore=faults,
        page_bytes=(64, 256, 4096)[rng.below(3)],
        clock_offset_ms_max=rng.below(2) * rng.below(800),
        restart_s=(0.1, 0.2 + 2 * rng.fraction()),
    )


class _Run:
    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.changing = Changing(world)
        self._rng = world.rng("programs")
        self._left = CHANGES
        self._leading = COORDINATORS[0]
        self._drivers_left = DRIVERS

    async def run(self) -> Changing:
        world, changing, rng = self.world, self.changing, self._rng
        faults, world.metastore.faults = world.metastore.faults, NO_FAULTS
        await changing.begin()
        world.metastore.faults = faults
        changing.mail.delay_s_max = 0.002 * 300 ** rng.fraction()
        changing.mail.lost = 0.1 * rng.fraction() if rng.below(2) else 0.0
        tasks = [asyncio.ensure_future(self._drive(number)) for number in range(DRIVERS)]
        readers = world.rng("readers").below(READERS + 1)  # who reads finds out what was decided, for all
        tasks += [asyncio.ensure_future(self._read()) for _ in range(readers)]
        tasks += [asyncio.ensure_future(self._swap()), asyncio.ensure_future(self._split())]
        await self._disturb()
        self._heal()
        leading = asyncio.ensure_future(self._keep_leading())
        async with asyncio.timeout(PROGRESS_S):
            await asyncio.gather(*tasks)
        await changing.check_end()
        leading.cancel()
        self._check_story()
        return changing

    # -- programs

    async def _drive(self, who: int) -> None:
        while self._left:
            self._left -= 1
            number = CHANGES - self._left
            kind = ("load", "overwrite", "truncate")[self._rng.below(3)]
            self.changing.changes[number] = kind
            for _ in range(1 + self._rng.below(3)):  # then it is left alone
                with suppress(*LATE, Conflict):
                    self.changing.acknowledged[number] = await self._change(number, kind)
                    self.world.story.tell(f"driver {who}: {kind} {number} is done")
                    break
                await asyncio.sleep(self._rng.fraction())
            await asyncio.sleep(self._rng.fraction() * GAP_S)
        self._drivers_left -= 1

    async def _change(self, number: int, kind: str) -> Txn:
        if kind == "truncate":
            return await self.changing.truncate(self._leading)
        return await self.changing.load(number, self._leading, replaces=kind == "overwrite")

    async def _pause(self, tried: int) -> None:
        """Between calls of a program: longer after many, because a run in which somebody is waited for is long."""
        await asyncio.sleep(self._rng.fraction() * PAUSE_S * (1 + tried // CALLS_QUICK))

    async def _read(self) -> None:
        rng, tried = self._rng, 0
        while self._drivers_left:
            tried += 1
            with suppress(*LATE, InvalidArgument):
                now = await self.changing.now()
                behind_ms = (0, 0, rng.below(1_500), -rng.below(300))[rng.below(4)]
                at = Txn(max(TXN_MIN, now - pack(behind_ms))) if behind_ms >= 0 else Txn(now + pack(-behind_ms))
                await self.changing.look(at, ("scan", "many", "newest")[rng.below(3)])
            await self._pause(tried)

    async def _swap(self) -> None:
        """Keys of loads that are under way, or will be."""
        tried = 0
        while self._drivers_left:
            number = max(1, CHANGES - self._left)
            key = swapped(number, tried % 2)[tried // 2 % SWAPS]
            tried += 1
            with suppress(*LATE):
                await self.changing.swap(key, 1_000)
            await self._pause(tried)

    async def _split(self) -> None:
        for at in (10, 75):
            await asyncio.sleep(self._rng.fraction() * 5)
            await self.changing.split(at)

    # -- faults

    async def _disturb(self) -> None:
        for _ in range(self._rng.below(FAULTS)):
            await asyncio.sleep(self._rng.fraction() * GAP_S)
            name = (*SERVERS, self._leading)[self._rng.below(3)]
            how = ("kill", "power", "pause")[self._rng.below(3)]
            self.world.story.tell(f"{name}: {how}")
            process = self.world.process(name)
            assert process is not None
            match how:
                case "kill":
                    self.world.kill(name)
                case "power":
                    self.world.lose_power(name)
                case _:
                    process.pause()
                    self.world.loop.call_later(self._rng.fraction() * 4, process.resume)
            if name == self._leading:
                await self._follow()

    async def _follow(self) -> None:
        """Another coordinator leads; the one before may only sleep."""
        await asyncio.sleep(self._rng.fraction())
        other = next(each for each in COORDINATORS if each != self._leading)
        self.world.kill(other)
        self._leading = other
        self.world.start(other)

    def _heal(self) -> None:
        self.world.metastore.faults = NO_FAULTS
        self.changing.mail.lost, self.changing.mail.delay_s_max = 0.0, 0.01
        self.world.story.tell("all is healed")

    async def _keep_leading(self) -> None:
        """From now on a coordinator that ends is started again."""
        while True:
            self.world.start(self._leading)
            await asyncio.sleep(1)

    # -- what happened

    def _check_story(self) -> None:
        """By all that was ever written: a change is decided once, a job's batch at one txn, above the floor; and every
        snapshot that was read shows what was decided last before it."""
        decided: dict[str, ChangeSession] = {}
        floors: dict[str, Txn] = {}
        for batch in self.world.metastore._state.batches(CHANGES_PREFIX, Revision(1)):
            for event in batch.events:
                if not isinstance(event, KeyPut):
                    continue
                session = json_of(event.entry, ChangeSession, "a change")
                assert session.floor >= floors.get(session.id, TXN_MIN), "a floor fell"
                floors[session.id] = session.floor
                if not session.is_open:
                    assert session.id not in decided, "a change was decided twice"
                    decided[session.id] = session
        done = [each for each in decided.values() if each.state is ChangeState.COMMITTED]
        assert all(each.txn > floors[each.id] for each in done)
        times = [each.txn for each in done]  # in the order of the decisions
        assert times == sorted(set(times)), f"changes happened at one txn, or before what was decided earlier: {times}"
        jobs = [(each.job, each.batch) for each in done if each.job]
        assert len(set(jobs)) == len(jobs), f"a batch was done twice: {jobs}"
        values = sorted(
            (each.txn, None if each.kind is ChangeKind.TRUNCATE else int(each.job.split()[1])) for each in done
        )
        for at, seen in self.changing.seen.items():
            expected = next((value for txn, value in reversed(values) if txn <= at), None)
            assert seen[0] == expected, f"at {at} the keys have {seen[0]}, and {expected} was decided last before it"


def run_changes(seed: int) -> WorldRun[Changing]:
    """Raises what is wrong, with the story and the command that repeats it."""
    rng = SimRng(seed)
    with simulated_threads(rng), mock.patch.object(coordinator, "ADOPT_S", coordinator.ADOPT_S * rng.fraction()):
        return run_world(
            lambda world: _Run(world).run(),
            seed,
            repeat=repeat(seed),
            settings=_draw_settings(SimRng(seed)),
            steps_max=STEPS_MAX,
        )
