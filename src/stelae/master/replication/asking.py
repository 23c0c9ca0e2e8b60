"""How shards are asked about replicas: none is waited for longer than is said, whatever it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from stelae.model.errors import Deposed, StelaeError, UnknownOutcome
from stelae.registry.control import TabletReport


async def ask_within(seconds: float | None, asked: Awaitable[TabletReport]) -> TabletReport:
    """UnknownOutcome after so long, also if the shard says that it goes on: it may be waiting for what only others can
    do, and these for whoever asks here. None: as long as the request itself allows."""
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except TimeoutError:
        raise UnknownOutcome(f"it was not answered within {seconds:g} s, and may be done") from None


def find_silent(asked: Iterable[str], answers: Sequence[TabletReport | BaseException]) -> set[str]:
    """Those that did not answer, or could not do it. What is no error of the product's own is raised."""
    silent: set[str] = set()
    for server, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Deposed) or (isinstance(answer, BaseException) and not isinstance(answer, StelaeError)):
            raise answer
        if isinstance(answer, StelaeError):
            silent.add(server)
    return silent
