"""Answers of a store that another process has: one frame, or items and an end, on a line that is given back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from stelae.client.remote.lines import Line, Lines
from stelae.model.errors import ConnectionLost, DeadlineExceeded, StelaeError, UnknownOutcome
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import Item, ItemKind, Request
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.service.reports import Progress
from stelae.wire.faults import ProtocolError
from stelae.wire.messages import read_error


class Patience:
    """How long the next frame of an answer is waited for: until the caller's deadline, or, of long work, for as long as
    the deadline was when it began. `answer_s`: for a caller without a deadline; None for any time."""

    def __init__(self, deadline: Deadline | None, *, each_anew: bool, answer_s: float | None) -> None:
        self._deadline = deadline
        self._each_anew = each_anew
        self._answer_s = answer_s

    def seconds(self) -> float | None:
        if self._deadline is None:
            return self._answer_s
        return self._deadline.seconds if self._each_anew else self._deadline.left_s


class ItemStream:
    """The frames of one answer, on a line of its own until they end. Closed early, the rest is cancelled; dropped
    without that, the line is."""

    def __init__(
        self,
        lines: Lines,
        operation: Operation[Any, Any],
        message: Request,
        body: Bytes,
        deadline: Deadline | None,
        patience: Patience,
    ) -> None:
        self._lines = lines
        self._operation = operation
        self._patience = patience
        self._line: Line | None = None
        self._request: RequestId
        self._line, self._request = lines.ask(operation, message, body, deadline=deadline)

    def next_item(self) -> tuple[Item | None, Bytes] | None:
        """The next item with its body; without an item, the whole answer; None after the last. What the other side
        raised is raised; a lost answer of what is not safe to repeat is UnknownOutcome."""
        line = self._line
        if line is None:
            return None
        try:
            return self._read(line, self._receive(line))
        except BaseException:
            self._give_back()
            raise

    def _receive(self, line: Line) -> Frame:
        try:
            return line.receive(self._patience.seconds())
        except (ConnectionLost, DeadlineExceeded) as error:
            if self._operation.is_repeatable:
                raise
            raise UnknownOutcome(
                f"{self._operation.name} was sent, and may or may not have happened: {error}"
            ) from error

    def _read(self, line: Line, frame: Frame) -> tuple[Item | None, Bytes] | None:
        match frame.kind:
            case FrameKind.ITEM:
                return self._operation.method.read_answer(frame), frame.body
            case FrameKind.ANSWER:
                self._give_back()
                return None, frame.body
            case FrameKind.END:
                self._give_back()
                return None
            case FrameKind.ERROR:
                raise read_error(frame, STORE_FAULTS)
            case FrameKind.REQUEST | FrameKind.CANCEL:
                raise ProtocolError(f"{line.peer}: {frame!r} is no answer")

    def close(self) -> None:
        """No more is wanted: what is on its way is taken and thrown away, within the caller's patience."""
        line, self._line = self._line, None
        if line is not None:
            try:
                with suppress(StelaeError):
                    line.cancel(self._request, self._patience.seconds())
            finally:
                self._lines.give(line)

    def _give_back(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._lines.give(line)

    def __del__(self) -> None:
        # Made only in part if asking failed.
        if getattr(self, "_line", None) is not None:
            self._give_back()


def receive_result(items: ItemStream, progress: Progress | None) -> Bytes:
    """The bytes of the whole result; on the way, how far long work is."""
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
