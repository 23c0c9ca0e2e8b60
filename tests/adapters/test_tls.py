"""TLS between processes that are who they say, and between others."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from stelae.adapters.sockets.addresses import host_and_port
from stelae.adapters.sockets.tcp import TcpConnector, TcpTransport
from stelae.adapters.sockets.tls import TlsFiles
from stelae.adapters.threads import LoopThread
from stelae.model.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    ProtocolError,
    StelaeError,
    Unavailable,
)
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId
from stelae.wire.frames import encode_frame
from tests.certificates import Authority
from tests.effort import HANG_S

HOST = "127.0.0.1"
ANY_PORT = Address(f"{HOST}:0")
MIB = 2**20


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"message", body)


class Server:
    """Listens, and sends back what comes; `ends` are the ends of its connections, in the order in which they came."""

    def __init__(self, tls: TlsFiles | None) -> None:
        self._loop = LoopThread("serve")
        self._listener = self._loop.run(TcpTransport(tls=tls).listen(ANY_PORT))
        self._ends: asyncio.Queue[StelaeError | None] = asyncio.Queue()
        self._serving = self._loop.run(self._start())

    @property
    def address(self) -> str:
        return self._listener.address

    def next_end(self) -> StelaeError | None:
        return self._loop.run(self._ends.get())

    def connect(self, tls: TlsFiles | None) -> Connection:
        """From the same loop."""
        return self._loop.run(TcpTransport(tls=tls).connect(Address(self.address)))

    def run(self, job: Awaitable[object]) -> object:
        return self._loop.run(job)

    def close(self) -> None:
        self._loop.run(self._listener.close())
        self._loop.run(asyncio.wait([self._serving]))
        self._loop.close()

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            async for connection in self._listener.accept():
                group.create_task(self._echo(connection))

    async def _echo(self, connection: Connection) -> None:
        end = None
        try:
            while (received := await connection.receive()) is not None:
                await connection.send(received)
        except StelaeError as error:
            end = error
        await connection.close()
        self._ends.put_nowait(end)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture
def serve() -> Iterator[type[Server]]:
    made: list[Server] = []

    class Kept(Server):
        def __init__(self, tls: TlsFiles | None) -> None:
            super().__init__(tls)
            made.append(self)

    yield Kept
    for each in made:
        each.close()


def _talks(server: Server, tls: TlsFiles | None) -> None:
    blocking = TcpConnector(server.address, tls=tls).connect(HANG_S)
    body = bytes(range(256)) * 20_000
    blocking.send(frame(1, body), HANG_S)
    assert blocking.receive(HANG_S) == frame(1, body)
    assert blocking.is_quiet()
    blocking.close()
    assert server.next_end() is None, "the end was said"


def test_who_connects_needs_the_authority_only(serve: type[Server], authority: Authority) -> None:
    server = serve(authority.files("server", HOST))
    _talks(server, TlsFiles(authority.path))
    _talks(server, authority.files("client", "client"))


def test_both_sides_show_who_they_are(serve: type[Server], authority: Authority) -> None:
    _talks(serve(authority.files("server", HOST, is_mutual=True)), authority.files("client", "client"))


def _refused(server: Server, tls: TlsFiles | None) -> tuple[str, str]:
    """What both ways to connect say, and what the server says."""
    said: set[str] = set()
    for is_blocking in (True, False):
        with pytest.raises(PermissionDenied) as raised:
            _call(server, tls, is_blocking)
        said.add(str(raised.value).partition(": ")[2])
    (words,) = said
    ends = [server.next_end() for _ in range(2)]
    assert all(isinstance(each, PermissionDenied) for each in ends)
    (told,) = {str(each).partition(": ")[2] for each in ends}
    assert all(str(each).startswith(f"{HOST}:") for each in ends), "it says who it was"
    return words, told


def _call(server: Server, tls: TlsFiles | None, is_blocking: bool) -> None:
    """Who is refused may hear so when it connects, or when it waits for the first answer."""
    if is_blocking:
        blocking = TcpConnector(server.address, tls=tls).connect(HANG_S)
        try:
            blocking.send(frame(1), HANG_S)
            blocking.receive(HANG_S)
        finally:
            blocking.close()
    else:
        connection = server.connect(tls)
        try:
            server.run(connection.send(frame(1)))
            server.run(connection.receive())
        finally:
            server.run(connection.close())


def test_a_server_that_is_not_trusted(serve: type[Server], authority: Authority, stranger: Authority) -> None:
    words, told = _refused(serve(stranger.files("server", HOST)), TlsFiles(authority.path))
    assert "certificate is not trusted" in words
    assert "refuses this one: tlsv1 alert unknown ca" in told


def test_a_server_of_another_name(serve: type[Server], authority: Authority) -> None:
    words, told = _refused(serve(authority.files("server", "db1")), TlsFiles(authority.path))
    assert "IP address mismatch" in words
    assert "refuses this one" in told


def test_who_connects_is_not_trusted(serve: type[Server], authority: Authority, stranger: Authority) -> None:
    mine = stranger.files("client", "client")
    words, told = _refused(
        serve(authority.files("server", HOST, is_mutual=True)), TlsFiles(authority.path, mine.certificate, mine.key)
    )
    assert "refuses this one: tlsv1 alert unknown ca" in words
    assert "certificate is not trusted" in told


def test_who_connects_shows_nothing(serve: type[Server], authority: Authority) -> None:
    words, told = _refused(serve(authority.files("server", HOST, is_mutual=True)), TlsFiles(authority.path))
    assert "refuses this one: tlsv13 alert certificate required" in words
    assert "shows no certificate, and one is needed" in told


def test_only_the_server_speaks_tls(serve: type[Server], authority: Authority) -> None:
    words, told = _refused(serve(authority.files("server", HOST)), None)
    assert words.startswith("the other side speaks TLS, and this side was told of none: name its files")
    assert told == "TLS is spoken here, and the other side does not speak it"


def test_only_who_connects_speaks_tls(serve: type[Server], authority: Authority) -> None:
    words, told = _refused(serve(None), TlsFiles(authority.path))
    assert words.startswith("TLS: the other side does not speak it, or no version that is spoken here: start it")
    assert told.startswith("the other side speaks TLS, and this side was told of none: name its files")


def test_files_that_are_no_good(tmp_path: Path, authority: Authority) -> None:
    good = authority.files("server", HOST)
    other = authority.files("other", HOST)
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = str(tmp_path / "bad.pem")
    none = str(tmp_path / "none.pem")
    for files in (
        TlsFiles(bad),
        TlsFiles(none),
        TlsFiles(good.authority, bad, good.key),
        TlsFiles(good.authority, good.certificate, none),
        TlsFiles(good.authority, good.certificate, other.key),
        TlsFiles(good.authority, good.certificate),
        TlsFiles(None, good.certificate, good.key, is_mutual=True),
    ):
        with pytest.raises(InvalidArgument, match=r"^TLS: "):
            TcpTransport(tls=files)

    async def listen() -> None:
        with pytest.raises(InvalidArgument, match="needs a certificate"):
            await TcpTransport(tls=TlsFiles(good.authority)).listen(ANY_PORT)

    asyncio.run(listen())


def test_older_versions_are_not_spoken(serve: type[Server], authority: Authority) -> None:
    server = serve(authority.files("server", HOST))
    context = ssl.create_default_context(cafile=authority.path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(host_and_port(server.address)) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw, server_hostname=HOST)
    assert isinstance(server.next_end(), ProtocolError)


class Wire:
    """A listener that is no Stelae: TLS by Python's own hand, so that bytes can be sent as a test likes."""

    def __init__(self, files: TlsFiles) -> None:
        self._context = files.server_context()
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.raw: socket.socket
        self.sealed: ssl.SSLSocket

    def serve_one(self, connector: TcpConnector) -> BlockingConnection:
        thread = Thread(target=self._accept)
        thread.start()
        connection = connector.connect(HANG_S)
        thread.join()
        return connection

    def _accept(self) -> None:
        self.raw, _ = self._listener.accept()
        self.sealed = self._context.wrap_socket(self.raw, server_side=True)

    def close(self) -> None:
        self.sealed.close()
        self._listener.close()


