"""A socket that connections come in on, and those that nobody has taken yet. See `streams`."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from stelae.adapters.sockets.streams import StreamConnection
from stelae.ports.transport import Address, Connection

BACKLOG = 128
"""So many wait to be taken, and as many again to be let in."""

_FULL_S = 0.5
"""How long nobody is let in after the system has run out of descriptors."""


class StreamListener:
    """Made by a transport. Only its own process closes it: a forked child has nothing of it.

    While `BACKLOG` connections wait to be taken nobody is let in: the system lets some wait, and refuses the rest.
    """

    def __init__(self, bound: socket.socket, address: Address) -> None:
        self._bound = bound
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[Any]] = set()
        self._arrived: deque[StreamConnection] = deque()
        self._news = asyncio.Event()
        self._is_letting_in = False
        self._is_closed = False
        self._made: Callable[[], StreamConnection]

    @property
    def address(self) -> Address:
        return self._address

    def start(self, made: Callable[[], StreamConnection]) -> None:
        """Let connections in, each a new one of `made`, which calls `take_in`."""
        self._made = made
        self._bound.listen(BACKLOG)
        self._go_on()

    async def accept(self) -> AsyncIterator[Connection]:
        while not self._is_closed:
            if self._arrived:
                connection = self._arrived.popleft()
                self._go_on()
                yield connection
            else:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop()
        self._bound.close()
        self._news.set()
        if self._coming:
            await asyncio.wait(self._coming)
        while self._arrived:
            self._arrived.popleft().drop()
        self.free()

    def free(self) -> None:
        """Give back what stood for the address."""

    def take_in(self, connection: StreamConnection) -> None:
        if self._is_closed:
            connection.drop()
        else:
            self._arrived.append(connection)
            self._news.set()

    def _let_in(self) -> None:
        while len(self._arrived) + len(self._coming) < BACKLOG:
            try:
                opened, _ = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._stop()
                self._loop.call_later(_FULL_S, self._go_on)
                return
            opened.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._made, opened))
            self._coming.add(task)
            task.add_done_callback(self._note_accepted)
        self._stop()

    def _note_accepted(self, task: asyncio.Task[Any]) -> None:
        self._coming.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._go_on()  # it takes no place among those that wait

    def _go_on(self) -> None:
        if not self._is_closed and not self._is_letting_in:
            self._is_letting_in = True
            self._loop.add_reader(self._bound.fileno(), self._let_in)

    def _stop(self) -> None:
        if self._is_letting_in:
            self._is_letting_in = False
            self._loop.remove_reader(self._bound.fileno())
