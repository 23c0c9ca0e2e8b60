"""Work that is waited for, but not for long: what takes longer goes on, and the others are not kept by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str, str | int]
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Beside:
    """For the tasks of one event loop. What is under way is not begun a second time under the same key."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Task[None]] = {}

    async def do(self, works: Mapping[Key, Work], patience_s: float | None) -> None:
        """All at once. Returns when all are done, at the latest after so long. Raises what one of them, or of those
        that were begun before, has raised."""
        for key, work in works.items():
            if key not in self._under_way:
                self._under_way[key] = asyncio.create_task(work())
                self._under_way[key].add_done_callback(_hear)
        if works:
            await asyncio.wait([self._under_way[key] for key in works], timeout=patience_s)
        over = {key: task for key, task in self._under_way.items() if task.done()}
        for key in over:
            del self._under_way[key]
        for task in over.values():
            task.result()


def _hear(task: asyncio.Task[None]) -> None:
    """Of one that nobody comes back to any more nothing is said."""
    if not task.cancelled():
        task.exception()