@pytest.fixture
def wire(authority: Authority) -> Iterator[Wire]:
    made = Wire(authority.files("server", HOST))
    yield made
    made.close()


def test_an_end_that_was_not_said_is_a_break(wire: Wire, authority: Authority) -> None:
    here = wire.serve_one(TcpConnector(wire.address, tls=TlsFiles(authority.path)))
    wire.sealed.sendall(b"".join(encode_frame(frame(1))))
    wire.sealed.shutdown(socket.SHUT_WR)
    assert here.receive(HANG_S) == frame(1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="broke off"):
            here.receive(HANG_S)
    with pytest.raises(Unavailable, match="gone"):
        here.send(frame(1), HANG_S)
    here.close()


def test_bytes_that_were_changed_on_their_way(wire: Wire, authority: Authority) -> None:
    here = wire.serve_one(TcpConnector(wire.address, tls=TlsFiles(authority.path)))
    wire.sealed.sendall(b"".join(encode_frame(frame(1))))
    os.write(wire.sealed.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
    assert here.receive(HANG_S) == frame(1)
    with pytest.raises(ProtocolError, match="TLS: "):
        here.receive(HANG_S)
    here.close()


def test_waiting_has_an_end(wire: Wire, authority: Authority) -> None:
    here = wire.serve_one(TcpConnector(wire.address, tls=TlsFiles(authority.path)))
    with pytest.raises(DeadlineExceeded, match=r"waiting for it took more than 0\.01 s"):
        here.receive(0.01)
    assert here.is_quiet()
    with pytest.raises(DeadlineExceeded, match=r"sending to it took more than 0\.01 s"):
        here.send(frame(1, bytes(60 * MIB)), 0.01)
    here.close()
    while wire.sealed.recv(MIB):
        pass


def test_a_handshake_that_does_not_go_on_has_an_end(authority: Authority) -> None:
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match="agreeing on TLS with it took more"):
            TcpConnector(address, tls=TlsFiles(authority.path)).connect(0.05)


