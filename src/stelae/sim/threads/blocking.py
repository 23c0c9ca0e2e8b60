"""Code that blocks in the simulated world: waiting takes virtual time, and everybody else goes on meanwhile. In a
simulated thread (`thread.py`) it waits for the loop; where there is none, it runs the loop while it waits. In a process
that has crashed, calls that block raise SimCrash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from stelae.model.errors import Closed, DeadlineExceeded
from stelae.ports.transport import Address, Frame
from stelae.sim.connections import SimConnection
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, current_process, outside
from stelae.sim.threads.thread import current_thread

T = TypeVar("T")


class ConnectsAs(Protocol):
    """The transport, as its connectors see it."""

    @property
    def loop(self) -> SimLoop: ...

    async def connect_as(self, process: SimProcess | None, address: Address) -> SimConnection: ...


class SimBlockingConnection:
    """Made by `SimConnector`."""

    def __init__(self, connector: SimConnector, process: SimProcess | None, connection: SimConnection) -> None:
        self._connector = connector
        self._process = process
        self._connection = connection

    @property
    def peer(self) -> str:
        return self._connection.peer

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        sending = partial(self._connection.send, frame)
        self._connector.wait(self._process, sending, timeout_s, f"{self.peer}: sending to it")

    def receive(self, timeout_s: float | None) -> Frame | None:
        return self._connector.wait(self._process, self._connection.receive, timeout_s, f"{self.peer}: waiting for it")

    def is_quiet(self) -> bool:
        return self._connection.is_quiet()

    def close(self) -> None:
        self._connection.shut()


class SimConnector:
    """Made by `SimTransport.connector`. A connection belongs to the process that opens it."""

    def __init__(self, transport: ConnectsAs, address: Address) -> None:
        self._transport = transport
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def connect(self, timeout_s: float | None) -> SimBlockingConnection:
        process = current_process()
        opening = partial(self._transport.connect_as, process, self._address)
        connection = self.wait(process, opening, timeout_s, f"{self._address}: connecting")
        return SimBlockingConnection(self, process, connection)

    def wait(
        self,
        process: SimProcess | None,
        job: Callable[[], Coroutine[Any, Any, T]],
        timeout_s: float | None,
        doing: str,
    ) -> T:
        """Run the loop until the job is done. The job itself is nobody's, so it ends although its process crashes."""
        loop = self._transport.loop
        if loop.is_closed():
            raise Closed(f"{doing}: the world has ended")
        if process is not None and not process.alive:
            if current_process() is not process:  # what is left of it is being collected as garbage
                raise Closed(f"{doing}: the process {process.name} has crashed")
            raise SimCrash(f"{doing}: the process {process.name} has crashed")
        if loop.is_running() and current_thread() is None:
            raise RuntimeError(f"{doing}: code that the loop runs cannot block; it must await")
        try:
            return run_outside(loop, _in_time(job, timeout_s))
        except TimeoutError:
            raise DeadlineExceeded(f"{doing} took more than {timeout_s:g} s") from None
        finally:
            if process is not None and not process.alive:
                raise SimCrash(f"{doing}: the process {process.name} has crashed")


async def _in_time(job: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await job()


def run_blocking(loop: SimLoop, job: Coroutine[Any, Any, T]) -> T:
    """Run the loop until the job is done, for code that blocks. The job belongs to the process that this code runs in:
    SimCrash if that process dies first."""
    process = current_process()
    if process is not None and not process.alive:
        job.close()
        raise SimCrash(f"the process {process.name} has crashed")
    task = loop.create_task(job)
    thread = current_thread()
    if thread is not None:
        return thread.wait_for(task)
    if process is None:
        return loop.run_until_complete(task)
    run_outside(loop, _done_or_dead(task, process))
    if not process.alive:
        raise SimCrash(f"the process {process.name} has crashed")
    return task.result()


def run_outside(loop: SimLoop, job: Coroutine[Any, Any, T]) -> T:
    """Run the loop until a job is done that belongs to no process, nor does stopping the loop: so it ends although the
    process that this code runs in crashes meanwhile."""
    thread = current_thread()
    if thread is not None:
        return thread.wait_for(outside().run(loop.create_task, job))
    return outside().run(lambda: loop.run_until_complete(loop.create_task(job)))


async def _done_or_dead(task: asyncio.Task[Any], process: SimProcess) -> None:
    await asyncio.wait((task, asyncio.ensure_future(process.ended())), return_when=asyncio.FIRST_COMPLETED)


class BlockingLoop:
    """A `ports.loop.Loop`: the simulated one, for code that blocks."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def run(self, job: Awaitable[T]) -> T:
        return run_blocking(self._loop, job if isinstance(job, Coroutine) else _await(job))


async def _await(job: Awaitable[T]) -> T:
    return await job
