"""A simulated network: connections between the processes of a simulated loop, whose frames are late by drawn delays.

    transport = SimTransport(loop)
    owner = loop.spawn("owner", serve(transport))   # in which it listens
    connection = await transport.connect(Address("store"))
    owner.crash()

One transport serves the whole world: each connection and each listener belongs to the process that opened it, and ends
when that process crashes. Its address is free from then on. Its peers still receive what had arrived and, of what was
on its way, as much as is drawn; after that they get Unavailable, or None if nothing was lost: then a crash may look
like a close, as it does on a local socket.

Frames go through their bytes, so a receiver has what a real one has: views of memory that nobody else can change.

Callers that block (`connector`) stand outside of the running loop, and run it while they wait; so waiting takes virtual
time, and everybody else goes on meanwhile. In a process that has crashed (`inside`) such calls raise SimCrash.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from stelae.model.errors import AlreadyExists, Closed, DeadlineExceeded, InvalidArgument, Unavailable
from stelae.ports.transport import Address, Frame
from stelae.sim.blocking import run_outside
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, current_process, outside
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, FrameDecoder, WireLimits, encode_frame

T = TypeVar("T")

DELAY_S_MAX = 0.01
UNREAD_BYTES_MAX = 256 * 1024
UNREAD_FRAMES_MAX = 64
BACKLOG = 16


@dataclass(frozen=True, slots=True)
class _Sent:
    frame: Frame
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing that arrives. `is_broken`: the sender died; otherwise it closed, or it looks so."""

    is_broken: bool


class _Way:
    """One direction of a connection. Whatever timer fires first delivers what was sent first, so the order is kept."""

    opposite: _Way

    def __init__(self, transport: SimTransport) -> None:
        self._transport = transport
        self._on_way: deque[_Sent | _End] = deque()
        self._arrived: deque[_Sent] = deque()
        self._unread_bytes = 0
        self._is_ending = False
        self.end: _End | None = None
        self.sending = asyncio.Lock()
        self.news = asyncio.Event()
        """Something arrived, or the receiver has closed."""
        self.room = asyncio.Event()
        """Something was received, or the sender has closed, or heard that its peer is gone."""
        self.delivered = asyncio.Event()

    @property
    def is_quiet(self) -> bool:
        return not self._arrived and self.end is None

    def has_room(self, size_bytes: int) -> bool:
        unread = len(self._on_way) + len(self._arrived)
        fits = self._unread_bytes + size_bytes <= self._transport.unread_bytes_max
        return not unread or (fits and unread < UNREAD_FRAMES_MAX)

    def put(self, frame: Frame, size_bytes: int) -> None:
        self._unread_bytes += size_bytes
        self._send(_Sent(frame, size_bytes))

    def close(self) -> None:
        """Everything that was put arrives, and then the end."""
        if not self._is_ending:
            self._is_ending = True
            self._send(_End(False))

    def break_off(self) -> None:
        """Lose what is drawn of what is on its way, from its tail; then comes the end."""
        if self.end is not None:
            return
        self._is_ending = True
        sent = [each for each in self._on_way if isinstance(each, _Sent)]
        kept = int(self._transport.loop.draw() * (len(sent) + 1))
        looks_closed = kept == len(sent) and self._transport.loop.draw() < 0.5
        self._on_way = deque(sent[:kept])
        self._send(_End(not looks_closed))

    def take(self) -> Frame | None:
        """Take the next frame that arrived; None if there is none."""
        if not self._arrived:
            return None
        sent = self._arrived.popleft()
        self._unread_bytes -= sent.size_bytes
        self.room.set()
        return sent.frame

    def _send(self, what: _Sent | _End) -> None:
        self._on_way.append(what)
        self._transport.loop.call_later(self._transport.delay_s(), self._deliver, context=outside())

    def _deliver(self) -> None:
        if not self._on_way:
            return  # what this was for was lost
        match self._on_way.popleft():
            case _Sent() as sent:
                self._arrived.append(sent)
            case _End() as end:
                self.end = end
                self.delivered.set()
                self.opposite.room.set()
        self.news.set()


class SimConnection:
    """One end of a connection. Made by `SimTransport` and its listeners."""

    def __init__(self, transport: SimTransport, process: SimProcess | None, peer: str, out: _Way) -> None:
        self._transport = transport
        self._process = process
        self._out = out
        self._back = out.opposite
        self._is_closed = False
        self.peer = peer
        if process is not None:
            process.watch(self.break_off)

    async def send(self, frame: Frame) -> None:
        copy, size_bytes = _through_bytes(frame, self._transport.limits)
        async with self._out.sending:
            self._check_open()
            while not self._out.has_room(size_bytes):
                self._out.room.clear()
                await self._out.room.wait()
                self._check_open()
            self._out.put(copy, size_bytes)

    async def receive(self) -> Frame | None:
        while True:
            if self._is_closed:
                raise Closed(f"{self.peer}: this side closed the connection")
            frame = self._back.take()
            if frame is not None:
                return frame
            if self._back.end is not None:
                if self._back.end.is_broken:
                    raise Unavailable(f"{self.peer}: the connection broke off")
                return None
            self._back.news.clear()
            await self._back.news.wait()

    async def close(self) -> None:
        self.shut()
        try:
            await self._out.delivered.wait()
        except asyncio.CancelledError:
            self.break_off()
            raise

    def shut(self) -> None:
        """Close without waiting; what was sent arrives."""
        self._end()
        self._out.close()

    def break_off(self) -> None:
        """End as the connection of a process that dies."""
        self._end()
        self._out.break_off()

    def is_quiet(self) -> bool:
        return not self._is_closed and self._back.is_quiet

    def _end(self) -> None:
        self._is_closed = True
        if self._process is not None:
            self._process.unwatch(self.break_off)
        self._back.news.set()
        self._out.room.set()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.peer}: this side closed the connection")
        if self._back.end is not None:
            raise Unavailable(f"{self.peer}: the other side is gone")


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

    def arrive(self, peer: SimProcess | None, out: _Way) -> None:
        self._arrived.append(SimConnection(self._transport, self._process, _name(peer, self._address), out))
        self._news.set()

    def _end(self) -> None:
        self._is_closed = True
        self._transport.listeners.pop(self._address, None)
        if self._process is not None:
            self._process.unwatch(self._end)
        self._news.set()


