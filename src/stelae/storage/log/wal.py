"""The log of a shard: records queue up, are written in groups with one sync each, and only then are acknowledged.

What is promised, and to whom:
- A future with a result: the record is on disk, and every replay gives it out until it is collected.
- A future with an error that says *never*: no replay will ever give the record out, whenever the process ends.
- A future with an error that says *not known*: the disk refused the write, then to cut it off, then a new file. The
  record may replay if the process ends now; not any more once a later record has its result, or after `close`.
- No answer when the process ended: either.

When a group fails, all that is queued behind it fails too, because it may be conditioned on what failed. Nothing of
this is said before the failed bytes are out of reach, since they may be whole on the disk:
1. The segment is closed, and truncated to its durable end. That is durable when it returns.
2. If that fails, a new segment is begun, whose header names the durable end of the old one.
3. If that fails too, the outcome is not known until a segment can be begun: then its header settles it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from copy import copy
from itertools import chain
from typing import Protocol

import msgspec

from stelae.format.log.positions import Position
from stelae.format.log.records import LogRecord
from stelae.model.errors import Closed, DiskFailed, StelaeError, Unavailable, UnknownOutcome
from stelae.model.hybrid import check_txn
from stelae.model.ids import Txn
from stelae.ports.logfiles import LogFiles
from stelae.storage.log.commits import LogEntry, TabletCommits, complete
from stelae.storage.log.replay import ReplayedLog, SegmentInfo
from stelae.storage.log.segments import DISK_ERRORS, WalSegments, record_size_bytes


class WalSettings(msgspec.Struct, frozen=True):
    """A segment or group is larger only if a single group or record is."""

    segment_bytes_max: int = 64 * 2**20
    group_bytes_max: int = 8 * 2**20


class TimeLeft(Protocol):
    """Until when somebody waits."""

    @property
    def left_s(self) -> float:
        """How many seconds are left, never less than none."""
        ...


class LogListener(Protocol):
    """Who is told what becomes of records, under the shard's lock, and must not raise."""

    def take_durable(
        self, group: Sequence[LogEntry], upto: Position, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        """See `CommitTracker.take_durable`."""
        ...

    def take_failed(self, entries: Sequence[LogEntry], error: StelaeError) -> None:
        """All that was queued has failed."""
        ...


def _call_nobody() -> None:
    """Of a log without a thread of its own."""


class _Undecided(Future[Txn]):
    """Of a record: what may be on disk cannot be cancelled. To call it running, as others do, takes a lock for each."""

    def cancel(self) -> bool:
        return False


class Wal:
    """For all threads. `enqueue` is called under the shard's lock; `drain`, `sync` and `close` take it.

    Futures are completed outside it, in the order of the queue, by the thread that drains: their callbacks must not
    drain. Txns may come in any order."""

    def __init__(
        self,
        files: LogFiles,
        lock: AbstractContextManager[object],
        settings: WalSettings,
        listener: LogListener,
        replayed: ReplayedLog,
    ) -> None:
        self._lock = lock
        self._settings = settings
        self._listener = listener
        self.on_left: Callable[[], None] = _call_nobody
        """Called, without a lock, when something is queued and no thread is about to write it: `drain_all` must be
        called then, by another thread."""
        self._segments = WalSegments(files, settings.segment_bytes_max, replayed)
        self._queue: deque[LogEntry] = deque()
        self._in_flight: list[LogEntry] = []
        self._is_written = False
        """What is in flight is on disk, and nobody was told so far."""
        self._queued_bytes = 0
        self._last_txn = replayed.last_txn
        self._has_failed = False
        """Whether the last record that was decided has failed."""
        self._closed = False
        self._roll_wanted = False
        self._turn = threading.Lock()
        self._turn_given = threading.Condition(self._turn)
        self._taken = False
        self._waiting = 0

    @property
    def end(self) -> Position:
        """Up to where the log is durable. Whatever is not durable yet will lie at or behind it."""
        return self._segments.end

    @property
    def queued_bytes(self) -> int:
        """The records that are not decided yet, waiting or being written."""
        return self._queued_bytes

    def enqueue(self, record: LogRecord, tablets: tuple[TabletCommits, ...] = ()) -> Future[Txn]:
        """Accept a record of these tablets; the caller holds the lock. Never blocks."""
        if self._closed:
            raise Closed("the log is closed")
        self._last_txn = check_txn(record.txn)
        future = _Undecided()
        size_bytes = record_size_bytes(record)
        self._queue.append(LogEntry(record, tablets, future, size_bytes))
        self._queued_bytes += size_bytes
        return future

    def drain(self, until: TimeLeft | None = None) -> None:
        """Write and sync, group by group, until what is undecided now is decided; if another thread is at it, wait for
        that. With no time left, give up after the group under way: the log's own thread is called to write the rest.
        Errors go to the futures."""
        with self._lock:
            newest = self._queue or self._in_flight
            last = newest[-1] if newest else None
        if not self._take_turn(last, until):
            return
        try:
            while last is not None and self._write_group():
                # Mostly nothing else is left, which is quicker to see than that a future is done.
                if not (self._queue or self._in_flight) or last.future.done():
                    break
                if until is not None and until.left_s <= 0:
                    break
                self._tell_of_group()
            if self._roll_wanted:
                self._roll_if_wanted()
        finally:
            self._give_back()

    def drain_all(self) -> None:
        """For the log's own thread: as `drain`, and then go on until nothing is queued. Who waits for one record may
        not be held up by those that others bring meanwhile."""
        with self._lock:
            last = next(self._undecided(), None)
        if not self._take_turn(last, None):
            return
        try:
            self._write_all()
        finally:
            self._give_back()

    def sync(self) -> Future[Txn]:
        """Done when every record accepted so far is durable, with the txn of the last. It raises if that fails or has
        failed; of earlier ones that failed before this call, their own futures tell."""
        with self._lock:
            last = next(self._undecided(), None)
            if last is not None:
                return last.future
            has_failed, txn = self._has_failed, self._last_txn
        future: Future[Txn] = Future()
        if has_failed:
            future.set_exception(Unavailable("what was written last was not made durable"))
        else:
            future.set_result(txn)
        return future

    def last_undecided(self, at: Txn) -> Future[Txn] | None:
        """Of the records at or below a txn the one that is decided last, if any is not; under the lock."""
        return next((entry.future for entry in self._undecided() if entry.tablets and entry.record.txn <= at), None)

    def undecided(self) -> list[LogEntry]:
        """What is queued or being written; under the lock."""
        return [*self._in_flight, *self._queue]

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The chain, oldest first."""
        return self._segments.infos

    def collect(self, needed_from: Position) -> tuple[str, ...]:
        """Delete the oldest segments, as far as all their records lie before needed_from, and files that failed. The
        active segment and the last of the chain stay: `roll` and `drain` give it a successor. The names deleted.

        If a file cannot be deleted, its error is raised; what was deleted stays so, and the next call goes on."""
        return self._segments.collect(needed_from)

    def roll(self) -> None:
        """After the next drain, all that was written lies in segments that can be collected. If the disk refuses a new
        segment, the drain after that tries again."""
        self._roll_wanted = not self._closed

    def let_go(self) -> None:
        """As if the process had ended here: nothing more is written."""
        with self._lock:
            self._closed = True
        self._segments.let_go()

    def close(self) -> None:
        """Write what is queued, then end the log so that later damage to any record is seen as corruption.

        Closing twice is no error. If the disk refuses the ending, its error is raised, but the log is closed and
        nothing is lost: the last group then may be taken for a torn tail if it is damaged. To close again tries again.
        """
        with self._lock:
            self._closed = True
        with self._turn:
            while self._taken:
                self._wait()
            self._taken = True
        try:
            self._write_all()
            self._segments.seal()
        finally:
            self._give_back()

    def _take_turn(self, last: LogEntry | None, until: TimeLeft | None) -> bool:
        """Wait until this thread is the one that writes; False if there is nothing for it to do any more, or no time
        left to wait."""
        is_mine = False
        try:
            with self._turn:
                while (last is not None and not last.future.done()) or self._roll_wanted:
                    if not self._taken:
                        self._taken = is_mine = True
                        break
                    if until is None:
                        self._wait()
                    elif (left_s := until.left_s) > 0:
                        self._wait(left_s)
                    else:
                        break
        finally:
            if not is_mine:
                self._call_if_left()
        return is_mine

    def _give_back(self) -> None:
        """A waiting thread can take the turn, whatever happened in this one."""
        with self._turn:
            self._taken = False
            if self._waiting:
                self._tell()
        if self._queue or self._in_flight:
            self._call_if_left()

    def _call_if_left(self) -> None:
        """Call for the log's own thread if something is queued that no thread is about to write. Each thread that
        leaves looks, so the last one sees what those left who gave up, and what futures' callbacks added. Whatever is
        queued after this look is written by whoever queued it."""
        if self._queue or self._in_flight:
            with self._turn:
                is_left = not self._taken and not self._waiting
            if is_left:
                self.on_left()

    def _tell(self) -> None:
        if self._waiting:
            self._turn_given.notify_all()

    def _wait(self, seconds: float | None = None) -> None:
        """Until the turn is given back, or some record is decided, or for so long."""
        self._waiting += 1
        try:
            self._turn_given.wait(seconds)
        finally:
            self._waiting -= 1

    def _undecided(self) -> Iterator[LogEntry]:
        """The records that are not decided yet, newest first. The caller has the lock."""
        return chain(reversed(self._queue), reversed(self._in_flight))

    def _write_all(self) -> None:
        while self._write_group() and self._queue:
            self._tell_of_group()
        self._roll_if_wanted()

    def _write_group(self) -> bool:
        """The next one, if anything is queued; whether there was one."""
        group = self._take()
        if group:
            self._write(group)
        return bool(group)

    def _tell_of_group(self) -> None:
        """Whoever waited for the group that was written need not wait for the next."""
        if self._waiting:
            with self._turn:
                self._tell()

    def _roll_if_wanted(self) -> None:
        if self._roll_wanted:
            with suppress(*DISK_ERRORS):
                self._segments.roll()
                self._roll_wanted = False

    def _take(self) -> list[LogEntry]:
        """The next group, now in flight."""
        with self._lock:
            if self._in_flight:
                return self._in_flight  # an interrupt kept the last drain from deciding these
            room_bytes = self._settings.group_bytes_max
            while self._queue:
                room_bytes -= self._queue[0].size_bytes
                if room_bytes < 0 and self._in_flight:
                    break
                self._in_flight.append(self._queue.popleft())
            return self._in_flight

    def _write(self, group: list[LogEntry]) -> None:
        if not self._is_written:
            try:
                self._segments.write([entry.record for entry in group], sum([entry.size_bytes for entry in group]))
            except BaseException as error:
                is_out_of_reach = False
                try:
                    is_out_of_reach = self._segments.abandon()
                finally:
                    self._fail(group, error, is_out_of_reach)
                if not isinstance(error, DISK_ERRORS):
                    raise
                return
            self._is_written = True
        self._acknowledge(group)

    def _acknowledge(self, group: list[LogEntry]) -> None:
        with self._lock:
            self._in_flight = []
            self._is_written = False
            self._queued_bytes -= sum([entry.size_bytes for entry in group])
            self._has_failed = False
            decided = self._listener.take_durable(group, self._segments.end, self._queue)
        complete(decided)

    def _fail(self, group: list[LogEntry], error: BaseException, is_out_of_reach: bool) -> None:
        reason = _as_stelae_error(error)
        with self._lock:
            behind = list(self._queue)
            self._queue.clear()
            self._in_flight = []
            self._queued_bytes = 0
            self._has_failed = True
            self._listener.take_failed([*group, *behind], reason)
        for entry in group:
            entry.future.set_exception(_verdict(reason, f"txn {entry.record.txn}", is_out_of_reach))
        for entry in behind:
            entry.future.set_exception(_verdict(reason, f"txn {entry.record.txn}", True))


def _as_stelae_error(error: BaseException) -> StelaeError:
    if isinstance(error, StelaeError):
        return error
    if isinstance(error, OSError):
        return DiskFailed(str(error))
    return Unavailable(f"writing the log was interrupted by {type(error).__name__}")


def _verdict(reason: StelaeError, what: str, is_out_of_reach: bool) -> StelaeError:
    """What became of the write: the same kind of error if it never happened, UnknownOutcome if that is not known."""
    verdict: StelaeError
    if is_out_of_reach:
        verdict = copy(reason)
        verdict.args = (f"{what} was not made durable and never will be: {reason}",)
    else:
        verdict = UnknownOutcome(
            f"{what} may be durable or not: that is not known until a later write succeeds or the log is opened again: "
            f"{reason}"
        )
    verdict.__cause__ = reason
    return verdict
