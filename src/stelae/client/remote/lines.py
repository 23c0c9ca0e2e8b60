"""Connections to the owner of a store, for callers that block: opened on demand, used again, bounded in number.

A line is a connection that has said hello. It is lent to one caller at a time; given back, it waits for the next one,
unless an answer is still to come on it or its peer is gone: then it is closed. So whoever stops in the middle, by an
error or an interrupt, has only to give the line back.

Whatever breaks a connection, or keeps one from being made, is ConnectionLost. Time is the caller's: nobody waits here
longer than its deadline, and how long a connection may take to be made is bounded besides. A line on which an answer
did not come in time is not broken: whoever has it may go on waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Any, TypeAlias

import msgspec

from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    StelaeError,
    Unavailable,
    WrongToken,
)
from stelae.ports.blocking import BlockingConnection, BlockingConnector
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.registry.peers import Sign, unsigned
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.wire.handshake import Introduction
from stelae.wire.hello import HELLO_ID
from stelae.wire.messages import cancel_frame, error_frame

_LAST = (FrameKind.ANSWER, FrameKind.ERROR, FrameKind.END)


class LineSettings(msgspec.Struct, frozen=True):
    """`lines_max`: every open scan has one. `connect_s`: how long a connection may take to be made, whatever the
    deadline. `answer_s`: the deadline of a caller that has none. `silence_s`: after so long without an answer it is
    found out whether another is to be asked (`HasMoved`)."""

    lines_max: int = 32
    connect_s: float = 10.0
    answer_s: float = 60.0
    silence_s: float = 2.0


DEFAULT_LINE_SETTINGS = LineSettings()

HasMoved: TypeAlias = Callable[[str, Deadline], bool]
"""Of whoever is silent, by its address: whether another has what it had, as somebody else knows. It may be stopped, or
cut off, and answer when it wakes; nobody waits for that."""


class _BrokenIsLost:
    """Whatever a connection says of its own end is ConnectionLost; a peer that is only slow is DeadlineExceeded. No
    generator: every call goes through it twice."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Unavailable) and not isinstance(error, ConnectionLost | DeadlineExceeded):
            raise ConnectionLost(str(error)) from error


_BROKEN_IS_LOST = _BrokenIsLost()


class Line:
    """One connection. What `ask` raises says that nothing was asked; what `receive` raises, that it may have been."""

    def __init__(self, connection: BlockingConnection, sign: Sign = unsigned) -> None:
        self._connection = connection
        self._sign = sign
        self._last_id = 0
        self._open: set[RequestId] = set()
        self.is_broken = False
        self.is_used = False

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def is_quiet(self) -> bool:
        """Nothing came that was not received, not even the end."""
        return self._connection.is_quiet()

    @property
    def is_done(self) -> bool:
        """No answer is still to come, and nothing is known of the connection that speaks against it."""
        return not self._open and not self.is_broken

    @property
    def is_fit(self) -> bool:
        """Whether somebody else may ask on it: no answer is still to come, and the connection stands."""
        return self.is_done and self.is_quiet

    def greet(self, introduction: Introduction, deadline: Deadline) -> None:
        """PermissionDenied, in words, if one side does not let the other in."""
        handshake = introduction.connect(STORE_FAULTS)
        answer = self._exchange(handshake.begin(), deadline)
        with self._naming_peer():
            try:
                theirs, proof = handshake.take_hello(answer)
            except WrongToken as error:
                if answer.kind is not FrameKind.ERROR:
                    self._tell(error, deadline)
                raise
        if proof is not None:
            answer = self._exchange(proof, deadline)
            with self._naming_peer():
                handshake.take_welcome(answer)
        introduction.remember(theirs)

    @contextmanager
    def _naming_peer(self) -> Iterator[None]:
        """Whoever is not let in is told where, and need not know why in more kinds than one."""
        try:
            yield
        except PermissionDenied as error:
            raise PermissionDenied(f"{self.peer}: {error}") from None

    def _tell(self, error: StelaeError, deadline: Deadline) -> None:
        """Why this side hangs up. The other may be gone: then there is nobody to be told."""
        with suppress(StelaeError):
            self._connection.send(error_frame(HELLO_ID, error, STORE_FAULTS), deadline.left_s)

    def _exchange(self, frame: Frame, deadline: Deadline) -> Frame:
        """What the other side says to it."""
        with _BROKEN_IS_LOST:
            self._connection.send(frame, deadline.left_s)
            answer = self._connection.receive(deadline.left_s)
        if answer is None:
            raise ConnectionLost(f"{self.peer}: it closed the connection at once")
        return answer

    def ask(
        self, operation: Operation[Any, Any], message: Request, body: Bytes = b"", *, deadline: Deadline
    ) -> RequestId:
        request = RequestId(self._last_id + 1)
        left_s = deadline.check(operation.name)
        self._send(operation.request(request, self._sign(message), body, left_s), left_s)
        self._last_id = request
        self._open.add(request)
        return request

    def receive(self, timeout_s: float) -> Frame:
        """The next frame of an answer that is still to come."""
        try:
            with _BROKEN_IS_LOST:
                frame = self._connection.receive(timeout_s)
            if frame is None:
                raise ConnectionLost(f"{self.peer}: it closed the connection before it answered")
            if frame.request_id not in self._open:
                raise ProtocolError(f"{self.peer}: {frame!r} answers nothing that was asked")
        except DeadlineExceeded:
            raise
        except StelaeError:
            self.is_broken = True
            raise
        if frame.kind in _LAST:
            self._open.remove(frame.request_id)
        return frame

    def cancel(self, request: RequestId, deadline: Deadline) -> None:
        """No more of a stream is wanted: take what is on its way, up to its end."""
        self._send(cancel_frame(request), deadline.left_s)
        while request in self._open:
            self.receive(deadline.left_s)

    def close(self) -> None:
        self._connection.close()

    def _send(self, frame: Frame, timeout_s: float) -> None:
        was_broken, self.is_broken = self.is_broken, True
        try:
            with _BROKEN_IS_LOST:
                self._connection.send(frame, timeout_s)
        except InvalidArgument:
            self.is_broken = was_broken
            raise
        self.is_broken = was_broken


