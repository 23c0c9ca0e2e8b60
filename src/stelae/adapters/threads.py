"""Threads that live as long as a store: an event loop, steps that are taken when somebody calls for them, and alarms.

They are daemons: a process that ends without closing its store is not held up by them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from heapq import heappop, heappush
from threading import TIMEOUT_MAX, Condition, Event, Lock, Thread, current_thread
from typing import TypeVar

from stelae.model.errors import Closed, InvalidArgument, StelaeError

T = TypeVar("T")

_log = logging.getLogger("stelae")
_RETRY_S_MIN = 1.0
_RETRY_S_MAX = 8.0


class LoopThread:
    """An event loop in a thread of its own. A job that `close` comes before, or cancels, is Closed to who waits."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = Lock()
        self._ending = Lock()
        self._is_closing = False
        self._is_stopping = False
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self, job: Awaitable[T]) -> T:
        """Wait for a job that runs on the loop. A caller that is interrupted leaves it running."""
        if current_thread() is self._thread:
            raise InvalidArgument("the loop's own thread cannot wait for it")

        async def waiting() -> T:
            return await job

        # Under the lock: whatever is handed to the loop is handed to it before it is told to end.
        with self._lock:
            is_over = self._is_closing or not self._thread.is_alive()
            found = None if is_over else asyncio.run_coroutine_threadsafe(waiting(), self._loop)
        if found is None:
            if isinstance(job, Coroutine):
                job.close()
            raise Closed("the event loop has ended")
        try:
            return found.result()
        except CancelledError:
            if not self._is_closing:
                raise
            raise Closed("the event loop has ended meanwhile") from None

    def close(self) -> None:
        """Cancel what is left on the loop, then end it. Closing twice is no error, and ends what the first left off."""
        if current_thread() is self._thread:
            raise InvalidArgument("the loop's own thread cannot wait for its end")
        with self._lock:
            self._is_closing = True
        with self._ending:
            if self._loop.is_closed():
                return
            if not self._is_stopping:
                asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
                self._is_stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Call:
    """To a thread that looks when it is called: however often before it looks, it looks once. An Event does the same in
    three times the steps, and each write that comes alone takes one."""

    __slots__ = ("_is_silent",)

    def __init__(self) -> None:
        self._is_silent = Lock()
        self._is_silent.acquire()

    def give(self) -> None:
        if self._is_silent.locked():
            with suppress(RuntimeError):  # somebody else called at the same moment
                self._is_silent.release()

    def wait(self, seconds: float | None) -> None:
        """Until there is a call, which is answered by that, or for so long."""
        self._is_silent.acquire(timeout=-1 if seconds is None else seconds)


class StepThread:
    """Takes a step when it is woken, and more while the step says that there are; also every `period_s`, if given. A
    step that fails is tried again after a while, ever less often: what it does is not lost by it. The first failure of
    a kind is logged, and the next only after a step that did not fail."""

    def __init__(
        self, name: str, step: Callable[[], bool], period_s: float | None = None, pause_s: float = 0.0
    ) -> None:
        """`pause_s`: after its steps it rests so long, however often it is woken meanwhile."""
        self._pause_s = pause_s
        self._ended = Event()
        self._step = step
        self._period_s = period_s
        self._call = _Call()
        self._failed: type[Exception] | None = None
        self._retry_s = _RETRY_S_MIN
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._call.give()

    def close(self) -> None:
        """The step under way is the last one. Closing twice is no error."""

        self._ended.set()
        self._call.give()
        if current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._call.wait(self._period_s)
            if self._ended.is_set():
                return
            try:
                while self._step():
                    self._failed, self._retry_s = None, _RETRY_S_MIN
                    if self._ended.is_set():
                        return
                self._failed, self._retry_s = None, _RETRY_S_MIN
                if self._pause_s:
                    self._ended.wait(self._pause_s)
            except Exception as error:  # noqa: BLE001 - a thread that dies would leave the store without its upkeep
                self._tell(error)
                self._ended.wait(self._retry_s)
                self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
                self._call.give()

    def _tell(self, error: Exception) -> None:
        if type(error) is not self._failed:
            self._failed = type(error)
            is_known = isinstance(error, StelaeError)
            words = "%s: %s; it is tried again until it is done" if is_known else "%s failed (%s); it is tried again"
            _log.warning(words, self._thread.name, error, exc_info=None if is_known else error)


class AlarmThread:
    """Calls jobs when their time has come, one after another. The thread begins with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._ended = False
        self._thread: Thread | None = None

    def call_later(self, seconds: float, job: Callable[[], None]) -> None:
        """Call the job once, so many seconds from now; never, if this is closed before."""
        with self._changed:
            if self._ended:
                return
            self._count += 1
            heappush(self._waiting, (time.monotonic() + seconds, self._count, job))
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """The job under way is the last one. Closing twice is no error."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - the jobs behind it are due all the same
                _log.exception("%s failed", self._name)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next job's time; None if there is to be no more."""
        with self._changed:
            while not self._ended:
                left_s = self._waiting[0][0] - time.monotonic() if self._waiting else TIMEOUT_MAX
                if left_s <= 0:
                    return heappop(self._waiting)[2]
                self._changed.wait(min(left_s, TIMEOUT_MAX))
            return None
