"""What the `batch` of an async table returns: see `gathering`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.gathering import Gathering
from stelae.client.calls.steps import Steps
from stelae.model.errors import Closed
from stelae.model.public import public


@public("AsyncBatch", "stelae.aio")
class AsyncBatch:
    """Many puts and erasures, written in large parts, as `Batch`.

        async with users.batch() as batch:
            await batch.put({"id": "ann"})

    All is durable when the block is left; if by an exception, what is not written yet is discarded. For one task.
    """

    def __init__(self, session: AsyncSession, gathering: Gathering) -> None:
        self._session = session
        self._gathering = gathering
        self._is_closed = False

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
            self._is_closed = True

    async def _run(self, steps: Steps[None]) -> None:
        if self._is_closed:
            raise Closed("the batch is closed: begin another")
        await self._session.run(steps)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        self._gathering.discard()
        self._is_closed = True
