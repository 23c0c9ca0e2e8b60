"""Work that is waited for, but not for long: what takes longer goes on, and the others are not kept by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str, str | int]
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Beside:
    """For the tasks of one event loop. What is under way is not begun a second time under the same key."""

    def __init__(self, ended: Callable[[Key, BaseException | None], None]) -> None:
        """`ended` hears of each work that has come to its end, and what it raised, whether or not anybody waits for
        it still."""
        self._ended = ended
        self._under_way: dict[Key, asyncio.Task[None]] = {}

    async def do(self, works: Mapping[Key, Work], patience_s: float | None) -> list[BaseException]:
        """All at once. Returns when all are done, at the latest after so long: what those of them have raised that are
        done by then."""
        mine = [self._begin(key, work) for key, work in works.items()]
        if not mine:
            return []
        done, _ = await asyncio.wait(mine, timeout=patience_s)
        raised = (task.exception() for task in mine if task in done and not task.cancelled())
        return [error for error in raised if error is not None]

    def _begin(self, key: Key, work: Work) -> asyncio.Task[None]:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(partial(self._note_end, key))
        return task

    def _note_end(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            self._ended(key, task.exception())
