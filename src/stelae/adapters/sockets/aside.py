"""Bytes of a connection that another thread gives to the system, while its event loop sleeps.

To wake a loop so that it sends a few bytes takes longer than to send them. The loop and such a thread have one lock for
that, which nobody holds longer than the system takes to refuse or to copy bytes: the socket never blocks. A thread
sends only where the loop has nothing under way, as it was told before (`hold_up`). The loop's transport is not asked:
it has a piece out of its buffer while it sends it, and puts the rest back without the lock. What the system does not
take at once, the loop sends before anything else. The descriptor is used until the loop says that the connection is
lost, and the loop closes it after that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import Lock

_NONE = -1


class AsideWriter:
    """Of one connection. `lock`: whoever writes to the socket has it. `rest`: what is to be sent first; under the lock
    where it is changed."""

    __slots__ = ("_fd", "_is_held_up", "lock", "rest")

    def __init__(self) -> None:
        self.lock = Lock()
        self.rest = b""
        self._fd = _NONE
        self._is_held_up = False

    def begin(self, fd: int) -> None:
        """Take the connection's file descriptor: from here on threads may write."""
        self._fd = fd

    def end(self) -> None:
        """When it returns no thread writes, nor will."""
        with self.lock:
            self._fd = _NONE

    def hold_up(self) -> None:
        """The loop has something to send that the system did not take; called under the lock, under which it tried."""
        self._is_held_up = True

    def let_go_on(self) -> None:
        """The system has taken all that the loop had to send."""
        self._is_held_up = False

    def take_rest(self) -> bytes:
        """Under the lock, by whoever sends it now."""
        rest, self.rest = self.rest, b""
        return rest

    def write(self, data: bytes | memoryview, transport: asyncio.Transport, send_rest: Callable[[], None]) -> bool:
        """Give the bytes to the system, if nothing else is on its way to it; whether they are sent, or will be. Then
        `send_rest` has been called where a part of them was left."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            is_free = self._fd != _NONE and not self.rest and not self._is_held_up
            if not is_free or transport.is_closing():
                return False
            try:
                sent = os.write(self._fd, data)
            except OSError:  # it takes nothing now, or the peer is gone: the loop will see
                return False
            if sent == len(data):
                return True
            self.rest = bytes(data[sent:])
        finally:
            self.lock.release()
        send_rest()
        return True
