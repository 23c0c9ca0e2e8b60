"""Many requests at once to one peer, on one connection, for the tasks of an event loop.

    peer = Peer("shard a/0", dial, introduction, clock, rng)
    info = await peer.ask(INFO, deadline, table)

The connection is opened when it is needed and belongs to the peer's event loop. Each request has its own deadline, and
its answer may come before those of earlier ones. When the connection breaks, every open request ends at once:
ConnectionLost if it is safe to repeat, else UnknownOutcome, as for `client.remote.asking`. The next request connects
anew; after a failure not before a pause, which grows with each further failure and is drawn by chance, so that those
who lost the same peer do not all come back together.

A request that is given up, by its deadline or because its task was cancelled, is forgotten here; the peer is told so if
that spares it work. What changes something is never called back: it may have happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
    WrongToken,
)
from stelae.ports.clock import Clock
from stelae.ports.rng import Rng
from stelae.ports.transport import Connection, Frame, FrameKind, RequestId
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import ItemKind, Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.wire.faults import ProtocolError
from stelae.wire.handshake import Introduction
from stelae.wire.hello import HELLO_ID
from stelae.wire.messages import cancel_frame, error_frame, read_error

P = ParamSpec("P")
R = TypeVar("R")

Dial: TypeAlias = Callable[[Deadline], Awaitable[Connection]]
"""Opens a connection on the running loop, to wherever the peer is now; Unavailable if it cannot be reached."""

Sign: TypeAlias = Callable[[Request], Request]


def unsigned(request: Request) -> Request:
    """As whoever says nothing of itself signs."""
    return request


_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """`requests_max`: who asks for more at once waits for its turn. `connect_s`: how long a connection may take to be
    made, whatever the deadline."""

    requests_max: int = 1_024
    connect_s: float = 10.0


DEFAULT_PEER_SETTINGS = PeerSettings()


class Peer:
    """For the tasks of one event loop."""

    def __init__(
        self,
        name: str,
        dial: Dial,
        introduction: Introduction,
        clock: Clock,
        rng: Rng,
        settings: PeerSettings = DEFAULT_PEER_SETTINGS,
        sign: Sign = unsigned,
    ) -> None:
        """`sign`: adds to each request what the sender says of itself."""
        self.name = name
        self._sign = sign
        self._dial = dial
        self._introduction = introduction
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._room = asyncio.Semaphore(settings.requests_max)
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[_Wire] | None = None
        self._failures = 0
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._is_closed = False

    async def ask(self, operation: Operation[P, R], deadline: Deadline, *args: P.args, **kwargs: P.kwargs) -> R:
        message, body = operation.ask(*args, **kwargs)
        return await self.receive(operation, message, body, deadline)

    async def receive(self, operation: Operation[Any, R], message: Request, body: Bytes, deadline: Deadline) -> R:
        """What comes of a message that was made before. Of long work the deadline bounds how long nothing is heard."""
        if self._is_closed:
            raise Closed(f"{self.name}: the connection was closed")
        if self._room.locked():
            await self._take_room(deadline)
        else:
            await self._room.acquire()
        self._under_way += 1
        try:
            wire = self._wire
            if wire is None or wire.is_over or wire.is_stale:
                wire = await self._connect(deadline)
            return await wire.receive(operation, self._sign(message), body, deadline)
        finally:
            self._room.release()
            self._under_way -= 1
            if not self._under_way:
                self._is_idle.set()

    async def retire(self) -> None:
        """Take no more requests, and close once those under way have ended. Cancelled, it closes at once."""
        self._is_closed = True
        try:
            while self._under_way:
                self._is_idle.clear()
                await self._is_idle.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Requests under way end, as when the connection breaks. Closing twice is no error."""
        self._is_closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait((opening,))
        if self._wire is not None:
            await self._wire.close(ConnectionLost(f"{self.name}: this side closed the connection"))

    async def _take_room(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._room.acquire()
        except TimeoutError:
            raise Overloaded(f"{self.name}: {self._settings.requests_max} requests are under way already") from None

    async def _connect(self, deadline: Deadline) -> _Wire:
        """All that need one wait for the same connection; whoever has no more time gives up alone."""
        if self._is_closed:
            raise Closed(f"{self.name}: the connection was closed")
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_look_at_error)
        opening = self._opening
        await asyncio.wait((opening,), timeout=deadline.left_s)
        if not opening.done():
            raise DeadlineExceeded(f"connecting to {self.name} took more than {deadline.seconds:g} s")
        if opening.cancelled():
            raise Closed(f"{self.name}: the connection was closed")
        return opening.result()

    async def _open(self) -> _Wire:
        if self._failures:
            pause_s = min(_PAUSE_S_MIN * 2 ** (self._failures - 1), _PAUSE_S_MAX)
            await asyncio.sleep(pause_s * (0.5 + self._rng.fraction()))
        try:
            wire = await self._greet(Deadline(self._clock, self._settings.connect_s))
        except TimeoutError:
            self._failures += 1
            raise ConnectionLost(f"{self.name}: no connection within {self._settings.connect_s:g} s") from None
        except BaseException as error:
            self._failures += 1
            if isinstance(error, Unavailable) and not isinstance(error, ConnectionLost):
                raise ConnectionLost(str(error)) from error
            raise
        self._failures = 0
        self._wire = wire
        return wire

    async def _greet(self, deadline: Deadline) -> _Wire:
        """PermissionDenied, in words, if one side does not let the other in."""
        async with asyncio.timeout(deadline.left_s):
            connection = await self._dial(deadline)
            try:
                handshake = self._introduction.connect(STORE_FAULTS)
                answer = await _exchange(connection, handshake.begin())
                try:
                    theirs, proof = handshake.take_hello(answer)
                except WrongToken as error:
                    if answer.kind is not FrameKind.ERROR:
                        with suppress(StelaeError):
                            await connection.send(error_frame(HELLO_ID, error, STORE_FAULTS))
                    raise
                if proof is not None:
                    handshake.take_welcome(await _exchange(connection, proof))
                self._introduction.remember(theirs)
            except BaseException as error:
                await connection.close()
                if isinstance(error, PermissionDenied):
                    raise PermissionDenied(f"{connection.peer}: {error}") from None
                raise
        return _Wire(self.name, connection)


