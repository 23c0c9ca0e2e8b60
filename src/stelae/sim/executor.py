"""Schedules in place of threads: one that a test moves by hand, and one on a simulated loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from stelae.model.errors import Closed, Overloaded
from stelae.ports.rng import Rng
from stelae.sim.effects import Pace, SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, current_process
from stelae.sim.threads.blocking import run_blocking

P = ParamSpec("P")
T = TypeVar("T")

DELAY_S_MAX = 0.002


class SimExecutor:
    """Jobs run in the caller's thread, when a test asks, each time a random one of those that wait.

    What a job raises goes into its future; a SimCrash, which no process survives to report, goes to the test.
    """

    def __init__(self, rng: Rng, queued_max: int) -> None:
        self._rng = rng
        self._queued_max = queued_max
        self._waiting: list[tuple[Future[Any], Callable[[], None]]] = []
        self._closed = False

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise Closed("the executor is closed")
        self._waiting = [(future, run) for future, run in self._waiting if not future.cancelled()]
        if len(self._waiting) >= self._queued_max:
            raise Overloaded(f"all {self._queued_max} places of the executor are taken")
        future: Future[T] = Future()
        self._waiting.append((future, partial(_run, partial(job, *args, **kwargs), future)))
        return future

    def run_one(self) -> bool:
        """Run one waiting job to its end; whether there was one."""
        if not self._waiting:
            return False
        _, run = self._waiting.pop(self._rng.below(len(self._waiting)))
        run()
        return True

    def run_all(self) -> None:
        """Run jobs until none waits, also those that jobs submit."""
        while self.run_one():
            pass

    def close(self) -> None:
        self._closed = True
        self.run_all()

    def crash(self) -> None:
        """The process dies: waiting jobs never run and their futures never finish; submitting raises Closed."""
        self._closed = True
        self._waiting.clear()


class LoopExecutor:
    """Jobs run on a simulated loop, in the process that submits them: each whole in one step, after a drawn delay, and
    its future completes in a step of its own. So much happens in between, as it does with threads.

    Jobs of a process that crashes never run, those of a paused one wait. A SimCrash in a job ends its process. Jobs
    begin when the devices they need let them: `paces`, of a disk for the jobs of a log.
    """

    def __init__(
        self,
        loop: SimLoop,
        queued_max: int,
        *,
        delay_s_max: float = DELAY_S_MAX,
        paces: Sequence[Pace] = (),
    ) -> None:
        self._loop = loop
        self._queued_max = queued_max
        self._delay_s_max = delay_s_max
        self._paces = tuple(paces)
        self._queued: dict[Future[Any], Callable[[], Any]] = {}
        self._under_way = 0
        self._closed = False

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise Closed("the executor is closed")
        self._queued = {future: waiting for future, waiting in self._queued.items() if not future.cancelled()}
        if len(self._queued) >= self._queued_max:
            raise Overloaded(f"all {self._queued_max} places of the executor are taken")
        future: Future[T] = Future()
        self._queued[future] = partial(job, *args, **kwargs)
        self._begin_later(future, copy_context())
        return future

    def close(self) -> None:
        """On the loop, which nobody may hold up, what is left runs at once; code that blocks runs the loop for it."""
        self._closed = True
        if not self._loop.is_running():
            run_blocking(self._loop, self._until_idle())
        for future in list(self._queued):
            _run(self._queued.pop(future), future)

    async def _until_idle(self) -> None:
        while self._queued or self._under_way:
            await asyncio.sleep(self._delay_s_max)

    def _begin_later(self, future: Future[Any], context: Context) -> None:
        longest_s = self._delay_s_max + sum(pace.slow_s_max for pace in self._paces)
        self._loop.call_later(self._loop.draw() * longest_s, self._begin, future, context, context=context)

    def _begin(self, future: Future[Any], context: Context) -> None:
        if future not in self._queued:
            return  # it ran when the executor was closed, or its place was taken after it was cancelled
        for pace in self._paces:
            if pace.hangs:
                pace.when_free(partial(self._begin_later, future, context))
                return
        job = self._queued.pop(future)
        if not future.set_running_or_notify_cancel():
            return
        try:
            complete = partial(future.set_result, job())
        except SimCrash:
            _crash(current_process())
            return
        except Exception as error:  # noqa: BLE001
            complete = partial(future.set_exception, error)
        self._under_way += 1
        self._loop.call_later(self._loop.draw() * self._delay_s_max, self._complete, complete)

    def _complete(self, complete: Callable[[], None]) -> None:
        self._under_way -= 1
        complete()


def _crash(process: SimProcess | None) -> None:
    if process is None:
        raise RuntimeError("a job that belongs to no process crashed")
    process.crash()


def _run(job: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)
