"""Waiting for something that may have changed."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes all who wait for something that may have changed, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
