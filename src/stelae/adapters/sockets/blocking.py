"""Frames over a stream of bytes for callers that block: what connections over local sockets and TCP have in common.

A connection is used by one caller at a time and may be closed by any: closing shuts the socket down, which ends waiting
at once, and the descriptor goes back to the system when nobody is inside any more. In a forked child connections may
only be closed, and that leaves the parent's as they are.

The socket itself never blocks: who has to wait waits for it to be ready, which takes fewer calls of the system than a
timeout of the socket's own.
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

from stelae.adapters.sockets.tls import FIRST_BYTES, NOT_TOLD, TlsSession, looks_like_tls
from stelae.model.errors import Closed, DeadlineExceeded, PermissionDenied, ProtocolError, StelaeError, Unavailable
from stelae.ports.transport import Frame
from stelae.wire.frames import FrameDecoder, WireLimits, encode_frame

_BUFFER_BYTES = 256 * 1024


class BlockingStream:
    """Made by a connector. `is_reset_an_end`: a peer that closes, and leaves unread what was sent to it, resets the
    connection; where that is so, a reset is an end like any other."""

    def __init__(
        self,
        opened: socket.socket,
        peer: str,
        limits: WireLimits,
        tls: TlsSession | None = None,
        *,
        is_reset_an_end: bool = False,
    ) -> None:
        self._socket = opened
        opened.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(opened, select.POLLIN)
        self._writable.register(opened, select.POLLOUT)
        self._limits = limits
        self._tls = tls
        self._is_reset_an_end = is_reset_an_end
        self._decoder = FrameDecoder(limits)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._frames: deque[Frame] = deque()
        self._first = b""
        self._fault: StelaeError | None = None
        """Why nothing more is received, once what came before it was."""
        self._has_end = False
        """The peer closed, and everything it sent has been decoded."""
        self._is_whole = True
        """No frame was sent in part."""
        self._busy = Lock()
        self._is_closed = False
        self._until_s: float | None = None
        self._pid = os.getpid()
        self.peer = peer

    def agree(self, timeout_s: float | None) -> None:
        """Agree on TLS; raise why that cannot be. Called once, before anything else."""
        tls = self._tls
        if tls is None:
            return
        with self._use("agreeing on TLS with", timeout_s):
            self._send_all(tls.begin())
            while not tls.is_ready:
                size = self._receive_some()
                if not size:
                    raise Unavailable(f"{self.peer}: the connection broke off while TLS was agreed on")
                self._take(size)
                if self._fault is not None:
                    raise self._fault

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        parts = encode_frame(frame, self._limits)
        with self._use("sending to", timeout_s):
            if self._has_end or self._fault is not None:
                raise Unavailable(f"{self.peer}: the other side is gone")
            self._is_whole = False
            try:
                for part in parts if self._tls is None else self._tls.seal(parts, _BUFFER_BYTES):
                    self._send_all(part)
            except ConnectionError:
                self._hear_refusal()
                raise
            self._is_whole = True

    def receive(self, timeout_s: float | None) -> Frame | None:
        with self._use("waiting for", timeout_s):
            while not self._frames:
                if self._fault is not None:
                    raise self._fault
                if self._has_end:
                    return None
                size = self._receive_some()
                if self._is_closed:
                    break
                if size:
                    self._take(size)
                else:
                    self._take_end()
            if not self._is_closed:
                return self._frames.popleft()
        raise Closed(f"{self.peer}: this side closed the connection")

    def is_quiet(self) -> bool:
        if self._is_closed or self._has_end or self._fault is not None or self._pid != os.getpid():
            return False
        if self._frames or self._decoder.pending_bytes or (self._tls is not None and self._tls.held_bytes):
            return False
        return not self._readable.poll(0) and not self._is_closed

    def close(self) -> None:
        is_first, self._is_closed = not self._is_closed, True
        if self._pid == os.getpid():
            if is_first and self._tls is not None:
                self._say_end(self._tls)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._reap()

    # -- inside

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
            self._fault = Unavailable(f"{self.peer}: the connection broke off: {error.strerror or error}")
            raise self._fault from error
        finally:
            if self._is_closed:
                self._reap()

    def _send_all(self, data: bytes | memoryview) -> None:
        self._left_ms()
        left = data if type(data) is bytes else memoryview(data).cast("B")
        while sent := self._send_some(left):
            if sent == len(left):
                return
            left = memoryview(left)[sent:]

    def _send_some(self, data: bytes | memoryview) -> int:
        """Wait until some of it is taken; return how many bytes: 0 only if there are none."""
        while True:
            try:
                return self._socket.send(data)
            except BlockingIOError:
                self._wait(self._writable)

    def _receive_some(self) -> int:
        """Wait for bytes; return how many are in the buffer: 0 if the peer has closed."""
        while True:
            self._wait(self._readable)
            try:
                return self._socket.recv_into(self._buffer)
            except BlockingIOError:
                continue  # somebody thought that there was something
            except ConnectionResetError:
                if self._is_reset_an_end:
                    return 0
                raise

    def _hear_refusal(self) -> None:
        """A peer that does not let this side in ends the connection, too: raise what it said before."""
        with suppress(OSError):
            while self._fault is None and (size := self._socket.recv_into(self._buffer)):
                self._take(size)
        if isinstance(self._fault, PermissionDenied):
            raise self._fault

    def _take(self, size: int) -> None:
        """Decode what is in the buffer."""
        data = self._buffer[:size]
        try:
            if self._tls is None:
                self._meet_tls(data)
                self._frames.extend(self._decoder.feed(data))
            else:
                for plain in self._tls.open(data):
                    self._frames.extend(self._decoder.feed(plain))
                    if self._decoder.fault is not None:
                        break
        except (ProtocolError, PermissionDenied) as error:
            self._fault = type(error)(f"{self.peer}: {error}")
        self._fault = self._fault or self._decoder.fault
        if self._tls is None:
            return
        if reply := self._tls.unsent():
            self._send_all(reply)
        if self._tls.is_over:
            self._take_end()

    def _take_end(self) -> None:
        """Note that the peer has hung up: in order, or in the midst of a frame."""
        is_cut = self._decoder.pending_bytes
        if is_cut or (self._tls is not None and not self._tls.is_over):
            where = " inside a frame" if is_cut else ""
            self._fault = Unavailable(f"{self.peer}: the connection broke off{where}")
        else:
            self._has_end = True

    def _meet_tls(self, data: memoryview) -> None:
        if len(self._first) < FIRST_BYTES:
            self._first += data[:FIRST_BYTES]
            if looks_like_tls(self._first):
                raise PermissionDenied(NOT_TOLD)

    def _wait(self, ready: select.poll) -> None:
        """Until the socket can be used, or the time is up: a peer that sends byte by byte gains none."""
        if not ready.poll(self._left_ms()):
            raise TimeoutError

    def _left_ms(self) -> float | None:
        """The milliseconds until the call's time is up, None without end; TimeoutError if it is."""
        if self._until_s is None:
            return None
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s * 1_000

    def _say_end(self, tls: TlsSession) -> None:
        """Tell the peer that nothing is missing, if nobody is inside, nothing is, and the system takes it at once."""
        if self._busy.acquire(blocking=False):
            try:
                if tls.is_ready and self._is_whole:
                    with suppress(OSError):
                        self._socket.send(tls.end())
            finally:
                self._busy.release()

    def _reap(self) -> None:
        """Whoever is inside does this when leaving: a descriptor that is in use is not given back."""
        if self._busy.acquire(blocking=False):
            try:
                self._socket.close()
            finally:
                self._busy.release()
