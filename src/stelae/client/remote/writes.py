"""Writes to a store that another process has: blocks in frames, and in the order they were said.

Blocks of one call go together as long as they fit a frame, and group after group: the next is sent when the last is
durable, so what was written before an error is a beginning of the call.

Writes that are submitted go through one lane. A job sends them in their order on one connection, many before the first
is answered, and the owner gives them to the store in that order; so of two writes to a row the one that was submitted
later counts. The job ends when nothing is left to send or to wait for.

A write that was not sent raises Unavailable; one that was sent and not answered UnknownOutcome: it may have happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from threading import Condition

from stelae.client.remote.lines import Line, Lines, LineSettings, answered
from stelae.format.block import encode_block
from stelae.model.errors import (
    Closed,
    InvalidArgument,
    Overloaded,
    PartialWrite,
    StaleSchema,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import TableId, Txn
from stelae.ports.executor import Executor
from stelae.ports.transport import RequestId
from stelae.service.blocks import OrderedBlock
from stelae.service.messages import BLOCKS_MAX, WRITE, WriteMessage

GROUP_BYTES = 16 * 1024 * 1024
WAITING_BYTES_MAX = 64 * 1024 * 1024
UNANSWERED_MAX = 8


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Blocks that are sent together."""

    message: WriteMessage
    body: bytes | memoryview
    blocks: tuple[OrderedBlock, ...]

    @property
    def rows(self) -> int:
        return sum(len(ordered.rows.unique()) for ordered in self.blocks)


def write_groups(table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None) -> Iterator[WriteGroup]:
    """Encoded when they are asked for."""
    waiting: list[tuple[OrderedBlock, bytes | memoryview]] = []
    size = 0

    def group() -> WriteGroup:
        parts = [data for _, data in waiting]
        message = WriteMessage(table, max_txn, tuple([len(data) for data in parts]))
        return WriteGroup(message, parts[0] if len(parts) == 1 else b"".join(parts), tuple([b for b, _ in waiting]))

    if not blocks:
        raise InvalidArgument("a write without blocks says nothing")
    for ordered in blocks:
        data = encode_block(ordered.block)
        if waiting and (size + len(data) > GROUP_BYTES or len(waiting) == BLOCKS_MAX):
            yield group()
            waiting, size = [], 0
        waiting.append((ordered, data))
        size += len(data)
    yield group()


def write_in_order(groups: Iterator[WriteGroup], write: Callable[[WriteGroup], Txn]) -> Txn:
    """Group after group; what an error means for the whole call."""
    newest, durable = Txn(0), 0
    for group in groups:
        try:
            newest = max(newest, write(group))
        except StaleSchema:
            raise
        except UnknownOutcome as error:
            if not durable:
                raise
            raise UnknownOutcome(f"{error}; the first {durable} rows are durable") from error
        except StelaeError as error:
            if not durable:
                raise
            durable += error.durable if isinstance(error, PartialWrite) else 0
            raise PartialWrite(f"the first {durable} rows are durable; then: {error}", durable) from error
        durable += group.rows
    return newest


def unknown(line: Line, error: BaseException) -> UnknownOutcome:
    return UnknownOutcome(f"{line.peer}: the write was sent, and may or may not have happened: {error}")


