"""A schedule in place of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from stelae.model.errors import Closed, Overloaded
from stelae.ports.rng import Rng

P = ParamSpec("P")
T = TypeVar("T")


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


def _run(job: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)
