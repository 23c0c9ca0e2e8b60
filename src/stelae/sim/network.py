"""A simulated network: connections between the processes of a simulated loop, whose frames are late by drawn delays.

    transport = SimTransport(loop)
    owner = loop.spawn("owner", serve(transport))   # in which it listens
    connection = await transport.connect(Address("store"))
    transport.links.cut("client", "owner")          # a black hole, in one direction
    owner.crash()

One transport serves the whole world: each connection and each listener belongs to the process that opened it, and ends
when that process crashes. Its address is free from then on. Its peers still receive what had arrived and, of what was
on its way, as much as is drawn; after that they get Unavailable, or None if nothing was lost: then a crash may look
like a close, as it does on a local socket. A process whose machine lost power ends nothing: its peers hear silence.

Frames of one connection keep their order; between connections there is none, so those of a new connection may overtake
what an old one still carries. Frames go through their bytes, so a receiver has what a real one has: views of memory
that nobody else can change. With `by_bytes` the bytes are cut at drawn places, and arrive piece by piece.

What is wrong between two hosts is told to `links`. Two ends that cannot reach each other wait: each gives up after a
time drawn from `silence_s`, as by a keepalive, and then gets Unavailable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from stelae.model.errors import AlreadyExists, InvalidArgument, Unavailable
from stelae.ports.transport import Address
from stelae.sim.connections import SimConnection, Way
from stelae.sim.links import NOBODY, Delays, Links
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, current_process, outside
from stelae.sim.threads.blocking import SimConnector
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, WireLimits

DELAY_S_MAX = 0.01
UNREAD_BYTES_MAX = 256 * 1024
BACKLOG = 16
CONNECT_S_MAX = 10.0
SILENCE_S = (10.0, 20.0)


class SimListener:
    """Made by `SimTransport.listen`."""

    def __init__(self, transport: SimTransport, process: SimProcess | None, address: Address) -> None:
        self._transport = transport
        self._process = process
        self._address = address
        self._arrived: deque[SimConnection] = deque()
        self._news = asyncio.Event()
        self._is_closed = False
        if process is not None:
            process.watch(self._end)

    @property
    def address(self) -> Address:
        return self._address

    @property
    def is_full(self) -> bool:
        return len(self._arrived) >= BACKLOG

    async def accept(self) -> AsyncIterator[SimConnection]:
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            if self._is_closed:
                return
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        self._end()
        while self._arrived:
            self._arrived.popleft().shut()

    def arrive(self, peer: SimProcess | None, out: Way) -> None:
        self._arrived.append(SimConnection(self._transport, self._process, _name(peer, self._address), out))
        self._news.set()

    def _end(self) -> None:
        self._is_closed = True
        self._transport.listeners.pop(self._address, None)
        if self._process is not None:
            self._process.unwatch(self._end)
            if self._process.lost_power:
                self._transport.links.turn_off(self._process.host)
        self._news.set()


class SimTransport:
    """Addresses are any text. `delay_s_max`, or `delays`: how late a frame, or a new connection, may be."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        delay_s_max: float = DELAY_S_MAX,
        delays: Delays | None = None,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        limits: WireLimits = DEFAULT_WIRE_LIMITS,
        by_bytes: bool = False,
        silence_s: tuple[float, float] | None = SILENCE_S,
    ) -> None:
        """`silence_s`: from how long to how long an end bears silence; None: for ever."""
        self.loop = loop
        self.unread_bytes_max = unread_bytes_max
        self.limits = limits
        self.by_bytes = by_bytes
        self.listeners: dict[Address, SimListener] = {}
        self.links = Links(delays or Delays(delay_s_max))
        self.links.on_cut = self._notice_cut
        self.links.on_heal = self._go_on
        self.links.on_power = self._answer_again
        self._silence_s = silence_s
        self._homes: dict[Address, str] = {}
        self._ways: list[Way] = []
        self._ways_kept_max = 64

    async def connect(self, address: Address) -> SimConnection:
        _check_address(address)
        return await self.connect_as(current_process(), address)

    async def listen(self, address: Address) -> SimListener:
        _check_address(address)
        if address in self.listeners:
            raise AlreadyExists(f"{address}: another process listens there")
        process = current_process()
        self._homes[address] = _host(process)
        self.links.turn_on(_host(process))
        listener = self.listeners[address] = SimListener(self, process, address)
        return listener

    def connector(self, address: Address) -> SimConnector:
        """What a blocking client connects to this address with."""
        _check_address(address)
        return SimConnector(self, address)

    async def connect_as(self, process: SimProcess | None, address: Address) -> SimConnection:
        """The connection belongs to `process`, whoever runs this."""
        source = _host(process)
        self.links.turn_on(source)
        await asyncio.sleep(self._delay_s())
        target = self._homes.get(address, NOBODY)
        if not self.links.reaches(source, target):
            await self._until_reached(source, target, address)
        listener = self.listeners.get(address)
        if listener is None or self.links.refuses(target):
            raise Unavailable(f"{address}: nobody listens there")
        if listener.is_full:
            raise Unavailable(f"{address}: nobody answers")
        out, back = Way(self, source, target), Way(self, target, source)
        out.opposite, back.opposite = back, out
        self._keep(out, back)
        listener.arrive(process, back)
        connection = SimConnection(self, process, address, out)
        try:
            await asyncio.sleep(self._delay_s())
        except asyncio.CancelledError:
            connection.break_off()
            raise
        return connection

    def break_between(self, one: str, other: str) -> int:
        """Break all connections between two hosts; how many. Both ends hear of it, after a part of what was sent."""
        ways = self._between(one, other)
        for way in ways:
            way.break_off(may_look_closed=False)
            way.opposite.break_off(may_look_closed=False)
        return len(ways)

    def half_open(self, one: str, other: str) -> int:
        """The ends at `one` of all connections between the two are gone, and those at `other` hear nothing of it; how
        many."""
        ways = self._between(one, other)
        for way in ways:
            way.vanish()
            self.give_up_later(way.opposite, lambda: True)
        return len(ways)

    def give_up_later(self, way: Way, does_still: Callable[[], bool]) -> None:
        if self._silence_s is None:
            return

        def give_up() -> None:
            if does_still() and way.opposite.end is None:
                way.vanish()

        shortest_s, longest_s = self._silence_s
        bears_s = shortest_s + self.loop.draw() * (longest_s - shortest_s)
        self.loop.call_later(bears_s, give_up, context=outside())

    def _notice_cut(self, source: str, target: str) -> None:
        """Both ends miss the other's answers, though one may still hear the other."""
        link = self.links.link(source, target)
        number = link.since_cut
        for way in self._between(source, target):
            for each in (way, way.opposite):
                self.give_up_later(each, lambda: link.is_cut and link.since_cut == number)

    def _go_on(self, source: str, target: str) -> None:
        for way in self._between(source, target):
            way.go_on()

    def _answer_again(self, host: str) -> None:
        for way in self._ways:
            if way.target == host:
                way.go_on()

    def _between(self, source: str, target: str) -> list[Way]:
        """One way of each connection between the two that is not over: the one from the source."""
        self._ways = [way for way in self._ways if not (way.is_over and way.opposite.is_over)]
        return [way for way in self._ways if (way.source, way.target) == (source, target)]

    def _keep(self, *ways: Way) -> None:
        if len(self._ways) >= self._ways_kept_max:
            self._ways = [way for way in self._ways if not (way.is_over and way.opposite.is_over)]
            self._ways_kept_max = max(64, 2 * len(self._ways))
        self._ways.extend(ways)

    async def _until_reached(self, source: str, target: str, address: Address) -> None:
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self.links.until_reaches(source, target)
                await asyncio.sleep(self._delay_s())
        except TimeoutError:
            raise Unavailable(f"{address}: nobody answers") from None

    def _delay_s(self) -> float:
        return self.links.delays.draw_s(self.loop.draw)


def _host(process: SimProcess | None) -> str:
    return NOBODY if process is None else process.host


def _check_address(address: Address) -> None:
    if not address or "\0" in address:
        raise InvalidArgument(f"{address!r} is no address")


def _name(process: SimProcess | None, address: Address) -> str:
    return address if process is None else f"process {process.name} at {address}"
