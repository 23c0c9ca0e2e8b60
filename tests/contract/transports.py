"""Worlds in which processes talk to each other: sockets between real ones, and the simulated network.

python -m tests.contract.transports <address> [<files of TLS>]
    a process that listens there until it is killed: see `chatter`
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol, TypeVar

import msgspec

from stelae.adapters.sockets.tcp import TcpConnector, TcpTransport
from stelae.adapters.sockets.tls import TlsFiles
from stelae.adapters.sockets.unix import UnixConnector, UnixTransport
from stelae.adapters.threads import LoopThread
from stelae.ports.blocking import BlockingConnector
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId, Transport
from stelae.sim.loop import SimLoop, SimProcess, outside
from stelae.sim.network import SimTransport
from stelae.wire.frames import WireLimits
from tests.certificates import Authority

T = TypeVar("T")

LIMITS = WireLimits(frame_bytes_max=8 * 2**20, message_bytes_max=2**10, header_bytes_max=2**10)
SPOKEN = 5


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"message", body)


async def chatter(transport: Transport, address: Address, ready: Callable[[], None]) -> None:
    """Say numbers to whoever connects, then send back whatever comes."""
    listener = await transport.listen(address)
    ready()
    async with asyncio.TaskGroup() as group:
        async for connection in listener.accept():
            group.create_task(_chat(connection))


async def _chat(connection: Connection) -> None:
    for number in range(SPOKEN):
        await connection.send(frame(number))
    while (received := await connection.receive()) is not None:
        await connection.send(received)
    await connection.close()


class Talker(Protocol):
    """A process that runs `chatter`."""

    def kill(self) -> None:
        """Without warning."""
        ...


class TalkWorld(Protocol):
    @property
    def transport(self) -> Transport: ...

    def address(self, name: str) -> Address: ...

    def connector(self, address: Address) -> BlockingConnector: ...

    def run(self, job: Awaitable[T]) -> T:
        """Run the job on the event loop of `transport`, and wait for it."""
        ...

    def start(self, job: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Begin a job that goes on while code that blocks waits for something else; `run(future)` ends it."""
        ...

    def talker(self, address: Address) -> Talker:
        """Listens when this returns."""
        ...


class SocketWorld(ABC):
    """Real sockets, and an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._thread = LoopThread("talk")
        self._talkers: list[_ProcessTalker] = []

    def run(self, job: Awaitable[T]) -> T:
        return self._thread.run(job)

    def start(self, job: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        async def begin() -> asyncio.Future[T]:
            return asyncio.create_task(job)

        return self._thread.run(begin())

    def talker(self, address: Address) -> Talker:
        talker = _ProcessTalker(address, *self.options())
        self._talkers.append(talker)
        return talker

    @abstractmethod
    def options(self) -> list[str]:
        """What a talker is told besides its address."""

    def close(self) -> None:
        for talker in self._talkers:
            talker.kill()
        self._thread.close()


class UnixWorld(SocketWorld):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.transport = UnixTransport(LIMITS)
        self._directory = directory

    def address(self, name: str) -> Address:
        return Address(str(self._directory / name))

    def connector(self, address: Address) -> BlockingConnector:
        return UnixConnector(address, LIMITS)

    def options(self) -> list[str]:
        return []


class TcpWorld(SocketWorld):
    def __init__(self, host: str, tls: TlsFiles | None) -> None:
        super().__init__()
        self.transport = TcpTransport(LIMITS, tls)
        self._host = host
        self._tls = tls
        self._ports: dict[str, int] = {}

    def address(self, name: str) -> Address:
        if name not in self._ports:
            with socket.create_server((self._host, 0)) as free:
                self._ports[name] = free.getsockname()[1]
        return Address(f"{self._host}:{self._ports[name]}")

    def connector(self, address: Address) -> BlockingConnector:
        return TcpConnector(address, LIMITS, self._tls)

    def options(self) -> list[str]:
        return [] if self._tls is None else [msgspec.json.encode(self._tls).decode()]


def loopback_host() -> str:
    """An address of this machine that is nobody else's, where it has many: then nobody takes a port that was free."""
    if sys.platform != "linux":
        return "127.0.0.1"
    return str(ip_address(0x7F000000 + SystemRandom().randrange(2**16, 2**24 - 1)))


class _ProcessTalker:
    def __init__(self, address: Address, *options: str) -> None:
        command = [sys.executable, "-m", "tests.contract.transports", address, *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        with self._process:
            self._process.kill()


class SimWorld:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.transport = SimTransport(self.loop, limits=LIMITS)

    def address(self, name: str) -> Address:
        return Address(name)

    def connector(self, address: Address) -> BlockingConnector:
        return self.transport.connector(address)

    def run(self, job: Awaitable[T]) -> T:
        return self.loop.run_until_complete(job)

    def start(self, job: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return outside().run(self.loop.create_task, job)

    def talker(self, address: Address) -> Talker:
        listens = asyncio.Event()
        process = self.loop.spawn("talker", chatter(self.transport, address, listens.set))
        self.run(listens.wait())
        return _SimTalker(process)

    def close(self) -> None:
        try:
            self.loop._finish()
        finally:
            self.loop._drop()


class _SimTalker:
    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def kill(self) -> None:
        self._process.crash()


WORLDS = ("unix", "tcp", "tls", "sim-1", "sim-2", "sim-3")


@contextmanager
def talk_world(name: str) -> Iterator[TalkWorld]:
    """Local sockets have a directory whose name is short enough for them, whatever pytest's own are."""
    with tempfile.TemporaryDirectory() as directory:
        world = _world(name, Path(directory))
        try:
            yield world
        finally:
            world.close()


def _world(name: str, directory: Path) -> UnixWorld | TcpWorld | SimWorld:
    host = loopback_host()
    match name:
        case "unix":
            return UnixWorld(directory)
        case "tcp":
            return TcpWorld(host, None)
        case "tls":
            return TcpWorld(host, Authority(directory).files("both", host, is_mutual=True))
        case _:
            return SimWorld(int(name.removeprefix("sim-")))


def _transport(address: str, *options: str) -> Transport:
    if "/" in address:
        return UnixTransport(LIMITS)
    return TcpTransport(LIMITS, msgspec.json.decode(options[0], type=TlsFiles) if options else None)


if __name__ == "__main__":
    asyncio.run(chatter(_transport(*sys.argv[1:]), Address(sys.argv[1]), lambda: print("ready", flush=True)))
