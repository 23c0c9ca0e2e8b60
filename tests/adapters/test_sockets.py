"""Local sockets on real descriptors, paths and processes; what every transport does is in `tests/contract`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stelae.adapters.sockets.paths import NAME_BYTES_MAX, PATH_BYTES_MAX, short_path
from stelae.adapters.sockets.unix import UnixConnector, UnixTransport
from stelae.adapters.threads import LoopThread
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProtocolError,
    Unavailable,
)
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Frame, FrameKind, Listener, RequestId
from stelae.wire.frames import DEFAULT_WIRE_LIMITS, FrameDecoder, encode_frame
from tests.effort import HANG_S

MIB = 2**20


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"message", body)


def frame_bytes(sent: Frame) -> bytes:
    return b"".join(encode_frame(sent))


Talk = Callable[[Connection, Connection], Awaitable[None]]


def talk(directory: Path, both: Talk) -> None:
    """Two ends of one connection."""

    async def run() -> None:
        transport = UnixTransport()
        listener = await transport.listen(Address(str(directory / "s")))
        here = await transport.connect(listener.address)
        there = await anext(aiter(listener.accept()))
        try:
            await both(here, there)
        finally:
            await here.close()
            await there.close()
            await listener.close()

    asyncio.run(run())


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for a socket, whatever pytest's own are."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def _all(connection: Connection) -> list[Frame]:
    found = []
    while (received := await connection.receive()) is not None:
        found.append(received)
    assert await connection.receive() is None
    return found


async def _some(connection: Connection, count: int) -> list[Frame | None]:
    return [await connection.receive() for _ in range(count)]


def test_what_a_peer_sent_before_it_went_is_received_although_writing_to_it_fails(directory: Path) -> None:
    async def run() -> None:
        listener = await UnixTransport().listen(Address(str(directory / "s")))
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(listener.address)
            there = await anext(aiter(listener.accept()))
            raw.sendall(b"".join(frame_bytes(frame(n)) for n in range(9)))
        # The loop has not looked since: the first it hears of the peer's end is that this cannot be written.
        await there.send(frame(99))
        assert await _all(there) == [frame(n) for n in range(9)]
        with pytest.raises(Unavailable):
            await there.send(frame(99))
        await there.close()
        await listener.close()

    asyncio.run(run())


async def _stuff(connection: Connection) -> None:
    """So much that a peer which receives nothing does not read it all."""
    await connection.send(frame(1, bytes(2 * MIB)))
    await connection.send(frame(2, bytes(8 * MIB)))


def test_closing_ends_although_the_peer_does_not_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.adapters.sockets.streams.CLOSE_S", 0.05)

    async def both(here: Connection, there: Connection) -> None:
        await _stuff(here)
        await here.close()
        assert await there.receive() == frame(1, bytes(2 * MIB))
        with pytest.raises(Unavailable, match="inside a frame"):
            await there.receive()

    talk(directory, both)


def test_a_cancelled_close_ends_at_once(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        await _stuff(here)
        closing = asyncio.create_task(here.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await there.receive() == frame(1, bytes(2 * MIB))
        with pytest.raises(Unavailable, match="inside a frame"):
            await there.receive()

    talk(directory, both)


def with_raw(directory: Path, data: bytes, check: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    """One end, and at the other a socket that sends these bytes and is closed."""

    async def run() -> None:
        listener = await UnixTransport().listen(Address(str(directory / "s")))
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(listener.address)
            raw.sendall(data)
        there = await anext(aiter(listener.accept()))
        await check(there)
        await there.close()
        await listener.close()

    asyncio.run(run())


def test_a_stream_that_ends_inside_a_frame_is_broken(directory: Path) -> None:
    async def check(there: Connection) -> None:
        assert await there.receive() == frame(1)
        for _ in range(2):
            with pytest.raises(Unavailable, match="inside a frame"):
                await there.receive()
        with pytest.raises(Unavailable):
            await there.send(frame(1))

    with_raw(directory, frame_bytes(frame(1)) + frame_bytes(frame(2))[:-1], check)


@pytest.mark.parametrize("before", [0, 2])
def test_what_is_no_frame_ends_it_after_those_before(before: int, directory: Path) -> None:
    async def check(there: Connection) -> None:
        assert await _some(there, before) == [frame(n) for n in range(before)]
        for _ in range(2):
            with pytest.raises(ProtocolError, match="process"):
                await there.receive()

    with_raw(directory, b"".join(frame_bytes(frame(n)) for n in range(before)) + b"\xff" * 20, check)


# -- listeners


def listening(address: str) -> tuple[LoopThread, Listener]:
    loop = LoopThread("listen")
    try:
        return loop, loop.run(UnixTransport().listen(Address(address)))
    except BaseException:
        loop.close()
        raise


def test_only_the_owner_may_connect(directory: Path) -> None:
    path = directory / "s"
    loop, listener = listening(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((directory / "s.lock").stat().st_mode) == 0o600
    assert listener.address == str(path)
    loop.run(listener.close())
    loop.run(listener.close())
    assert not path.exists()
    loop.close()
    with pytest.raises(Unavailable, match="nobody listens"):
        UnixConnector(str(path)).connect(HANG_S)


LISTENER = """
import asyncio, sys
from stelae.adapters.sockets.unix import UnixTransport

