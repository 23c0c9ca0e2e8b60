"""Connections of the simulated network: two ways, each with a queue of what is on its way, and an end for each side.

A connection ends in one of these manners:
- closed: all that was sent arrives, then the end;
- its process is killed: a drawn beginning of what was on its way arrives, then the end, which may look like a close;
- broken by the network: the same for both sides, and neither takes it for a close;
- half-open (`Way.vanish`): one side is gone and says nothing. The other thinks it lives until it sends something that
  arrives at what is gone, or until it has heard nothing for too long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Protocol

from stelae.model.errors import Closed, Unavailable
from stelae.ports.transport import Frame
from stelae.sim.links import Links
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, outside
from stelae.wire.frames import FrameDecoder, WireLimits, encode_frame

UNREAD_FRAMES_MAX = 64
CLOSE_S_MAX = 10.0
"""How long a close waits for what was sent to arrive."""
PIECES_MAX = 4
GLUED = 0.25
"""How often bytes arrive together with those behind them."""

_NS_PER_S = 1_000_000_000


class Network(Protocol):
    """The transport, as its connections see it."""

    @property
    def loop(self) -> SimLoop: ...
    @property
    def links(self) -> Links: ...
    @property
    def limits(self) -> WireLimits: ...
    @property
    def unread_bytes_max(self) -> int: ...
    @property
    def by_bytes(self) -> bool: ...

    def give_up_later(self, way: Way, does_still: Callable[[], bool]) -> None:
        """The end that sends on this way hears nothing from now on: let it give up in a while, if it still does."""
        ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A frame, and how many bytes it has."""

    frame: Frame
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of frames, cut anywhere."""

    data: bytes


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing that arrives. `is_broken`: the sender died, or the network broke; otherwise it closed, or it looks
    so."""

    is_broken: bool


class Way:
    """One direction of a connection. Nothing overtakes what was sent before it: a frame that is late makes those behind
    it late, too."""

    opposite: Way

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self._hosts = (source, target)
        self.source = source
        self.target = target
        self._on_way: deque[_Sent | _Piece | _End] = deque()
        self._arrived: deque[_Sent] = deque()
        self._decoder = FrameDecoder(network.limits)
        self._sizes: deque[int] = deque()
        self._last_ns = 0
        self._stalled = 0
        self._unread_bytes = 0
        self._unread_frames = 0
        self._is_ending = False
        self.is_receiver_gone = False
        self.end: _End | None = None
        self.sending = asyncio.Lock()
        self.to_send = 0
        """How many tasks wait to send, or are at it."""
        self.news = asyncio.Event()
        """Something arrived, or the receiver has closed."""
        self.room = asyncio.Event()
        """Something was received, or the sender has closed, or heard that its peer is gone."""
        self.delivered = asyncio.Event()
        self.come: tuple[Callable[[], None], Context] | None = None
        """Who is told of frames that arrived, and where: in the process that receives."""

    @property
    def is_quiet(self) -> bool:
        return not self._arrived and self.end is None

    @property
    def is_over(self) -> bool:
        """Nothing more arrives, whatever happens."""
        return self.end is not None or self.is_receiver_gone

    def has_room(self, size_bytes: int) -> bool:
        fits = self._unread_bytes + size_bytes <= self._network.unread_bytes_max
        return not self._unread_frames or (fits and self._unread_frames < UNREAD_FRAMES_MAX)

    def put(self, data: bytes) -> None:
        """Send the bytes of one frame. What is sent before its sender hears of a break is lost."""
        if self._is_ending:
            return
        self._unread_bytes += len(data)
        self._unread_frames += 1
        if not self._network.by_bytes:
            (copy,) = FrameDecoder(self._network.limits).feed(data)
            self._send(_Sent(copy, len(data)), len(data))
            return
        self._sizes.append(len(data))
        for piece in _cut(data, self._network.loop.draw):
            self._send(_Piece(piece), len(piece))

    def close(self) -> None:
        """Everything that was put arrives, and then the end."""
        if not self._is_ending:
            self._is_ending = True
            self._send(_End(False), 0)

    def break_off(self, *, may_look_closed: bool) -> None:
        """Lose what is drawn of what is on its way, from its tail; then comes the end."""
        if self.is_over:
            return
        self._is_ending = True
        sent = [each for each in self._on_way if not isinstance(each, _End)]
        kept = int(self._network.loop.draw() * (len(sent) + 1))
        looks_closed = may_look_closed and kept == len(sent) and self._network.loop.draw() < 0.5
        self._on_way = deque(sent[:kept])
        self._send(_End(not looks_closed), 0)

    def vanish(self) -> None:
        """The end that sends here is gone: it knows, and its peer hears nothing of it."""
        self._is_ending = True
        self._on_way.clear()
        self.delivered.set()
        self.opposite.is_receiver_gone = True
        if self.opposite.end is None:
            self.opposite.end = _End(True)
        self.opposite.news.set()
        self.room.set()

    def reset(self) -> None:
        """Its sender is gone, and its system says so to whoever asks."""
        if not self.is_over and not self._on_way:
            self._send(_End(True), 0)

    def take(self) -> Frame | None:
        """Take the next frame that arrived; None if there is none."""
        if not self._arrived:
            return None
        sent = self._arrived.popleft()
        self._unread_bytes -= sent.size_bytes
        self._unread_frames -= 1
        self.room.set()
        return sent.frame

    def go_on(self) -> None:
        """The link was healed, or its target has power again: what waited arrives, late once more."""
        stalled, self._stalled = self._stalled, 0
        for _ in range(stalled):
            self._schedule(0)

    def _send(self, what: _Sent | _Piece | _End, size_bytes: int) -> None:
        self._on_way.append(what)
        self._schedule(size_bytes)

    def _schedule(self, size_bytes: int) -> None:
        network = self._network
        link, now_ns = network.links.link(*self._hosts), network.loop.now_ns
        arrival_ns = link.arrival_ns(now_ns, size_bytes, network.links.delays, network.loop.draw)
        self._last_ns = max(self._last_ns, arrival_ns)
        network.loop.call_later((self._last_ns - now_ns) / _NS_PER_S, self._deliver, context=outside())

    def _deliver(self) -> None:
        if not self._on_way:
            return  # what this was for was lost
        links = self._network.links
        if links.link(*self._hosts).is_cut or links.is_off(self.target):
            self._stalled += 1
        elif self.is_receiver_gone:
            self._on_way.clear()
            self.delivered.set()
            self.opposite.reset()
        else:
            self._arrive(self._on_way.popleft())

    def _arrive(self, what: _Sent | _Piece | _End) -> None:
        match what:
            case _Sent() as sent:
                self._arrived.append(sent)
            case _Piece(data):
                # Pieces that lie behind it may come with it, as a socket gives all that is there.
                while self._on_way and isinstance(behind := self._on_way[0], _Piece):
                    if self._network.loop.draw() >= GLUED:
                        break
                    data += behind.data
                    self._on_way.popleft()
                self._arrived.extend(_Sent(frame, self._sizes.popleft()) for frame in self._decoder.feed(data))
            case _End() as end:
                self.end = end
                self.delivered.set()
                self.opposite.room.set()
        if self._arrived and self.come is not None:
            come, context = self.come
            self._network.loop.call_soon(come, context=context)
        self.news.set()


