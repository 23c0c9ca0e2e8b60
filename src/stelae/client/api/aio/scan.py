"""What the `scan` of an async table returns: see `scan`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from stelae.client.api.handles import OfThisProcess
from stelae.client.api.rows import Row, pandas_of, polars_of
from stelae.client.api.scan import PinnedScan
from stelae.client.calls.aio_session import AsyncSession, wait_for
from stelae.client.calls.scans import ScanRun
from stelae.model.errors import Closed, Overloaded
from stelae.model.public import public

T = TypeVar("T")


@public("AsyncScan", "stelae.aio")
class AsyncScan(OfThisProcess):
    """Rows of a table at one moment, as `Scan`, for `async for` and `await`.

        async for row in users.scan(stelae.col("age") > 30):
            ...

    Made at the snapshot that is the newest then; each pass starts anew, at the same one. For one task at a time.
    """

    def __init__(self, session: AsyncSession, pinned: Future[PinnedScan]) -> None:
        self._session = session
        self._pinned = pinned

    def __aiter__(self) -> AsyncIterator[Row]:
        return _Rows(self._stream(ScanRun.rows))

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The same as a stream of `pyarrow.RecordBatch`, in bounded memory."""
        return self._stream(ScanRun.batches)

    def _stream(self, start: Callable[[ScanRun], Generator[T, None, None]]) -> _Stream[T]:
        return _Stream(self._session, self._pinned, start)

    async def to_arrow(self) -> pa.Table:
        """All rows as a `pyarrow.Table`."""
        pinned = await wait_for(self._pinned)
        return await self._session.work(pinned.table)

    async def to_pandas(self) -> Any:
        """All rows as a pandas frame."""
        return await self._session.work(pandas_of, await self.to_arrow())

    async def to_polars(self) -> Any:
        """All rows as a polars frame."""
        return await self._session.work(polars_of, await self.to_arrow())

    async def page(self, count: int) -> tuple[list[Row], str | None]:
        """The first `count` rows, and a token for `after=`, or None if there are no more."""
        pinned = await wait_for(self._pinned)
        return await self._session.work(pinned.page, count)

    async def close(self) -> None:
        """Let go of the snapshot. Closing twice is no error."""
        pinned = await wait_for(self._pinned)
        await self._session.work(pinned.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Stream(AsyncIterator[T]):
    """One pass. Whoever forgets it frees what it holds; it is no async generator, so an event loop that ends does not
    wait for it, and may end after the database was closed."""

    def __init__(
        self,
        session: AsyncSession,
        pinned: Future[PinnedScan],
        start: Callable[[ScanRun], Generator[T, None, None]],
    ) -> None:
        self._session = session
        self._pinned = pinned
        self._start: Callable[[ScanRun], Generator[T, None, None]] | None = start
        self._pump: _Pump[T] | None = None

    async def __anext__(self) -> T:
        if self._start is not None:
            pinned, start = await wait_for(self._pinned), self._start
            self._start, self._pump = None, _Pump(start(pinned.run()))
        if self._pump is not None:
            item = await self._session.work(self._pump.next)
            if item is not None:
                return item
            self._pump = None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Give out nothing more. Closing twice is no error."""
        pump, self._start, self._pump = self._pump, None, None
        if pump is not None:
            with suppress(Closed):
                await self._session.work(pump.close)

    def __del__(self) -> None:
        if self._pump is not None:
            with suppress(Closed, Overloaded, RuntimeError):  # the last where the interpreter ends
                self._session.begin(self._pump.close)


class _Rows(AsyncIterator[Row]):
    """The rows of chunks, one by one."""

    def __init__(self, chunks: _Stream[list[Row]]) -> None:
        self._chunks = chunks
        self._rows: Iterator[Row] = iter(())

    async def __anext__(self) -> Row:
        while (row := next(self._rows, None)) is None:
            self._rows = iter(await self._chunks.__anext__())
        return row

    async def aclose(self) -> None:
        self._rows = iter(())
        await self._chunks.aclose()


class _Pump(Generic[T]):
    """A generator that several threads may turn, one after another: a cancelled turn may still be under way."""

    def __init__(self, generator: Generator[T, None, None]) -> None:
        self._generator = generator
        self._lock = Lock()

    def next(self) -> T | None:
        with self._lock:
            return next(self._generator, None)

    def close(self) -> None:
        with self._lock:
            self._generator.close()
