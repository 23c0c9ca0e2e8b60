"""What the watches of all real metastores have in common: one place to be at, and one way to take from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from stelae.model.errors import StelaeError
from stelae.ports.metastore import Revision, WatchBatch
from stelae.ports.metastore_rules import check_revision, prefix_bytes


class BatchWatch(ABC):
    """Where a watch is: the batches read and not yet taken (the next one last), and the revision to read on from. What
    ended it (`_failed`) is raised again by every later call."""

    def __init__(self, prefix: str, from_revision: Revision) -> None:
        self._prefix = prefix
        self._next = from_revision
        self._batches: list[WatchBatch] = []
        self._failed: StelaeError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        while True:
            self._check_open()
            if self._failed is not None:
                raise self._failed
            if self._batches:
                return self._batches.pop()
            prefix_bytes(self._prefix)
            check_revision(self._next)
            await self._read_on()

    @abstractmethod
    def _check_open(self) -> None:
        """Raise Closed if the metastore was closed."""

    @abstractmethod
    async def _read_on(self) -> None:
        """Read more batches, or wait until there may be more, or set what ended the watch. Cancelled, it loses none."""
