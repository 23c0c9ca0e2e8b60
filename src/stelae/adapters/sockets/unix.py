"""Frames over local (Unix-domain) sockets: `ports.transport` and `ports.blocking` for the processes of one machine.

A peer that closed and one that died look the same here, as its system closes for it: both are an end, unless it comes
inside a frame.

A listener has a lock file beside its socket (`<path>.lock`), held while it lives and left behind: who gets the lock may
take away a socket that a dead process left, and nobody takes away a living one's. The socket is made for its owner only
(0600) before it listens. Long paths: see `paths`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress

from stelae.adapters.files import os_errors
from stelae.adapters.sockets.blocking import BlockingStream
from stelae.adapters.sockets.listeners import StreamListener
from stelae.adapters.sockets.paths import checked_path, peer_name, short_path
from stelae.adapters.sockets.streams import BUFFER_BYTES, CONNECT_S, StreamConnection
from stelae.model.errors import AlreadyExists, PermissionDenied, StelaeError, Unavailable
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Listener
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, WireLimits


class UnixConnection(StreamConnection):
    """One connection; made by `UnixTransport` and its listeners."""

    def prepare(self, opened: socket.socket) -> str:
        return peer_name(opened, self._place)

    def begin_end(self) -> None:
        self._transport.close()

    async def wait_for_end(self) -> None:
        await self._lost.wait()

    def end_after_reset(self, error: ConnectionError) -> None:
        """A peer that closes and leaves unread what was sent to it resets the connection."""


class UnixListener(StreamListener):
    """Made by `UnixTransport.listen`."""

    def __init__(self, bound: socket.socket, path: str, lock_fd: int) -> None:
        super().__init__(bound, Address(path))
        self._path = path
        self._lock_fd = lock_fd
        self._inode = os.stat(path).st_ino

    def free(self) -> None:
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        os.close(self._lock_fd)


class UnixTransport:
    """Addresses are paths. All connections of one transport belong to one event loop."""

    def __init__(self, limits: WireLimits = DEFAULT_WIRE_LIMITS) -> None:
        self._limits = limits
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

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
                            raise _connect_error(error, path) from error
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
        listener.start(lambda: UnixConnection(path, self._buffer, self._limits, arrived=listener.take_in))
        return listener


class UnixConnector:
    """Connections to the socket at a path."""

    def __init__(self, path: str, limits: WireLimits = DEFAULT_WIRE_LIMITS) -> None:
        self._path = checked_path(path)
        self._limits = limits

    @property
    def address(self) -> str:
        return self._path

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        with os_errors(self._path), short_path(self._path) as short:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                opened.settimeout(timeout_s)
                opened.connect(short)
            except BaseException as error:
                opened.close()
                if isinstance(error, OSError):
                    raise _connect_error(error, self._path) from error
                raise
        return BlockingStream(opened, peer_name(opened, self._path), self._limits, is_reset_an_end=True)


def _connect_error(error: OSError, path: str) -> StelaeError:
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