class SimTransport:
    """Addresses are any text. `delay_s_max`: how late a frame, or a new connection, may be."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        delay_s_max: float = DELAY_S_MAX,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        limits: WireLimits = DEFAULT_WIRE_LIMITS,
    ) -> None:
        self.loop = loop
        self.unread_bytes_max = unread_bytes_max
        self.limits = limits
        self.listeners: dict[Address, SimListener] = {}
        self._delay_s_max = delay_s_max

    def delay_s(self) -> float:
        return self.loop.draw() * self._delay_s_max

    async def connect(self, address: Address) -> SimConnection:
        _check_address(address)
        return await self.connect_as(current_process(), address)

    async def listen(self, address: Address) -> SimListener:
        _check_address(address)
        if address in self.listeners:
            raise AlreadyExists(f"{address}: another process listens there")
        listener = self.listeners[address] = SimListener(self, current_process(), address)
        return listener

    def connector(self, address: Address) -> SimConnector:
        """For callers that block."""
        _check_address(address)
        return SimConnector(self, address)

    async def connect_as(self, process: SimProcess | None, address: Address) -> SimConnection:
        """The connection belongs to `process`, whoever runs this."""
        await asyncio.sleep(self.delay_s())
        listener = self.listeners.get(address)
        if listener is None or listener.is_full:
            raise Unavailable(f"{address}: {'nobody listens there' if listener is None else 'nobody answers'}")
        out, back = _Way(self), _Way(self)
        out.opposite, back.opposite = back, out
        listener.arrive(process, back)
        connection = SimConnection(self, process, address, out)
        try:
            await asyncio.sleep(self.delay_s())
        except asyncio.CancelledError:
            connection.break_off()
            raise
        return connection


class SimBlockingConnection:
    """Made by `SimConnector`."""

    def __init__(self, connector: SimConnector, process: SimProcess | None, connection: SimConnection) -> None:
        self._connector = connector
        self._process = process
        self._connection = connection

    @property
    def peer(self) -> str:
        return self._connection.peer

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        self._connector.wait(self._process, self._connection.send(frame), timeout_s, f"{self.peer}: sending to it")

    def receive(self, timeout_s: float | None) -> Frame | None:
        return self._connector.wait(
            self._process, self._connection.receive(), timeout_s, f"{self.peer}: waiting for it"
        )

    def is_quiet(self) -> bool:
        return self._connection.is_quiet()

    def close(self) -> None:
        self._connection.shut()


class SimConnector:
    """Made by `SimTransport.connector`. A connection belongs to the process that opens it."""

    def __init__(self, transport: SimTransport, address: Address) -> None:
        self._transport = transport
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def connect(self, timeout_s: float | None) -> SimBlockingConnection:
        process = current_process()
        opening = self._transport.connect_as(process, self._address)
        connection = self.wait(process, opening, timeout_s, f"{self._address}: connecting")
        return SimBlockingConnection(self, process, connection)

    def wait(self, process: SimProcess | None, job: Coroutine[Any, Any, T], timeout_s: float | None, doing: str) -> T:
        """Run the loop until the job is done. The job itself is nobody's, so it ends although its process crashes."""
        loop = self._transport.loop
        if loop.is_closed():
            job.close()
            raise Closed(f"{doing}: the world has ended")
        if process is not None and not process.alive:
            job.close()
            if current_process() is not process:  # what is left of it is being collected as garbage
                raise Closed(f"{doing}: the process {process.name} has crashed")
            raise SimCrash(f"{doing}: the process {process.name} has crashed")
        if loop.is_running():
            job.close()
            raise RuntimeError(f"{doing}: code that the loop runs cannot block; it must await")
        try:
            return run_outside(loop, _in_time(job, timeout_s))
        except TimeoutError:
            raise DeadlineExceeded(f"{doing} took more than {timeout_s:g} s") from None
        finally:
            if process is not None and not process.alive:
                raise SimCrash(f"{doing}: the process {process.name} has crashed")


async def _in_time(job: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await job


def _check_address(address: Address) -> None:
    if not address or "\0" in address:
        raise InvalidArgument(f"{address!r} is no address")


def _name(process: SimProcess | None, address: Address) -> str:
    return address if process is None else f"process {process.name} at {address}"


def _through_bytes(frame: Frame, limits: WireLimits) -> tuple[Frame, int]:
    """The frame as its receiver has it, and its size. InvalidArgument if it breaks a rule of frames."""
    data = b"".join(encode_frame(frame, limits))
    (copy,) = FrameDecoder(limits).feed(data)
    return copy, len(data)