def write_alone(lines: Lines, group: WriteGroup, timeout_s: float) -> Txn:
    """On a line taken for it."""
    line, _ = lines.ask(WRITE, group.message, group.body, timeout_s=timeout_s)
    try:
        frame = line.receive(timeout_s)
    except Unavailable as error:
        raise unknown(line, error) from error
    finally:
        lines.give(line)
    return Txn(answered(WRITE, frame)[0].txn)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`group`: all of it, if it is one; else `groups`, which begin with those that are encoded already."""

    group: WriteGroup | None
    groups: Iterator[WriteGroup]
    size_bytes: int
    future: Future[Txn]


class WriteLane:
    """Safe for threads."""

    def __init__(self, lines: Lines, executor: Executor, settings: LineSettings) -> None:
        self._lines = lines
        self._executor = executor
        self._settings = settings
        self._change = Condition()
        self._queue: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._is_running = False

    @property
    def is_busy(self) -> bool:
        return self._is_running

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None) -> Future[Txn]:
        """Waits only while what is submitted and not durable has too many bytes."""
        groups = write_groups(table, blocks, max_txn)
        first = next(groups)
        second = next(groups, None)
        future: Future[Txn] = Future()
        future.set_running_or_notify_cancel()
        size = len(first.body) + (len(second.body) if second else 0)
        alone = first if second is None else None
        waiting = _Waiting(alone, chain([first, *([second] if second else [])], groups), size, future)
        with self._change:
            fits = self._change.wait_for(lambda: self._fits(size), self._settings.answer_s)
            if not fits:
                future.set_exception(Overloaded(f"{self._waiting_bytes} bytes wait to be written"))
                return future
            self._queue.append(waiting)
            self._waiting_bytes += size
            if self._is_running:
                return future
            self._is_running = True
        try:
            self._executor.submit(self._drain)
        except StelaeError as error:
            self._give_up(error)
        return future

    def wait_idle(self) -> None:
        with self._change:
            self._change.wait_for(lambda: not self._is_running)

    def _fits(self, size: int) -> bool:
        return not self._waiting_bytes or self._waiting_bytes + size <= WAITING_BYTES_MAX

    def _drain(self) -> None:
        run = _LaneRun(self._lines, self._settings.answer_s, self._settled)
        try:
            while True:
                item = self._next(has_more=run.is_waiting) if run.has_room else None
                if item is not None:
                    run.start(item)
                elif run.is_waiting:
                    run.settle_one()
                else:
                    return
        except BaseException as error:
            run.fail_all(error)
            self._give_up(error if isinstance(error, StelaeError) else Closed(f"the writer was stopped: {error!r}"))
            raise
        finally:
            run.end()

    def _next(self, *, has_more: bool) -> _Waiting | None:
        with self._change:
            if self._queue:
                return self._queue.popleft()
            if not has_more:
                self._is_running = False
                self._change.notify_all()
            return None

    def _settled(self, item: _Waiting) -> None:
        with self._change:
            self._waiting_bytes -= item.size_bytes
            self._change.notify_all()

    def _give_up(self, error: StelaeError) -> None:
        with self._change:
            items, self._queue = list(self._queue), deque()
            self._waiting_bytes -= sum(item.size_bytes for item in items)
            self._is_running = False
            self._change.notify_all()
        for item in items:
            item.future.set_exception(error)


class _LaneRun:
    """One job of the lane: its line, and what was sent on it and not answered, oldest first."""

    def __init__(self, lines: Lines, answer_s: float, settled: Callable[[_Waiting], None]) -> None:
        self._lines = lines
        self._answer_s = answer_s
        self._settled = settled
        self._line: Line | None = None
        self._sent: dict[RequestId, _Waiting] = {}

    @property
    def is_waiting(self) -> bool:
        return bool(self._sent)

    @property
    def has_room(self) -> bool:
        return len(self._sent) < UNANSWERED_MAX

    def start(self, item: _Waiting) -> None:
        """Send it; several groups only when everything before is settled, and then to the end."""
        if item.group is None:
            while self._sent:
                self.settle_one()
            self.end()
            self._do(item, lambda: write_in_order(item.groups, self._alone))
            return
        try:
            self._send(item, item.group)
        except StelaeError as error:
            self._done(item, error)

    def _alone(self, group: WriteGroup) -> Txn:
        return write_alone(self._lines, group, self._answer_s)

    def _send(self, item: _Waiting, group: WriteGroup) -> None:
        if self._line is None:
            self._line, request = self._lines.ask(WRITE, group.message, group.body, timeout_s=self._answer_s)
        else:
            try:
                request = self._line.ask(WRITE, group.message, group.body, timeout_s=self._answer_s)
            except Unavailable as error:
                self._lose(self._line, error)
                raise
        self._sent[request] = item

    def settle_one(self) -> None:
        line = self._line
        if line is None:
            return
        try:
            frame = line.receive(self._answer_s)
        except StelaeError as error:
            self._lose(line, error)
            return
        item = self._sent.pop(frame.request_id)
        self._do(item, lambda: Txn(answered(WRITE, frame)[0].txn))

    def fail_all(self, error: BaseException) -> None:
        if self._line is not None:
            self._lose(self._line, error)

    def end(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._lines.give(line)

    def _lose(self, line: Line, error: BaseException) -> None:
        sent, self._sent, self._line = self._sent, {}, None
        self._lines.give(line)
        for item in sent.values():
            self._done(item, error if isinstance(error, Closed) else unknown(line, error))

    def _do(self, item: _Waiting, work: Callable[[], Txn]) -> None:
        try:
            txn = work()
        except StelaeError as error:
            self._done(item, error)
        else:
            self._settled(item)
            item.future.set_result(txn)

    def _done(self, item: _Waiting, error: StelaeError) -> None:
        self._settled(item)
        item.future.set_exception(error)