async def live():
    listener = await UnixTransport().listen(sys.argv[1])
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(live())
"""


def test_what_a_killed_process_left_is_no_obstacle(directory: Path) -> None:
    path = str(directory / "s")
    command = [sys.executable, "-c", LISTENER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(AlreadyExists):
            listening(path)
        UnixConnector(path).connect(HANG_S).close()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert os.path.exists(path)
    with pytest.raises(Unavailable, match="nobody listens"):
        UnixConnector(path).connect(HANG_S)
    loop, listener = listening(path)
    UnixConnector(path).connect(HANG_S).close()
    loop.run(listener.close())
    loop.close()


def test_others_that_live_there_are_left_alone(directory: Path) -> None:
    """A socket of a program that knows no locks, full or not, and what is no socket."""
    path = str(directory / "s")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(0)
        for _ in range(3):
            with pytest.raises(AlreadyExists, match="another program"):
                listening(path)
    loop, listener = listening(path)
    loop.run(listener.close())
    loop.close()
    (directory / "f").write_text("mine")
    with pytest.raises(AlreadyExists, match="no socket"):
        listening(str(directory / "f"))
    assert (directory / "f").read_text() == "mine"


def test_a_listener_that_lost_its_place_leaves_the_new_one(directory: Path) -> None:
    path = directory / "s"
    loop, listener = listening(str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        loop.run(listener.close())
        assert path.exists()
    loop.close()


def test_a_directory_that_is_not_there(directory: Path) -> None:
    with pytest.raises(NotFound):
        listening(str(directory / "none" / "s"))
    with pytest.raises(Unavailable):
        UnixConnector(str(directory / "none" / "s")).connect(HANG_S)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_socket_of_somebody_else(directory: Path) -> None:
    loop, listener = listening(str(directory / "s"))
    (directory / "s").chmod(0)
    with pytest.raises(PermissionDenied):
        UnixConnector(str(directory / "s")).connect(HANG_S)
    loop.run(listener.close())
    loop.close()


@pytest.mark.parametrize("size", [PATH_BYTES_MAX - 1, PATH_BYTES_MAX, PATH_BYTES_MAX + 1, 108, 200, 3_000])
def test_paths_may_be_long(size: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "t"))
    parent = str(directory)
    while len(parent) < size - 210:
        parent = os.path.join(parent, "d" * 200)
    parent = os.path.join(parent, "e" * (size - len(parent) - len("//store.sock")))
    path = os.path.join(parent, "store.sock")
    os.makedirs(parent)
    assert len(path) == size
    loop, listener = listening(path)
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    connection = UnixConnector(path).connect(HANG_S)
    other = loop.run(UnixTransport().connect(Address(path)))
    there = loop.run(_first(listener))
    loop.run(there.send(frame(1)))
    assert connection.receive(HANG_S) == frame(1)
    connection.close()
    loop.run(other.close())
    loop.run(there.close())
    with pytest.raises(AlreadyExists):
        listening(path)
    loop.run(listener.close())
    loop.close()
    assert not os.path.exists(path)
    assert os.listdir(directory / "t") == []


async def _first(listener: Listener) -> Connection:
    return await anext(aiter(listener.accept()))


def test_where_the_temporary_place_is_long_another_is_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory / ("t" * 120)))
    with short_path(str(directory / ("x" * 150) / "s")) as short:
        assert len(short) < PATH_BYTES_MAX
    with pytest.raises(InvalidArgument, match="name of a socket"), short_path(f"{directory}/{'x' * 99}/{'s' * 41}"):
        pass
    assert NAME_BYTES_MAX == 40


# -- callers that block


@pytest.fixture
def ends(directory: Path) -> Iterator[tuple[LoopThread, BlockingConnection, Connection]]:
    loop, listener = listening(str(directory / "s"))
    here = UnixConnector(listener.address).connect(HANG_S)
    there = loop.run(_first(listener))
    yield loop, here, there
    here.close()
    loop.run(there.close())
    loop.run(listener.close())
    loop.close()


Ends = tuple[LoopThread, BlockingConnection, Connection]


def test_closing_wakes_who_waits(ends: Ends) -> None:
    _, here, __ = ends
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
    with pytest.raises(Closed):
        here.receive(HANG_S)
    with pytest.raises(Closed):
        here.send(frame(1), HANG_S)
    assert not here.is_quiet()


def test_what_breaks_off_and_what_is_no_frame(directory: Path) -> None:
    for data, error in ((frame_bytes(frame(2))[:-1], Unavailable), (b"\xff" * 20, ProtocolError)):
        path = str(directory / error.__name__)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            here = UnixConnector(path).connect(HANG_S)
            peer, _ = listener.accept()
            peer.sendall(frame_bytes(frame(1)) + data)
            peer.close()
            assert here.receive(HANG_S) == frame(1)
            with pytest.raises(error):
                here.receive(HANG_S)
            here.close()


FORKING = """
import os, sys
from stelae.adapters.sockets.unix import UnixConnector
from stelae.model.errors import Closed

