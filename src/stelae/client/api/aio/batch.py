"""What the `batch` of an async table returns: see `gathering`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from weakref import WeakMethod, finalize

from stelae.client.api.batch import MAY_HAVE_HAPPENED, batch_line, warn_of_forgotten
from stelae.client.api.handles import OfThisProcess
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.gathering import Gathering
from stelae.client.calls.steps import Steps
from stelae.model.errors import Closed, StelaeError
from stelae.model.public import public


@public("AsyncBatch", "stelae.aio")
class AsyncBatch(OfThisProcess):
    """Many puts and erasures, written in large parts, as `Batch`.

        async with users.batch() as batch:
            await batch.put({"id": "ann"})

    All is durable when the block is left; if by an exception, what is not written yet is discarded. What has waited
    long enough is written by the event loop, if no call comes. For one task.
    """

    def __init__(self, session: AsyncSession, gathering: Gathering) -> None:
        self._session = session
        self._gathering = gathering
        self._is_closed = False
        self._alarm: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._is_unknown = False
        self._failed: StelaeError | None = None
        self._lock = asyncio.Lock()
        self._forgotten = finalize(self, warn_of_forgotten, gathering)

    async def put(self, row: Mapping[str, Any], *, ts: int | None = None) -> None:
        """As `Table.put`, later."""
        await self._run(self._gathering.put(row, ts))

    async def erase(self, key: object, columns: Sequence[str] | None = None, *, ts: int | None = None) -> None:
        """As `Table.erase`, later."""
        await self._run(self._gathering.erase(key, columns, ts))

    async def flush(self) -> None:
        """Write what is gathered; it is durable when this returns."""
        await self._run(self._gathering.flush())

    async def close(self) -> None:
        """Flush, and take no more. Closing twice is no error."""
        if not self._is_closed:
            await self.flush()
            self._end()

    async def _run(self, steps: Steps[None]) -> None:
        # If an alarm's writing is waited for, that is of the call's own time.
        deadline = self._session.session.patience.deadline() if self._lock.locked() else None
        async with self._lock:
            if self._is_closed:
                raise Closed("the batch is closed: begin another")
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed
            try:
                await self._session.run(steps, deadline)
            except MAY_HAVE_HAPPENED:
                self._is_unknown = True
                raise
            self._is_unknown = self._is_unknown and self._gathering.count > 0
            if self._alarm is None:
                self._set_alarm(self._gathering.due_in_s)

    def _set_alarm(self, seconds: float | None) -> None:
        """One at a time; the alarm does not keep a batch that was forgotten."""
        if seconds is None:
            return
        begin = WeakMethod(self._begin_to_flush)

        def ring() -> None:
            found = begin()
            if found is not None:
                found()

        self._alarm = asyncio.get_running_loop().call_later(max(0.0, seconds), ring)

    def _begin_to_flush(self) -> None:
        self._flushing = asyncio.get_running_loop().create_task(self._flush_due())

    async def _flush_due(self) -> None:
        """As of `Batch`: what fails stays gathered, and an outcome that nobody can know is told by the next call."""
        async with self._lock:
            self._alarm = None
            due_in_s = self._gathering.due_in_s
            if self._is_closed or self._is_unknown or due_in_s is None:
                return
            try:
                if due_in_s <= 0:
                    await self._session.run(self._gathering.flush())
            except MAY_HAVE_HAPPENED as error:
                self._failed, self._is_unknown = error, True
            except StelaeError:
                self._set_alarm(self._gathering.seconds_max)
            else:
                self._set_alarm(self._gathering.due_in_s)

    def _end(self) -> None:
        self._gathering.discard()
        self._is_closed = True
        self._forgotten.detach()
        if self._alarm is not None:
            self._alarm.cancel()

    def __repr__(self) -> str:
        return batch_line("AsyncBatch", self._gathering, self._is_closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.close()
        finally:
            self._end()
