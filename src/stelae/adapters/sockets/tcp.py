"""Frames over TCP: `ports.transport` and `ports.blocking` between machines, with or without TLS.

Addresses are `host:port`; port 0 lets the system choose, and the listener's address has the port that it chose. A name
that stands for several addresses is connected to at whichever answers, and listened on at one: its first of IPv4, or
else of IPv6.

A TCP socket that is closed while bytes of its peer are unread makes the system drop what it has not sent yet. So a
connection that closes says that it ends, and waits (up to `LINGER_S`, reading on) until the peer's system has it all.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, TypeAlias
from weakref import WeakSet

from stelae.adapters.files import os_errors, stelae_error
from stelae.adapters.sockets.addresses import host_and_port, with_port
from stelae.adapters.sockets.blocking import BlockingStream
from stelae.adapters.sockets.listeners import StreamListener
from stelae.adapters.sockets.silence import has_all, is_silent, prepare_tcp
from stelae.adapters.sockets.streams import BUFFER_BYTES, CONNECT_S, StreamConnection
from stelae.adapters.sockets.tls import OPENED_BYTES, TlsFiles, TlsSession
from stelae.model.errors import AlreadyExists, InvalidArgument, StelaeError, Unavailable
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Listener
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, WireLimits

LINGER_S = 1.0
LOOK_S = 2.5
"""How often connections are looked at for silence."""

_Place: TypeAlias = tuple[socket.AddressFamily, Any]


class TcpConnection(StreamConnection):
    """One connection; made by `TcpTransport` and its listeners."""

    _is_begun = False
    """The loop has given it its socket."""

    def prepare(self, opened: socket.socket) -> str:
        self._is_begun = True
        with suppress(OSError):  # it is over already, and will say so
            prepare_tcp(opened)
        return _peer_name(opened, self._place)

    @property
    def opened(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def begin_end(self) -> None:
        if self._has_end:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the peer has reset the connection, and the loop has not noticed yet
            self._abort()
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def wait_for_end(self) -> None:
        await self._emptied.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                pause_s = 0.001
                while not self._lost.is_set() and not has_all(self.opened):
                    await asyncio.sleep(pause_s)
                    pause_s *= 2

    def end_after_reset(self, error: ConnectionError) -> StelaeError:
        return Unavailable(f"{self.peer}: the connection broke off: {error.strerror or error}")

    def look_for_silence(self) -> None:
        """End the connection if nothing is heard of the peer's system."""
        if self._is_begun and not self._lost.is_set() and is_silent(self.opened):
            self._end(Unavailable(f"{self.peer}: the connection broke off: nothing is heard from there"))
            self._abort()


class TcpTransport:
    """Addresses are `host:port`. All connections of one transport belong to one event loop. `tls` is for both sides: to
    listen, it has a certificate."""

    def __init__(self, limits: WireLimits = DEFAULT_WIRE_LIMITS, tls: TlsFiles | None = None) -> None:
        self._limits = limits
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._opened = memoryview(bytearray(OPENED_BYTES if tls is not None else 0))
        self._server_tls = None if tls is None or tls.certificate is None else tls.server_context()
        self._client_tls = None if tls is None else tls.client_context()
        self._connections: WeakSet[TcpConnection] = WeakSet()
        self._looking: asyncio.TimerHandle | None = None

    async def connect(self, address: Address) -> Connection:
        host, port = host_and_port(address)
        connection: TcpConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                opened = await _open(host, port)
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: self._make_connection(address, host, None), sock=opened
                )
                await connection.agree()
        except BaseException as error:
            if connection is not None:
                connection.drop()
            if isinstance(error, OSError):
                raise _connect_error(error, address) from error
            raise
        return connection

    async def listen(self, address: Address) -> Listener:
        if self._client_tls is not None and self._server_tls is None:
            raise InvalidArgument(f"{address}: TLS: a server needs a certificate and its key")
        listener = StreamListener(*await bind_tcp(address))
        try:
            listener.start(lambda: self._make_connection(listener.address, None, listener))
        except OSError as error:
            await listener.close()
            raise listen_error(error, address) from error
        return listener

    def _make_connection(self, place: str, host: str | None, listener: StreamListener | None) -> TcpConnection:
        """A connection to `host`, or one that came in."""
        context = self._server_tls if host is None else self._client_tls
        tls = None if context is None else TlsSession(context, host, self._opened)
        arrived = None if listener is None else listener.take_in
        connection = TcpConnection(place, self._buffer, self._limits, tls, arrived)
        self._connections.add(connection)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return connection

    def _look(self) -> None:
        for connection in tuple(self._connections):
            connection.look_for_silence()
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_S, self._look) if self._connections else None


