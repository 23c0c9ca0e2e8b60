"""What long work tells of itself, passed on to whoever waits for it at the other end of a connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from stelae.service.deadlines import Deadline
from stelae.service.messages import Item, ItemKind

_SIGN_S_MAX = 1.0
_SIGN_S_MIN = 0.02


class News:
    """The newest that was told, on the loop that passes it on. At most one is kept: older news is no news."""

    def __init__(self, deadline: Deadline | None) -> None:
        """`deadline`: of the caller. Signs of life are sent several times in the time that it waits for one."""
        self._loop = asyncio.get_running_loop()
        self._sign_s = _SIGN_S_MAX if deadline is None else max(_SIGN_S_MIN, min(_SIGN_S_MAX, deadline.seconds / 4))
        self._newest: Item | None = None
        self._has_news = asyncio.Event()

    def tell(self, done: int, total: int) -> None:
        """By any thread: so much of so much is done."""
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._take, Item(ItemKind.PROGRESS, False, done, total))

    def wake_with(self, *ends: asyncio.Future[Any]) -> None:
        """Whoever waits for news wakes up when one of these is done, too."""
        for end in ends:
            end.add_done_callback(lambda _: self._has_news.set())

    async def wait(self) -> Item | None:
        """What was told, as soon as it is; None if nothing was for a while, or something else is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sign_s):
                await self._has_news.wait()
        # What is told from here on sets it again. After news the next call returns at once, and sees what is over.
        self._has_news.clear()
        newest, self._newest = self._newest, None
        if newest is not None:
            self._has_news.set()
        return newest

    def _take(self, item: Item) -> None:
        self._newest = item
        self._has_news.set()