class SimConnection:
    """One end of a connection. Made by `SimTransport` and its listeners."""

    def __init__(self, network: Network, process: SimProcess | None, peer: str, out: Way) -> None:
        self._network = network
        self._process = process
        self._out = out
        self._back = out.opposite
        self._is_closed = False
        self.peer = peer
        if process is not None:
            process.watch(self._die)

    async def send(self, frame: Frame) -> None:
        data = b"".join(encode_frame(frame, self._network.limits))
        self._out.to_send += 1
        try:
            async with self._out.sending:
                self._check_open()
                while not self._out.has_room(len(data)):
                    self._out.room.clear()
                    await self._out.room.wait()
                    self._check_open()
                self._out.put(data)
        finally:
            self._out.to_send -= 1

    def send_now(self, frame: Frame) -> bool:
        data = b"".join(encode_frame(frame, self._network.limits))
        self._check_open()
        if self._out.to_send or not self._out.has_room(len(data)):
            return False
        self._out.put(data)
        return True

    def send_aside(self, frame: Frame) -> bool:
        try:
            return self.send_now(frame)
        except (Closed, Unavailable):
            return False

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

    def take(self) -> Frame | None:
        return None if self._is_closed else self._back.take()

    def hear(self, come: Callable[[], None] | None) -> None:
        self._back.come = None if come is None else (come, copy_context())

    async def close(self) -> None:
        self.shut()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._out.delivered.wait()
        except TimeoutError:
            self.break_off()
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
        self._out.break_off(may_look_closed=True)

    def is_quiet(self) -> bool:
        return not self._is_closed and self._back.is_quiet

    def _die(self) -> None:
        if self._process is not None and self._process.lost_power:
            self._end()
            self._out.vanish()
            self._network.links.turn_off(self._process.host)
            self._network.give_up_later(self._back, lambda: True)
        else:
            self.break_off()

    def _end(self) -> None:
        self._is_closed = True
        if self._process is not None:
            self._process.unwatch(self._die)
        self._back.news.set()
        self._out.room.set()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.peer}: this side closed the connection")
        if self._back.end is not None:
            raise Unavailable(f"{self.peer}: the other side is gone")


def _cut(data: bytes, draw: Callable[[], float]) -> list[bytes]:
    """The bytes in pieces, mostly few, cut anywhere: in the lengths and in the header, too."""
    count = int(draw() * PIECES_MAX)
    places = sorted(int(draw() * min(len(data), 64 if draw() < 0.5 else len(data))) for _ in range(count))
    ends = [*places, len(data)]
    return [data[start:end] for start, end in zip([0, *places], ends, strict=True) if start < end]
