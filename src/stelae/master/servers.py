"""The servers of a store, as its master reaches them, and where new tablets are put."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

from stelae.model.errors import Unavailable
from stelae.registry.control import ServerLink
from stelae.registry.tablet_records import TabletPhase, TabletRecord


class Servers(Protocol):
    """For the tasks of one event loop. `patience_s`: how long a server that works at what it was told is waited for, if
    that need not be; None: as long as it takes."""

    @property
    def patience_s(self) -> float | None: ...

    async def names(self) -> tuple[str, ...]:
        """All that belong to the store, there or away."""
        ...

    async def placeable(self) -> tuple[str, ...]:
        """Those that new tablets may be put on, as far as is known."""
        ...

    async def gone(self) -> tuple[str, ...]:
        """Those that belonged to the store, and were taken out of it for good."""
        ...

    def is_silent(self, server: str) -> bool:
        """Whether it was to be heard of, and was not for a while."""
        ...

    def link(self, server: str) -> ServerLink: ...


class OneServer:
    """`Servers` of a store that has one."""

    patience_s: float | None = None

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def names(self) -> tuple[str, ...]:
        return (self._link.server,)

    async def placeable(self) -> tuple[str, ...]:
        return (self._link.server,)

    async def gone(self) -> tuple[str, ...]:
        return ()

    def is_silent(self, server: str) -> bool:  # noqa: ARG002 - it is in the same process
        return False

    def link(self, server: str) -> ServerLink:  # noqa: ARG002 - there is no other
        return self._link


def place_tablets(
    count: int, servers: Sequence[str], records: Iterable[TabletRecord], without: Collection[str] = ()
) -> list[str]:
    """A server for each of so many new tablets, in the order of their rows. Neighbours share a server, so that they may
    be joined and read together; in sum each has about as many tablets as the others. `without`: those that did not
    answer, if there are others."""
    usable = [server for server in servers if server not in without] or list(servers)
    if not usable:
        raise Unavailable("no shard is there that tablets could be put on: start a node")
    load = Counter(record.server for record in records if record.phase is not TabletPhase.REPLACED)
    shares: Counter[str] = Counter()
    for _ in range(count):
        shares[min(usable, key=lambda server: (load[server] + shares[server], server))] += 1
    return list(islice((server for server in usable for _ in range(shares[server])), count))
