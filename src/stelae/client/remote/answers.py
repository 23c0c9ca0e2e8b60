"""Answers of a store that another process has: one frame, or items and an end, on a line that is given back.

An answer that is lost after its request was sent leaves open what happened: of an operation that is safe to repeat the
caller is told what broke, and asks again; of any other it is told UnknownOutcome. So does an answer that the other side
failed on a mistake of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from stelae.client.remote.lines import Line, Lines
from stelae.model.errors import Deposed, ProtocolError, StelaeError
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import Item, ItemKind, Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.service.reports import Progress
from stelae.wire.messages import read_error

R = TypeVar("R")

_CANCEL_S_MAX = 1.0
"""How long the rest of an answer that nobody wants is waited for. A line on which it takes longer is closed, which ends
the answer, too."""


class ItemStream:
    """The frames of one answer, on a line of its own until they end. The first comes before the deadline. `each_anew`:
    the deadline's length is for each of the others, not for all of them; of long work they are signs of life. Closed
    early, the rest is cancelled; dropped without that, the line is closed."""

    def __init__(
        self,
        lines: Lines,
        operation: Operation[Any, Any],
        message: Request,
        body: Bytes,
        deadline: Deadline,
        *,
        each_anew: bool,
    ) -> None:
        self._lines = lines
        self._operation = operation
        self._deadline = deadline
        self._each_anew = each_anew
        self._has_begun = False
        self._line: Line | None = None
        self._request: RequestId
        self._line, self._request = lines.ask(operation, message, body, deadline=deadline)

    def next_item(self) -> tuple[Item | None, Bytes] | None:
        """The next item with its body; without an item, the whole answer; None after the last. Whoever understood it
        drops the stream. What the other side raised is raised."""
        line = self._line
        if line is None:
            return None
        try:
            return self._read(line)
        except BaseException:
            self.drop()
            raise

    def refuse(self, error: ProtocolError) -> StelaeError:
        """The answer makes no sense: the line is closed, whatever comes on it next. What to tell the caller."""
        if self._line is not None:
            self._line.is_broken = True
        self.drop()
        return self._operation.lost(error)

    def _read(self, line: Line) -> tuple[Item | None, Bytes] | None:
        try:
            frame = self._lines.receive(line, self._wait_s(), self._deadline)
            self._has_begun = True
            item = self._read_item(line, frame)
            error = read_error(frame, STORE_FAULTS) if frame.kind is FrameKind.ERROR else None
        except ProtocolError as failed:
            raise self.refuse(failed) from failed
        except StelaeError as failed:
            raise self._operation.lost(failed) from failed
        if error is not None:
            if isinstance(error, Deposed):
                line.is_broken = True  # whoever leads now is found when another line is opened
            raise self._operation.answered(error)
        return None if frame.kind is FrameKind.END else (item, frame.body)

    def _wait_s(self) -> float:
        """How long to wait for the next frame of the answer, before the other side counts as gone."""
        if self._each_anew and self._has_begun:
            return self._deadline.seconds
        is_heard = self._operation.is_long and self._has_begun
        return self._deadline.silence_s if is_heard else self._deadline.left_s

    def _read_item(self, line: Line, frame: Frame) -> Item | None:
        match frame.kind:
            case FrameKind.ITEM:
                return self._operation.method.read_answer(frame)
            case FrameKind.ANSWER | FrameKind.END | FrameKind.ERROR:
                return None
            case FrameKind.REQUEST | FrameKind.CANCEL:
                raise ProtocolError(f"{line.peer}: {frame!r} is no answer")

    def close(self) -> None:
        """No more is wanted: what is on its way is taken and thrown away, if it comes soon."""
        line, self._line = self._line, None
        if line is not None:
            try:
                with suppress(StelaeError):
                    line.cancel(self._request, self._deadline.anew().within(_CANCEL_S_MAX))
            finally:
                self._lines.give(line)

    def drop(self) -> None:
        """Give the line back: for others if the answer has ended, else to be closed."""
        line, self._line = self._line, None
        if line is not None:
            self._lines.give(line)

    def __del__(self) -> None:
        # Made only in part if asking failed.
        if getattr(self, "_line", None) is not None:
            self.drop()


def receive_result(items: ItemStream, operation: Operation[Any, R], progress: Progress | None) -> R:
    """The result; on the way, how far long work is."""
    try:
        data = _receive_bytes(items, progress)
        try:
            return operation.result.decode(data)
        except ProtocolError as error:
            raise items.refuse(error) from error
    finally:
        items.drop()


def _receive_bytes(items: ItemStream, progress: Progress | None) -> Bytes:
    parts: list[Bytes] = []
    while (found := items.next_item()) is not None:
        item, body = found
        if item is None:
            return body
        if item.kind is ItemKind.PIECE:
            parts.append(body)
        elif progress is not None and item.total:
            progress(item.done, item.total)
    return parts[0] if len(parts) == 1 else b"".join(parts)
