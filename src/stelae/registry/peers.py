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
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
    WrongToken,
)
from stelae.ports.clock import Clock
from stelae.ports.rng import Rng
from stelae.ports.transport import Connection, Frame, FrameKind
from stelae.registry.wires.calls import OpenCall
from stelae.registry.wires.wire import Wire
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.wire.handshake import Introduction
from stelae.wire.hello import HELLO_ID
from stelae.wire.messages import error_frame

P = ParamSpec("P")
R = TypeVar("R")

Dial: TypeAlias = Callable[[Deadline], Awaitable[Connection]]
"""Opens a connection on the running loop, to wherever the peer is now; Unavailable if it cannot be reached."""

Sign: TypeAlias = Callable[[Request], Request]


def unsigned(request: Request) -> Request:
    """The request as it is: for a sender, such as a client, that says nothing of itself."""
    return request


_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0


class PeerSettings(msgspec.Struct, frozen=True):
    """`requests_max`: who asks for more at once waits for its turn. `connect_s`: how long a connection may take to be
    made, whatever the deadline."""

    requests_max: int = 1_024
    connect_s: float = 10.0


DEFAULT_PEER_SETTINGS = PeerSettings()


class Begun(Generic[R]):
    """A request that was sent. Cancelling whoever waits for it takes nothing back."""

    __slots__ = ("_call", "_wire")

    def __init__(self, wire: Wire, call: OpenCall[R]) -> None:
        self._wire = wire
        self._call = call

    @property
    def is_open(self) -> bool:
        """Whether its answer may still come."""
        return self._call.is_open

    async def result(self) -> R:
        answer = self._call.answer
        try:
            data = await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                answer.exception()  # it has ended just now, and nobody looks at it
            raise
        return self._wire.read(self._call, data)


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
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Those who wait until fewer requests are under way."""
        self._wire: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None
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
        if self._is_full:
            await self._wait_for_room(deadline)
        self._under_way += 1
        try:
            wire = self._wire
            if wire is None or wire.is_over or wire.is_stale:
                wire = await self._connect(deadline)
            return await wire.receive(operation, self._sign(message), body, deadline)
        finally:
            self._leave()

    def begin(
        self,
        operation: Operation[Any, R],
        message: Request,
        body: Bytes,
        deadline: Deadline,
        ended: Callable[[OpenCall[Any]], None],
    ) -> Begun[R] | None:
        """Send a request here and now; None if that has to wait, for a connection or for others. `ended` is called when
        the answer has come, or cannot come any more, also if nobody waits for it any more."""
        wire = self._wire
        if wire is None or wire.is_over or wire.is_stale or self._is_closed or self._is_full:
            return None

        def leave(call: OpenCall[Any]) -> None:
            self._leave()
            ended(call)

        call = wire.begin(operation, self._sign(message), body, deadline, leave)
        if call is None:
            return None
        self._under_way += 1
        return Begun(wire, call)

    @property
    def awaited(self) -> Wire | None:
        """The connection on which answers are still to come."""
        return self._wire if self._under_way and self._wire is not None and not self._wire.is_over else None

    @property
    def _is_full(self) -> bool:
        return self._under_way >= self._settings.requests_max or bool(self._waiting)

    def _leave(self) -> None:
        """Give the place of a request that has ended to the next one that waits."""
        self._under_way -= 1
        if self._waiting:
            self._call_next()
        if not self._under_way:
            self._is_idle.set()

    def _call_next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def give_up(self, why: str) -> None:
        """What is under way ends as when the connection breaks; the next request connects anew."""
        if self._wire is not None:
            self._wire.give_up(why)

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

    async def _wait_for_room(self, deadline: Deadline) -> None:
        """Wait until one more request may be sent; those that came before go first."""
        while True:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout(deadline.left_s):
                    await waiting
            except BaseException as error:
                if waiting.done() and not waiting.cancelled():
                    self._call_next()  # this one was called, and does not come
                waiting.cancel()
                if isinstance(error, TimeoutError):
                    words = f"{self.name}: {self._settings.requests_max} requests are under way already"
                    raise Overloaded(words) from None
                raise
            if self._under_way < self._settings.requests_max:
                return

    async def _connect(self, deadline: Deadline) -> Wire:
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

    async def _open(self) -> Wire:
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

    async def _greet(self, deadline: Deadline) -> Wire:
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
        return Wire(self.name, connection)


async def _exchange(connection: Connection, frame: Frame) -> Frame:
    await connection.send(frame)
    answer = await connection.receive()
    if answer is None:
        raise ConnectionLost(f"{connection.peer}: it closed the connection at once")
    return answer


def _look_at_error(task: asyncio.Task[Any]) -> None:
    """Those who waited for it may have given up."""
    if not task.cancelled():
        task.exception()
