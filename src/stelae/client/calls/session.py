"""What all objects of one open database share: the store, patience, and whether it is closed.

`run` carries out steps on the caller's thread. It needs no event loop and disturbs none, and any number of threads may
be in it. It is the one place that repeats what failed. Where the process that had the store is gone, the store is
looked for again (`Finder`) before the next try. Waiting ends at once when the session is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Lock
from typing import Any, Protocol, TypeVar, cast

from stelae.client.calls.brief import MISTAKES
from stelae.client.calls.lanes import Lanes, Numbering
from stelae.client.calls.retries import Attempts, Patience, say_more
from stelae.client.calls.steps import Again, Step, Steps, Write, ask
from stelae.model.errors import Closed, ConnectionLost, Overloaded, Retryable, StelaeError
from stelae.model.ids import TableId, Txn
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.service.refusing import ClosedStore

T = TypeVar("T")

_ROOM_S = 0.5
"""A store that is full says when it has room again; it is asked so often all the same."""


class Finder(Protocol):
    """Looks for a store whose process is gone."""

    def find_again(self, lost: Backend, deadline: Deadline) -> Backend:
        """The store as it can be reached now; the same again if nobody has it yet."""
        ...

    def keep(self, pin: Pin, store: Backend, deadline: Deadline) -> Pin:
        """A pin that a store has given, asked for again wherever the store goes, or has gone since then."""
        ...

    def close(self) -> None:
        """Wait for changes under way, and let go of the store. Closing twice is no error."""
        ...


class Alarms(Protocol):
    """Calls jobs at their time, on a thread of its own."""

    def call_later(self, seconds: float, job: Callable[[], None]) -> None:
        """Call the job once, so many seconds from now; never, if this is closed before."""
        ...

    def close(self) -> None:
        """The job under way is the last one."""
        ...


class Session:
    def __init__(
        self,
        backend: Backend,
        patience: Patience,
        finder: Finder | None = None,
        pause: Callable[[Event, float], bool] = Event.wait,
        alarms: Alarms | None = None,
        cluster: str | None = None,
    ) -> None:
        """`pause` waits until an event is set or so many seconds have passed; whether it is set. `alarms`: by which
        batches are written out when their time has come; None: they are when more is said. `cluster`: the masters of
        the cluster that the store is of, as another process connects to it; None: it is in a directory."""
        self.backend: Backend = backend
        self.patience = patience
        self.place = backend.place
        self.cluster = cluster
        self._finder = finder
        self._pause = pause
        self.alarms = alarms
        self._lanes = Lanes(patience.rng)
        self._ended = Event()
        self._lock = Lock()
        self._before_close: list[Callable[[], None]] = []

    @property
    def is_closed(self) -> bool:
        return self._ended.is_set()

    def ask(self, job: Callable[[Backend, Deadline], T]) -> T:
        """What one request of the store gives; repeated while it fails for a while."""
        return self.run(ask(job))

    def run(self, steps: Steps[T], deadline: Deadline | None = None, failed: Retryable | None = None) -> T:
        """What a step raises in the end, its call is told. `deadline`, `failed`: the call was begun in a quicker way,
        which came to this."""
        deadline = deadline or self.patience.deadline()
        attempts, numbering = Attempts(deadline, self.patience.rng), self.begin_numbering()
        if failed is not None:
            self.wait_to_repeat(attempts, failed, self.backend, deadline)
        raised: StelaeError | None = None
        result: Any = None
        try:
            step = next(steps)
            while True:
                try:
                    result = self._carry_out(step, attempts, deadline, numbering)
                except StelaeError as error:
                    raised = error
                # Behind the `except`: what the call raises comes of what it says itself, and not of all it was told.
                step = steps.send(result) if raised is None else steps.throw(raised)
                raised = None
        except StopIteration as done:
            return cast(T, done.value)
        except StelaeError as error:
            told = numbering.told(error)
            try:
                if told is not error:
                    raise told from error
                raise error.with_traceback(None) if isinstance(error, MISTAKES) else error
            finally:
                del told, raised  # an error that its own traceback leads to would keep all that the call had
        finally:
            numbering.end()

    def begin_numbering(self) -> Numbering:
        """Begin to number the writes of one call."""
        return Numbering(self._lanes, self.patience.clock)

    def _carry_out(self, step: Step, attempts: Attempts, deadline: Deadline, numbering: Numbering) -> Any:
        """Repeated after what is Retryable, unless only the call itself can do that."""
        if isinstance(step, Again):
            return self.wait_to_repeat(attempts, step.error, self.backend, deadline)
        if isinstance(step, Write):
            return self._write(step, attempts, deadline, numbering)
        before: StelaeError | None = None
        while True:
            backend = self.backend
            try:
                return step.carry_out(backend, deadline)
            except Retryable as error:
                if isinstance(error, step.handles):
                    raise
                before = say_more(error, before)
                self.wait_to_repeat(attempts, before, backend, deadline)

    def _write(self, step: Write, attempts: Attempts, deadline: Deadline, numbering: Numbering) -> Any:
        """Repeated after an unknown outcome, too, if another process has the store."""
        before: StelaeError | None = None
        while True:
            backend = self.backend
            if not backend.is_local or numbering.is_in_doubt:
                numbering.number(step)
            try:
                txn = step.carry_out(backend, deadline)
            except StelaeError as error:
                before = say_more(numbering.judge(step, error), before)
                self.wait_to_repeat(attempts, before, backend, deadline)
            else:
                numbering.note_done()
                return txn

    def wait_to_repeat(self, attempts: Attempts, error: StelaeError, backend: Backend, deadline: Deadline) -> None:
        """Before the next try; the error again if the time is up. Closed as soon as the session is."""
        seconds = attempts.delay_s(error)
        if isinstance(error, ConnectionLost):
            self._look_for_store(attempts, error, backend, deadline)
        if isinstance(error, Overloaded) and backend.is_local:
            backend.wait_for_room(min(_ROOM_S, attempts.left_s(error)))
            seconds = 0.0
        self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """Closed as soon as the session is."""
        if self._pause(self._ended, seconds):
            raise Closed(f"the database {self.place} was closed meanwhile")

    def _look_for_store(self, attempts: Attempts, why: ConnectionLost, lost: Backend, deadline: Deadline) -> None:
        """Looking for it may fail for a while, too: then it is looked for again, until the deadline. `why`: what was
        said when it was lost."""
        while True:
            try:
                return self.find_again(lost, deadline)
            except Retryable as error:
                self._rest(attempts.delay_s(say_more(error, why)))

    def find_again(self, lost: Backend, deadline: Deadline) -> None:
        """After the connection to a store broke: find out who has it now."""
        if self._finder is None:
            return
        found = self._finder.find_again(lost, deadline)
        with self._lock:
            if self.backend is lost and not self._ended.is_set():
                self.backend = found

    def pin(self, at: Txn | None, table: TableId | None = None) -> Pin:
        """A snapshot that is held until it is closed, wherever the store goes meanwhile. `table`: only this one is read
        at it."""
        backend = self.backend
        if backend.is_local:
            try:
                return backend.pin(at, table)
            except Retryable:
                pass  # it is asked for again below, until the deadline
        return self.ask(lambda backend, until: self._keep_pin(backend, at, table, until))

    def _keep_pin(self, backend: Backend, at: Txn | None, table: TableId | None, deadline: Deadline) -> Pin:
        pin = backend.pin(at, table, deadline=deadline)
        if self._finder is None:
            return pin
        try:
            return self._finder.keep(pin, backend, deadline)
        except BaseException:
            pin.close()
            raise

    def begin_anew(self, backend: Backend, finder: Finder, alarms: Alarms) -> None:
        """In a forked child: what the session had is the parent's, and locks may be held for ever."""
        self._ended = Event()
        self._lock = Lock()
        self._lanes = Lanes(self.patience.rng)
        self._finder, self.alarms, self.backend = finder, alarms, backend

    def call_before_close(self, job: Callable[[], None]) -> None:
        """Call the job when the session is closed, while its store can still be asked."""
        with self._lock:
            self._before_close.append(job)

    def close(self) -> None:
        """Waits for writes under way. Closing twice is no error."""
        with self._lock:
            jobs, self._before_close = self._before_close, []
        with ExitStack() as ends:
            ends.callback(self._close)
            for job in jobs:
                ends.callback(job)

    def _close(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            backend = self.backend
            self._ended.set()
            self.backend = ClosedStore(self.place)
        if self._finder is None:
            backend.close()
        else:
            self._finder.close()
        if self.alarms is not None:
            self.alarms.close()
