"""Threads with a bounded queue."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import RLock
from typing import ParamSpec, TypeVar

from stelae.model.errors import Closed, InvalidArgument, Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class ThreadExecutor:
    """At most `workers` jobs run and `queued_max` wait; whoever submits one more is told Overloaded at once.

    A job's place is free before its future finishes, so who waited for a result can submit the next job. `close`
    waits for the workers, so no job may call it. Threads do not cross a fork: make a new executor in the child.
    """

    def __init__(self, workers: int, queued_max: int) -> None:
        if workers < 1 or queued_max < 0:
            raise InvalidArgument(f"an executor needs a worker and a queue: {workers=}, {queued_max=}")
        self._places = workers + queued_max
        self._unfinished = 0
        self._closed = False
        # Reentrant: while a job is submitted, the collector may end a scan that nobody holds, which cancels its own.
        self._lock = RLock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="stelae")

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        def run() -> T:
            try:
                return job(*args, **kwargs)
            finally:
                self._free_place()

        with self._lock:
            if self._closed:
                raise Closed("the executor is closed")
            if self._unfinished == self._places:
                raise Overloaded(f"all {self._places} places of the executor are taken")
            self._unfinished += 1
            future = self._pool.submit(run)
        future.add_done_callback(self._note_end)
        return future

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True)

    def _note_end(self, future: Future[T]) -> None:
        if future.cancelled():
            self._free_place()

    def _free_place(self) -> None:
        with self._lock:
            self._unfinished -= 1
