"""Frames over a stream of bytes, on an event loop: what local sockets and TCP have in common.

Received bytes go from one buffer, shared by all connections of a transport, through `FrameDecoder`, which copies each
byte once. A connection stops reading while `UNREAD_BYTES_MAX` of frames, or `UNREAD_FRAMES_MAX` of them, wait to be
received. What is sent waits in the loop's own buffer: a frame enters if it fits `UNSENT_BYTES_MAX` with what is there,
or alone. An idle connection is a descriptor and a few small objects; no task waits for it here.

Small frames that are sent at about the same time go to the system together (`gathering`).

With TLS (`tls`) the same bytes are sealed and opened between decoder and socket; the handshake is carried out as its
bytes come, and frames are sent once it is done. A connection whose handshake fails ends like any other: `receive` says
why.
"""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from stelae.adapters.sockets.aside import AsideWriter
from stelae.adapters.sockets.gathering import Gathering, Parts, size_of
from stelae.adapters.sockets.tls import FIRST_BYTES, NOT_TOLD, REFUSAL, TlsSession, looks_like_tls
from stelae.model.errors import Closed, PermissionDenied, ProtocolError, StelaeError, Unavailable
from stelae.ports.transport import Frame
from stelae.wire.frames import FrameDecoder, WireLimits, encode_frame

UNSENT_BYTES_MAX = 1024 * 1024
UNREAD_BYTES_MAX = 1024 * 1024
UNREAD_FRAMES_MAX = 64
CLOSE_S = 5.0
CONNECT_S = 10.0
BUFFER_BYTES = 256 * 1024
"""What is read at once, and what is sealed at once."""


