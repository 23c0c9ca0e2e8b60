"""Results of other threads, awaited in an event loop: those that come together wake the loop once (`service.bundles`).

In the same way the deadlines of many writes have one timer: they pass in the order in which the writes were begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from stelae.model.errors import UnknownOutcome
from stelae.service.bundles import Bundle
from stelae.service.deadlines import Deadline

T = TypeVar("T")


class Wakes(Generic[T]):
    """Of writes, for any threads that bring their results, and one event loop after another."""

    def __init__(self) -> None:
        self._calls: _Calls[T] | None = None

    def watch(self, future: Future[T], deadline: Deadline) -> asyncio.Future[T]:
        """The same for the running loop; UnknownOutcome if it does not come in time. To cancel it is to wait no longer:
        the work goes on. Deadlines are given in the order in which they pass."""
        loop, calls = asyncio.get_running_loop(), self._calls
        if calls is None or calls.loop is not loop:
            calls = self._calls = _Calls(loop)
        waiting: asyncio.Future[T] = loop.create_future()
        calls.watch(waiting, deadline)
        future.add_done_callback(partial(calls.bring, waiting))
        return waiting


class _Calls(Generic[T]):
    """Results on their way to one loop, and whether the loop was woken for them."""

    __slots__ = ("_bundle", "_timer", "_watched", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._bundle: Bundle[tuple[asyncio.Future[T], Future[T]]] = Bundle(loop.call_soon_threadsafe, self._take)
        self._watched: deque[tuple[asyncio.Future[T], Deadline]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def bring(self, waiting: asyncio.Future[T], future: Future[T]) -> None:
        self._bundle.bring((waiting, future))

    def watch(self, waiting: asyncio.Future[T], deadline: Deadline) -> None:
        watched = self._watched
        while watched and watched[0][0].done():
            watched.popleft()
        watched.append((waiting, deadline))
        if self._timer is None:
            self._timer = self.loop.call_later(deadline.left_s, self._end_late)

    def _take(self, brought: tuple[asyncio.Future[T], Future[T]]) -> None:
        waiting, future = brought
        if not waiting.done():
            error = future.exception()
            if error is None:
                waiting.set_result(future.result())
            else:
                waiting.set_exception(error)

    def _end_late(self) -> None:
        """End those whose time is over, and look again when that of the next one is."""
        self._timer, watched = None, self._watched
        while watched:
            waiting, deadline = watched[0]
            if not waiting.done():
                if not deadline.is_over:
                    self._timer = self.loop.call_later(deadline.left_s, self._end_late)
                    return
                waiting.set_exception(
                    UnknownOutcome(f"the write may happen or not: it was not durable within {deadline.seconds:g} s")
                )
            watched.popleft()