class TcpConnector:
    """Connections to `host:port` for callers that block."""

    def __init__(self, address: str, limits: WireLimits = DEFAULT_WIRE_LIMITS, tls: TlsFiles | None = None) -> None:
        self._host, self._port = host_and_port(address)
        self._address = address
        self._limits = limits
        self._tls: ssl.SSLContext | None = None if tls is None else tls.client_context()

    @property
    def address(self) -> str:
        return self._address

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            opened = _open_blocking(self._host, self._port, until_s)
        except OSError as error:
            raise _connect_error(error, self._address) from error
        tls = None
        if self._tls is not None:
            tls = TlsSession(self._tls, self._host, memoryview(bytearray(OPENED_BYTES)))
        connection = BlockingStream(opened, self._address, self._limits, tls)
        try:
            connection.agree(None if until_s is None else max(0, until_s - time.monotonic()))
        except BaseException:
            connection.close()
            raise
        return connection


async def _open(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of the host that answers; each has its share of the time."""
    places, last = await _places(host, port), OSError("the name stands for no address")
    for place in places:
        try:
            async with asyncio.timeout(CONNECT_S / len(places)):
                return await _open_place(place)
        except OSError as error:
            last = error
    raise last


async def _open_place(place: _Place) -> socket.socket:
    opened = socket.socket(place[0], socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, place[1])
        _check_opened(opened)
    except BaseException:
        opened.close()
        raise
    return opened


def _open_blocking(host: str, port: int, until_s: float | None) -> socket.socket:
    """As `_open`."""
    places, last = _resolve(host, port), OSError("the name stands for no address")
    for at, place in enumerate(places):
        opened = socket.socket(place[0], socket.SOCK_STREAM)
        try:
            if until_s is not None:
                opened.settimeout(max(0.001, until_s - time.monotonic()) / (len(places) - at))
            opened.connect(place[1])
            _check_opened(opened)
        except BaseException as error:
            opened.close()
            if not isinstance(error, OSError):
                raise
            last = error
        else:
            return opened
    raise last


def _check_opened(opened: socket.socket) -> None:
    """Where nobody listens, a socket may get the very port that it connects to, and then it meets itself."""
    if opened.getsockname() == opened.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "only this socket itself is there")
    prepare_tcp(opened)


async def _places(host: str, port: int) -> list[_Place]:
    """What the name stands for; not empty."""
    try:
        return _resolve(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: others are asked for it, which may take a while
        return await asyncio.get_running_loop().run_in_executor(None, _resolve, host, port)


def _resolve(host: str, port: int, flags: int = 0) -> list[_Place]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, place) for family, _, _, _, place in found]


async def bind_tcp(address: str) -> tuple[socket.socket, Address]:
    """A socket to listen on at `host:port`, and its address with the port that it got."""
    host, port = host_and_port(address)
    try:
        places = await _places(host, port)
    except socket.gaierror as error:
        raise InvalidArgument(f"{address}: the host is not known: {error.strerror}") from error
    with os_errors(address):
        bound = _bind(places, address)
    return bound, Address(with_port(host, bound.getsockname()[1]))


def _bind(places: list[_Place], address: str) -> socket.socket:
    family, place = min(places, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise listen_error(error, address) from error
    return bound


def listen_error(error: OSError, address: str) -> StelaeError:
    """What it means that nobody can listen there."""
    if error.errno == errno.EADDRINUSE:
        return AlreadyExists(f"{address}: another process listens there")
    if error.errno in (errno.EACCES, errno.EPERM):
        return stelae_error(error, address)
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidArgument(f"{address}: this machine does not have that address")
    return Unavailable(f"{address}: {error.strerror or error}")


def _connect_error(error: OSError, address: str) -> StelaeError:
    """What it means that nobody could be connected to."""
    if isinstance(error, socket.gaierror):
        return Unavailable(f"{address}: the host is not known: {error.strerror}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{address}: nobody answers")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
        return stelae_error(error, address)
    return Unavailable(f"{address}: nobody listens there: {error.strerror or error}")


def _peer_name(opened: socket.socket, place: str) -> str:
    try:
        host, port, *_ = opened.getpeername()
    except OSError:
        return place
    return with_port(host, port)
