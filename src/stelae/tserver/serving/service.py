"""A process serves others: frames in, calls of its backend, frames out.

    service = StoreService(backend, executor, hello)
    await service.start(await transport.listen(address))
    ...
    await service.close()

Each connection is greeted (`door`), then asks. The backend blocks, so requests run on an executor; only a row that is
cached is read on the loop itself. Bounded are: connections, and apart from them those that are still being greeted;
jobs on the executor, short and long ones apart, or each kind for itself; requests under way on one connection, in
number and in bytes. A connection beyond its bounds is not read, so its peer waits.

- A stream is pulled one item ahead of what is sent, and no further: a slow reader holds two items. It is closed when it
  ends, when it is cancelled, and when its connection ends.
- Writes of one connection reach the backend in the order they came, small ones on the loop itself; who waits for them
  to be durable holds no thread.
- Blocks are decoded and checked in full before the backend sees them.
- What is pinned for a connection is freed when it ends, however that is.
- A peer that sends what the protocol does not allow loses its connection; nobody else notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from stelae.model.errors import InvalidArgument, StelaeError
from stelae.model.events import Listener as EventListener
from stelae.model.events import tell_nobody
from stelae.model.ids import Txn
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.transport import Connection, Listener
from stelae.registry.senders import Begin
from stelae.service.bundles import Bundle
from stelae.service.messages import Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.service.table import OPERATIONS
from stelae.tserver.serving.connection import ServedConnection
from stelae.tserver.serving.door import Door
from stelae.tserver.serving.jobs import Jobs
from stelae.tserver.serving.requests import OpenRequest
from stelae.wire.handshake import Introduction, introduce
from stelae.wire.hello import Hello
from stelae.wire.messages import Messages


class ServiceLimits(msgspec.Struct, frozen=True):
    """The executor should have a thread for each place: `threads_max`. What may take minutes has `upkeep_max` places,
    all else `jobs_max`. `kind_max` is for who works little and waits for other processes, which may be stopped: then
    each kind of request has so many places of its own instead, and no kind waits behind another. `connections_max`: of
    those that are let in; `greetings_max`: of those that are not yet, each of which has `hello_s`. `close_s`: how long
    requests under way may go on when the service is closed."""

    connections_max: int = 512
    greetings_max: int = 128
    jobs_max: int = 12
    upkeep_max: int = 4
    kind_max: int = 0
    requests_max: int = 256
    request_bytes_max: int = 8 * 1024 * 1024
    pins_max: int = 10_000
    hello_s: float = 10.0
    close_s: float = 5.0

    def __post_init__(self) -> None:
        counts = (self.connections_max, self.greetings_max, self.jobs_max, self.upkeep_max, self.requests_max)
        if min(*counts, self.request_bytes_max) < 1:
            raise InvalidArgument(f"a service needs room for at least one of each: {self}")

    def threads_max(self, kinds: int) -> int:
        """So many threads are busy at most, if so many kinds of requests are served."""
        return self.jobs_max + self.upkeep_max + kinds * self.kind_max


DEFAULT_SERVICE_LIMITS = ServiceLimits()


class StoreService:
    """Lives on one event loop. `hello` says who serves, and which store. `backend` carries out the `operations`: of a
    whole store it is a `Backend`; the master and the shards of a cluster have a part of them each. `tell` hears of
    those who are not let in."""

    def __init__(
        self,
        backend: Any,
        executor: Executor,
        hello: Hello | Introduction,
        clock: Clock,
        limits: ServiceLimits = DEFAULT_SERVICE_LIMITS,
        operations: Mapping[str, Operation[Any, Any]] = OPERATIONS,
        tell: EventListener = tell_nobody,
        hear: Callable[[Request, Begin], None] | None = None,
        doubt: Callable[[], StelaeError | None] | None = None,
    ) -> None:
        """`hear` is told each request before it is carried out, and may refuse it. `doubt` is asked when a write is
        durable: what to tell its writer instead, if nothing may be acknowledged now."""
        self.backend = backend
        self.hear = hear
        self.doubt = doubt
        self.operations = operations
        self.messages = Messages(operation.method for operation in operations.values())
        self.clock = clock
        self.limits = limits
        self.faults = STORE_FAULTS
        self.door = Door(introduce(hello), limits, self.faults, clock, tell)
        self.jobs = Jobs(executor, limits.jobs_max)
        self.upkeep = Jobs(executor, limits.upkeep_max)
        self._kinds = {name: Jobs(executor, limits.kind_max) for name in operations if limits.kind_max}
        self.decided: Bundle[tuple[ServedConnection, OpenRequest, Future[Txn] | None]] = Bundle(
            self._call_soon, _answer
        )
        """Writes that became durable, or did not, on their way to their connections."""
        self.undecided: dict[OpenRequest, None] = {}
        """Writes that the store was given by the loop itself, and that are not decided."""
        self._loop: asyncio.AbstractEventLoop
        self._listener: Listener | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._served: dict[asyncio.Task[None], ServedConnection] = {}
        self._after: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._served)

    async def start(self, listener: Listener) -> None:
        """Serve what comes in at the listener, which is closed with the service."""
        if self._listener is not None:
            raise InvalidArgument("the service serves already")
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._accepting = asyncio.create_task(self._accept(listener))

    async def close(self) -> None:
        """Take no more requests, give those under way `close_s` to be answered, then end. Closing twice is no error.
        The backend is left open, and may be closed after this."""
        if self._listener is None or self._accepting is None:
            return
        await self._listener.close()
        self._accepting.cancel()
        served = dict(self._served)
        for connection in served.values():
            connection.leave()
        if served:
            await asyncio.wait(served)
        await asyncio.gather(*(connection.end() for connection in served.values()), return_exceptions=True)
        while self._after:
            await asyncio.wait(set(self._after))
        pools = (self.jobs, self.upkeep, *self._kinds.values())
        await asyncio.gather(*(pool.wait_idle(self.limits.close_s) for pool in pools))

    def places_for(self, operation: Operation[Any, Any]) -> Jobs:
        return self._kinds.get(operation.name, self.upkeep if operation.is_long else self.jobs)

    def afterwards(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do what must be done even if whoever asks is cancelled."""
        try:
            task = asyncio.create_task(work)
        except RuntimeError:  # the loop has ended, and with it everything that was to be freed
            work.close()
            raise
        self._after.add(task)
        task.add_done_callback(self._after.discard)
        return task

    def _call_soon(self, job: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(job)

    async def _accept(self, listener: Listener) -> None:
        async for connection in listener.accept():
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        served = ServedConnection(self, connection)
        task = asyncio.create_task(served.run())
        self._served[task] = served
        task.add_done_callback(self._served.pop)


def _answer(decided: tuple[ServedConnection, OpenRequest, Future[Txn] | None]) -> None:
    connection, request, outcome = decided
    connection.answer_write(request, outcome)