class Lines:
    """Safe for threads. Reentrant: a scan that nobody holds may be collected, and give its line back, anywhere.
    `sign`: adds to each request what its sender says of itself. `has_moved`: None where nobody else could know."""

    def __init__(
        self,
        connector: BlockingConnector,
        introduction: Introduction,
        settings: LineSettings,
        sign: Sign = unsigned,
        has_moved: HasMoved | None = None,
    ) -> None:
        self._sign = sign
        self._has_moved = has_moved
        self._connector = connector
        self._introduction = introduction
        self._settings = settings
        self._change = Condition()
        self._idle: list[Line] = []
        self._lines: dict[Line, None] = {}
        self._opening = 0
        self.made = 0
        """How many were ever opened."""
        self._is_closed = False
        self._is_abandoned = False

    def sign_by(self, sign: Sign) -> None:
        """Sign what is asked on lines that are opened from now on."""
        self._sign = sign

    @property
    def count(self) -> int:
        """How many connections are open now, in use or waiting to be used."""
        with self._change:
            return len(self._lines)

    def ask(
        self, operation: Operation[Any, Any], message: Request, body: Bytes = b"", *, deadline: Deadline
    ) -> tuple[Line, RequestId]:
        """On a line that the caller gives back. What was not sent on an old line is sent on another one."""
        for is_last in (False, True):
            line = self.take(deadline)
            try:
                return line, line.ask(operation, message, body, deadline=deadline)
            except BaseException as error:
                self.give(line)
                if is_last or not line.is_used or not isinstance(error, ConnectionLost):
                    raise
        raise ConnectionLost(f"{self._connector.address}: it could not be asked")

    def receive(self, line: Line, wait_s: float, deadline: Deadline) -> Frame:
        """The next frame on a line, within so long. ConnectionLost if whoever is at the other end is silent, and
        another has what it had."""
        silence_s = self._settings.silence_s
        while self._has_moved is not None and wait_s > silence_s:
            try:
                return line.receive(silence_s)
            except DeadlineExceeded:
                wait_s -= silence_s
                if self._has_moved(line.peer, deadline.anew().within(min(silence_s, wait_s))):
                    line.is_broken = True
                    raise ConnectionLost(f"{line.peer}: it is silent, and another has its place by now") from None
        return line.receive(wait_s)

    def take(self, deadline: Deadline) -> Line:
        """Overloaded if all are lent and none is given back in time."""
        with self._change:
            line = self._next_idle(deadline)
            if line is not None:
                line.is_used = True
                return line
            self._opening += 1
        try:
            line = self._open_line(deadline)
            with self._change:
                self._check_open(line)
                self._lines[line] = None
                self.made += 1
        finally:
            with self._change:
                self._opening -= 1
                self._change.notify()
        return line

    def give(self, line: Line) -> None:
        if self._is_abandoned:
            return
        with self._change:
            if line not in self._lines:
                return
            if line.is_done and not self._is_closed:
                self._idle.append(line)  # whoever takes it looks whether it stands
            else:
                self._forget(line)
            self._change.notify()

    def close(self) -> None:
        """Whoever waits on a line gets Closed, and so does whoever asks for one."""
        with self._change:
            self._is_closed = True
            for line in list(self._lines):
                self._forget(line)
            self._idle.clear()
            self._change.notify_all()

    def abandon(self) -> None:
        """In a forked child: the lines are the parent's, and the lock may be held for ever. Touch nothing again."""
        self._is_abandoned = True

    def _next_idle(self, deadline: Deadline) -> Line | None:
        """None: there is room for another one."""
        while True:
            self._check_open(None)
            while self._idle:
                line = self._idle.pop()
                if line.is_fit:
                    return line
                self._forget(line)
            if len(self._lines) + self._opening < self._settings.lines_max:
                return None
            if not self._change.wait(deadline.left_s):
                raise Overloaded(
                    f"{self._connector.address}: all {self._settings.lines_max} connections are in use; "
                    f"every open scan has one"
                )

    def _open_line(self, deadline: Deadline) -> Line:
        until = deadline.within(self._settings.connect_s)
        with _BROKEN_IS_LOST:
            connection = self._connector.connect(until.check(f"connecting to {self._connector.address}"))
            line = Line(connection, self._sign)
        try:
            line.greet(self._introduction, until)
        except BaseException:
            line.close()
            raise
        return line

    def _check_open(self, line: Line | None) -> None:
        if self._is_closed:
            if line is not None:
                line.close()
            raise Closed(f"the connection to {self._connector.address} was closed")

    def _forget(self, line: Line) -> None:
        self._lines.pop(line, None)
        line.close()
