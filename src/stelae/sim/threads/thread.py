"""Threads of the simulated world, for code that blocks: each goes on in steps of the loop, from one wait to the next.

A thread is what it is elsewhere: it has a stack of its own and waits in the middle of it, for a task of the loop, a
lock (`locks.py`) or some time. But only one of all threads, or the loop, runs at any moment: a thread runs within a
step of the loop until it waits or ends, so a run repeats by its seed. A thread belongs to the process that starts it.
When that crashes, the thread takes no step that counts: where it waits SimCrash is raised, as from every wait after
that, and every effect.

Its stack is a greenlet's: to change from one to another is a call. With a thread of the system for each, two locks had
to be handed over, and on a busy machine each waited for its turn there.
"""

from __future__ import annotations

import asyncio
from _thread import get_ident
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from itertools import count
from typing import Any, ParamSpec, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from stelae.sim.effects import SimCrash
from stelae.sim.process import SimProcess, current_process, inside, outside

P = ParamSpec("P")
T = TypeVar("T")


class ThreadedLoop(Protocol):
    """The loop, as its threads see it."""

    @property
    def threads(self) -> dict[SimThread, None]:
        """Those that have begun and not ended."""
        ...

    def time(self) -> float: ...

    def draw(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle: ...

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle: ...

    def create_task(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None: ...


_idents = count(1)
"""No number is given out twice: a lock may outlive the thread that holds it. The system's own are positive."""


class _Stack(greenlet):
    """Of one simulated thread, from its beginning to its end; it comes back to the stack that made it: the loop's."""

    def __init__(self, thread: SimThread, job: Callable[[], None]) -> None:
        super().__init__(job)
        self.thread = thread
        self._loops = getcurrent()

    def come_back(self) -> None:
        self._loops.switch()


def current_thread() -> SimThread | None:
    """The simulated thread that this code runs in; None on the loop, and in the real world."""
    stack = getcurrent()
    return stack.thread if isinstance(stack, _Stack) else None


def current_ident() -> int:
    """As `threading.get_ident`, where each simulated thread has a number of its own."""
    stack = getcurrent()
    return stack.thread.ident if isinstance(stack, _Stack) else get_ident()


class SimThread:
    """Begins with `start`. An error that its job raises fails the run."""

    def __init__(self, loop: ThreadedLoop, job: Callable[[], object], name: str) -> None:
        self.name = name
        self.ident = -next(_idents)
        self._loop = loop
        self._job = job
        self._process: SimProcess | None = current_process()
        self._context = copy_context()
        self._steps_in = inside(self._process)
        self._stack: _Stack | None = None
        self._wait = 0
        self._is_woken = False
        self._has_begun = False
        self._is_over = False
        self._dies = False
        self._waiting: list[tuple[SimThread, int]] = []

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def dies(self) -> bool:
        """It is being ended: it can wait for nothing any more."""
        return self._dies

    def start(self) -> None:
        self._loop.threads[self] = None
        self._has_begun = True
        if self._process is not None:
            self._process.watch(self.die)
        self._loop.call_soon(self._enter, self._wait, context=self._steps_in)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait, in another thread, until it has ended; whether it has."""
        waiter = current_thread()
        if self._is_over or waiter is None or waiter is self:
            return self._is_over
        self._waiting.append((waiter, waiter.begin_wait()))
        waiter.wait(timeout_s)
        return self._is_over

    # -- for whoever waits in it

    def begin_wait(self) -> int:
        """The number of the wait that follows: what `wake` is called with."""
        self._wait += 1
        self._is_woken = False
        return self._wait

    def wait(self, timeout_s: float | None = None) -> bool:
        """In the thread itself: until it is woken from the wait that was begun, or the time is up; whether it was
        woken."""
        self._check_alive()
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(max(timeout_s, 0.0), self._enter, self._wait, context=self._steps_in)
        self._own_stack().come_back()
        self._check_alive()
        if timer is not None:
            timer.cancel()
        self._wait += 1
        return self._is_woken

    def wake(self, wait: int) -> None:
        """End a wait. One that is over already is not disturbed."""
        if wait == self._wait and not self._is_woken and not self._is_over:
            self._is_woken = True
            self._loop.call_soon(self._enter, wait, context=self._steps_in)

    def sleep(self, seconds: float) -> None:
        self.begin_wait()
        self.wait(seconds)

    def wait_for(self, task: asyncio.Task[T]) -> T:
        """In the thread itself: what the task gives."""
        wait = self.begin_wait()
        task.add_done_callback(_take_error, context=outside())
        task.add_done_callback(lambda _: self.wake(wait), context=outside())
        self.wait()
        return task.result()

    def time(self) -> float:
        return self._loop.time()

    def draw(self) -> float:
        return self._loop.draw()

    # -- its end

    def die(self) -> None:
        """Its process has crashed, or the world is over: unwind it, as soon as the loop can."""
        if not self._dies:
            self._dies = True
            self._loop.call_soon(self.unwind, context=outside())

    def unwind(self) -> None:
        """End the thread now, wherever it waits. Called on the loop, not from a thread."""
        self._dies = True
        if self._is_over:
            return
        if self._stack is None:
            self._end()
        else:
            self._run(self._stack)

    def _own_stack(self) -> _Stack:
        if self._stack is None:
            raise RuntimeError(f"the thread {self.name} does not run")
        return self._stack

    def _check_alive(self) -> None:
        if self._dies:
            raise SimCrash(f"the thread {self.name} is at its end")

    def _enter(self, wait: int) -> None:
        if self._is_over or self._dies or wait != self._wait:
            return
        if self._stack is None:
            self._stack = _Stack(self, self._live)
        self._run(self._stack)

    def _run(self, stack: _Stack) -> None:
        """Until it waits or ends. The loop runs in none of its threads."""
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            stack.switch()
        finally:
            asyncio._set_running_loop(loop)
        if self._is_over:
            self._stack = None

    def _live(self) -> None:
        try:
            self._context.run(self._job)
        except SimCrash:
            if not self._dies and self._process is not None:
                self._process.crash()
        except BaseException as error:  # noqa: BLE001 - the loop fails the run with it
            if not self._dies:
                self._loop.call_exception_handler({"exception": error})
        self._end()

    def _end(self) -> None:
        self._is_over = True
        del self._job
        self._loop.threads.pop(self, None)
        if self._process is not None:
            self._process.unwatch(self.die)
        waiting, self._waiting = self._waiting, []
        for thread, wait in waiting:
            thread.wake(wait)


def _take_error(task: asyncio.Task[Any]) -> None:
    """Who waited may be dead: nobody else need take it."""
    if not task.cancelled():
        task.exception()


async def run_in_thread(loop: ThreadedLoop, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What a job that blocks gives, in a thread of its own."""
    found: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def run() -> None:
        try:
            result = job(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            if not found.done():
                found.set_exception(error)
        else:
            if not found.done():
                found.set_result(result)

    SimThread(loop, run, getattr(job, "__name__", "job")).start()
    return await found
