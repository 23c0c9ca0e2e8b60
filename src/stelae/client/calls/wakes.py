"""Results of other threads, awaited in an event loop: those that come together wake the loop once.

To wake a loop from another thread is a system call and a turn of the loop. A group of writes becomes durable at one
moment, so their results are put side by side, and only the first of them calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class Wakes(Generic[T]):
    """For any threads that bring results, and one event loop after another."""

    def __init__(self) -> None:
        self._calls: _Calls[T] | None = None

    def awaited(self, future: Future[T]) -> asyncio.Future[T]:
        """The same for the running loop. To cancel it is to wait no longer: the work goes on."""
        loop, calls = asyncio.get_running_loop(), self._calls
        if calls is None or calls.loop is not loop:
            calls = self._calls = _Calls(loop)
        waiting: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(partial(calls.bring, waiting))
        return waiting


class _Calls(Generic[T]):
    """To one loop."""

    __slots__ = ("_come", "_is_called", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._come: deque[tuple[asyncio.Future[T], Future[T]]] = deque()
        self._is_called = False

    def bring(self, waiting: asyncio.Future[T], future: Future[T]) -> None:
        self._come.append((waiting, future))
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # What comes from here on calls again: at worst for nothing, but never too seldom.
        self._is_called = False
        while self._come:
            waiting, future = self._come.popleft()
            if not waiting.done():
                error = future.exception()
                if error is None:
                    waiting.set_result(future.result())
                else:
                    waiting.set_exception(error)
