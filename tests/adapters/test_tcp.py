"""TCP and TLS on real descriptors and processes; what every transport does is in `tests/contract`."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from stelae.adapters.sockets import silence, streams, tcp
from stelae.adapters.sockets.addresses import host_and_port, with_port
from stelae.adapters.sockets.listeners import BACKLOG
from stelae.adapters.sockets.tcp import TcpConnector, TcpTransport
from stelae.model.errors import (
    AlreadyExists,
    InvalidArgument,
    Unavailable,
)
from stelae.ports.transport import Address, Connection, Frame, FrameKind, Listener, RequestId
from stelae.wire.frames import FrameDecoder, encode_frame
from tests.effort import HANG_S

HOST = "127.0.0.1"
ANY_PORT = Address(f"{HOST}:0")
MIB = 2**20


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"message", body)


def frame_bytes(sent: Frame) -> bytes:
    return b"".join(encode_frame(sent))


async def first(listener: Listener) -> Connection:
    return await anext(aiter(listener.accept()))


async def drain(connection: Connection) -> None:
    while await connection.receive() is not None:
        pass


def talk(transport: TcpTransport, both: Callable[[Connection, Connection], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = await transport.listen(ANY_PORT)
        here = await transport.connect(listener.address)
        there = await first(listener)
        await both(here, there)
        for each in (here, there, listener):
            await each.close()

    asyncio.run(run())


# -- addresses


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("db1:7000", "db1", 7000),
        ("db-1.example.org:1", "db-1.example.org", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]:9", "fe80::1%eth0", 9),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    assert host_and_port(address) == (host, port)
    assert with_port(host, port) == address


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("db1", "host:port"),
        ("db1:", "host:port"),
        ("db1:65536", "host:port"),
        ("db1:-1", "host:port"),
        ("db1:７", "host:port"),
        (":7000", "name or number"),
        ("a b:7000", "name or number"),
        ("http://db1:7000", "brackets"),
        ("::1:7000", r"brackets: \[::1\]:7000"),
        ("[db1]:7000", "not an IPv6 address"),
    ],
)
def test_what_is_no_address(address: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        host_and_port(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_hosts_by_number_and_by_name(host: str) -> None:
    if host == "[::1]" and not _has_version_6():
        pytest.skip("no IPv6 here")

    async def run() -> None:
        listener = await TcpTransport().listen(Address(f"{host}:0"))
        assert listener.address.startswith(f"{host}:")
        assert not listener.address.endswith(":0")
        here = await TcpTransport().connect(listener.address)
        there = await first(listener)
        await here.send(frame(1))
        assert await there.receive() == frame(1)
        assert there.peer.rpartition(":")[0] in ("127.0.0.1", "[::1]")
        for each in (here, there, listener):
            await each.close()

    asyncio.run(run())


def _has_version_6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_hosts_that_are_not_known() -> None:
    async def run() -> None:
        with pytest.raises(Unavailable, match="host is not known"):
            await TcpTransport().connect(Address("nowhere.invalid:1"))
        with pytest.raises(InvalidArgument, match="host is not known"):
            await TcpTransport().listen(Address("nowhere.invalid:1"))
        with pytest.raises(InvalidArgument, match="does not have that address"):
            await TcpTransport().listen(Address("192.0.2.1:0"))

    asyncio.run(run())
    with pytest.raises(Unavailable, match="host is not known"):
        TcpConnector("nowhere.invalid:1").connect(HANG_S)


def test_a_name_is_connected_to_at_whichever_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        listener = await TcpTransport().listen(ANY_PORT)
        port = int(listener.address.rpartition(":")[2])
        found = [(socket.AF_INET, 1, 6, "", (host, port)) for host in ("127.9.9.9", HOST)]

        def resolve(host: str, *_: object, **options: int) -> object:
            if options.get("flags"):
                raise socket.gaierror
            return found

        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", resolve)
            here = await TcpTransport().connect(Address(f"both:{port}"))
            other = await asyncio.to_thread(TcpConnector(f"both:{port}").connect, HANG_S)
        other.close()
        for each in (here, listener):
            await each.close()

    asyncio.run(run())


# -- sockets


def test_what_is_set_on_a_socket() -> None:
    async def both(here: Connection, there: Connection) -> None:
        for each in (here, there):
            assert isinstance(each, tcp.TcpConnection)
            assert each.opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert each.opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert each.opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == silence.KEEPALIVE_S
                assert each.opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == silence.KEEPALIVE_PROBES

    talk(TcpTransport(), both)


def test_an_address_that_another_program_has() -> None:
    async def run() -> None:
        with socket.create_server((HOST, 0)) as other, pytest.raises(AlreadyExists):
            await TcpTransport().listen(Address(f"{HOST}:{other.getsockname()[1]}"))

    asyncio.run(run())


def test_a_socket_does_not_meet_itself() -> None:
    """Nobody listens on the port that the system gives to who connects to it."""
    with socket.socket() as opened:
        opened.bind((HOST, 0))
        opened.connect(opened.getsockname())
        with pytest.raises(ConnectionRefusedError, match="itself"):
            tcp._check_opened(opened)


def test_closing_loses_nothing_although_the_peer_sends_on() -> None:
    """A socket that is closed with unread bytes drops what it has not sent: all of that must have been taken before."""

    async def run() -> None:
        listener = await TcpTransport().listen(ANY_PORT)
        with socket.create_connection(host_and_port(listener.address)) as raw:
            there = await first(listener)
            raw.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    raw.send(frame_bytes(frame(1, bytes(MIB))))
            sent = [frame(number, bytes(100_000)) for number in range(5)]
            for each in sent:
                await there.send(each)
            await there.close()
            raw.setblocking(True)
            heard = b""
            while data := raw.recv(MIB):
                heard += data
        assert heard == b"".join(frame_bytes(each) for each in sent)
        await listener.close()

    asyncio.run(run())


def test_closing_ends_although_the_peer_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CLOSE_S", 0.05)

    async def both(here: Connection, there: Connection) -> None:
        reading: Any = there
        reading._transport.pause_reading()
        await here.send(frame(1, bytes(20 * MIB)))
        await here.close()
        reading._transport.resume_reading()
        with pytest.raises(Unavailable, match="broke off"):
            await drain(there)

    talk(TcpTransport(), both)


def test_while_many_wait_to_be_taken_nobody_is_let_in() -> None:
    def connect(place: tuple[str, int]) -> socket.socket:
        opened = socket.create_connection(place)
        opened.sendall(frame_bytes(frame(7)))
        return opened

    async def run() -> None:
        listener = await TcpTransport().listen(ANY_PORT)
        place = host_and_port(listener.address)
        waiting = [await asyncio.to_thread(connect, place) for _ in range(BACKLOG + BACKLOG // 2)]
        accepted = aiter(listener.accept())
        for _ in waiting:
            there = await anext(accepted)
            assert await there.receive() == frame(7)
            await there.close()
        for each in waiting:
            each.close()
        await listener.close()

    asyncio.run(run())


def test_a_reset_is_no_end() -> None:
    """Frames that came before it are received; that nothing is missing is not said."""

    async def run() -> None:
        listener = await TcpTransport().listen(ANY_PORT)
        with socket.create_connection(host_and_port(listener.address)) as raw:
            raw.sendall(frame_bytes(frame(1)))
            there = await first(listener)
            assert await there.receive() == frame(1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(Unavailable, match="broke off"):
            await there.receive()
        await there.close()
        await listener.close()

    asyncio.run(run())


# -- silence


def _info(repeats: int, probes: int, acknowledged_ms: int) -> bytes:
    return struct.pack("4B52xI", 1, 0, repeats, probes, acknowledged_ms)


@pytest.mark.parametrize(
    ("info", "is_silent"),
    [
        (_info(0, 0, 3_600_000), False),
        (_info(1, 0, 3_600_000), False),
        (_info(0, 1, 3_600_000), False),
        (_info(5, 0, 9_000), False),
        (_info(5, 0, 10_000), True),
        (_info(0, 2, 120_000), True),
    ],
    ids=["nothing sent", "sent just now", "has no room, and says so", "slow", "cut off", "had no room, then cut off"],
)
def test_silence_is_when_nothing_is_acknowledged(info: bytes, is_silent: bool) -> None:
    assert silence.says_silence(info) is is_silent


def test_a_peer_that_does_not_read_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system goes on to say that it has no room."""
    monkeypatch.setattr(silence, "SILENCE_S", 0.1)
    monkeypatch.setattr(tcp, "LOOK_S", 0.005)
    looks: list[bool] = []

    def look(opened: socket.socket) -> bool:
        looks.append(silence.is_silent(opened))
        return looks[-1]

    monkeypatch.setattr(tcp, "is_silent", look)

    async def both(here: Connection, there: Connection) -> None:
        sending = asyncio.create_task(here.send(frame(1, bytes(40 * MIB))))
        await sending
        while len(looks) < 200:
            await asyncio.sleep(0.01)
        assert not any(looks)
        assert await there.receive() == frame(1, bytes(40 * MIB))

    talk(TcpTransport(), both)


