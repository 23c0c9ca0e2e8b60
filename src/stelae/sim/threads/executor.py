"""An executor of the simulated world whose jobs may block."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

from stelae.model.errors import Closed, Overloaded
from stelae.sim.threads.thread import SimThread, ThreadedLoop, current_thread

P = ParamSpec("P")
T = TypeVar("T")


class ThreadsExecutor:
    """An `Executor` whose jobs may block: each has a thread, at most `threads_max` at once. See `ports.executor`."""

    def __init__(self, loop: ThreadedLoop, threads_max: int, queued_max: int, delay_s_max: float = 0.002) -> None:
        self._loop = loop
        self._threads_max = threads_max
        self._queued_max = queued_max
        self._delay_s_max = delay_s_max
        self._queued: list[tuple[Future[Any], Callable[[], Any], Any]] = []
        self._running: dict[SimThread, None] = {}
        self._is_closed = False

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._is_closed:
            raise Closed("the executor is closed")
        self._queued = [each for each in self._queued if not each[0].cancelled()]
        if len(self._queued) >= self._queued_max:
            raise Overloaded(f"all {self._queued_max} places of the executor are taken")
        future: Future[T] = Future()
        self._queued.append((future, lambda: job(*args, **kwargs), copy_context()))
        self._begin()
        return future

    def close(self) -> None:
        self._is_closed = True
        while self._queued or self._running:
            thread = current_thread()
            if thread is None or not self._running:
                return
            next(iter(self._running)).join()

    def _begin(self) -> None:
        while self._queued and len(self._running) < self._threads_max:
            future, job, context = self._queued.pop(0)
            context.run(self._start, future, job)

    def _start(self, future: Future[Any], job: Callable[[], Any]) -> None:
        def run() -> None:
            thread.sleep(self._loop.draw() * self._delay_s_max)
            try:
                if future.set_running_or_notify_cancel():
                    _complete(future, job)
            finally:
                self._running.pop(thread, None)
                if not thread.dies:
                    self._begin()

        thread = SimThread(self._loop, run, "job")
        self._running[thread] = None
        thread.start()


def _complete(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        result = job()
    except Exception as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
