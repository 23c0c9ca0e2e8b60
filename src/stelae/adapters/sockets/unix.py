"""Frames over local (Unix-domain) sockets, on an event loop: `ports.transport` for the processes of one machine.

Received bytes go from one buffer, shared by all connections of a transport, through `FrameDecoder`, which copies each
byte once. A connection stops reading while `UNREAD_BYTES_MAX` of frames, or `UNREAD_FRAMES_MAX` of them, wait to be
received. What is sent waits in the loop's own buffer: a frame enters if it fits `UNSENT_BYTES_MAX` with what is there,
or alone. An idle connection is a descriptor and a few small objects; no task waits for it here.

A peer that closed and one that died look the same here, as its system closes for it: both are an end, unless it comes
inside a frame.

A listener has a lock file beside its socket (`<path>.lock`), held while it lives and left behind: who gets the lock may
take away a socket that a dead process left, and nobody takes away a living one's. The socket is made for its owner only
(0600) before it listens. Long paths: see `sockets_paths`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from stelae.adapters.files import os_errors
from stelae.adapters.sockets.paths import checked_path, peer_name, short_path
from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, PermissionDenied, StelaeError, Unavailable
from stelae.ports.transport import Address, Connection, Frame, Listener
from stelae.wire.faults import ProtocolError
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, FrameDecoder, WireLimits, encode_frame

UNSENT_BYTES_MAX = 1024 * 1024
UNREAD_BYTES_MAX = 1024 * 1024
UNREAD_FRAMES_MAX = 64
CLOSE_S = 5.0
CONNECT_S = 10.0
BACKLOG = 128
_BUFFER_BYTES = 256 * 1024
_FULL_S = 0.5
"""How long nobody is let in after the system has run out of descriptors."""


class UnixConnection(asyncio.BufferedProtocol):
    """One connection; made by `UnixTransport` and its listeners."""

    def __init__(
        self,
        place: str,
        buffer: memoryview,
        limits: WireLimits,
        arrived: Callable[[UnixConnection], None] | None = None,
    ) -> None:
        self._place = place
        self._arrived = arrived
        self._buffer = buffer
        self._limits = limits
        self._decoder = FrameDecoder(limits)
        self._frames: deque[Frame] = deque()
        self._unread_bytes = 0
        self._is_paused = False
        self._ended: StelaeError | None = None
        """Why nothing more is received; `_has_end` alone: the peer closed as it should."""
        self._has_end = False
        self._is_closed = False
        self._transport: asyncio.Transport
        self._waiting: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._lost = asyncio.Event()
        self.peer = place

    # -- what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise InvalidArgument(f"{self._place}: not a stream")
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self.peer = peer_name(transport.get_extra_info("socket"), self._place)
        if self._arrived is not None:
            self._arrived(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.feed(self._buffer[:nbytes])
            fault = self._decoder.fault
        except ProtocolError as error:
            frames, fault = [], error
        for frame in frames:
            self._frames.append(frame)
            self._unread_bytes += len(frame.message) + len(frame.body)
        if fault is not None:
            self._end(ProtocolError(f"{self.peer}: {fault}"))
            self._transport.abort()
        elif not self._is_paused and self._is_full() and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()
        if frames:
            self._wake()

    def eof_received(self) -> None:
        if self._decoder.pending_bytes:
            self._end(Unavailable(f"{self.peer}: the connection broke off inside a frame"))
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionError):
            self._take_rest()
        if self._decoder.pending_bytes or not isinstance(exc, ConnectionError | None):
            self._end(Unavailable(f"{self.peer}: the connection broke off{'' if exc is None else f': {exc}'}"))
        else:
            self._end(None)
        self._lost.set()
        self._emptied.set()

    def _take_rest(self) -> None:
        """A peer that is gone is noticed by who writes to it, too, and then the loop does not read any more: but what
        the peer sent before is still there."""
        if self._has_end or self._is_closed:
            return
        fd = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError):
            while size := os.readv(fd, [self._buffer]):
                self.buffer_updated(size)
                if self._decoder.fault is not None:
                    break

    def pause_writing(self) -> None:
        self._emptied.clear()

    def resume_writing(self) -> None:
        self._emptied.set()

    # -- the port

    async def send(self, frame: Frame) -> None:
        parts = encode_frame(frame, self._limits)
        size = sum(len(part) for part in parts)
        async with self._sending:
            self._check_open()
            unsent = self._transport.get_write_buffer_size()
            if unsent and unsent + size > UNSENT_BYTES_MAX:
                await self._emptied.wait()
                self._check_open()
            for part in parts:
                self._transport.write(part)

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
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._frames.clear()
            self._wake()
            if self._ended is None:
                self._transport.close()
            else:
                self._transport.abort()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._lost.wait()
        except TimeoutError:
            self._transport.abort()
            await self._lost.wait()
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    # -- inside

    def drop(self) -> None:
        """Close without waiting, and without sending what waits."""
        self._is_closed = True
        self._wake()
        self._transport.abort()

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
        if self._has_end:
            raise Unavailable(f"{self.peer}: the other side is gone")

    def _end(self, error: StelaeError | None) -> None:
        """The first reason counts."""
        if not self._has_end:
            self._has_end = True
            self._ended = error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class UnixListener:
    """Made by `UnixTransport.listen`. Only its own process closes it: a forked child has nothing of it."""

    def __init__(self, bound: socket.socket, path: str, lock_fd: int) -> None:
        self._bound = bound
        self._path = path
        self._lock_fd = lock_fd
        self._inode = os.stat(path).st_ino
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[Any]] = set()
        self._arrived: deque[UnixConnection] = deque()
        self._news = asyncio.Event()
        self._is_closed = False
        self._made: Callable[[], UnixConnection]

    @property
    def address(self) -> Address:
        return Address(self._path)

    def start(self, made: Callable[[], UnixConnection]) -> None:
        self._made = made
        self._bound.listen(BACKLOG)
        self._loop.add_reader(self._bound.fileno(), self._let_in)

    async def accept(self) -> AsyncIterator[Connection]:
        while not self._is_closed:
            if self._arrived:
                yield self._arrived.popleft()
            else:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._bound.fileno())
        self._bound.close()
        self._news.set()
        if self._coming:
            await asyncio.wait(self._coming)
        while self._arrived:
            self._arrived.popleft().drop()
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        os.close(self._lock_fd)

    def arrived(self, connection: UnixConnection) -> None:
        if self._is_closed or len(self._arrived) >= BACKLOG:
            connection.drop()
        else:
            self._arrived.append(connection)
            self._news.set()

    def _let_in(self) -> None:
        for _ in range(BACKLOG):
            try:
                opened, _ = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._bound.fileno())
                self._loop.call_later(_FULL_S, self._go_on)
                return
            opened.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._made, opened))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._bound.fileno(), self._let_in)


class UnixTransport:
    """Addresses are paths. All connections of one transport belong to one event loop."""

    def __init__(self, limits: WireLimits = DEFAULT_WIRE_LIMITS) -> None:
        self._limits = limits
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    async def connect(self, address: Address) -> Connection:
        path = checked_path(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                with os_errors(path), short_path(path) as short:
                    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    try:
                        opened.setblocking(False)
                        await loop.sock_connect(opened, short)
                    except BaseException as error:
                        opened.close()
                        if isinstance(error, OSError):
                            raise connect_error(error, path) from error
                        raise
                _, connection = await loop.create_unix_connection(
                    lambda: UnixConnection(path, self._buffer, self._limits), sock=opened
                )
        except TimeoutError:
            raise Unavailable(f"{path}: nobody answers") from None
        return connection

    async def listen(self, address: Address) -> Listener:
        path = checked_path(address)
        with os_errors(path):
            lock_fd = _take_lock(path)
            try:
                bound = _bind(path)
            except BaseException:
                os.close(lock_fd)
                raise
            listener = UnixListener(bound, path, lock_fd)
        listener.start(lambda: UnixConnection(path, self._buffer, self._limits, listener.arrived))
        return listener


def connect_error(error: OSError, path: str) -> StelaeError:
    """What it means that a socket cannot be connected to."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{path}: {error.strerror}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{path}: nobody answers")
    if error.errno == errno.EAGAIN:
        return Unavailable(f"{path}: more wait there than are let in")
    return Unavailable(f"{path}: nobody listens there: {error.strerror or error}")


def _take_lock(path: str) -> int:
    lock_fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        raise AlreadyExists(f"{path}: another process listens there") from None
    return lock_fd


def _bind(path: str) -> socket.socket:
    """A socket at the path, in the place of one that is dead. Whoever calls has the lock."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise AlreadyExists(f"{path}: a file that is no socket is there")
        _refuse_living(path)
        os.unlink(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(path) as short:
            bound.bind(short)
        os.chmod(path, 0o600)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _refuse_living(path: str) -> None:
    """AlreadyExists if a process listens there that took no lock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short_path(path) as short:
        probe.setblocking(False)
        try:
            probe.connect(short)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass
    raise AlreadyExists(f"{path}: another program listens there")
