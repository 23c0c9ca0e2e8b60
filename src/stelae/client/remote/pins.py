"""Snapshots of a store that another process has, kept readable by it while a connection lives.

All pins of a store are on one line, so none may be lost because another was asked for in vain: an answer that does not
come in time leaves the line as it is. It is thrown away when it comes, and if it says that something was pinned, that
is freed.

A pin that nobody holds is collected, and closed, by whichever thread happens to be running: perhaps in the middle of
asking for another one. So `free` never waits for the lock. Whoever has the lock frees what was left for it, and looks
once more after giving the lock back: nothing is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from stelae.client.remote.lines import Line, Lines
from stelae.model.errors import ConnectionLost, DeadlineExceeded, ProtocolError, StelaeError
from stelae.model.ids import Txn
from stelae.ports.clock import Clock
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.operations import PIN, STORE_FAULTS, UNPIN
from stelae.wire.messages import read_error

_FREE_S_MAX = 1.0
"""How long a closed pin waits to hear that it is free; the owner frees it all the same."""

_GLANCE_S = 0.01


class RemotePin:
    """A snapshot that the owner of the store keeps readable while the connection to it lives."""

    def __init__(self, pins: RemotePins, line: Line, number: int, txn: Txn) -> None:
        self._pins = pins
        self._line = line
        self._number = number
        self._txn = txn
        self._is_open = True

    @property
    def txn(self) -> Txn:
        return self._txn

    @property
    def is_held(self) -> bool:
        """Not if the owner it was asked of is gone: another owner does not know of it."""
        return self._pins.is_alive(self._line)

    def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._pins.free(self._line, self._number)


class RemotePins:
    """Safe for threads. The line is given back when the last pin on it is closed."""

    def __init__(self, lines: Lines, clock: Clock) -> None:
        self._lines = lines
        self._clock = clock
        self._lock = Lock()
        self._line: Line | None = None
        self._count = 0
        """Of pins that the owner holds for the line."""
        self._late: set[RequestId] = set()
        """Asked on the line, and waited for by nobody any more."""
        self._to_free: deque[tuple[Line, int]] = deque()
        self._is_abandoned = False

    def pin(self, at: Txn | None, deadline: Deadline) -> RemotePin:
        with self._locked(deadline):
            is_new = self._line is None
            try:
                return self._ask_pin(at, deadline)
            except ConnectionLost:
                if is_new:
                    raise
            # The old line's owner is gone, and its pins with it; nothing was pinned.
            return self._ask_pin(at, deadline)

    def free(self, line: Line, number: int) -> None:
        """Of a line that is gone everything is free already."""
        if not self._is_abandoned:
            self._to_free.append((line, number))
            self._free_waiting(_FREE_S_MAX)

    def is_alive(self, line: Line) -> bool:
        """Whether the owner still holds what was pinned on the line, as far as is known without asking."""
        if not self._lock.acquire(blocking=False):
            # Somebody asks on it now, and will find out.
            return line is self._line
        try:
            self._glance()
            return line is self._line
        finally:
            self._lock.release()
            self._free_waiting(0.0)

    def abandon(self) -> None:
        """In a forked child: the line is the parent's, and the lock may be held for ever."""
        self._is_abandoned = True

    @contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=deadline.left_s):
            raise DeadlineExceeded("a snapshot was asked for, and others that wait for one took all the time")
        try:
            yield
        finally:
            self._lock.release()
            self._free_waiting(0.0)

    # -- with the lock held

    def _ask_pin(self, at: Txn | None, deadline: Deadline) -> RemotePin:
        message, body = PIN.ask(at)
        try:
            line = self._line
            if line is None:
                line, request = self._lines.ask(PIN, message, body, deadline=deadline)
                self._line = line
            else:
                request = line.ask(PIN, message, body, deadline=deadline)
            number, txn = _decode_pin(line, self._receive(line, request, deadline))
            self._count += 1
            return RemotePin(self, line, number, Txn(txn))
        finally:
            self._let_go_if_useless()

    def _receive(self, line: Line, request: RequestId, deadline: Deadline) -> Bytes:
        self._late.add(request)
        while True:
            frame = line.receive(deadline.left_s)
            if frame.request_id == request:
                break
            self._take_late(line, frame)
        self._late.discard(request)
        if frame.kind is FrameKind.ERROR:
            raise read_error(frame, STORE_FAULTS)
        return _answer_of(line, frame)

    def _take_late(self, line: Line, frame: Frame) -> None:
        """The answer to what nobody waits for any more."""
        self._late.discard(frame.request_id)
        if frame.kind is FrameKind.ANSWER and frame.body:
            number, _ = _decode_pin(line, frame.body)
            self._count += 1
            self._to_free.append((line, number))

    def _glance(self) -> None:
        """Take what has come on the line, its end perhaps."""
        line = self._line
        with suppress(StelaeError):
            while line is not None and not line.is_quiet:
                self._take_late(line, line.receive(_GLANCE_S))
        self._let_go_if_useless()

    def _free(self, line: Line, number: int, wait_s: float) -> None:
        if line is not self._line:
            return
        self._count -= 1
        try:
            deadline = Deadline(self._clock, _FREE_S_MAX)
            request = line.ask(UNPIN, *UNPIN.ask(number), deadline=deadline)
            # An owner that was late already is not waited for again.
            if wait_s and not self._late:
                self._receive(line, request, deadline.within(wait_s))
            else:
                self._late.add(request)
        except StelaeError:
            return
        finally:
            self._let_go_if_useless()

    def _let_go_if_useless(self) -> None:
        line = self._line
        if line is not None and (line.is_broken or not self._count):
            self._line, self._count = None, 0
            self._late.clear()
            self._lines.give(line)

    # -- with or without it

    def _free_waiting(self, wait_s: float) -> None:
        while self._to_free and self._lock.acquire(blocking=False):
            try:
                while self._to_free:
                    line, number = self._to_free.popleft()
                    self._free(line, number, wait_s)
            finally:
                self._lock.release()


def _answer_of(line: Line, frame: Frame) -> Bytes:
    if frame.kind is not FrameKind.ANSWER:
        line.is_broken = True
        raise ProtocolError(f"{line.peer}: {frame!r} where one answer was expected")
    return frame.body


def _decode_pin(line: Line, body: Bytes) -> tuple[int, int]:
    """Nobody knows what was pinned by an answer that cannot be read: the end of the line frees it."""
    try:
        return PIN.result.decode(body)
    except ProtocolError:
        line.is_broken = True
        raise
