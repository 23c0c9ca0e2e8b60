"""The requests under way on one connection: bounded in number and in bytes, waited for at the end."""

from __future__ import annotations

import asyncio

from stelae.ports.transport import Frame, RequestId
from stelae.service.deadlines import Deadline


class OpenRequest:
    """One under way. `task`: what carries it out; None for a write that the store has been given, which is answered
    when the store says so."""

    __slots__ = ("_is_ended", "_stop", "deadline", "id", "is_answered", "size_bytes", "task")

    def __init__(self, frame: Frame, deadline: Deadline | None) -> None:
        self.id = frame.request_id
        self.deadline = deadline
        self.size_bytes = len(frame.message) + len(frame.body)
        self.task: asyncio.Task[None] | None = None
        self.is_answered = False
        """Its answer is sent, though it may be counted as under way for a while."""
        self._stop: asyncio.Future[None] | None = None
        self._is_ended = False

    @property
    def stop(self) -> asyncio.Future[None]:
        """Done when no more of its answer is wanted, or can be given. Made when it is asked for: few requests wait."""
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_future()
            if self._is_ended:
                self._stop.set_result(None)
        return self._stop

    def end(self) -> None:
        self._is_ended = True
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)


class OpenRequests:
    """Belongs to one event loop. `has_room`: whether one more may be read."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._open: dict[RequestId, OpenRequest] = {}
        self._bytes = 0
        self._emptied: asyncio.Future[None] | None = None
        self.has_room = asyncio.Event()
        self.has_room.set()

    def get(self, request: RequestId) -> OpenRequest | None:
        return self._open.get(request)

    def add(self, request: OpenRequest) -> None:
        """Until it is removed, or its task is done."""
        self._open[request.id] = request
        self._bytes += request.size_bytes
        self._see_room()
        if request.task is not None:
            request.task.add_done_callback(lambda _: self.remove(request))

    def remove(self, request: OpenRequest) -> None:
        """It is answered, or cannot be. Removing twice is no error."""
        if self._open.get(request.id) is not request:
            return
        del self._open[request.id]
        self._bytes -= request.size_bytes
        self._see_room()
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def cancel(self) -> list[asyncio.Task[None]]:
        """What is under way is not wanted any more; the tasks, which end soon."""
        tasks = []
        for request in list(self._open.values()):
            if request.task is None:
                self.remove(request)
            else:
                request.task.cancel()
                tasks.append(request.task)
        return tasks

    async def finish(self, timeout_s: float) -> None:
        """Let what is under way be answered; streams, which may be endless, are told to stop."""
        for request in self._open.values():
            request.end()
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)

    def _see_room(self) -> None:
        if len(self._open) < self._count_max and self._bytes < self._bytes_max:
            if not self.has_room.is_set():
                self.has_room.set()
        else:
            self.has_room.clear()
