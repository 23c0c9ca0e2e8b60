"""Snapshots of a store that another process has, kept readable by it while the connection lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock

from stelae.client.remote.lines import Line, Lines, LineSettings
from stelae.model.errors import DeadlineExceeded, StelaeError
from stelae.model.ids import Txn
from stelae.ports.transport import FrameKind
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.operations import PIN, STORE_FAULTS, UNPIN
from stelae.wire.faults import ProtocolError
from stelae.wire.messages import read_error

_FREE_S_MAX = 10.0


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
        return self._line.is_fit

    def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._pins.free(self._line, self._number)


class RemotePins:
    """All pins are on one line, which is given back when the last of them is closed. Safe for threads. Reentrant: a
    pin that nobody holds may be collected, and closed, anywhere."""

    def __init__(self, lines: Lines, settings: LineSettings) -> None:
        self._lines = lines
        self._answer_s = settings.answer_s
        self._lock = RLock()
        self._line: Line | None = None
        self._count = 0

    def pin(self, at: Txn | None, deadline: Deadline | None) -> RemotePin:
        message, body = PIN.ask(at)
        with self._locked(deadline):
            line = self._line
            try:
                if line is None or not line.is_fit:
                    self._drop()
                    line, _ = self._lines.ask(PIN, message, body, deadline=deadline)
                    self._line = line
                else:
                    line.ask(PIN, message, body, deadline=deadline)
                number, txn = PIN.result.decode(_receive(line, self._left(deadline)))
            except BaseException:
                self._drop_if_unfit()
                raise
            self._count += 1
            return RemotePin(self, line, number, Txn(txn))

    def free(self, line: Line, number: int) -> None:
        """Of a line that is gone everything is free already. An owner that does not answer loses the line, and with it
        the pins: so it is given some time."""
        with self._lock:
            if line is not self._line:
                return
            self._count -= 1
            try:
                with suppress(StelaeError):
                    line.ask(UNPIN, *UNPIN.ask(number), deadline=None)
                    _receive(line, min(_FREE_S_MAX, self._answer_s))
            finally:
                self._drop_if_unfit()

    @contextmanager
    def _locked(self, deadline: Deadline | None) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._left(deadline)):
            raise DeadlineExceeded("a snapshot was asked for, and others that wait for one took all the time")
        try:
            yield
        finally:
            self._lock.release()

    def _left(self, deadline: Deadline | None) -> float:
        return self._answer_s if deadline is None else deadline.left_s

    def _drop_if_unfit(self) -> None:
        if self._line is not None and (not self._count or not self._line.is_fit):
            self._drop()

    def _drop(self) -> None:
        line, self._line, self._count = self._line, None, 0
        if line is not None:
            self._lines.give(line)


def _receive(line: Line, timeout_s: float) -> Bytes:
    frame = line.receive(timeout_s)
    if frame.kind is FrameKind.ERROR:
        raise read_error(frame, STORE_FAULTS)
    if frame.kind is not FrameKind.ANSWER:
        raise ProtocolError(f"{line.peer}: {frame!r} where one answer was expected")
    return frame.body
