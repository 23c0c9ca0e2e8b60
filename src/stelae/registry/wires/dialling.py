"""Connections of an event loop to a peer that moves: its address is looked up whenever one is opened. So masters and
shards find each other, and programs that ask from a loop find them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stelae.model.errors import ConnectionLost, DeadlineExceeded, Unavailable
from stelae.ports.transport import Address, Connection
from stelae.service.deadlines import Deadline

ConnectOnLoop = Callable[[Address], Awaitable[Connection]]
"""Connects the running event loop."""

FindOnLoop = Callable[[Deadline | None], Awaitable[str]]
"""Gives the address of somebody who moves, within a deadline, or raises Unavailable."""


class FoundDial:
    """A `registry.peers.Dial` to whoever is found, each time anew. Where nobody is found now, the one that was found
    last is tried: whoever knows where it is may be away while it is there."""

    def __init__(self, what: str, find: FindOnLoop, connect: ConnectOnLoop) -> None:
        self._what = what
        self._find = find
        self._connect = connect
        self._last = ""

    async def __call__(self, deadline: Deadline) -> Connection:
        try:
            self._last = await self._find(time_to_find(deadline, self._last))
        except Unavailable as error:
            if not self._last:
                raise not_found(self._what, error) from error
            try:
                return await self._connect(Address(self._last))
            except Unavailable:
                raise not_found(self._what, error) from error
        return await self._connect(Address(self._last))


def time_to_find(deadline: Deadline | None, last: str) -> Deadline | None:
    """How long to look for an address: half the time if the last one is to be tried in case that none is found."""
    return deadline if deadline is None or not last else deadline.within(deadline.left_s / 2)


def not_found(what: str, error: Unavailable) -> Unavailable:
    """What to tell whoever wanted a connection, if nobody says where it goes to."""
    if isinstance(error, DeadlineExceeded | ConnectionLost):
        return error
    return ConnectionLost(f"{what}: {error}")
