"""Steps carried out in an event loop, which never waits for a disk or a socket.

Rows that a local store has in memory are read at once; writes are let in at once and awaited; everything else is done
on a few threads of the database's own. A task that is cancelled stops waiting; what it had asked for still happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

from stelae.client.calls.order import Turn, WriteOrder
from stelae.client.calls.retries import Attempts
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Again, Ask, Read, Step, Steps, Write
from stelae.model.errors import Closed, ConnectionLost, NotCached, Overloaded, Retryable, StelaeError
from stelae.model.ids import TableId, Txn
from stelae.ports.executor import Executor
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSession:
    def __init__(self, session: Session, executor: Executor) -> None:
        self.session = session
        self.order = WriteOrder()
        self._executor = executor

    async def work(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """On one of the threads; waits for its turn."""
        attempts: Attempts | None = None
        while True:
            try:
                return await wait_for(self._executor.submit(job, *args, **kwargs))
            except Overloaded as error:
                attempts = attempts or self._attempts(self.session.patience.deadline())
                await asyncio.sleep(attempts.delay_s(error))

    async def write_many(self, table: TableId, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """A write of any rows of a table, made on one of the threads, in its turn."""
        turn = self.order.take(table, None)
        try:
            await turn.come()
            future = self._executor.submit(job, *args, **kwargs)
        except BaseException:
            turn.end()
            raise
        _end_with(turn, future)
        return await wait_for(future)

    def begin(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """On one of the threads, from now on."""
        return self._executor.submit(job, *args, **kwargs)

    async def run(self, steps: Steps[T]) -> T:
        """As `Session.run`."""
        deadline = self.session.patience.deadline()
        attempts: Attempts | None = None
        writing = _Writing(self)
        try:
            step = next(steps)
            while True:
                backend = self.session.backend
                try:
                    if isinstance(step, Again):
                        attempts = attempts or self._attempts(deadline)
                        await self._wait_to_repeat(attempts, step.error, backend, deadline)
                        result = None
                    else:
                        result = await self._carry_out(step, backend, deadline, writing)
                except Retryable as error:
                    if isinstance(step, Again) or isinstance(error, step.handles):
                        step = steps.throw(error)
                        continue
                    attempts = attempts or self._attempts(deadline)
                    await self._wait_to_repeat(attempts, error, backend, deadline)
                except StelaeError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            writing.end()

    async def _carry_out(self, step: Step, backend: Backend, deadline: Deadline, writing: _Writing) -> Any:
        match step:
            case Write():
                return await writing.write(step, backend, deadline)
            case Read(table, row, columns, at) if backend.is_local:
                with suppress(NotCached):
                    return backend.newest_cached(table, row, columns, at)
                return await self.work(step.carry_out, backend, deadline)
            case Read() | Ask():
                return await self.work(step.carry_out, backend, deadline)
            case Again():
                raise step.error

    async def _wait_to_repeat(
        self, attempts: Attempts, error: StelaeError, backend: Backend, deadline: Deadline
    ) -> None:
        seconds = attempts.delay_s(error)
        if isinstance(error, ConnectionLost):
            await self.work(self.session.find_again, backend, deadline)
        await asyncio.sleep(seconds)
        if self.session.is_closed:
            raise Closed(f"the database {self.session.place} was closed meanwhile")

    def _attempts(self, deadline: Deadline) -> Attempts:
        return Attempts(deadline, self.session.patience.rng)

    async def close(self) -> None:
        """Closing twice is no error."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self.session.close()
        self._executor.close()


class _Writing:
    """The writes of one call, which keep their place in the order until the call ends or the last of them does."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._turn: Turn | None = None
        self._last: Future[Txn] | None = None

    async def write(self, step: Write, backend: Backend, deadline: Deadline) -> Txn:
        order = self._session.order
        if self._turn is None and (order.turns or not backend.is_local):
            self._turn = order.take(step.table, step.blocks)
            await self._turn.come()
        future = self._last = backend.submit(step.table, step.blocks, step.max_txn, deadline=deadline)
        if self._turn is None and was_refused(future):
            self._turn = order.take(step.table, step.blocks)
        return await wait_for(future)

    def end(self) -> None:
        if self._turn is not None:
            _end_with(self._turn, self._last)


def was_refused(future: Future[Any]) -> bool:
    """Whether a local store has refused what was submitted just now."""
    return future.done() and future.exception() is not None


def _end_with(turn: Turn, future: Future[Any] | None) -> None:
    """When the work itself is over, also if nobody waits for it any more."""
    if future is None or future.done():
        turn.end()
        return
    loop = asyncio.get_running_loop()

    def end(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(turn.end)

    future.add_done_callback(end)


async def wait_for(future: Future[T]) -> T:
    """The result; the work itself is not cancelled with whoever waits for it."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_look_at_error)
    return await asyncio.shield(waiting)


def _look_at_error(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the error of a write whose task was cancelled."""
    if not future.cancelled():
        future.exception()
