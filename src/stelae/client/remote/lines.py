"""Connections to the owner of a store, for callers that block: opened on demand, used again, bounded in number.

A line is a connection that has said hello. It is lent to one caller at a time; given back, it waits for the next one,
unless an answer is still to come on it or its peer is gone: then it is closed. So whoever stops in the middle, by an
error or an interrupt, has only to give the line back.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Condition
from typing import TypeVar

import msgspec

from stelae.model.errors import Closed, InvalidArgument, Overloaded, Unavailable
from stelae.ports.blocking import BlockingConnection, BlockingConnector
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.messages import STORE_FAULTS
from stelae.wire.faults import ProtocolError
from stelae.wire.hello import Hello, agree, hello_frame, read_hello
from stelae.wire.messages import WireMethod, cancel_frame, read_error

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

_LAST = (FrameKind.ANSWER, FrameKind.ERROR, FrameKind.END)
_UNSENDABLE = (OverflowError, TypeError, ValueError, NotImplementedError)
"""What a message raises that holds what no message can: a number too large, text that is none."""


@dataclass(frozen=True, slots=True)
class LineSettings:
    """`lines_max`: every open scan has one. `answer_s`: how long an answer may take, or the next item of a stream;
    `upkeep_s`: the same of what changes or tidies whole tables, None for as long as it takes."""

    lines_max: int = 32
    connect_s: float = 10.0
    answer_s: float = 60.0
    upkeep_s: float | None = None


DEFAULT_LINE_SETTINGS = LineSettings()


class Line:
    """One connection. What `ask` raises says that nothing was asked; what `receive` raises, that it may have been."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection
        self._last_id = 0
        self._open: set[RequestId] = set()
        self._is_broken = False
        self.is_used = False

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def is_fit(self) -> bool:
        """For another request of anybody's."""
        return not self._open and not self._is_broken and self._connection.is_quiet()

    def greet(self, mine: Hello, timeout_s: float) -> None:
        self._connection.send(hello_frame(mine, FrameKind.REQUEST), timeout_s)
        frame = self._connection.receive(timeout_s)
        if frame is None:
            raise Unavailable(f"{self.peer}: it closed the connection at once")
        agree(mine, read_hello(frame, FrameKind.ANSWER, STORE_FAULTS))

    def ask(
        self, method: WireMethod[Q, A], message: Q, body: bytes | memoryview = b"", *, timeout_s: float | None
    ) -> RequestId:
        request = RequestId(self._last_id + 1)
        try:
            frame = method.ask(request, message, body)
        except _UNSENDABLE as error:
            raise InvalidArgument(f"{method.name}: this cannot be asked: {error}") from None
        self._send(frame, timeout_s)
        self._last_id = request
        self._open.add(request)
        return request

    def receive(self, timeout_s: float | None) -> Frame:
        """The next frame of an answer that is still to come."""
        frame = self._connection.receive(timeout_s)
        if frame is None:
            raise Unavailable(f"{self.peer}: it closed the connection before it answered")
        if frame.request_id not in self._open:
            raise ProtocolError(f"{self.peer}: {frame!r} answers nothing that was asked")
        if frame.kind in _LAST:
            self._open.remove(frame.request_id)
        return frame

    def cancel(self, request: RequestId, timeout_s: float | None) -> None:
        """No more of a stream is wanted: take what is on its way, up to its end."""
        self._send(cancel_frame(request), timeout_s)
        while request in self._open:
            self.receive(timeout_s)

    def close(self) -> None:
        self._connection.close()

    def _send(self, frame: Frame, timeout_s: float | None) -> None:
        self._is_broken = True
        try:
            self._connection.send(frame, timeout_s)
        except InvalidArgument:
            self._is_broken = False
            raise
        self._is_broken = False


class Lines:
    """Safe for threads. Reentrant: a scan that nobody holds may be collected, and give its line back, anywhere."""

    def __init__(self, connector: BlockingConnector, hello: Hello, settings: LineSettings) -> None:
        self._connector = connector
        self._hello = hello
        self._settings = settings
        self._change = Condition()
        self._idle: list[Line] = []
        self._lines: set[Line] = set()
        self._opening = 0
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many are open."""
        with self._change:
            return len(self._lines)

    def ask(
        self, method: WireMethod[Q, A], message: Q, body: bytes | memoryview = b"", *, timeout_s: float | None
    ) -> tuple[Line, RequestId]:
        """On a line that the caller gives back. What was not sent on an old line is sent on another one."""
        for is_last in (False, True):
            line = self.take()
            try:
                return line, line.ask(method, message, body, timeout_s=timeout_s)
            except BaseException as error:
                self.give(line)
                if is_last or not line.is_used or not isinstance(error, Unavailable):
                    raise
        raise Unavailable(f"{self._connector.address}: it could not be asked")

    def take(self) -> Line:
        """Overloaded if all are lent and none is given back in time."""
        with self._change:
            line = self._next_idle()
            if line is not None:
                line.is_used = True
                return line
            self._opening += 1
        try:
            line = self._opened()
            with self._change:
                self._check_open(line)
                self._lines.add(line)
        finally:
            with self._change:
                self._opening -= 1
                self._change.notify()
        return line

    def give(self, line: Line) -> None:
        with self._change:
            if line not in self._lines:
                return
            if line.is_fit and not self._is_closed:
                self._idle.append(line)
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

    def _next_idle(self) -> Line | None:
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
            if not self._change.wait(self._settings.answer_s):
                raise Overloaded(
                    f"{self._connector.address}: all {self._settings.lines_max} connections are in use; "
                    f"every open scan has one"
                )

    def _opened(self) -> Line:
        connect_s = self._settings.connect_s
        line = Line(self._connector.connect(connect_s))
        try:
            line.greet(self._hello, connect_s)
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
        self._lines.discard(line)
        line.close()


def answered(method: WireMethod[Q, A], frame: Frame) -> tuple[A, bytes | memoryview]:
    """The one answer, or an item; what the other side raised is raised."""
    if frame.kind is FrameKind.ERROR:
        raise read_error(frame, STORE_FAULTS)
    return method.read_answer(frame), frame.body
