"""The answers of one connection that no task waits for: sent at once, or where that has to wait, one after another by a
task of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from stelae.model.errors import Closed, Unavailable
from stelae.ports.transport import Connection, Frame

_OVER = (Unavailable, Closed)
"""Whoever reads from the connection notices its end, too."""


class Outbox:
    """Belongs to one event loop. What waits in it is bounded by whoever bounds the requests under way, and reads no
    more of them before `wait_empty` returns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[Frame, Callable[[], None] | None]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def put(self, frame: Frame, sent: Callable[[], None] | None = None) -> None:
        """`sent` is called when the frame is on its way; not if the connection has ended before."""
        if self._is_closed:
            return
        if not self._waiting:
            try:
                is_sent = self._connection.send_now(frame)
            except _OVER:
                return
            if is_sent:
                if sent is not None:
                    sent()
                return
        self._waiting.append((frame, sent))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def wait_empty(self) -> None:
        """Until all that was put is on its way, or cannot be."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait((self._sending,))

    def close(self) -> None:
        """End the sending; what waits is not sent."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            with suppress(*_OVER):
                while self._waiting:
                    frame, sent = self._waiting[0]
                    await self._connection.send(frame)
                    if sent is not None:
                        sent()
                    self._waiting.popleft()
        finally:
            self._waiting.clear()
