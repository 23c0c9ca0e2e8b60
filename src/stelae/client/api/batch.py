"""What `Table.batch` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stelae.client.calls.gathering import Gathering
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Steps
from stelae.model.errors import Closed
from stelae.model.public import public


@public("Batch")
class Batch:
    """Many puts and erasures, written in large parts.

        with users.batch() as batch:
            for number in range(100_000):
                batch.put({"id": f"user-{number}"})

    A part is written out when enough is gathered or the oldest has waited long enough; all is durable when the `with`
    is left. If it is left by an exception, what is not written yet is discarded; what is, stays. A batch is not atomic,
    and may be used by one thread at a time.
    """

    def __init__(self, session: Session, gathering: Gathering) -> None:
        self._session = session
        self._gathering = gathering
        self._is_closed = False

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
        if not self._is_closed:
            self.flush()
            self._is_closed = True

    def _run(self, steps: Steps[None]) -> None:
        if self._is_closed:
            raise Closed("the batch is closed: begin another")
        self._session.run(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._gathering.discard()
        self._is_closed = True
