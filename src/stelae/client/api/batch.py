"""What `Table.batch` returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Self
from weakref import WeakMethod, finalize

from stelae.client.api.handles import OfThisProcess
from stelae.client.calls.gathering import Gathering
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Steps
from stelae.model.errors import Closed, PartialWrite, StelaeError, UnknownOutcome
from stelae.model.public import public
from stelae.model.words import counted
from stelae.service.deadlines import Deadline

MAY_HAVE_HAPPENED = (UnknownOutcome, PartialWrite)
"""After these a batch writes nothing again by itself."""


@public("Batch")
class Batch(OfThisProcess):
    """Many puts and erasures, written in large parts.

        with users.batch() as batch:
            for number in range(100_000):
                batch.put({"id": f"user-{number}"})

    A part is written out when enough is gathered or the oldest has waited long enough, by a thread if no call comes;
    all is durable when the `with` is left. If it is left by an exception, what is not written yet is discarded; what
    is, stays. A batch that is forgotten with changes in it warns. A batch is not atomic, and may be used by one thread
    at a time.

    After an error of `flush` or `close` the changes are still gathered. What may have happened (`UnknownOutcome`) is
    not written again by the thread: only by another `flush` or `close`, or with more that you put.
    """

    def __init__(self, session: Session, gathering: Gathering) -> None:
        self._session = session
        self._gathering = gathering
        self._is_closed = False
        self._is_alarmed = False
        self._is_unknown = False
        self._failed: StelaeError | None = None
        self._lock = Lock()
        self._forgotten = finalize(self, warn_of_forgotten, gathering)

    def put(self, row: Mapping[str, Any], *, ts: int | None = None) -> None:
        """As `Table.put`, later. A row that could not be written is refused here."""
        self._run(self._gathering.put(row, ts))

    def erase(self, key: object, columns: Sequence[str] | None = None, *, ts: int | None = None) -> None:
        """As `Table.erase`, later."""
        self._run(self._gathering.erase(key, columns, ts))

    def flush(self) -> None:
        """Write what is gathered; it is durable when this returns."""
        self._run(self._gathering.flush())

    def close(self) -> None:
        """Flush, and take no more. Closing twice is no error."""
        deadline = self._begin()
        try:
            if not self._is_closed:
                self._write(self._gathering.flush(), deadline)
                self._end()
        finally:
            self._lock.release()

    def _run(self, steps: Steps[None]) -> None:
        deadline = self._begin()
        try:
            self._write(steps, deadline)
            if not self._is_alarmed:
                self._set_alarm(self._gathering.due_in_s)
        finally:
            self._lock.release()

    def _begin(self) -> Deadline | None:
        """Take the lock. If an alarm's writing is waited for, that is of the call's own time."""
        if self._lock.acquire(blocking=False):
            return None
        deadline = self._session.patience.deadline()
        self._lock.acquire()
        return deadline

    def _write(self, steps: Steps[None], deadline: Deadline | None) -> None:
        """Carry a call out. The caller has the lock."""
        if self._is_closed:
            raise Closed("the batch is closed: begin another")
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        try:
            self._session.run(steps, deadline)
        except MAY_HAVE_HAPPENED:
            self._is_unknown = True
            raise
        self._is_unknown = self._is_unknown and self._gathering.count > 0

    def _set_alarm(self, seconds: float | None) -> None:
        """One at a time; the alarm does not keep a batch that was forgotten."""
        alarms = self._session.alarms
        if seconds is None or alarms is None:
            return
        flush = WeakMethod(self._flush_due)

        def ring() -> None:
            found = flush()
            if found is not None:
                found()

        self._is_alarmed = True
        alarms.call_later(max(0.0, seconds), ring)

    def _flush_due(self) -> None:
        """Write what has waited long enough. What fails stays gathered, and is tried again after as long; an outcome
        that nobody can know is told by the next call."""
        with self._lock:
            self._is_alarmed = False
            due_in_s = self._gathering.due_in_s
            if self._is_closed or self._is_unknown or due_in_s is None:
                return
            try:
                if due_in_s <= 0:
                    self._session.run(self._gathering.flush())
            except MAY_HAVE_HAPPENED as error:
                self._failed, self._is_unknown = error, True
            except StelaeError:
                self._set_alarm(self._gathering.seconds_max)
            else:
                self._set_alarm(self._gathering.due_in_s)

    def _end(self) -> None:
        """Take no more, and forget what is not written. The caller has the lock."""
        self._gathering.discard()
        self._is_closed = True
        self._forgotten.detach()

    def __repr__(self) -> str:
        return batch_line("Batch", self._gathering, self._is_closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = self._begin()
        try:
            if kind is None and not self._is_closed:
                self._write(self._gathering.flush(), deadline)
        finally:
            # Before an alarm can write what the caller was told was not written.
            self._end()
            self._lock.release()


def batch_line(kind: str, gathering: Gathering, is_closed: bool) -> str:
    state = "closed" if is_closed else f"{counted(gathering.count, 'change')} not written yet"
    return f"<{kind} of {gathering.table!r}: {state}>"


def warn_of_forgotten(gathering: Gathering) -> None:
    """When nobody refers to a batch any more that was not closed, or the program ends."""
    if gathering.count:
        changes = "1 change that is" if gathering.count == 1 else f"{gathering.count} changes that are"
        warnings.warn(
            f"a batch of table {gathering.table!r} was forgotten with {changes} not written: "
            "leave it by `with table.batch() as batch:`, or close it",
            RuntimeWarning,
            stacklevel=2,
        )
