"""Steps carried out in an event loop, which never waits for a disk or a socket.

Rows that a local backend has in memory are read at once; writes are let in at once and awaited; everything else is done
on a few threads of the database's own. A task that is cancelled stops waiting; what it had asked for still happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar, cast

from stelae.client.calls.retries import Attempts
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Pause, Read, Step, Steps, Write
from stelae.model.errors import NotCached, Overloaded, StelaeError
from stelae.ports.executor import Executor

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSession:
    def __init__(self, session: Session, executor: Executor) -> None:
        self.session = session
        self._executor = executor

    async def work(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """On one of the threads; waits for its turn."""
        attempts: Attempts | None = None
        while True:
            try:
                return await awaited(self._executor.submit(job, *args, **kwargs))
            except Overloaded as error:
                attempts = attempts or Attempts(self.session.patience)
                await asyncio.sleep(attempts.delay_s(error))

    def begin(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """On one of the threads, from now on."""
        return self._executor.submit(job, *args, **kwargs)

    async def run(self, steps: Steps[T]) -> T:
        attempts: Attempts | None = None
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._carried_out(step)
                except StelaeError as error:
                    if isinstance(error, step.again):
                        attempts = attempts or Attempts(self.session.patience)
                        await asyncio.sleep(attempts.delay_s(error))
                    else:
                        step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return cast(T, done.value)

    async def _carried_out(self, step: Step) -> Any:
        backend = self.session.backend
        match step:
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Write(table, blocks, max_txn):
                return await awaited(backend.submit(table, blocks, max_txn))
            case Read(table, row, columns, at) if backend.is_local:
                try:
                    return backend.newest_cached(table, row, columns, at)
                except NotCached:
                    return await self.work(step.carry_out, backend)
            case _:
                return await self.work(step.carry_out, backend)

    async def close(self) -> None:
        """Closing twice is no error."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self.session.close()
        self._executor.close()


async def awaited(future: Future[T]) -> T:
    """The result; the work itself is not cancelled with whoever waits for it."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_seen)
    return await asyncio.shield(waiting)


def _seen(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the error of a write whose task was cancelled."""
    if not future.cancelled():
        future.exception()
