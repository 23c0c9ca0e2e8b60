"""Until when callers wait for a change of tables, which itself goes on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from stelae.model.errors import UnknownOutcome
from stelae.service.deadlines import Deadline

T = TypeVar("T")

_GRACE_S = 0.5
"""What a change says itself when the time is over says more: it has so long to say it."""

_GOING_ON: set[asyncio.Task[Any]] = set()
"""An event loop itself keeps no task alive."""


async def wait_for_change(change: Coroutine[Any, Any, T], what: str, deadline: Deadline | None) -> T:
    """What comes of a change. UnknownOutcome at the deadline: it is recorded step by step, and goes on."""
    if deadline is None:
        return await change
    task = asyncio.create_task(change)
    _GOING_ON.add(task)
    task.add_done_callback(_forget)
    await asyncio.wait((task,), timeout=deadline.left_s + _GRACE_S)
    if not task.done():
        raise UnknownOutcome(f"{what} is under way, and goes on: it took more than the {deadline.seconds:g} s given")
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    _GOING_ON.discard(task)
    if not task.cancelled():
        task.exception()  # nobody may be waiting for it any more
