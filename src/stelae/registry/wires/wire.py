"""Many requests on one connection: sent as they come, answered in any order. See `registry.peers`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    ProtocolError,
    StelaeError,
    Unavailable,
)
from stelae.ports.transport import Connection, Frame, FrameKind, RequestId
from stelae.registry.wires.calls import Ended, OpenCall, OpenCalls
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline, silence_s_max
from stelae.service.messages import ItemKind, Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.wire.messages import cancel_frame, read_error

R = TypeVar("R")


class Wire:
    """For the tasks of one event loop. The connection has said hello."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection = connection
        self._last_id = RequestId(0)
        self._loop = asyncio.get_running_loop()
        self._calls = OpenCalls(self._loop, self._end_late)
        self._ending: set[asyncio.Task[None]] = set()
        self.heard = 0
        """How often anything came."""
        self.is_over = False
        self.is_stale = False
        """Whoever is at the other end has said that another one is to be asked."""
        self._reading = asyncio.create_task(self._read())
        connection.hear(self._hear)

    async def receive(self, operation: Operation[Any, R], message: Request, body: Bytes, deadline: Deadline) -> R:
        """What comes of a request; one that is given up is forgotten here."""
        left_s = deadline.check(operation.name)
        call, frame = self._open(operation, message, body, left_s, deadline.seconds, None)
        self._calls.add(call)
        try:
            if not self._send_now(frame):
                await self._send(frame, call, left_s)
            call.is_sent = True
            data = await call.answer
        except BaseException as error:
            self._calls.remove(call)
            if call.answer.done() and not call.answer.cancelled():
                call.answer.exception()  # it may have ended while the request was still to be sent, or was given up
            if isinstance(error, asyncio.CancelledError):
                self._call_back(call)
            self._leave_if_stale()
            raise
        return self.read(call, data)

    def begin(
        self, operation: Operation[Any, R], message: Request, body: Bytes, deadline: Deadline, ended: Ended
    ) -> OpenCall[R] | None:
        """Send a request here and now; None if that has to wait. Its answer is the call's, to be read by `read`."""
        left_s = deadline.check(operation.name)
        call, frame = self._open(operation, message, body, left_s, deadline.seconds, ended)
        if not self._send_now(frame):
            return None
        call.is_sent = True
        self._calls.add(call)
        return call

    def read(self, call: OpenCall[R], data: Bytes) -> R:
        """The result that an answer holds. What makes no sense ends the connection."""
        try:
            return call.operation.result.decode(data)
        except ProtocolError as error:
            self._break(error)
            raise call.operation.lost(error) from error

    def _open(
        self,
        operation: Operation[Any, R],
        message: Request,
        body: Bytes,
        left_s: float,
        seconds: float,
        ended: Ended | None,
    ) -> tuple[OpenCall[R], Frame]:
        request = self._last_id = RequestId(self._last_id + 1)
        frame = operation.request(request, message, body, left_s)
        until_s = self._loop.time() + left_s
        return OpenCall(request, operation, self._loop.create_future(), until_s, seconds, ended), frame

    def _send_now(self, frame: Frame) -> bool:
        try:
            return self._connection.send_now(frame)
        except (Unavailable, Closed) as error:  # nothing was asked
            raise ConnectionLost(f"{self._name}: {error}") from error

    async def _send(self, frame: Frame, call: OpenCall[Any], left_s: float) -> None:
        """Send when the peer reads too slowly: wait until it takes the frame, as long as the request has time."""
        try:
            async with asyncio.timeout(left_s):
                await self._connection.send(frame)
        except TimeoutError:
            raise self._late(call) from None
        except (Unavailable, Closed) as error:  # nothing was asked
            raise ConnectionLost(f"{self._name}: {error}") from error

    def _hear(self) -> None:
        """Answers have come: no task is woken for them."""
        self.heard += 1
        try:
            while (frame := self._connection.take()) is not None:
                self._take(frame)
        except StelaeError as error:
            self._break(_end_of(error))

    async def _read(self) -> None:
        """What came before anybody heard it, and the end."""
        error: StelaeError
        try:
            while True:
                frame = self._connection.take()
                if frame is None:
                    frame = await self._connection.receive()
                if frame is None:
                    break
                self._take(frame)
            error = ConnectionLost(f"{self._name}: it closed the connection before it answered")
        except Closed:
            error = ConnectionLost(f"{self._name}: this side closed the connection")
        except StelaeError as failed:
            error = _end_of(failed)
        self._break(error)

    def _take(self, frame: Frame) -> None:
        call = self._calls.get(frame.request_id)
        if call is None:
            if not 0 < frame.request_id <= self._last_id:
                raise ProtocolError(f"{self._name}: {frame!r} answers nothing that was asked")
            return  # nobody waits for it any more
        match frame.kind:
            case FrameKind.ANSWER:
                self._end(call, frame.body)
            case FrameKind.END:
                self._end(call, call.parts[0] if len(call.parts) == 1 else b"".join(call.parts))
            case FrameKind.ERROR:
                error = read_error(frame, STORE_FAULTS)
                self.is_stale = self.is_stale or isinstance(error, Deposed)
                self._end(call, call.operation.answered(error))
            case FrameKind.ITEM:
                if call.operation.method.read_answer(frame).kind is ItemKind.PIECE:
                    call.parts.append(frame.body)
                if call.operation.is_long:  # it has said that it goes on
                    call.until_s = max(call.until_s, self._loop.time() + silence_s_max(call.seconds))
            case FrameKind.REQUEST | FrameKind.CANCEL:
                raise ProtocolError(f"{self._name}: {frame!r} is no answer")

    def _end(self, call: OpenCall[Any], result: Bytes | StelaeError) -> None:
        self._calls.remove(call)
        call.end(result)
        self._leave_if_stale()

    def _end_late(self, call: OpenCall[Any]) -> None:
        self._call_back(call)
        self._end(call, self._late(call))

    def _late(self, call: OpenCall[Any]) -> StelaeError:
        words = f"{self._name}: {call.operation.name} was not answered within {call.seconds:g} s"
        return call.operation.lost(DeadlineExceeded(words))

    def _leave_if_stale(self) -> None:
        if self.is_stale and not self._calls:
            self._break(ConnectionLost(f"{self._name}: another one is to be asked"))

    def _call_back(self, call: OpenCall[Any]) -> None:
        """Tell the peer that nobody waits any more, where that takes nothing back. A peer that takes nothing now is not
        told: nothing waits for it here when its requests have ended."""
        if call.is_sent and call.operation.is_repeatable and not self.is_over:
            with suppress(StelaeError):
                self._connection.send_now(cancel_frame(call.request))

    def _break(self, error: StelaeError) -> None:
        """The connection is gone: end every open call with the error, and hang up."""
        if self.is_over:
            return
        self.is_over = True
        for call in self._calls.take_all():
            call.end(call.operation.lost(error))
        self._go_on_with(self._hang_up())

    def _go_on_with(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work in a task of its own, which this object keeps until it has ended."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _hang_up(self) -> None:
        with suppress(StelaeError):
            await self._connection.close()

    def give_up(self, why: str) -> None:
        """What is under way ends as when the connection breaks."""
        self._break(ConnectionLost(f"{self._name}: {why}"))

    async def close(self, error: StelaeError) -> None:
        self._break(error)
        self._reading.cancel()
        await asyncio.wait((self._reading, *self._ending))


def _end_of(error: StelaeError) -> StelaeError:
    """What those who wait are told of the end of their connection."""
    return error if isinstance(error, ProtocolError | ConnectionLost) else ConnectionLost(str(error))
