"""The event loop that a master and a metastore live on, as everybody else sees it: from other threads."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Loop(Protocol):
    """An event loop in a thread of its own."""

    def run(self, job: Awaitable[T]) -> T:
        """Run the job on the loop and wait for it. Never called on the loop itself."""
        ...
