"""What threads bring to an event loop: those that come together wake it once.

To wake a loop from another thread is a system call and a turn of the loop. A group of writes becomes durable at one
moment, so their results are put side by side, and only the first of them calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Bundle(Generic[T]):
    """`call` has the loop call something soon, from any thread (RuntimeError once the loop is closed); `take` is called
    on the loop with each thing that was brought, in order."""

    __slots__ = ("_call", "_come", "_is_called", "_take")

    def __init__(self, call: Callable[[Callable[[], None]], object], take: Callable[[T], None]) -> None:
        self._call = call
        self._take = take
        self._come: deque[T] = deque()
        self._is_called = False

    @property
    def is_bringing(self) -> bool:
        """Whether the loop was woken, and has not taken everything yet."""
        return self._is_called or bool(self._come)

    def bring(self, thing: T) -> None:
        """From any thread. After the end of the loop nobody waits any more."""
        self._come.append(thing)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):
                self._call(self._deliver)

    def _deliver(self) -> None:
        # Clear the flag before draining: a thing brought after this line schedules another call, perhaps a spurious
        # one, never a lost one.
        self._is_called = False
        come = self._come
        while come:
            self._take(come.popleft())
