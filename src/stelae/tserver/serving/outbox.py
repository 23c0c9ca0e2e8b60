"""The answers of one connection that no task waits for: sent one after another, by a task of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from stelae.model.errors import Closed, Unavailable
from stelae.ports.transport import Connection, Frame


class Outbox:
    """Belongs to one event loop. What waits in it is bounded by whoever bounds the requests under way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[Frame, asyncio.Future[None]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    def put(self, frame: Frame, sent: asyncio.Future[None]) -> None:
        """`sent` is done when the frame is on its way."""
        self._waiting.append((frame, sent))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        """Send no more."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        with suppress(Unavailable, Closed):  # whoever reads from the connection notices its end, too
            while True:
                while self._waiting:
                    frame, sent = self._waiting.popleft()
                    await self._connection.send(frame)
                    if not sent.done():
                        sent.set_result(None)
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