here = UnixConnector(sys.argv[1]).connect(300)
child = os.fork()
if not child:
    try:
        here.receive(1)
    except Closed as error:
        told = "forked" in str(error) and not here.is_quiet()
        here.close()
        os._exit(0 if told else 1)
    os._exit(2)
print(os.waitpid(child, 0)[1], here.is_quiet(), flush=True)
print(here.receive(300).request_id)
here.close()
"""


def test_a_forked_child_may_only_close(directory: Path) -> None:
    loop, listener = listening(str(directory / "s"))
    command = [sys.executable, "-c", FORKING, listener.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 True\n"
        there = loop.run(_first(listener))
        loop.run(there.send(frame(5)))
        assert process.stdout.read() == "5\n"
    loop.run(there.close())
    loop.run(listener.close())
    loop.close()


def test_waiting_has_an_end(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(directory / "s"))
        silent.listen()
        here = UnixConnector(str(directory / "s")).connect(5)
        with pytest.raises(DeadlineExceeded, match=r"more than 0\.01 s"):
            here.receive(0.01)
        with pytest.raises(DeadlineExceeded, match=r"sending to it took more than 0\.01 s"):
            here.send(frame(1, bytes(20 * MIB)), 0.01)
        here.close()


def test_who_gave_up_waiting_may_go_on(directory: Path) -> None:
    """Wherever the frame was cut when the time was over, nothing of it is lost."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "s"))
        listener.listen()
        here = UnixConnector(str(directory / "s")).connect(5)
        peer, _ = listener.accept()
        data = frame_bytes(frame(7, b"body"))
        for byte in data[:-1]:
            peer.sendall(bytes([byte]))
            with pytest.raises(DeadlineExceeded):
                here.receive(0.002)
            assert not here.is_quiet()
        peer.sendall(data[-1:] + data)
        assert here.receive(5) == frame(7, b"body")
        assert here.receive(0) == frame(7, b"body"), "it has come already"
        with pytest.raises(DeadlineExceeded):
            here.receive(0)
        assert here.is_quiet()
        peer.close()
        here.close()


