"""An event loop in a thread of its own, for programs that have none: an embedded store serves others from it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from stelae.model.errors import Closed

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in other threads. The thread does not keep the process alive, and does not cross a
    fork: make a new one in the child."""

    def __init__(self, name: str) -> None:
        self._lock = Lock()
        self._is_closed = False
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        started = Event()
        self._thread = Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for what it gives or raises. Not for the loop's own thread."""
        with self._lock:
            if self._is_closed:
                work.close()
                raise Closed("the event loop is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def close(self) -> None:
        """Cancel what still runs, and wait for its end. Closing twice is no error."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, started: Event) -> None:
        async def live() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            started.set()
            await self._stop.wait()

        asyncio.run(live())
