"""Several programs on one store, all simulated: one owns it and serves the others, any of them may be killed anywhere.

Programs block, as users' programs do: while one waits for an answer the loop runs, in virtual time, and with it the
owner's service. A program that is killed takes no further step, its connections break, and the store is free for the
next to own. What goes on in the loop may not wait for the loop, so tables are made by the owner itself.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from threading import Event as Flag
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from stelae.assembly.embedded import EmbeddedStore
from stelae.assembly.world import World
from stelae.client.api.database import Database
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.places import own_or_attach
from stelae.client.remote.store import RemoteStore
from stelae.client.remote.takeover import AttachedStore
from stelae.model.errors import StelaeError
from stelae.model.events import Event
from stelae.ports.transport import Address
from stelae.service.deadlines import Deadline
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.network import SimTransport
from stelae.sim.process import SimProcess, inside
from stelae.sim.rng import SimRng
from stelae.sim.threads.blocking import run_blocking
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from tests.assembly.worlds import SETTINGS, Machine, inline
from tests.machines import OneThread, PlainMetastore

P = ParamSpec("P")
T = TypeVar("T")

ADDRESS = Address("store")
TIMEOUT_S = 30.0
OWNER = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "", "owner")
CLIENT = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "", "client")
LIMITS = ServiceLimits(connections_max=16, close_s=0.5)


class AtOnce:
    """An `Executor` in the thread of whoever submits."""

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(job(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as a real one does
            # Without this frame, which refers to the future: what both hold would be freed when nobody expects it.
            future.set_exception(error.with_traceback(None))
        return future

    def close(self) -> None:
        return None


class Program:
    """One process: attached, or the owner. A `StorePlace`. What it runs raises SimCrash once it was killed."""

    def __init__(self, world: SharedStore, name: str) -> None:
        self.name = name
        self._world = world
        self.process: SimProcess = world.loop.spawn(name, asyncio.Event().wait())
        self.attached: AttachedStore | None = None
        self.heard: list[Event] = []
        self.failures: list[StelaeError] = []
        """What its next tries to take the store over fail with."""

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As code of this program."""
        if not self.is_alive:
            raise SimCrash(f"{self.name} was killed")
        try:
            return inside(self.process).run(job, *args, **kwargs)
        except SimCrash:
            self._world.kill(self)
            raise
        finally:
            self._world.free_dead_owner()

    def open(self) -> Database:
        return self.run(self._open)

    def _open(self) -> Database:
        world = self._world
        patience = Patience(world.clock, world.machine.chance, TIMEOUT_S)
        store = own_or_attach(self, patience.deadline(), world.pass_s)
        if isinstance(store, RemoteStore):
            self.attached = AttachedStore(self, store, world.clock, AtOnce(), self.heard.append)
        return Database(Session(store, patience, self.attached, pause=world.pause))

    def own(self) -> EmbeddedStore | None:
        self._world.free_dead_owner()
        if self.attached is not None and self.failures:
            raise copy(self.failures.pop())  # what is raised refers to the frames it went through
        return self._world.own(self)

    def attach(self, deadline: Deadline) -> RemoteStore:
        remote = RemoteStore(self._world.transport.connector(ADDRESS), AtOnce(), CLIENT, self._world.clock)
        remote.attach(deadline)
        return remote

    def away_words(self) -> str:
        return "another program has the store"


class SharedStore:
    """The machine, its network, and who owns the store on it. To be ended, whatever happens.

    Until then Python's collector of cycles is off. It would close scans and snapshots of programs anywhere, also in the
    middle of the loop that all of them share, where nobody may block."""

    def __init__(self, seed: int) -> None:
        gc.disable()
        self.loop = SimLoop(seed)
        self.machine = Machine(seed)
        self.clock = SkewedClock(self.loop)
        self.transport = SimTransport(self.loop)
        self.owner: Program | None = None
        self.takeovers = 0
        self._started = 0

    def start(self) -> Program:
        self._started += 1
        return Program(self, f"program {self._started}")

    def own(self, program: Program) -> EmbeddedStore | None:
        """The store, opened and served by a program; None if another one has it."""
        if self.owner is not None:
            return None
        self.owner = program
        self.takeovers += 1
        machine, thread = self.machine, OneThread(0, self.loop)
        machine.lives += 1
        metastore = PlainMetastore(machine.metastate, machine.effects)
        rng = SimRng(machine.lives * 1_000)
        world = World(machine.disk, machine.blobs, metastore, self.clock, rng, thread, None, inline)
        store = EmbeddedStore(world, replace(SETTINGS, pins_wait_s=0.0), "simulated")
        context = inside(program.process)

        async def drain() -> None:
            store.log_step()

        def wake() -> None:
            self.loop.create_task(drain(), context=context)

        store.wakes.log = wake
        service = StoreService(store, AtOnce(), OWNER, self.clock, LIMITS)

        async def listen() -> None:
            await service.start(await self.transport.listen(ADDRESS))

        run_blocking(self.loop, listen())
        return store

    def pause(self, event: Flag, seconds: float) -> bool:
        """Of a program that waits: in virtual time."""
        self.pass_s(seconds)
        return event.is_set()

    def pass_s(self, seconds: float) -> None:
        """Everybody else goes on for so long."""
        run_blocking(self.loop, asyncio.sleep(seconds))

    def kill(self, program: Program) -> None:
        """With kill -9. Killing twice is no error."""
        program.process.crash()
        self.free_dead_owner()

    def free_dead_owner(self) -> None:
        """An owner that died, in the middle of a request of another perhaps, leaves the store to be owned."""
        if self.owner is not None and not self.owner.is_alive:
            self.owner = None
            self.machine.disk.kill()
            self.machine.blobs.crash()
            self.machine.effects.restart()

    def kill_at_effect(self, number: int) -> None:
        """Whoever owns the store dies in the middle of the n-th effect from here on disk, files or metastore."""
        self.machine.effects.crash_at(self.machine.effects.count + number)

    def kill_at_step(self, program: Program, number: int) -> None:
        """The program dies before the n-th step from here of what it serves."""
        program.process.crash_at(program.process.steps + number)

    def end(self) -> None:
        self.loop._drop()
        gc.enable()
