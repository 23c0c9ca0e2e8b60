"""The requests of one connection, taken in the order they came and while there is room for them.

Mostly there is: then they are taken where the loop hears of them, and no task is woken. A task waits for the rest: for
room, for answers that the peer reads too slowly, and for the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stelae.model.errors import Closed, ProtocolError, Unavailable
from stelae.ports.transport import Connection, Frame, RequestId
from stelae.tserver.serving.outbox import Outbox
from stelae.tserver.serving.requests import OpenRequests

OVER = (ProtocolError, Unavailable, Closed, TimeoutError)
"""What ends a connection, and nothing else."""


class RequestReader:
    """`take` begins with a request, or answers it; ProtocolError: what cannot be answered, and is the last that is
    taken. `refuse` is told of it."""

    def __init__(
        self,
        connection: Connection,
        requests: OpenRequests,
        outbox: Outbox,
        take: Callable[[Frame], None],
        refuse: Callable[[RequestId, ProtocolError], None],
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._outbox = outbox
        self._take = take
        self._refuse = refuse
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_next = False
        """The task has the next request, and waits for room for it: those behind it wait, too."""
        self.is_refused = False

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def run(self) -> None:
        """Until the connection has ended, or its peer asked what cannot be answered, or `stop` is called."""
        self._task = asyncio.create_task(self._read())
        self._connection.hear(self._hear)
        await asyncio.wait((self._task,))
        if self.is_refused:
            await self._outbox.wait_empty()

    def stop(self) -> None:
        """Nothing more is taken. Stopping twice is no error."""
        self._is_over = True
        self._connection.hear(None)
        if self._task is not None:
            self._task.cancel()

    def _hear(self) -> None:
        while self._has_room and not self._has_next and not self._is_over:
            frame = self._connection.take()
            if frame is None:
                return
            self._take_or_refuse(frame)

    @property
    def _has_room(self) -> bool:
        return self._requests.has_room.is_set() and self._outbox.is_empty

    async def _read(self) -> None:
        with suppress(*OVER):
            while not self._is_over:
                await self._wait_for_room()
                frame = self._connection.take()
                if frame is None:
                    frame = await self._connection.receive()
                if frame is None:
                    return
                if not self._has_room:  # others were heard while it was waited for
                    self._has_next = True
                    await self._wait_for_room()
                    self._has_next = False
                self._take_or_refuse(frame)

    async def _wait_for_room(self) -> None:
        while not self._has_room:
            await self._requests.has_room.wait()
            await self._outbox.wait_empty()

    def _take_or_refuse(self, frame: Frame) -> None:
        try:
            self._take(frame)
        except ProtocolError as error:
            self.is_refused = True
            self._refuse(frame.request_id, error)
            self.stop()
