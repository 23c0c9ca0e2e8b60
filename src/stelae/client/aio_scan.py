"""What the `scan` of an async table returns: see `scan`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from stelae.client.aio_session import AsyncSession, awaited
from stelae.client.outgoing import FoundRow, pandas_of, polars_of
from stelae.client.scan import PinnedScan
from stelae.client.scanning import ScanRun

T = TypeVar("T")


class AsyncScan:
    """Rows of a table at one moment, as `Scan`, for `async for` and `await`.

        async for row in users.scan(stelae.col("age") > 30):
            ...

    Made at the snapshot that is the newest then; each pass starts anew, at the same one. For one task at a time.
    """

    def __init__(self, session: AsyncSession, pinned: Future[PinnedScan]) -> None:
        self._session = session
        self._pinned = pinned

    def __aiter__(self) -> AsyncIterator[FoundRow]:
        return self._rows()

    async def _rows(self) -> AsyncIterator[FoundRow]:
        async for chunk in self._stream(ScanRun.rows):
            for row in chunk:
                yield row

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The same as a stream of `pyarrow.RecordBatch`, in bounded memory."""
        async for batch in self._stream(ScanRun.batches):
            yield batch

    async def _stream(self, start: Callable[[ScanRun], Generator[T, None, None]]) -> AsyncIterator[T]:
        pinned = await awaited(self._pinned)
        pump = _Pump(start(pinned.run()))
        try:
            while (item := await self._session.work(pump.next)) is not None:
                yield item
        finally:
            await self._session.work(pump.close)

    async def to_arrow(self) -> pa.Table:
        """All rows as a `pyarrow.Table`."""
        pinned = await awaited(self._pinned)
        return await self._session.work(pinned.table)

    async def to_pandas(self) -> Any:
        """All rows as a pandas frame."""
        return await self._session.work(pandas_of, await self.to_arrow())

    async def to_polars(self) -> Any:
        """All rows as a polars frame."""
        return await self._session.work(polars_of, await self.to_arrow())

    async def page(self, count: int) -> tuple[list[FoundRow], str | None]:
        """The first `count` rows, and a token for `after=`, or None if there are no more."""
        pinned = await awaited(self._pinned)
        return await self._session.work(pinned.page, count)

    async def close(self) -> None:
        """Let go of the snapshot. Closing twice is no error."""
        pinned = await awaited(self._pinned)
        await self._session.work(pinned.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


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