def test_a_silent_peer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "LOOK_S", 0.01)

    async def both(here: Connection, there: Connection) -> None:
        monkeypatch.setattr(tcp, "is_silent", lambda _: True)
        for each in (here, there):
            with pytest.raises(Unavailable, match="nothing is heard from there"):
                await drain(each)
            with pytest.raises(Unavailable):
                await each.send(frame(1))

    talk(TcpTransport(), both)


CUT_OFF = """
import asyncio, subprocess
from stelae.adapters.sockets import silence, tcp
from stelae.model.errors import Unavailable
from stelae.ports.transport import Address, Frame, FrameKind

silence.SILENCE_S, tcp.LOOK_S = 1, 0.1

async def run():
    transport = tcp.TcpTransport()
    listener = await transport.listen(Address("127.0.0.1:0"))
    here = await transport.connect(listener.address)
    there = await anext(aiter(listener.accept()))
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    await here.send(Frame(FrameKind.REQUEST, 1))
    try:
        await here.receive()
    except Unavailable as error:
        print(error)
    await there.close()

asyncio.run(run())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is acknowledged")
def test_a_peer_that_is_cut_off() -> None:
    """In a network of its own, whose only link is taken down."""
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    with suppress(FileNotFoundError):
        if subprocess.run([*alone, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0:
            command = [*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", CUT_OFF]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert "nothing is heard from there" in done.stdout, done.stderr
            return
    pytest.skip("no network of one's own here")


def test_it_is_looked_for_though_a_connection_has_no_socket_yet() -> None:
    async def run() -> None:
        transport = TcpTransport()
        coming = transport._make_connection("somewhere", None, None)
        transport._look()
        assert transport._looking is not None
        transport._looking.cancel()
        assert coming.peer == "somewhere"

    asyncio.run(run())


def test_of_a_frame_that_never_ended_nothing_is_kept() -> None:
    """The object may live on for long: it is part of a circle, and servers look for those seldom."""
    part = frame_bytes(frame(1, bytes(4 * MIB)))[:-1]

    async def run() -> None:
        listener = await TcpTransport().listen(ANY_PORT)
        peer = socket.create_connection(host_and_port(listener.address), HANG_S)
        connection = await first(listener)
        assert isinstance(connection, streams.StreamConnection)
        await asyncio.to_thread(peer.sendall, part)
        peer.close()
        with pytest.raises(Unavailable, match="broke off inside a frame"):
            await connection.receive()
        await connection.close()
        await listener.close()
        held = next(each for each in gc.get_referents(connection) if isinstance(each, FrameDecoder))
        assert held.pending_bytes == 0

    asyncio.run(run())
