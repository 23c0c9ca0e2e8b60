"""Frames over local (Unix-domain) sockets for callers that block: the side of the processes attached to a store.

A connection is used by one caller at a time and may be closed by any: closing shuts the socket down, which ends waiting
at once, and the descriptor goes back to the system when nobody is inside any more. In a forked child connections may
only be closed, and that leaves the parent's as they are.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from stelae.adapters.files import os_errors
from stelae.adapters.sockets.paths import checked_path, peer_name, short_path
from stelae.adapters.sockets.unix import connect_error
from stelae.model.errors import Closed, DeadlineExceeded, Unavailable
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Frame
from stelae.wire.faults import ProtocolError
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, FrameDecoder, WireLimits, encode_frame

_BUFFER_BYTES = 256 * 1024


class BlockingUnixConnection:
    """Made by `UnixConnector`."""

    def __init__(self, opened: socket.socket, path: str, limits: WireLimits) -> None:
        self._socket = opened
        self._limits = limits
        self._decoder = FrameDecoder(limits)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._frames: deque[Frame] = deque()
        self._fault: ProtocolError | None = None
        self._busy = Lock()
        self._is_closed = False
        self._until_s: float | None = None
        self._pid = os.getpid()
        self.peer = peer_name(opened, path)

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        parts = encode_frame(frame, self._limits)
        with self._use("sending to", timeout_s):
            for part in parts:
                self._wait_no_longer()
                self._socket.sendall(part)

    def receive(self, timeout_s: float | None) -> Frame | None:
        with self._use("waiting for", timeout_s):
            while not self._frames:
                if self._fault is not None:
                    raise self._fault
                self._wait_no_longer()
                try:
                    size = self._socket.recv_into(self._buffer)
                except ConnectionResetError:  # it closed, and left unread what was sent to it
                    size = 0
                if self._is_closed:
                    break
                if not size:
                    if self._decoder.pending_bytes:
                        raise Unavailable(f"{self.peer}: the connection broke off inside a frame")
                    return None
                self._frames.extend(self._decoder.feed(self._buffer[:size]))
                self._fault = self._decoder.fault
            if not self._is_closed:
                return self._frames.popleft()
        raise Closed(f"{self.peer}: this side closed the connection")

    def is_quiet(self) -> bool:
        if self._is_closed or self._pid != os.getpid() or self._frames or self._decoder.pending_bytes:
            return False
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):  # closed meanwhile
            return False

    def close(self) -> None:
        self._is_closed = True
        if self._pid == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._reap()

    @contextmanager
    def _use(self, doing: str, timeout_s: float | None) -> Iterator[None]:
        if self._pid != os.getpid():
            raise Closed(f"{self.peer}: the connection belongs to the process that this one was forked from")
        try:
            with self._busy:
                if self._is_closed:
                    raise Closed(f"{self.peer}: this side closed the connection")
                self._until_s = None if timeout_s is None else time.monotonic() + timeout_s
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"{self.peer}: {doing} it took more than {timeout_s:.2g} s") from None
        except OSError as error:
            if self._is_closed:
                raise Closed(f"{self.peer}: this side closed the connection") from None
            raise Unavailable(f"{self.peer}: the connection broke off: {error.strerror or error}") from error
        finally:
            if self._is_closed:
                self._reap()

    def _wait_no_longer(self) -> None:
        """The next call of the socket has what is left of the time: a peer that sends byte by byte gains none."""
        if self._until_s is None:
            self._socket.settimeout(None)
            return
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _reap(self) -> None:
        """Whoever is inside does this when leaving: a descriptor that is in use is not given back."""
        if self._busy.acquire(blocking=False):
            try:
                self._socket.close()
            finally:
                self._busy.release()


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
                    raise connect_error(error, self._path) from error
                raise
        return BlockingUnixConnection(opened, self._path, self._limits)
