"""Who is let in: the greeting of each connection, and those that are not through with it yet.

One time bounds all that comes before the first request: the agreement on TLS, the hellos, the proofs, and the refusal.
So many connections may be in their greeting at once; one more, and the oldest of them is dropped. So whoever connects
and says nothing takes no place from whoever does, however many there are: their turn comes, and is over soon.

Whoever has greeted has a place among the connections that are served. If all are taken it waits for one, as long as a
greeting may take.

Refusals are counted by kind, and told as events with the peer's address; of many in a short time, some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from stelae.model.errors import (
    Closed,
    OtherStore,
    Overloaded,
    PermissionDenied,
    StelaeError,
    TokenMissing,
    Unavailable,
    WrongToken,
)
from stelae.model.events import HandshakeRefused, Listener
from stelae.ports.clock import Clock
from stelae.ports.transport import Connection
from stelae.wire.faults import FaultTable
from stelae.wire.handshake import Introduction
from stelae.wire.hello import HELLO_ID
from stelae.wire.messages import error_frame

if TYPE_CHECKING:
    from stelae.tserver.serving.service import ServiceLimits

CROWDED, SLOW, PROTOCOL = "crowded", "slow", "protocol"
_KINDS: Mapping[type[StelaeError], str] = {
    TokenMissing: "no_token",
    WrongToken: "wrong_token",
    OtherStore: "other_store",
    PermissionDenied: "tls",
    Overloaded: "full",
    StelaeError: PROTOCOL,
}
"""What a refusal is counted as: of the errors that fit, the first. A PermissionDenied of no other kind comes from the
connection itself, and is about TLS."""

TELL_S = 1.0
"""Of each kind of refusal one is told in this time; it says how many there were."""

PLACE_SHARE = 0.5
"""For so much of the time of a greeting a place is waited for; the rest is for telling that there is none."""

_WORDS_CHARS_MAX = 300
_GONE = (Closed, Unavailable)


class _Greeting:
    """One connection's, and its time. `is_refused`: it has been noted why the connection is not let in."""

    __slots__ = ("is_refused", "limit")

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.limit = limit
        self.is_refused = False


class Door:
    """Lives on one event loop."""

    def __init__(
        self, introduction: Introduction, limits: ServiceLimits, faults: FaultTable, clock: Clock, tell: Listener
    ) -> None:
        self._introduction = introduction
        self._limits = limits
        self._faults = faults
        self._clock = clock
        self._tell = tell
        self._greetings: dict[Connection, _Greeting] = {}
        """In the order in which they came."""
        self._places = asyncio.Semaphore(limits.connections_max)
        self._refused = dict.fromkeys((*_KINDS.values(), CROWDED, SLOW), 0)
        self._told: dict[str, tuple[int, float]] = {}
        """By kind: how many there had been when one was told last, and when that was."""

    def refusals(self) -> dict[str, int]:
        """How many connections were not let in since the service began, by the kind of refusal."""
        return dict(self._refused)

    async def let_in(self, connection: Connection) -> bool:
        """Whether the connection may be served: then it has a place, to be freed with `leave`. Else it is closed."""
        greeting = self._enter(connection)
        try:
            async with greeting.limit:
                return await self._greet(connection, greeting)
        except TimeoutError:
            was_there = self._greetings.pop(connection, None) is not None
            if not greeting.is_refused:
                self._note(connection, SLOW if was_there else CROWDED, "it did not say in time who it is")
            await _drop(connection)
            return False
        finally:
            self._greetings.pop(connection, None)

    def leave(self) -> None:
        """A connection that was let in has ended."""
        self._places.release()

    def _enter(self, connection: Connection) -> _Greeting:
        while len(self._greetings) >= self._limits.greetings_max:
            oldest = next(iter(self._greetings))
            self._greetings.pop(oldest).limit.reschedule(asyncio.get_running_loop().time())
        greeting = self._greetings[connection] = _Greeting(asyncio.timeout(self._limits.hello_s))
        return greeting

    async def _greet(self, connection: Connection, greeting: _Greeting) -> bool:
        try:
            return await self._exchange(connection)
        except _GONE:
            return False
        except StelaeError as error:
            greeting.is_refused = True
            self._note(connection, _kind(error), str(error))
            with suppress(StelaeError):  # it may have ended by itself, and then has been told as far as it could be
                await connection.send(error_frame(HELLO_ID, error, self._faults))
            await connection.close()
            return False

    async def _exchange(self, connection: Connection) -> bool:
        """Exchange greetings and proofs; False: the other side hung up."""
        handshake = self._introduction.accept(self._faults)
        frame = await connection.receive()
        if frame is None:
            return False
        answer = handshake.take_hello(frame)
        if handshake.wants_proof:
            await connection.send(answer)
            frame = await connection.receive()
            if frame is None:
                return False
            answer = handshake.take_proof(frame)
        await self._take_place()
        try:
            await connection.send(answer)
        except BaseException:
            self._places.release()
            raise
        return True

    async def _take_place(self) -> None:
        """Overloaded if none is free for a while."""
        try:
            async with asyncio.timeout(self._limits.hello_s * PLACE_SHARE):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded(f"all {self._limits.connections_max} connections that are let in are in use") from None

    def _note(self, connection: Connection, kind: str, words: str) -> None:
        self._refused[kind] = count = self._refused[kind] + 1
        now_s = self._clock.monotonic_s()
        told, told_s = self._told.get(kind, (0, -TELL_S))
        if now_s - told_s >= TELL_S:
            self._told[kind] = (count, now_s)
            self._tell(HandshakeRefused(connection.peer, kind, words[:_WORDS_CHARS_MAX], count - told))


def _kind(error: StelaeError) -> str:
    return next(kind for class_, kind in _KINDS.items() if isinstance(error, class_))


async def _drop(connection: Connection) -> None:
    """Close it without waiting for the other side."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await connection.close()
