"""Connections to peers that move: the address is looked up, or chosen among several, whenever one is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.model.errors import ConnectionLost, DeadlineExceeded, StelaeError, Unavailable
from stelae.ports.blocking import BlockingConnection, BlockingConnector
from stelae.ports.clock import Clock
from stelae.service.deadlines import Deadline

Connect = Callable[[str], BlockingConnector]
"""Makes a connector to an address."""


class FoundConnector:
    """To whoever is found, each time anew. `find` gives the address, within a deadline, or raises Unavailable."""

    def __init__(self, what: str, find: Callable[[Deadline | None], str], connect: Connect, clock: Clock) -> None:
        self._what = what
        self._find = find
        self._connect = connect
        self._clock = clock
        self._last = ""

    @property
    def address(self) -> str:
        return f"{self._what} at {self._last}" if self._last else self._what

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        deadline = None if timeout_s is None else Deadline(self._clock, timeout_s)
        try:
            self._last = found = self._find(deadline)
        except (DeadlineExceeded, ConnectionLost):
            raise
        except Unavailable as error:
            raise ConnectionLost(f"{self._what}: {error}") from error
        return self._connect(found).connect(None if deadline is None else deadline.left_s)


class AnyConnector:
    """To any of several addresses: the one that answered last is tried first."""

    def __init__(self, addresses: Sequence[str], connect: Connect, clock: Clock) -> None:
        self._addresses = list(addresses)
        self._connect = connect
        self._clock = clock

    @property
    def address(self) -> str:
        return ",".join(self._addresses)

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        """What the first one said, if none answers."""
        deadline = None if timeout_s is None else Deadline(self._clock, timeout_s)
        refused: StelaeError | None = None
        for at, address in enumerate(list(self._addresses)):
            left_s = None if deadline is None else deadline.left_s / (len(self._addresses) - at)
            try:
                connection = self._connect(address).connect(left_s)
            except Unavailable as error:
                refused = refused or error
                continue
            if at:
                self._addresses = [address, *(each for each in self._addresses if each != address)]
            return connection
        raise refused or ConnectionLost("no address was given")
