"""Blocking connections to peers that move: the address is looked up, or chosen among several, whenever one is opened.
For event loops see `registry.wires.dialling`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.model.errors import ConnectionLost, StelaeError, Unavailable
from stelae.ports.blocking import BlockingConnection, BlockingConnector
from stelae.ports.clock import Clock
from stelae.ports.transport import Frame
from stelae.registry.wires.dialling import not_found, time_to_find
from stelae.service.deadlines import Deadline

Connect = Callable[[str], BlockingConnector]
"""Makes a connector to an address."""

Find = Callable[[Deadline | None], str]
"""Gives the address of somebody who moves, within a deadline, or raises Unavailable. Blocking."""

SILENCE_S = 2.0
"""So long may one of several say nothing before the next is tried."""


class FoundConnector:
    """To whoever is found, each time anew. `find` gives the address, within a deadline, or raises Unavailable: then the
    one that was found last is tried, since whoever knows where it is may be away while it is there."""

    def __init__(self, what: str, find: Find, connect: Connect, clock: Clock) -> None:
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
            self._last = self._find(time_to_find(deadline, self._last))
        except Unavailable as error:
            if not self._last:
                raise not_found(self._what, error) from error
            try:
                return self._connect_last(deadline)
            except Unavailable:
                raise not_found(self._what, error) from error
        return self._connect_last(deadline)

    def _connect_last(self, deadline: Deadline | None) -> BlockingConnection:
        return self._connect(self._last).connect(None if deadline is None else deadline.left_s)


class AnyConnector:
    """To any of several addresses: the one that answered last is tried first. Each has its share of the time to let
    itself be connected to, and to say something: a process that was stopped does the first, but not the second. One
    that says nothing is tried after all others from then on, also on other connections, and these are not used again.

    How long one may say nothing is doubled each time, until one answers: so nobody is asked in vain for ever where all
    of them are slow. `is_brief`: not only whether it is there is answered at once, but whatever it is asked."""

    def __init__(self, addresses: Sequence[str], connect: Connect, clock: Clock, *, is_brief: bool = False) -> None:
        self._addresses = list(addresses)
        self._connect = connect
        self._clock = clock
        self._is_brief = is_brief
        self._patience_s = SILENCE_S
        self.count = len(self._addresses)

    @property
    def address(self) -> str:
        return ",".join(self._addresses)

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        """What the first one said, if none answers."""
        deadline = None if timeout_s is None else Deadline(self._clock, timeout_s)
        refused: StelaeError | None = None
        for at, address in enumerate(list(self._addresses)):
            share_s = None if deadline is None else deadline.left_s / (self.count - at)
            try:
                connection = self._connect(address).connect(share_s)
            except Unavailable as error:
                refused = refused or error
                continue
            if at:
                self._addresses = [address, *(each for each in self._addresses if each != address)]
            return _Tried(connection, self, address, share_s)
        raise refused or ConnectionLost("no address was given")

    def hello_s(self, share_s: float | None) -> float | None:
        """How long the first word may take of one that has this share of the time; None: as long as it takes."""
        return share_s if self.count == 1 else _least(share_s, self._patience_s)

    def answer_s(self, timeout_s: float | None) -> float | None:
        """How long anything else may take of one that is given so long."""
        if self.count == 1 or not self._is_brief:
            return timeout_s
        return self._patience_s if timeout_s is None else min(self._patience_s, timeout_s / 2)

    @property
    def first(self) -> str:
        """Who is tried first, and so whom lines that are used again lead to."""
        return self._addresses[0]

    def is_first(self, address: str) -> bool:
        return self._addresses[0] == address

    def pass_over(self, address: str) -> None:
        """It answers, and knows less than another may: the others are tried before it."""
        if self.is_first(address):
            self._addresses = [*self._addresses[1:], address]

    def note_heard(self) -> None:
        self._patience_s = SILENCE_S

    def put_last(self, address: str) -> None:
        """It says nothing: the others are tried before it."""
        if self.is_first(address):
            self._patience_s *= 2
        self._addresses = [*(each for each in self._addresses if each != address), address]


class _Tried:
    """A connection to one of several, of which it is noted if it says nothing."""

    def __init__(
        self, connection: BlockingConnection, among: AnyConnector, address: str, share_s: float | None
    ) -> None:
        self._connection = connection
        self._among = among
        self._address = address
        self._share_s = share_s
        self._is_heard = False

    @property
    def peer(self) -> str:
        return self._connection.peer

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        self._connection.send(frame, timeout_s)

    def receive(self, timeout_s: float | None) -> Frame | None:
        among = self._among
        wait_s = among.answer_s(timeout_s) if self._is_heard else _least(timeout_s, among.hello_s(self._share_s))
        try:
            frame = self._connection.receive(wait_s)
        except Unavailable as error:
            if self._is_heard and wait_s == timeout_s:
                raise
            among.put_last(self._address)
            raise ConnectionLost(f"{self.peer}: it does not answer: {error}") from error
        self._is_heard = True
        if frame is None:
            among.put_last(self._address)
        else:
            among.note_heard()
        return frame

    def is_quiet(self) -> bool:
        return self._among.is_first(self._address) and self._connection.is_quiet()

    def close(self) -> None:
        self._connection.close()


def _least(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
