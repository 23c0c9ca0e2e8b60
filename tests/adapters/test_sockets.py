"""Local sockets keep the contract of `ports.transport`, and of `ports.blocking`, on real descriptors and processes."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.adapters.sockets.blocking import UnixConnector
from stelae.adapters.sockets.paths import NAME_BYTES_MAX, PATH_BYTES_MAX, short_path
from stelae.adapters.sockets.unix import UNREAD_BYTES_MAX, UNSENT_BYTES_MAX, UnixTransport
from stelae.adapters.threads import LoopThread
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Frame, FrameKind, Listener, RequestId
from stelae.wire.faults import ProtocolError
from stelae.wire.frames import WireLimits, encode_frame
from tests.effort import tries

MIB = 2**20


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"message", body)


def frame_bytes(sent: Frame) -> bytes:
    return b"".join(encode_frame(sent))


Talk = Callable[[Connection, Connection], Awaitable[None]]


def talk(directory: Path, both: Talk, limits: WireLimits | None = None) -> None:
    """Two ends of one connection."""

    async def run() -> None:
        transport = UnixTransport() if limits is None else UnixTransport(limits)
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


@given(st.lists(st.sampled_from([0, 1, 100, 20_000, 70_000, 300_000]), max_size=8))
@settings(max_examples=tries(25))
def test_frames_arrive_whole_and_in_order(sizes: list[int]) -> None:
    sent = [frame(n, bytes([n]) * size) for n, size in enumerate(sizes)]

    async def both(here: Connection, there: Connection) -> None:
        async def send(by: Connection) -> None:
            for each in sent:
                await by.send(each)
            await by.close() if by is here else None

        _, __, found = await asyncio.gather(send(here), send(there), _all(there))
        assert found == sent

    with tempfile.TemporaryDirectory() as name:
        talk(Path(name), both)


async def _all(connection: Connection) -> list[Frame]:
    found = []
    while (received := await connection.receive()) is not None:
        found.append(received)
    assert await connection.receive() is None
    return found


def test_many_may_send_at_once(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        sends = [here.send(frame(n, bytes([n]) * 200_000)) for n in range(30)]
        found, *_ = await asyncio.gather(_some(there, 30), *sends)
        assert found == [frame(n, bytes([n]) * 200_000) for n in range(30)]

    talk(directory, both)


async def _some(connection: Connection, count: int) -> list[Frame | None]:
    return [await connection.receive() for _ in range(count)]


def test_a_peer_that_does_not_read_is_waited_for(directory: Path) -> None:
    """What was accepted and not taken is bounded, on both sides together."""

    async def both(here: Connection, there: Connection) -> None:
        body, sent = bytes(100_000), 0

        async def send() -> None:
            nonlocal sent
            while True:
                await here.send(frame(sent, body))
                sent += 1

        sending = asyncio.create_task(send())
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        assert sent * len(body) <= UNSENT_BYTES_MAX + UNREAD_BYTES_MAX + 2 * MIB
        for number in range(3 * sent):
            assert await there.receive() == frame(number, body)
        sending.cancel()

    talk(directory, both)


def test_a_frame_larger_than_the_bound_goes_alone(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        large = frame(2, os.urandom(5 * UNSENT_BYTES_MAX))
        sends = [here.send(each) for each in (frame(1, b"x" * 1000), large, frame(3))]
        found, *_ = await asyncio.gather(_some(there, 3), *sends)
        assert found == [frame(1, b"x" * 1000), large, frame(3)]

    talk(directory, both)


def test_cancelled_sends_and_receives_lose_nothing(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        waiting = asyncio.create_task(there.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        sends = [asyncio.create_task(here.send(frame(n, bytes(400_000)))) for n in range(20)]
        await asyncio.sleep(0.01)
        stuck = [task for task in sends if not task.done()]
        assert stuck
        for task in stuck:
            task.cancel()
        await asyncio.wait(sends)
        whole = [n for n, task in enumerate(sends) if not task.cancelled()]
        last = asyncio.create_task(here.send(frame(99)))
        found = await _some(there, len(whole) + 1)
        await last
        assert [each.request_id for each in found if each] == [*whole, 99]

    talk(directory, both)


def test_what_cannot_be_sent_is_refused_and_the_connection_goes_on(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        with pytest.raises(InvalidArgument):
            await here.send(frame(1, bytes(2000)))
        await here.send(frame(2))
        assert await there.receive() == frame(2)

    talk(directory, both, WireLimits(1500, 100, 100))


def test_closing_sends_what_was_accepted(directory: Path) -> None:
    async def both(here: Connection, there: Connection) -> None:
        sent = [frame(n, bytes(300_000)) for n in range(3)]
        for each in sent:
            await here.send(each)
        waiting = asyncio.create_task(here.receive())
        await asyncio.sleep(0)
        _, __, found = await asyncio.gather(here.close(), here.close(), _all(there))
        assert found == sent
        with pytest.raises(Closed):
            await waiting
        for late in (here.receive, lambda: here.send(frame(1))):
            with pytest.raises(Closed):
                await late()
        with pytest.raises(Unavailable):
            await there.send(frame(1))

    talk(directory, both)


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
    monkeypatch.setattr("stelae.adapters.sockets.unix.CLOSE_S", 0.05)

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
        UnixConnector(str(path)).connect(1)


def test_an_address_is_taken_once_and_free_again(directory: Path) -> None:
    path = str(directory / "s")
    loop, listener = listening(path)
    with pytest.raises(AlreadyExists):
        listening(path)
    loop.run(listener.close())
    again = loop.run(UnixTransport().listen(Address(path)))
    loop.run(again.close())
    loop.close()


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
        UnixConnector(path).connect(5).close()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert os.path.exists(path)
    with pytest.raises(Unavailable, match="nobody listens"):
        UnixConnector(path).connect(5)
    loop, listener = listening(path)
    UnixConnector(path).connect(5).close()
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


@pytest.mark.parametrize("address", ["", "a\0b"], ids=["nothing", "zero"])
def test_addresses_that_make_no_sense(address: str) -> None:
    with pytest.raises(InvalidArgument):
        listening(address)
    with pytest.raises(InvalidArgument):
        asyncio.run(UnixTransport().connect(Address(address)))
    with pytest.raises(InvalidArgument):
        UnixConnector(address)


def test_a_directory_that_is_not_there(directory: Path) -> None:
    with pytest.raises(NotFound):
        listening(str(directory / "none" / "s"))
    with pytest.raises(Unavailable):
        UnixConnector(str(directory / "none" / "s")).connect(1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_socket_of_somebody_else(directory: Path) -> None:
    loop, listener = listening(str(directory / "s"))
    (directory / "s").chmod(0)
    with pytest.raises(PermissionDenied):
        UnixConnector(str(directory / "s")).connect(1)
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
    connection = UnixConnector(path).connect(5)
    other = loop.run(UnixTransport().connect(Address(path)))
    there = loop.run(_first(listener))
    loop.run(there.send(frame(1)))
    assert connection.receive(5) == frame(1)
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


def test_connections_that_were_not_taken_end_with_the_listener(directory: Path) -> None:
    loop, listener = listening(str(directory / "s"))
    first, second = (UnixConnector(listener.address).connect(5) for _ in range(2))
    taken = loop.run(_first(listener))
    loop.run(listener.close())
    assert second.receive(5) is None
    loop.run(taken.send(frame(1)))
    assert first.receive(5) == frame(1)

    async def rest() -> list[Connection]:
        return [each async for each in listener.accept()]

    assert loop.run(rest()) == []
    loop.run(taken.close())
    for each in (first, second):
        each.close()
    loop.close()


# -- callers that block


@pytest.fixture
def ends(directory: Path) -> Iterator[tuple[LoopThread, BlockingConnection, Connection]]:
    loop, listener = listening(str(directory / "s"))
    here = UnixConnector(listener.address).connect(5)
    there = loop.run(_first(listener))
    yield loop, here, there
    here.close()
    loop.run(there.close())
    loop.run(listener.close())
    loop.close()


Ends = tuple[LoopThread, BlockingConnection, Connection]


def test_frames_both_ways(ends: Ends) -> None:
    loop, here, there = ends
    sent = [frame(n, bytes([n]) * size) for n, size in enumerate([0, 10, 100_000, 5 * MIB])]
    found: list[Frame | None] = []
    reading = Thread(target=lambda: found.extend(loop.run(_some(there, len(sent)))))
    reading.start()
    for each in sent:
        here.send(each, 5)
    reading.join()
    assert found == sent
    sending = Thread(target=lambda: [loop.run(there.send(each)) for each in sent])
    sending.start()
    assert [here.receive(5) for _ in sent] == sent
    sending.join()
    assert "process" in here.peer


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


def test_whether_a_connection_is_quiet(ends: Ends) -> None:
    loop, here, there = ends
    assert here.is_quiet()
    loop.run(there.send(frame(1)))
    loop.run(there.send(frame(2)))
    assert not here.is_quiet()
    assert here.receive(5) == frame(1)
    assert not here.is_quiet()
    assert here.receive(5) == frame(2)
    assert here.is_quiet()
    loop.run(there.close())
    assert not here.is_quiet()
    assert here.receive(5) is None
    assert here.receive(5) is None
    with pytest.raises(Unavailable):
        here.send(frame(1), 5)


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
        here.receive(5)
    with pytest.raises(Closed):
        here.send(frame(1), 5)
    assert not here.is_quiet()


def test_what_breaks_off_and_what_is_no_frame(directory: Path) -> None:
    for data, error in ((frame_bytes(frame(2))[:-1], Unavailable), (b"\xff" * 20, ProtocolError)):
        path = str(directory / error.__name__)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            here = UnixConnector(path).connect(5)
            peer, _ = listener.accept()
            peer.sendall(frame_bytes(frame(1)) + data)
            peer.close()
            assert here.receive(5) == frame(1)
            with pytest.raises(error):
                here.receive(5)
            here.close()


FORKING = """
import os, sys
from stelae.adapters.sockets.blocking import UnixConnector
from stelae.model.errors import Closed

here = UnixConnector(sys.argv[1]).connect(5)
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
print(here.receive(5).request_id)
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