def test_where_more_wait_than_are_let_in(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "s"))
        listener.listen(0)
        connector, taken = UnixConnector(str(directory / "s")), list[BlockingConnection]()
        with pytest.raises(Unavailable, match="more wait there than are let in"):
            taken.extend(connector.connect(5) for _ in range(100))
        for each in taken:
            each.close()


def test_a_thread_and_the_loop_send_on_one_connection(tmp_path: Path) -> None:
    """While the peer reads now and then: frames are whole, those of each in their order, none twice, none lost."""

    async def both(here: Connection, there: Connection) -> None:
        aside: list[Frame] = []

        def send() -> None:
            for number in range(3_000):
                each = frame(2 * number, bytes(number % 9_000))
                if here.send_aside(each):
                    aside.append(each)

        sending = asyncio.create_task(asyncio.to_thread(send))
        own: list[Frame] = []
        found: list[Frame] = []
        while not sending.done():
            own.append(frame(2 * len(own) + 1, bytes(len(own) % 9_000)))
            await here.send(own[-1])
            while len(own) % 40 == 0 and (come := there.take()) is not None:
                found.append(come)
            await asyncio.sleep(0)
        await sending
        while len(found) < len(own) + len(aside):
            come = await there.receive()
            assert come is not None
            found.append(come)
        assert aside
        assert [each for each in found if each.request_id % 2] == own
        assert [each for each in found if not each.request_id % 2] == aside
        assert there.take() is None

    talk(tmp_path, both)


def test_no_thread_sends_inside_a_frame_whatever_the_loop_says_of_its_buffer(directory: Path) -> None:
    """From Python 3.12 on a loop has taken a piece out of its buffer while it sends it, and then puts its rest back."""

    async def run() -> None:
        listener = await UnixTransport().listen(Address(str(directory / "s")))
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(listener.address)
            there: Any = await anext(aiter(listener.accept()))
            sent, decoder, found = frame(1, bytes(2 * MIB)), FrameDecoder(DEFAULT_WIRE_LIMITS), list[Frame]()
            await there.send(sent)
            found += decoder.feed(raw.recv(MIB))  # there is room again, and the loop has not noticed
            plain, there._transport.get_write_buffer_size = there._transport.get_write_buffer_size, lambda: 0
            assert not there.send_aside(frame(2))
            there._transport.get_write_buffer_size = plain
            raw.setblocking(False)
            while not found:
                found += decoder.feed(await asyncio.get_running_loop().sock_recv(raw, MIB))
            while not there.send_aside(frame(3)):
                await asyncio.sleep(0)
            found += decoder.feed(await asyncio.get_running_loop().sock_recv(raw, MIB))
            assert found == [sent, frame(3)]
            await there.close()
        await listener.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["drop", "close"])
def test_no_thread_sends_while_the_loop_gives_a_connection_up(tmp_path: Path, how: str) -> None:
    """The loop forgets what it has to send before it says that it is closing: bytes of a thread would end a frame that
    was sent in part."""

    async def ending(here: Connection, there: Connection) -> None:
        assert here.send_aside(frame(1, b"before"))
        connection: Any = here
        transport, told = connection._transport, list[bool]()

        def end(name: str) -> Any:
            plain = getattr(transport, name)

            def act(*args: Any) -> Any:
                told.append(connection._aside.write(b"x", transport, connection._send_rest))
                return plain(*args)

            return act

        for name in ("abort", "close", "write_eof"):
            setattr(transport, name, end(name))
        if how == "drop":
            connection.drop()
        else:
            closing = asyncio.create_task(here.close())
            assert await there.receive() == frame(1, b"before")
            assert await there.receive() is None
            await there.close()
            await closing
        assert told
        assert not any(told)
        assert not here.send_aside(frame(2, b"after"))

    talk(tmp_path, ending)