async def _exchange(connection: Connection, frame: Frame) -> Frame:
    await connection.send(frame)
    answer = await connection.receive()
    if answer is None:
        raise ConnectionLost(f"{connection.peer}: it closed the connection at once")
    return answer


class _Call(Generic[R]):
    """A request under way. `parts`: what came of its answer so far."""

    __slots__ = ("answer", "limit", "operation", "parts", "seconds")

    def __init__(
        self, operation: Operation[Any, R], answer: asyncio.Future[Bytes], limit: asyncio.Timeout, seconds: float
    ) -> None:
        self.operation = operation
        self.answer = answer
        self.limit = limit
        self.seconds = seconds
        self.parts: list[Bytes] = []

    def end(self, result: Bytes | StelaeError) -> None:
        if self.answer.done():
            return
        if isinstance(result, StelaeError):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class _Wire:
    """One connection that has said hello, and the requests that are open on it."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection = connection
        self._calls: dict[RequestId, _Call[Any]] = {}
        self._last_id = RequestId(0)
        self._loop = asyncio.get_running_loop()
        self._ending: set[asyncio.Task[None]] = set()
        self.is_over = False
        self.is_stale = False
        """Whoever is at the other end has said that another one is to be asked."""
        self._reading = asyncio.create_task(self._read())

    async def receive(self, operation: Operation[Any, R], message: Request, body: Bytes, deadline: Deadline) -> R:
        left_s = deadline.check(operation.name)
        request = self._last_id = RequestId(self._last_id + 1)
        frame = operation.request(request, message, body, left_s)
        limit = asyncio.timeout(left_s)
        call: _Call[R] = _Call(operation, self._loop.create_future(), limit, deadline.seconds)
        try:
            async with limit:
                data = await self._exchange(request, frame, call)
        except TimeoutError:
            words = f"{self._name}: {operation.name} was not answered within {deadline.seconds:g} s"
            raise operation.lost(DeadlineExceeded(words)) from None
        try:
            return operation.result.decode(data)
        except ProtocolError as error:
            self._break(error)
            raise operation.lost(error) from error

    async def _exchange(self, request: RequestId, frame: Frame, call: _Call[Any]) -> Bytes:
        self._calls[request] = call
        try:
            try:
                await self._connection.send(frame)
            except (Unavailable, Closed) as error:  # nothing was asked
                raise ConnectionLost(f"{self._name}: {error}") from error
            return await call.answer
        except asyncio.CancelledError:
            self._call_back(request, call.operation)
            raise
        finally:
            self._calls.pop(request, None)
            if call.answer.done() and not call.answer.cancelled():
                call.answer.exception()  # it may have ended while the request was still to be sent
            if self.is_stale and not self._calls:
                self._break(ConnectionLost(f"{self._name}: another one is to be asked"))

    async def _read(self) -> None:
        error: StelaeError
        try:
            while (frame := await self._connection.receive()) is not None:
                self._take(frame)
            error = ConnectionLost(f"{self._name}: it closed the connection before it answered")
        except Closed:
            error = ConnectionLost(f"{self._name}: this side closed the connection")
        except ProtocolError as failed:
            error = failed
        except StelaeError as failed:
            error = failed if isinstance(failed, ConnectionLost) else ConnectionLost(str(failed))
        self._break(error)

    def _take(self, frame: Frame) -> None:
        call = self._calls.get(frame.request_id)
        if call is None:
            if not 0 < frame.request_id <= self._last_id:
                raise ProtocolError(f"{self._name}: {frame!r} answers nothing that was asked")
            return  # nobody waits for it any more
        match frame.kind:
            case FrameKind.ANSWER:
                self._end(frame.request_id, frame.body)
            case FrameKind.END:
                self._end(frame.request_id, call.parts[0] if len(call.parts) == 1 else b"".join(call.parts))
            case FrameKind.ERROR:
                error = read_error(frame, STORE_FAULTS)
                self.is_stale = self.is_stale or isinstance(error, Deposed)
                self._end(frame.request_id, error)
            case FrameKind.ITEM:
                if call.operation.method.read_answer(frame).kind is ItemKind.PIECE:
                    call.parts.append(frame.body)
                self._wait_anew(call)
            case FrameKind.REQUEST | FrameKind.CANCEL:
                raise ProtocolError(f"{self._name}: {frame!r} is no answer")

    def _end(self, request: RequestId, result: Bytes | StelaeError) -> None:
        self._calls.pop(request).end(result)

    def _wait_anew(self, call: _Call[Any]) -> None:
        """Long work has said that it goes on."""
        if call.operation.is_long and not call.limit.expired():
            call.limit.reschedule(self._loop.time() + call.seconds)

    def _call_back(self, request: RequestId, operation: Operation[Any, Any]) -> None:
        """Tell the peer that nobody waits any more, where that takes nothing back."""
        if operation.is_repeatable and not self.is_over:
            self._go_on_with(self._tell(cancel_frame(request)))

    async def _tell(self, frame: Frame) -> None:
        with suppress(StelaeError):
            await self._connection.send(frame)

    def _break(self, error: StelaeError) -> None:
        """No answer comes any more."""
        if self.is_over:
            return
        self.is_over = True
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(call.operation.lost(error))
        self._go_on_with(self._hang_up())

    def _go_on_with(self, work: Coroutine[Any, Any, None]) -> None:
        """While nobody waits for it."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _hang_up(self) -> None:
        with suppress(StelaeError):
            await self._connection.close()

    async def close(self, error: StelaeError) -> None:
        self._break(error)
        self._reading.cancel()
        await asyncio.wait((self._reading, *self._ending))


def _look_at_error(task: asyncio.Task[Any]) -> None:
    """Those who waited for it may have given up."""
    if not task.cancelled():
        task.exception()