def test_closing_wakes_who_waits(wire: Wire, authority: Authority) -> None:
    here = wire.serve_one(TcpConnector(wire.address, tls=TlsFiles(authority.path)))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            here.receive(None)
        except Closed as error:
            errors.append(error)

    waiting = [Thread(target=wait) for _ in range(2)]
    for each in waiting:
        each.start()
    here.close()
    here.close()
    for each in waiting:
        each.join()
    assert len(errors) == 2
    assert not here.is_quiet()


FORKING = """
import os, sys
from stelae.adapters.sockets.tcp import TcpConnector
from stelae.adapters.sockets.tls import TlsFiles
from stelae.model.errors import Closed
from stelae.ports.transport import Frame, FrameKind

connector = TcpConnector(sys.argv[1], tls=TlsFiles(sys.argv[2]))
here = connector.connect(300)
child = os.fork()
if not child:
    try:
        here.receive(1)
    except Closed as error:
        told = "forked" in str(error) and not here.is_quiet()
        here.close()
        mine = connector.connect(300)
        mine.send(Frame(FrameKind.REQUEST, 6), 300)
        told = told and mine.receive(300).request_id == 6
        mine.close()
        os._exit(0 if told else 1)
    os._exit(2)
print(os.waitpid(child, 0)[1], here.is_quiet(), flush=True)
here.send(Frame(FrameKind.REQUEST, 5), 300)
print(here.receive(300).request_id)
here.close()
"""


def test_a_forked_child_may_only_close_and_has_connections_of_its_own(
    serve: type[Server], authority: Authority
) -> None:
    server = serve(authority.files("server", HOST))
    command = [sys.executable, "-c", FORKING, server.address, authority.path]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "0 True\n5\n"
    assert [server.next_end(), server.next_end()] == [None, None]
