"""The requests under way on one connection: bounded in number and in bytes, waited for at the end."""

from __future__ import annotations

import asyncio

from stelae.ports.transport import Frame, RequestId
from stelae.service.deadlines import Deadline


class OpenRequest:
    """One under way. `stop` is done when no more of its answer is wanted, or can be given; `task`, when it is
    answered."""

    def __init__(self, frame: Frame, deadline: Deadline | None) -> None:
        self.id = frame.request_id
        self.deadline = deadline
        self.size_bytes = len(frame.message) + len(frame.body)
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Future[None]

    def end(self) -> None:
        if not self.stop.done():
            self.stop.set_result(None)


class OpenRequests:
    """Belongs to one event loop. `has_room`: whether one more may be read."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._open: dict[RequestId, OpenRequest] = {}
        self._bytes = 0
        self.has_room = asyncio.Event()
        self.has_room.set()

    def get(self, request: RequestId) -> OpenRequest | None:
        return self._open.get(request)

    def add(self, request: OpenRequest, task: asyncio.Future[None]) -> None:
        """Until the task is done."""
        self._open[request.id] = request
        self._bytes += request.size_bytes
        self._see_room()
        request.task = task
        task.add_done_callback(lambda _: self._remove(request))

    def cancel(self) -> list[asyncio.Future[None]]:
        """What is under way is not wanted any more; the tasks, which end soon."""
        tasks = [request.task for request in self._open.values()]
        for task in tasks:
            task.cancel()
        return tasks

    async def finish(self, timeout_s: float) -> None:
        """Let what is under way be answered; streams, which may be endless, are told to stop."""
        for request in self._open.values():
            request.end()
        tasks = [request.task for request in self._open.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _remove(self, request: OpenRequest) -> None:
        del self._open[request.id]
        self._bytes -= request.size_bytes
        self._see_room()

    def _see_room(self) -> None:
        if len(self._open) < self._count_max and self._bytes < self._bytes_max:
            self.has_room.set()
        else:
            self.has_room.clear()
