"""A store that is served over TCP, with or without a token and TLS; and those who connect to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.adapters.sockets.tcp import TcpConnector, TcpTransport
from stelae.adapters.sockets.tls import TlsFiles
from stelae.adapters.threads import LoopThread
from stelae.client.remote.lines import LineSettings
from stelae.client.remote.store import RemoteStore
from stelae.model.events import Event, HandshakeRefused
from stelae.ports.transport import Address, Frame, FrameKind
from stelae.service.operations import STORE_FAULTS, Operation
from stelae.service.table import OPERATIONS
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.frames import FrameDecoder, WireLimits, encode_frame
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello
from stelae.wire.proofs import ClusterToken
from tests.client.fake_backend import CLIENT, OWNER, FakeBackend, until
from tests.effort import HANG_S

HOST = "127.0.0.1"
TOKEN = "0123456789abcdef"


class DoorWorld:
    """One backend, served; `told`: what its service has told."""

    def __init__(
        self,
        backend: FakeBackend,
        limits: ServiceLimits,
        token: str | None,
        tls: TlsFiles | None,
        operations: Mapping[str, Operation[Any, Any]] = OPERATIONS,
    ) -> None:
        self.backend = backend
        self.loop = LoopThread("door")
        self._serving = ThreadExecutor(16, 10_000)
        self._callers = ThreadExecutor(16, 10_000)
        self.told: list[Event] = []
        self._remotes: list[RemoteStore] = []
        self._tls = tls
        wire = WireLimits(first_frames=1 if token is None else 2)

        async def start() -> StoreService:
            service = StoreService(
                backend,
                self._serving,
                introduce(OWNER, token),
                SystemClock(),
                limits,
                operations,
                self.told.append,
            )
            listener = await TcpTransport(wire, tls).listen(Address(f"{HOST}:0"))
            self.address = str(listener.address)
            await service.start(listener)
            return service

        self.service = self.loop.run(start())

    @property
    def refusals(self) -> dict[str, int]:
        """By kind, those that there were."""
        return {kind: count for kind, count in self.service.door.refusals().items() if count}

    def wait_for(self, **refusals: int) -> None:
        """Until so many were refused, at least."""
        until(lambda: all(self.refusals.get(kind, 0) >= count for kind, count in refusals.items()), self.loop)

    def refused(self) -> list[HandshakeRefused]:
        return [event for event in self.told if isinstance(event, HandshakeRefused)]

    def attach(self, token: str | None, tls: TlsFiles | None = None, hello: Hello = CLIENT) -> RemoteStore:
        """As a program does that has this token."""
        connector = TcpConnector(self.address, tls=tls)
        settings = LineSettings(connect_s=HANG_S, answer_s=HANG_S)
        remote = RemoteStore(connector, self._callers, introduce(hello, token), SystemClock(), settings)
        self._remotes.append(remote)
        return remote

    def peer(self) -> socket.socket:
        """One that has said nothing yet."""
        host, port = self.address.rsplit(":", 1)
        peer = socket.create_connection((host, int(port)), HANG_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def close(self) -> None:
        for remote in self._remotes:
            remote.close()
        self.loop.run(self.service.close())
        self.loop.close()
        self._serving.close()
        self._callers.close()


@contextmanager
def door_world(
    limits: ServiceLimits | None = None,
    token: str | None = None,
    tls: TlsFiles | None = None,
    backend: FakeBackend | None = None,
    operations: Mapping[str, Operation[Any, Any]] = OPERATIONS,
) -> Iterator[DoorWorld]:
    """By default what is served says that it is 3 now."""
    world = DoorWorld(
        backend or FakeBackend(answers={"now": 3}), limits or ServiceLimits(hello_s=HANG_S), token, tls, operations
    )
    try:
        yield world
    finally:
        world.close()


def introduce(hello: Hello, token: str | None) -> Introduction:
    return Introduction(hello, None if token is None else ClusterToken(token), SystemRng())


def greet(peer: socket.socket, token: str | None, hello: Hello = CLIENT) -> None:
    """By hand."""
    handshake = introduce(hello, token).connect(STORE_FAULTS)
    _, proof = handshake.take_hello(exchange(peer, handshake.begin()))
    if proof is not None:
        handshake.take_welcome(exchange(peer, proof))


def exchange(peer: socket.socket, frame: Frame) -> Frame:
    """Send a frame; the one that comes back."""
    peer.sendall(b"".join(encode_frame(frame)))
    decoder, found = FrameDecoder(), list[Frame]()
    while not found:
        data = peer.recv(65536)
        assert data, "the connection ended"
        found += decoder.feed(data)
    (answer,) = found
    return answer


def is_ended(peer: socket.socket) -> bool:
    """Waits for the end, whatever comes before it."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def last_error(peer: socket.socket) -> Frame:
    """What was said before the end."""
    decoder, found = FrameDecoder(), list[Frame]()
    while data := peer.recv(65536):
        found += decoder.feed(data)
    assert found[-1].kind is FrameKind.ERROR
    return found[-1]
