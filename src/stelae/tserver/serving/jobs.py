"""Blocking work of an event loop: so much at once on an executor, and no more.

A place is taken until the work itself has ended, also if whoever waited for it is gone. While the executor, which
others may use too, takes no more, the loop waits and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from threading import Lock
from typing import Any, TypeVar

from stelae.model.errors import Closed, DeadlineExceeded, InvalidArgument, NotFound, Overloaded
from stelae.ports.executor import Executor
from stelae.service.backend import Pin
from stelae.service.deadlines import Deadline, left_of

T = TypeVar("T")

_WAIT_S_MIN = 0.002
_WAIT_S_MAX = 0.1
_TRIES_MAX = 100


class Jobs:
    """Belongs to one event loop."""

    def __init__(self, executor: Executor, jobs_max: int) -> None:
        self._executor = executor
        self._places = asyncio.Semaphore(jobs_max)
        self._running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def run(self, job: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Cancelled, it does not wait for a job that has begun. DeadlineExceeded if it could not begin in time."""
        future = await self._begin(job, deadline)
        self._running += 1
        self._is_idle.clear()
        loop = asyncio.get_running_loop()

        def end_on_loop(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is gone, and nobody counts any more
                loop.call_soon_threadsafe(self._end_job)

        future.add_done_callback(end_on_loop)
        return await asyncio.wrap_future(future)

    async def run_surely(self, job: Callable[[], None]) -> None:
        """What frees something is done on the loop itself where nobody else does it any more."""
        try:
            await self.run(job)
        except (Closed, Overloaded):
            job()

    async def wait_idle(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    async def _begin(self, job: Callable[[], T], deadline: Deadline | None) -> Future[T]:
        try:
            async with asyncio.timeout(left_of(deadline)):
                await self._places.acquire()
                try:
                    return await self._submit(job)
                except BaseException:
                    self._places.release()
                    raise
        except TimeoutError:
            raise DeadlineExceeded("the store had too much to do to begin with it in time") from None

    async def _submit(self, job: Callable[[], T]) -> Future[T]:
        wait_s = _WAIT_S_MIN
        for _ in range(_TRIES_MAX):
            try:
                return self._executor.submit(job)
            except Overloaded:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_S_MAX)
        return self._executor.submit(job)

    def _end_job(self) -> None:
        self._running -= 1
        self._places.release()
        if not self._running:
            self._is_idle.set()


class HeldPins:
    """The pins of one connection; safe for threads. After `close`, a pin that is added is closed at once."""

    def __init__(self, pins_max: int) -> None:
        self._pins_max = pins_max
        self._lock = Lock()
        self._pins: dict[int, Pin] = {}
        self._next = 0
        self._is_closed = False

    def add(self, pinned: Callable[[], Pin]) -> tuple[int, Pin]:
        with self._lock:
            if len(self._pins) >= self._pins_max:
                raise Overloaded(f"one connection holds at most {self._pins_max} snapshots")
        pin = pinned()
        with self._lock:
            number = self._next
            if not self._is_closed:
                self._pins[number] = pin
                self._next += 1
                return number, pin
        pin.close()
        raise InvalidArgument("the connection that asked for the snapshot is gone")

    def free(self, number: int) -> None:
        with self._lock:
            pin = self._pins.pop(number, None)
        if pin is None:
            raise NotFound(f"no snapshot {number} is held for this connection")
        pin.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            pins, self._pins = self._pins, {}
        for pin in pins.values():
            pin.close()

    def __bool__(self) -> bool:
        with self._lock:
            return bool(self._pins)


@asynccontextmanager
async def wait_in_turn(
    before: asyncio.Future[None] | None, mine: asyncio.Future[None], deadline: Deadline | None
) -> AsyncIterator[None]:
    """Enter when those before are done; `mine` is done when they are and this is left. So whoever gives up waiting, or
    is cancelled, does not let those behind it pass those before it."""
    try:
        if before is not None:
            await asyncio.wait((before,), timeout=left_of(deadline))
            if not before.done():
                raise DeadlineExceeded("the writes that came before it took all the time")
        yield
    finally:
        if before is None or before.done():
            _finish(mine)
        else:
            before.add_done_callback(lambda _: _finish(mine))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def begin_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin a task whose error is nobody's business if nobody waits for it any more."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
