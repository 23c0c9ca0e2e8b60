"""A store of the simulated world, for tests that know nothing of it: two masters and a shard, as users run them, on
simulated disks, networks and a metastore, in virtual time. A test, and whatever opens a database for it, runs in a
simulated thread; its event loops are the simulated one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import stelae
from stelae.client.api.aio.database import AsyncDatabase, Opening
from stelae.client.api.database import Database
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.places import attach_patiently
from stelae.sim.loop import SimLoop
from stelae.sim.rng import SimRng
from stelae.sim.threads.executor import ThreadsExecutor
from stelae.sim.threads.thread import SimThread, current_thread, run_in_thread
from stelae.sim.world import UNDISTURBED, ProcessPorts, SimWorld
from tests.beside import Beside
from tests.cluster.processes import MASTERS, Connected, Watched, run_master, run_shard, simulated_threads

T = TypeVar("T")

STEPS_MAX = 5_000_000
SEED = 7
PROGRAM = "program"


class SimAlarms:
    """An `Alarms` in virtual time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._is_closed = False

    def call_later(self, seconds: float, job: Callable[[], None]) -> None:
        def wait() -> None:
            thread.sleep(seconds)
            if not self._is_closed:
                job()

        thread = SimThread(self._loop, wait, "alarm")
        thread.start()

    def close(self) -> None:
        self._is_closed = True


class SimulatedPlace:
    """Its program never crashes: it is the test."""

    def __init__(self, _: Path, __: Beside) -> None:
        self._loop = SimLoop(SEED, STEPS_MAX)
        self._world = SimWorld(self._loop, SEED, UNDISTURBED)
        now_ms = time.time_ns() // 1_000_000
        for host in (*MASTERS, "shard", PROGRAM):
            clock = self._world.clock(host)
            clock.step_wall_ms(now_ms - clock.wall_ms())  # tests may compare what is simulated with their own clock
        self._ports: ProcessPorts | None = None
        with simulated_threads(SimRng(SEED)):
            self._loop.run_until_complete(self._begin())

    @property
    def files(self) -> Path:
        raise AssertionError("a simulated store lies in no directory: say so in tests/client/places.py")

    async def _begin(self) -> None:
        for name in MASTERS:
            self._world.add(name, run_master)
        self._world.add("shard", run_shard)
        self._world.add(PROGRAM, self._live)
        for name in self._world.names:
            self._world.start(name)

    async def _live(self, ports: ProcessPorts) -> None:
        self._ports = ports
        await asyncio.Event().wait()

    def run(self, job: Callable[[], T]) -> T:
        """What the job gives, in a simulated thread."""
        if current_thread() is not None:
            return job()
        ended: list[tuple[bool, Any]] = []

        def work() -> None:
            try:
                ended.append((True, job()))
            except BaseException as error:  # noqa: BLE001 - a test that fails, too, is told outside
                ended.append((False, error))

        with (
            simulated_threads(SimRng(SEED)),
            mock.patch("asyncio.run", self._run_async),
            mock.patch("asyncio.to_thread", partial(run_in_thread, self._loop)),
        ):
            self._loop.run_until_complete(run_in_thread(self._loop, work))
        ((is_well, result),) = ended
        if not is_well:
            raise result
        return result

    def _run_async(self, job: Coroutine[Any, Any, T]) -> T:
        """In place of `asyncio.run`: on the simulated loop."""
        thread = current_thread()
        assert thread is not None
        return thread.wait_for(self._loop.create_task(job))

    def open(self, *, timeout_s: float = 10) -> stelae.Database:
        return self.run(lambda: Database(self._connect(timeout_s)))

    def open_async(self, *, timeout_s: float = 10) -> Opening:
        async def opened() -> AsyncDatabase:
            session = await run_in_thread(self._loop, self._connect, timeout_s)
            return AsyncDatabase(session, ThreadsExecutor(self._loop, 8, 1_000))

        return Opening(opened)

    def _connect(self, timeout_s: float) -> Session:
        ports = self._ports
        assert ports is not None
        place, patience = Connected(ports), Patience(ports.clock, ports.rng, timeout_s)
        thread = current_thread()
        assert thread is not None
        opened = attach_patiently(place, patience.deadline(), thread.sleep)
        finder = Watched(place, opened, ports.clock, ThreadsExecutor(self._loop, 1, 1))
        return Session(opened, patience, finder, alarms=SimAlarms(self._loop))

    def restart(self) -> None:
        """Masters and shard are killed, which they must bear as they do an orderly end."""
        for name in (*MASTERS, "shard"):
            self._world.kill(name)

    def close(self) -> None:
        self._loop._drop()