class StreamConnection(asyncio.BufferedProtocol, ABC):
    """One connection; made by a transport and its listeners."""

    def __init__(
        self,
        place: str,
        buffer: memoryview,
        limits: WireLimits,
        tls: TlsSession | None = None,
        arrived: Callable[[StreamConnection], None] | None = None,
    ) -> None:
        self._place = place
        self._arrived = arrived
        self._buffer = buffer
        self._limits = limits
        self._tls = tls
        self._decoder = FrameDecoder(limits)
        self._frames: deque[Frame] = deque()
        self._first = b""
        self._unread_bytes = 0
        self._is_paused = False
        self._ended: StelaeError | None = None
        """Why nothing more is received; `_has_end` alone: the peer closed as it should."""
        self._has_end = False
        self._is_closed = False
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._waiting: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._to_send = 0
        """How many tasks wait to send, or are at it: whoever comes then waits behind them."""
        self._gathering: Gathering
        self._aside = AsideWriter()
        self._come: Callable[[], None] | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._ready = asyncio.Event()
        """TLS is agreed on, or there is none, or the connection has ended before it was."""
        self._lost = asyncio.Event()
        self.peer = place

    # -- what differs

    @abstractmethod
    def prepare(self, opened: socket.socket) -> str:
        """Set the options of the socket that was opened; return who is at its other end."""

    @abstractmethod
    def begin_end(self) -> None:
        """Begin to end the connection once all that was accepted is sent."""

    @abstractmethod
    async def wait_for_end(self) -> None:
        """Wait until the connection may be given up: what was sent is the system's business now, or the peer's."""

    @abstractmethod
    def end_after_reset(self, error: ConnectionError) -> StelaeError | None:
        """What it says about the peer that the connection was reset: None if it may have closed as it should."""

    # -- what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A loop makes streams of its own kind: not every one's are asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._gathering = Gathering(self._loop, self._write)
        transport.set_write_buffer_limits(high=0)
        opened = transport.get_extra_info("socket")
        self.peer = self.prepare(opened)
        if self._tls is None:
            self._aside.begin(opened.fileno())
            self._ready.set()
        else:
            transport.write(self._tls.begin())
        if self._arrived is not None:
            self._arrived(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed or self._has_end:
            return  # read so that the peer can go on to the end, and not wanted any more
        self._gathering.note_come()
        if self._tls is None:
            if len(self._first) < FIRST_BYTES:
                self._first += self._buffer[: min(nbytes, FIRST_BYTES)]
                if looks_like_tls(self._first):
                    self._refuse(PermissionDenied(f"{self.peer}: {NOT_TOLD}"), REFUSAL)
                    return
            self._take_plain(self._buffer[:nbytes])
        else:
            self._take_sealed(self._tls, self._buffer[:nbytes])
        if self._frames:
            self._tell_of_frames()

    def _take_sealed(self, tls: TlsSession, data: memoryview) -> None:
        try:
            for plain in tls.open(data):
                self._take_plain(plain)
                if self._has_end:
                    return
        except (PermissionDenied, ProtocolError) as error:
            self._refuse(type(error)(f"{self.peer}: {error}"), tls.unsent())
            return
        if reply := tls.unsent():
            self._transport.write(reply)
        if tls.is_ready:
            self._ready.set()
        if tls.is_over:
            self._take_end()

    def _take_plain(self, data: memoryview) -> None:
        try:
            frames = self._decoder.feed(data)
            fault = self._decoder.fault
        except ProtocolError as error:
            frames, fault = [], error
        for frame in frames:
            self._frames.append(frame)
            self._unread_bytes += len(frame.message) + len(frame.body)
        if fault is not None:
            self._end(ProtocolError(f"{self.peer}: {fault}"))
            self._abort()

    def _tell_of_frames(self) -> None:
        """Have them taken here and now, as far as somebody does; whoever waits in `receive` gets the others."""
        if self._come is not None:
            try:
                self._gathering.hear(self._come)
            except BaseException:
                self._aside.end()  # the loop gives the connection up, and what it has to send
                raise
        if self._frames:
            if not self._is_paused and self._is_full() and not self._transport.is_closing():
                self._is_paused = True
                self._transport.pause_reading()
            self._wake()

    def eof_received(self) -> None:
        if not self._has_end:
            self._take_end()

    def _take_end(self) -> None:
        """The peer says nothing more."""
        if self._tls is not None and not self._tls.is_over:
            doing = "" if self._tls.is_ready else " while TLS was agreed on"
            self._end(Unavailable(f"{self.peer}: the connection broke off{doing}"))
        elif self._decoder.pending_bytes:
            self._end(Unavailable(f"{self.peer}: the connection broke off inside a frame"))
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._aside.end()
        if isinstance(exc, ConnectionError):
            self._take_rest()
        if not self._has_end:
            if exc is None or self._decoder.pending_bytes:
                self._take_end()
            elif isinstance(exc, ConnectionError):
                self._end(self.end_after_reset(exc))
            else:
                self._end(Unavailable(f"{self.peer}: the connection broke off: {exc}"))
        self._decoder.drop()  # this object may live on for long, being part of a circle
        self._lost.set()
        self._emptied.set()

    def _take_rest(self) -> None:
        """A peer that is gone is noticed by who writes to it, too, and then the loop does not read any more: but what
        the peer sent before is still there."""
        fd = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError):
            while not (self._has_end or self._is_closed) and (size := os.readv(fd, [self._buffer])):
                self.buffer_updated(size)

    def pause_writing(self) -> None:
        """As the high mark is 0: at once when the system did not take all."""
        self._aside.hold_up()
        self._emptied.clear()

    def resume_writing(self) -> None:
        self._aside.let_go_on()
        self._emptied.set()

    # -- the port

    async def send(self, frame: Frame) -> None:
        parts = encode_frame(frame, self._limits)
        size = size_of(parts)
        if self._put_now(parts, size):
            return
        self._to_send += 1
        try:
            async with self._sending:
                self._check_open()
                if not self._ready.is_set():
                    await self._ready.wait()
                    self._check_open()
                if not self._has_room(size):
                    self._gathering.send()
                    if not self._has_room(size):
                        await self._emptied.wait()
                        self._check_open()
                self._gathering.put(parts, size)
        finally:
            self._to_send -= 1

    def send_now(self, frame: Frame) -> bool:
        parts = encode_frame(frame, self._limits)
        return self._put_now(parts, size_of(parts))

    def _put_now(self, parts: Parts, size: int) -> bool:
        self._check_open()
        if self._to_send or not self._ready.is_set() or not self._has_room(size):
            return False
        self._gathering.put(parts, size)
        return True

    def _has_room(self, size: int) -> bool:
        unsent = self._transport.get_write_buffer_size() + self._gathering.size_bytes + len(self._aside.rest)
        return not unsent or unsent + size <= UNSENT_BYTES_MAX

    def _write(self, parts: Parts) -> None:
        if self._transport.is_closing() or not (parts or self._aside.rest):
            return
        with self._aside.lock:
            if self._aside.rest:
                self._transport.write(self._aside.take_rest())
            for part in parts if self._tls is None else self._tls.seal(parts, BUFFER_BYTES):
                self._transport.write(part)

    def send_aside(self, frame: Frame) -> bool:
        parts = encode_frame(frame, self._limits)
        if len(parts) > 1 or self._is_closed or self._has_end or self._to_send:
            return False
        return self._aside.write(parts[0], self._transport, self._send_rest)

    def _send_rest(self) -> None:
        """From any thread: of a frame that was sent aside the system took a part."""
        with suppress(RuntimeError):  # the loop is gone, and its connections with it
            self._loop.call_soon_threadsafe(self._write, [])

    async def receive(self) -> Frame | None:
        while True:
            if self._is_closed:
                raise Closed(f"{self.peer}: this side closed the connection")
            if self._frames:
                return self._take()
            if self._ended is not None:
                raise self._ended
            if self._has_end:
                return None
            self._waiting = self._loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def take(self) -> Frame | None:
        return self._take() if self._frames and not self._is_closed else None

    def hear(self, come: Callable[[], None] | None) -> None:
        self._come = come

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._aside.end()
            self._frames.clear()
            self._wake()
            if self._ended is None and self._ready.is_set():
                self._gathering.send()
                self._write([])
                if self._tls is not None and not self._has_end:
                    self._transport.write(self._tls.end())
                self.begin_end()
            elif not self._is_refused():
                self._abort()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.wait_for_end()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._abort()
            raise
        self._abort()
        await self._lost.wait()

    # -- for the transport

    async def agree(self) -> None:
        """Wait until TLS is agreed on, where there is TLS; raise why it cannot be."""
        await self._ready.wait()
        if self._has_end and not (self._tls is None or self._tls.is_ready):
            raise self._ended or Unavailable(f"{self.peer}: the other side is gone")

    def drop(self) -> None:
        """Close without waiting, and without sending what waits."""
        self._is_closed = True
        self._aside.end()
        self._wake()
        self._abort()

    # -- inside

    def _take(self) -> Frame:
        """The oldest frame that came; reading goes on if it had stopped for lack of room."""
        frame = self._frames.popleft()
        self._unread_bytes -= len(frame.message) + len(frame.body)
        if self._is_paused and not self._is_full():
            self._is_paused = False
            if not self._has_end:
                self._transport.resume_reading()
        return frame

    def _is_full(self) -> bool:
        return self._unread_bytes >= UNREAD_BYTES_MAX or len(self._frames) >= UNREAD_FRAMES_MAX

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.peer}: this side closed the connection")
        if self._ended is not None and self._is_refused():
            raise self._ended
        if self._has_end:
            raise Unavailable(f"{self.peer}: the other side is gone")

    def _is_refused(self) -> bool:
        """The sides do not agree on TLS: each is to hear why."""
        return isinstance(self._ended, PermissionDenied)

    def _refuse(self, error: StelaeError, last_words: bytes) -> None:
        """End the connection; the peer can still hear why."""
        self._end(error)
        if last_words and self._is_refused() and not self._transport.is_closing():
            self._transport.write(last_words)
            self.begin_end()
        else:
            self._abort()

    def _end(self, error: StelaeError | None) -> None:
        """The first reason counts. From here on no other thread sends: the loop may forget what it has to send."""
        self._aside.end()
        if not self._has_end:
            self._has_end = True
            self._ended = error
        self._ready.set()
        self._wake()

    def _abort(self) -> None:
        if not self._lost.is_set():
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
