"""A TCP proxy before one process: what passes it can be held back, in either direction, and goes on later.

What is held back is not lost and not refused, as on a network that has a black hole: whoever waits hears nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
        self._to_target, self._to_caller = asyncio.Event(), asyncio.Event()
        self._to_target.set()
        self._to_caller.set()
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
        try:
            with suppress(OSError):
                await self._to_target.wait()
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                there = self._loop.create_task(_pass_on(reader, far_writer, self._to_target))
                back = self._loop.create_task(_pass_on(far_reader, writer, self._to_caller))
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

    def hold_back(self, *, to_target: bool = True, to_caller: bool = True) -> None:
        """Nothing gets to the process, or nothing back, until `let_through`."""
        for event, is_held in ((self._to_target, to_target), (self._to_caller, to_caller)):
            if is_held:
                self._loop.call_soon_threadsafe(event.clear)

    def let_through(self) -> None:
        for event in (self._to_target, self._to_caller):
            self._loop.call_soon_threadsafe(event.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_pass: asyncio.Event) -> None:
    while data := await reader.read(_BYTES):
        await may_pass.wait()
        writer.write(data)
        await writer.drain()
