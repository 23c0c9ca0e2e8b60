"""Who is let in over TCP, and who is not: strangers, the silent, the slow, and crowds of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from stelae.adapters.sockets.tls import TlsFiles
from stelae.model.errors import Overloaded, PermissionDenied
from stelae.ports.transport import FrameKind
from stelae.service.operations import STORE_FAULTS
from stelae.tserver.serving.door import Door
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.frames import encode_frame
from stelae.wire.hello import hello_frame
from stelae.wire.messages import read_error
from tests.certificates import Authority
from tests.client.fake_backend import CLIENT, until
from tests.effort import HANG_S
from tests.tserver.serving.doors import HOST, TOKEN, DoorWorld, door_world, greet, is_ended, last_error

OTHER_TOKEN = "fedcba9876543210"
HELLO = b"".join(encode_frame(hello_frame(CLIENT, FrameKind.REQUEST)))
LONG = b"".join(encode_frame(msgspec.structs.replace(hello_frame(CLIENT, FrameKind.REQUEST), body=bytes(15_000))))


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    return Authority(tmp_path).files("server", HOST)


@pytest.fixture(params=["plain", "tls"])
def files(request: pytest.FixtureRequest, tls: TlsFiles) -> TlsFiles | None:
    return tls if request.param == "tls" else None


@pytest.fixture
def peers() -> Iterator[ExitStack]:
    """Whose connections are closed at the end."""
    with ExitStack() as stack:
        yield stack


# -- who belongs, and who does not


@pytest.mark.parametrize("token", [None, TOKEN])
def test_who_belongs_is_served(token: str | None, files: TlsFiles | None) -> None:
    with door_world(token=token, tls=files) as world:
        assert world.attach(token, files).now() == 3
        assert world.refusals == {}
        assert world.told == []


@pytest.mark.parametrize(
    ("theirs", "mine", "kind", "words"),
    [
        (TOKEN, OTHER_TOKEN, "wrong_token", "does not know the token that this side has"),
        (TOKEN, None, "no_token", "give it with token="),
        (None, TOKEN, "wrong_token", "no cluster token is known here"),
    ],
)
def test_tokens_that_differ(
    theirs: str | None, mine: str | None, kind: str, words: str, files: TlsFiles | None
) -> None:
    with door_world(token=theirs, tls=files) as world:
        said = ""
        for _ in range(3):
            with pytest.raises(PermissionDenied, match=words) as refused:
                world.attach(mine, files).now()
            said = str(refused.value)
            assert world.address in said
        world.wait_for(**{kind: 3})
        assert world.refusals == {kind: 3}
        told = world.refused()[0]
        assert (told.kind, told.times) == (kind, 1)
        assert told.peer.startswith(f"{HOST}:")
        assert not any(token in f"{told} {said}" for token in (TOKEN, OTHER_TOKEN))
        assert world.attach(theirs, files).now() == 3


def test_another_cluster() -> None:
    with door_world(token=TOKEN) as world:
        with pytest.raises(PermissionDenied, match="another store is served here"):
            world.attach(TOKEN, hello=msgspec.structs.replace(CLIENT, store="another")).now()
        assert world.refusals == {"other_store": 1}


def test_no_tls_where_it_is_wanted_and_the_reverse(tls: TlsFiles) -> None:
    with door_world(token=TOKEN, tls=tls) as world:
        with pytest.raises(PermissionDenied, match="the other side speaks TLS"):
            world.attach(TOKEN).now()
        world.wait_for(tls=1)
    with door_world(token=TOKEN) as world:
        with pytest.raises(PermissionDenied, match="TLS: the other side does not speak it"):
            world.attach(TOKEN, tls).now()
        world.wait_for(tls=1)
        assert world.refused()[0].peer.startswith(f"{HOST}:")


def test_an_authority_that_is_not_trusted(tls: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").files("other", HOST)
    with door_world(token=TOKEN, tls=tls) as world:
        with pytest.raises(PermissionDenied, match="certificate is not trusted"):
            world.attach(TOKEN, other).now()
        world.wait_for(tls=1)


def test_a_raw_peer_that_guesses_is_told(peers: ExitStack) -> None:
    with door_world(token=TOKEN) as world:
        peer = peers.enter_context(world.peer())
        with pytest.raises(PermissionDenied, match="does not know the token"):
            greet(peer, OTHER_TOKEN)
        guess = hello_frame(CLIENT, FrameKind.REQUEST)
        peer.sendall(b"".join(encode_frame(msgspec.structs.replace(guess, message=b"", body=b"x" * 32))))
        assert isinstance(read_error(last_error(peer), STORE_FAULTS), PermissionDenied)
        assert world.refusals == {"wrong_token": 1}


def test_many_refusals_are_all_counted_and_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.tserver.serving.door.TELL_S", HANG_S)
    with door_world(token=TOKEN) as world:
        for _ in range(20):
            with pytest.raises(PermissionDenied):
                world.attach(None).now()
        assert world.refusals == {"no_token": 20}
        assert [event.times for event in world.refused()] == [1]
        monkeypatch.setattr("stelae.tserver.serving.door.TELL_S", 0)
        with pytest.raises(PermissionDenied):
            world.attach(None).now()
        assert [event.times for event in world.refused()] == [1, 20]


# -- who does not speak, or not like this


def test_the_silent_are_sent_away(files: TlsFiles | None, peers: ExitStack) -> None:
    with door_world(ServiceLimits(hello_s=0.05), token=TOKEN, tls=files) as world:
        peer = peers.enter_context(world.peer())
        assert is_ended(peer)
        world.wait_for(slow=1)
        assert world.refused()[0].kind == "slow"
        until(lambda: world.service.connections == 0, world.loop)


@pytest.mark.parametrize("begins", [LONG, b"\x16\x03\x01\x3f\x00\x01" + bytes(15_000)], ids=["frame", "tls"])
def test_byte_by_byte_gains_no_time(begins: bytes, files: TlsFiles | None, peers: ExitStack) -> None:
    """It never comes to an end of what it says, and is not waited for."""
    with door_world(ServiceLimits(hello_s=0.2), token=TOKEN, tls=files) as world:
        peer = peers.enter_context(world.peer())
        peer.settimeout(0.001)
        with suppress(ConnectionError):
            for byte in begins[:-1]:
                peer.sendall(bytes([byte]))
                with suppress(TimeoutError):
                    if not peer.recv(65536):
                        break
        until(lambda: sum(world.refusals.values()) == 1, world.loop)
        assert set(world.refusals) <= {"slow", "tls", "protocol"}
        until(lambda: world.service.connections == 0, world.loop)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 100, b"\xff" * 100, HELLO[:40] + b"\xff" * 200],
    ids=["http", "zeros", "ones", "spoilt"],
)
def test_garbage_is_refused_at_once(said: bytes, files: TlsFiles | None, peers: ExitStack) -> None:
    with door_world(token=TOKEN, tls=files) as world:
        peer = peers.enter_context(world.peer())
        peer.sendall(said)
        assert is_ended(peer)
        until(lambda: sum(world.refusals.values()) == 1, world.loop)
        assert set(world.refusals) == {"protocol" if files is None else "tls"}


def test_a_stranger_cannot_make_the_server_hold_much(peers: ExitStack) -> None:
    """A hello, or a proof, that announces megabytes is refused before they come."""
    with door_world(token=TOKEN) as world:
        first = peers.enter_context(world.peer())
        first.sendall(struct.pack("<II", 60 * 2**20, 100))
        assert is_ended(first)
        second = peers.enter_context(world.peer())
        second.sendall(HELLO + struct.pack("<II", 60 * 2**20, 100))
        assert is_ended(second)
        world.wait_for(protocol=1)


# -- crowds


def test_silent_crowds_do_not_lock_others_out(files: TlsFiles | None, peers: ExitStack) -> None:
    """Of those that say nothing the oldest goes when another one comes; whoever speaks is served at any time."""
    limits = ServiceLimits(hello_s=HANG_S, greetings_max=10)
    with door_world(limits, token=TOKEN, tls=files) as world:
        before = world.attach(TOKEN, files)
        assert before.now() == 3
        silent = [peers.enter_context(world.peer()) for _ in range(60)]
        world.wait_for(crowded=50)
        assert all(is_ended(peer) for peer in silent[:50])
        until(lambda: world.service.connections == 11, world.loop)
        for _ in range(5):
            assert world.attach(TOKEN, files).now() == 3
        assert before.now() == 3
        assert world.refusals == {"crowded": 51}  # the first of them took the place of a silent one, the others its own


def test_those_who_are_refused_and_do_not_listen_are_dropped_too(peers: ExitStack) -> None:
    limits = ServiceLimits(hello_s=HANG_S, greetings_max=5)
    with door_world(limits, token=TOKEN) as world:
        for _ in range(50):
            peer = peers.enter_context(world.peer())
            peer.sendall(HELLO)
        world.wait_for(no_token=50)
        assert world.attach(TOKEN).now() == 3
        until(lambda: world.service.connections <= 6, world.loop)


def test_who_finds_no_place_is_told(peers: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.tserver.serving.door.PLACE_SHARE", 0.1 / HANG_S)
    limits = ServiceLimits(hello_s=HANG_S, connections_max=2)
    with door_world(limits, token=TOKEN) as world:
        for _ in range(2):
            greet(peers.enter_context(world.peer()), TOKEN)
        peer = peers.enter_context(world.peer())
        with pytest.raises(Overloaded, match="all 2 connections"):
            greet(peer, TOKEN)
        assert world.refusals == {"full": 1}


def test_a_place_is_free_again_whatever_became_of_who_had_it(peers: ExitStack) -> None:
    limits = ServiceLimits(hello_s=HANG_S, connections_max=1)
    with door_world(limits, token=TOKEN) as world:
        for _ in range(5):
            with world.peer() as peer:
                greet(peer, TOKEN)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        greet(peers.enter_context(world.peer()), TOKEN)


def test_the_service_closes_while_others_are_greeted(files: TlsFiles | None, peers: ExitStack) -> None:
    world: DoorWorld
    with door_world(token=TOKEN, tls=files) as world:
        silent = [peers.enter_context(world.peer()) for _ in range(5)]
        until(lambda: world.service.connections == 5, world.loop)
    assert all(is_ended(peer) for peer in silent)
    assert isinstance(world.service.door, Door)
