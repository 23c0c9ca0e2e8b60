"""Steps carried out in an event loop, which never waits for a disk or a socket.

Rows that a local store has in memory are read at once; small writes are let in at once and awaited; everything else is
done on a few threads of the database's own. A task that is cancelled stops waiting; what it had asked for still
happens, and keeps its place in the order of writes until it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from stelae.client.calls.brief import MISTAKES
from stelae.client.calls.lanes import Numbering
from stelae.client.calls.order import ANY_ROWS, Span, Turn, WriteOrder, span_of, span_of_row
from stelae.client.calls.retries import Attempts, say_more
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Again, Ask, Claim, Make, Read, Step, Steps, Write
from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    NotCached,
    Overloaded,
    Retryable,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.ids import TableId, Txn
from stelae.ports.executor import Executor
from stelae.service.backend import Backend, HasRowsOnLoop, RowsOnLoop
from stelae.service.deadlines import Deadline

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSession:
    def __init__(self, session: Session, executor: Executor) -> None:
        self.session = session
        self.order = WriteOrder()
        self._executor = executor
        self._asked: Backend | None = None
        self._rows: RowsOnLoop | None = None
        """Of the store that was asked last, if it can be asked without a thread."""
        self._retiring: set[asyncio.Task[None]] = set()

    async def work(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """On one of the threads. DeadlineExceeded if it could not begin in time."""
        return await self.work_by(self.session.patience.deadline(), job, *args, **kwargs)

    async def work_by(self, deadline: Deadline, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `work`, until a deadline that began before."""
        return await result_of(await self.submit_by(deadline, job, *args, **kwargs), deadline)

    async def work_in_turn(self, table: TableId, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `work`, for a job that writes any rows of a table by itself: it stands behind the writes that were begun
        before it, and ahead of those that are begun later, until it is over."""
        deadline = self.session.patience.deadline()
        turn, future = self.order.take(table, ANY_ROWS), None
        try:
            await turn.come(deadline)
            future = await self.submit_by(deadline, job, *args, **kwargs)
            return await result_of(future, deadline)
        finally:
            _end_with(turn, future)

    def begin(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have one of the threads do the job, and return at once."""
        return self._executor.submit(job, *args, **kwargs)

    async def run(
        self,
        steps: Steps[T],
        deadline: Deadline | None = None,
        *,
        failed: StelaeError | None = None,
        turn: Turn | None = None,
        numbering: Numbering | None = None,
    ) -> T:
        """As `Session.run`; what a call claims or writes has its turn in the order of writes. `turn`, `numbering`: what
        it has of them already, which is ended here."""
        deadline = deadline or self.session.patience.deadline()
        attempts, numbering = self._attempts(deadline), numbering or self.session.begin_numbering()
        writing = _Writing(self, numbering, turn)
        raised: StelaeError | None = None
        result: Any = None
        try:
            if failed is not None:
                await self._wait_to_repeat(attempts, failed, self.session.backend, deadline)
            step = next(steps)
            while True:
                try:
                    result = await self._carry_out(step, attempts, deadline, writing)
                except StelaeError as error:
                    raised = error
                step = steps.send(result) if raised is None else steps.throw(raised)  # behind it: as in `Session.run`
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
            writing.end()
            numbering.end()

    async def _carry_out(self, step: Step, attempts: Attempts, deadline: Deadline, writing: _Writing) -> Any:
        if isinstance(step, Again):
            return await self._wait_to_repeat(attempts, step.error, self.session.backend, deadline)
        before: StelaeError | None = None
        while True:
            backend = self.session.backend
            try:
                if isinstance(step, Write):
                    return await writing.write_once(step, backend, deadline)
                return await self._try(step, backend, deadline, writing)
            except StelaeError as error:
                if isinstance(step, Write):
                    before = say_more(writing.numbering.judge(step, error), before)
                elif not isinstance(error, Retryable) or isinstance(error, step.handles):
                    raise
                else:
                    before = say_more(error, before)
                await self._wait_to_repeat(attempts, before, backend, deadline)

    async def _try(
        self, step: Read | Ask | Make | Claim, backend: Backend, deadline: Deadline, writing: _Writing
    ) -> Any:
        match step:
            case Claim():
                return await writing.claim(step, deadline)
            case Read(table, row, columns, at) if backend.is_local:
                with suppress(NotCached):
                    return backend.newest_cached(table, row, columns, at)
            case Read(table, row, columns, at) if (rows := self.rows_of(backend)) is not None:
                return await rows.newest(table, row, columns, at, deadline)
        return await self.work_by(deadline, step.carry_out, backend, deadline)

    async def _wait_to_repeat(
        self, attempts: Attempts, error: StelaeError, backend: Backend, deadline: Deadline
    ) -> None:
        seconds = attempts.delay_s(error)
        if isinstance(error, ConnectionLost):
            await self._look_for_store(attempts, error, backend, deadline)
        await self._rest(seconds)

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.session.is_closed:
            raise Closed(f"the database {self.session.place} was closed meanwhile")

    async def _look_for_store(self, attempts: Attempts, why: ConnectionLost, lost: Backend, deadline: Deadline) -> None:
        """Looking for it may fail for a while, too: then it is looked for again, until the deadline. `why`: what was
        said when it was lost."""
        while True:
            try:
                return await self.work_by(deadline, self.session.find_again, lost, deadline)
            except Retryable as error:
                await self._rest(attempts.delay_s(say_more(error, why)))

    async def submit_by(
        self, deadline: Deadline, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """On one of the threads, as soon as there is room in their queue."""
        attempts = self._attempts(deadline)
        while True:
            try:
                return self._executor.submit(job, *args, **kwargs)
            except Overloaded as error:
                await asyncio.sleep(attempts.delay_s(error))

    def rows_of(self, backend: Backend) -> RowsOnLoop | None:
        """Single rows of a store that another process has, without a thread; None if there is no such way."""
        if backend is not self._asked:
            if backend is not self.session.backend:
                return None  # it was the store when the call began; it is not asked for long
            rows, self._rows, self._asked = self._rows, None, backend
            if rows is not None:
                task = asyncio.create_task(rows.retire())
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            if not backend.is_local and isinstance(backend, HasRowsOnLoop):
                self._rows = backend.open_rows()
        return self._rows

    def _attempts(self, deadline: Deadline) -> Attempts:
        return Attempts(deadline, self.session.patience.rng)

    async def close(self) -> None:
        """Closing twice is no error."""
        await asyncio.to_thread(self._end)
        if self._rows is not None:
            await self._rows.close()
        for task in (retiring := set(self._retiring)):
            task.cancel()
        if retiring:
            await asyncio.wait(retiring)

    def _end(self) -> None:
        self.session.close()
        self._executor.close()


class _Writing:
    """The writes of one call, each in its turn. What a local store has let in needs none, if it is one row: it is in,
    or it was refused; of many rows some may be in. A turn is kept until what it was taken for is written, reads before
    it, tries and fresh blocks included, or the call ends."""

    def __init__(self, session: AsyncSession, numbering: Numbering, turn: Turn | None = None) -> None:
        self._session = session
        self.numbering = numbering
        self._is_large = False
        self._reads_first = False
        self._turn = turn
        self._last: _Under[Any] | None = None

    async def claim(self, step: Claim, deadline: Deadline) -> None:
        """Take the turn of a row that is read first, and wait until it has come and what was written before can be
        read. Where the rows are not known yet, of which there may be many, take the turn unless there is one already,
        and leave the waiting to `write`."""
        if step.row is None:
            if self._turn is None:
                self._is_large = True
                self._turn = self._session.order.take(step.table, ANY_ROWS)
            return
        self._reads_first = True
        span = span_of_row(step.row)
        turn = self._fitting_turn(step.table, span)
        if turn is None:
            turn = self._turn = self._session.order.take(step.table, span)
        await turn.come(deadline)
        let_in = self._session.order.let_in(step.table, step.row)
        if let_in is not None:
            await asyncio.wait((_waiting(let_in),), timeout=deadline.left_s)
            if not let_in.done():
                raise DeadlineExceeded("a write of the same row that was begun before it was not durable in time")

    async def write_once(self, step: Write, backend: Backend, deadline: Deadline) -> Txn:
        """With its number, if another process has the store."""
        if not backend.is_local or self.numbering.is_in_doubt:
            self.numbering.number(step)
        txn = await self.write(step, backend, deadline)
        self.numbering.note_done()
        return txn

    async def write(self, step: Write, backend: Backend, deadline: Deadline) -> Txn:
        order, span = self._session.order, span_of(step.blocks)
        is_row = len(step.blocks) == 1 and step.blocks[0].count == 1
        turn = self._fitting_turn(step.table, span)
        if turn is None and not (is_row and backend.is_local and order.is_free(step.table, span)):
            turn = self._turn = order.take(step.table, span)
        if turn is not None:
            await turn.come(deadline)
        try:
            future = await self._submit(step, backend, deadline)
            if was_refused(future):
                future.result()
        except Retryable:
            # Those that are begun from now on wait until it was tried again.
            self._turn = turn or order.take(step.table, span)
            raise
        if not backend.is_local:
            txn: Txn = await wait_for(future)
        else:
            # Whoever reads first keeps the turn until others can read what it wrote: the next one most likely does.
            if is_row and not self._reads_first and isinstance(future, Future):
                order.note_let_in(step.table, step.blocks, future)
                if turn is not None:
                    turn.end()
                    self._turn = None
            txn = await wait_until_durable(future, deadline)
        self.end()
        return txn

    def _fitting_turn(self, table: TableId, span: Span) -> Turn | None:
        """The turn that was taken for these rows; of one for any rows, from now on for these."""
        turn = self._turn
        if turn is not None and turn.span.last is None:
            turn.narrow(span)
        elif turn is not None and not turn.covers(table, span):
            self.end()
        return self._turn

    async def _submit(self, step: Write, backend: Backend, deadline: Deadline) -> _Under[Txn]:
        rows = self._session.rows_of(backend)
        if rows is not None:
            writing = rows.write(step.table, step.blocks, step.max_txn, step.must_show, deadline)
            task = self._last = asyncio.create_task(writing)
            return task

        def submit() -> Future[Txn]:
            return backend.submit(step.table, step.blocks, step.max_txn, must_show=step.must_show, deadline=deadline)

        if not (self._is_large and backend.is_local):
            future = self._last = submit()
            return future
        # To let many rows in takes a while.
        begun = self._last = await self._session.submit_by(deadline, submit)
        self._last = future = await result_of(begun, deadline)
        return future

    def end(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            _end_with(turn, self._last)


_Under: TypeAlias = Future[T] | asyncio.Future[T]
"""Work under way: on another thread, or in this loop."""


def was_refused(future: _Under[Any]) -> bool:
    """Whether what was submitted just now has failed at once, as it does where a local store refuses it."""
    return future.done() and future.exception() is not None


def _end_with(turn: Turn, future: _Under[Any] | None) -> None:
    """When the work itself is over, also if nobody waits for it any more."""
    if future is None or future.done():
        turn.end()
        return

    def end(_: _Under[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the order
            turn.loop.call_soon_threadsafe(turn.end)

    future.add_done_callback(end)


async def wait_for(future: _Under[T]) -> T:
    """The result; the work itself is not cancelled with whoever waits for it."""
    return await asyncio.shield(_waiting(future))


async def wait_until_durable(future: _Under[Txn], deadline: Deadline) -> Txn:
    """Of a write that a local store has let in; UnknownOutcome if it is not durable in time."""
    if not future.done():
        waiting = _waiting(future)
        await asyncio.wait((waiting,), timeout=deadline.left_s)
        if not waiting.done():
            raise UnknownOutcome(f"the write may happen or not: it was not durable within {deadline.seconds:g} s")
    return future.result()


async def result_of(future: _Under[T], deadline: Deadline) -> T:
    """Of a job on a thread. What has begun by the deadline is waited for: it keeps a deadline itself."""
    waiting = _waiting(future)
    await asyncio.wait((waiting,), timeout=deadline.left_s)
    if not waiting.done() and future.cancel():
        raise DeadlineExceeded("the threads of the database had too much to do to begin with it in time")
    return await asyncio.shield(waiting)


def _waiting(future: _Under[T]) -> asyncio.Future[T]:
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_look_at_error)
    return waiting


def _look_at_error(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the error of a write whose task was cancelled."""
    if not future.cancelled():
        future.exception()
