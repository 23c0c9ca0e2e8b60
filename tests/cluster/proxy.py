"""A TCP proxy before one process: what passes it can be held back, in either direction, and goes on later.

What is held back is not lost and not refused, as on a network that has a black hole: whoever waits hears nothing. What
one other process sends and hears can be held back alone: that lies between these two, and all others reach both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

_BYTES = 65_536


class Proxy:
    """Listens on 127.0.0.1, at a port that the system chooses, from the moment it is made, on a thread of its own."""

    def __init__(self, target: str) -> None:
        """`target`: host:port."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._loop = asyncio.new_event_loop()
        self._begun = Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._held: tuple[bool, bool] = (False, False)
        self._only: int | None = None
        self._meant: dict[int, bool] = {}
        self._changed = asyncio.Event()
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._begun.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        port = int(writer.get_extra_info("peername")[1])
        self._meant.pop(port, None)  # it may have been another's before

        async def may_go() -> None:
            await self._until(lambda: not (self._held[0] and self._is_meant(port)))

        async def may_come() -> None:
            await self._until(lambda: not (self._held[1] and self._is_meant(port)))

        try:
            with suppress(OSError, asyncio.CancelledError):  # nobody hears how this task ends
                await may_go()
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                there = self._loop.create_task(_pass_on(reader, far_writer, may_go))
                back = self._loop.create_task(_pass_on(far_reader, writer, may_come))
                try:
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in (there, back):
                        each.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
                    far_writer.close()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    def _is_meant(self, port: int) -> bool:
        """Found out once for each connection: it takes the system long."""
        if self._only is None:
            return True
        if port not in self._meant:
            self._meant[port] = _has_port(self._only, port)
        return self._meant[port]

    def hold_back(self, *, to_target: bool = True, to_caller: bool = True, only: int | None = None) -> None:
        """Nothing gets to the process, or nothing back, until `let_through`. `only`: of connections of the process with
        that id."""
        self._loop.call_soon_threadsafe(self._hold, (to_target, to_caller), only)

    def let_through(self) -> None:
        self._loop.call_soon_threadsafe(self._hold, (False, False), None)

    def _hold(self, held: tuple[bool, bool], only: int | None) -> None:
        self._held, self._only, self._meant = held, only, {}
        self._changed.set()
        self._changed.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_pass: Callable[[], Awaitable[None]]
) -> None:
    while data := await reader.read(_BYTES):
        await may_pass()
        writer.write(data)
        await writer.drain()


def _has_port(pid: int, port: int) -> bool:
    """Whether a process has a connection from that port of 127.0.0.1. Linux tells."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == f"0100007F:{port:04X}"}
    with suppress(OSError):  # it has ended
        for open_file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(open_file) in sockets:
                    return True
    return False
