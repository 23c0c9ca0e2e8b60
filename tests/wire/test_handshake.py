"""The greeting with a token: who knows it is believed, nobody else is, and it never leaves its side."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from stelae.model.errors import (
    InvalidArgument,
    OtherStore,
    PermissionDenied,
    ProtocolError,
    StelaeError,
    TokenMissing,
    WrongToken,
)
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.frames import encode_frame
from stelae.wire.handshake import AcceptingHandshake, ConnectingHandshake, Introduction
from stelae.wire.hello import HELLO_ID, PROTOCOL_MAX, PROTOCOL_MIN, Hello, hello_frame, read_hello
from stelae.wire.messages import HELLO_METHOD, error_frame
from stelae.wire.proofs import PROOF_BYTES, TOKEN_CHARS_MIN, ClusterToken
from tests.effort import tries
from tests.wire.samples import FAULTS, mutated

TEXT = "3f1c" * 8
CLIENT = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "", "client")
MASTER = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "a-store", "master")


class Chance:
    """An `Rng` by seed."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def token(self, size_bytes: int) -> bytes:
        return self._chance.randbytes(size_bytes)

    def below(self, bound: int) -> int:
        return self._chance.randrange(bound)

    def fraction(self) -> float:
        return self._chance.random()


def introduction(hello: Hello, text: str | None, seed: int = 0) -> Introduction:
    return Introduction(hello, None if text is None else ClusterToken(text), Chance(seed))


def both(client: str | None, server: str | None) -> tuple[ConnectingHandshake, AcceptingHandshake]:
    return introduction(CLIENT, client, 1).connect(FAULTS), introduction(MASTER, server, 2).accept(FAULTS)


def greet(client: ConnectingHandshake, server: AcceptingHandshake, seen: list[Frame] | None = None) -> Hello:
    """Carry frames there and back; who the client has met."""
    seen = [] if seen is None else seen
    seen.append(client.begin())
    seen.append(server.take_hello(seen[-1]))
    theirs, proof = client.take_hello(seen[-1])
    assert (proof is not None) == server.wants_proof
    if proof is not None:
        seen.append(proof)
        seen.append(server.take_proof(proof))
        client.take_welcome(seen[-1])
    return theirs


@pytest.mark.parametrize("text", [None, TEXT])
def test_who_knows_the_same_is_let_in(text: str | None) -> None:
    client, server = both(text, text)
    met = greet(client, server)
    assert (met.store, met.role) == ("a-store", "master")


def test_without_a_token_a_hello_is_what_it_was() -> None:
    frame = introduction(CLIENT, None).connect(FAULTS).begin()
    assert frame == hello_frame(CLIENT, FrameKind.REQUEST)
    assert b"nonce" not in frame.message


def test_the_token_is_not_sent_and_not_shown() -> None:
    seen: list[Frame] = []
    client, server = both(TEXT, TEXT)
    greet(client, server, seen)
    assert len(seen) == 4
    sent = b"".join(b"".join(encode_frame(frame)) for frame in seen)
    assert TEXT.encode() not in sent
    assert TEXT not in repr(ClusterToken(TEXT))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(ClusterToken(TEXT))


def test_proofs_differ_by_connection_and_by_direction() -> None:
    proofs = set()
    for seed in range(10):
        seen: list[Frame] = []
        token = ClusterToken(TEXT)
        client = Introduction(CLIENT, token, Chance(seed)).connect(FAULTS)
        greet(client, Introduction(MASTER, token, Chance(100 + seed)).accept(FAULTS), seen)
        proofs |= {bytes(seen[1].body), bytes(seen[2].body)}
    assert len(proofs) == 20
    assert {len(proof) for proof in proofs} == {PROOF_BYTES}


def test_another_token_is_met_by_whoever_connects_first() -> None:
    client, server = both(TEXT, "x" * 32)
    answer = server.take_hello(client.begin())
    with pytest.raises(WrongToken, match="does not know the token") as refused:
        client.take_hello(answer)
    with pytest.raises(WrongToken, match="does not believe"):
        server.take_proof(error_frame(HELLO_ID, refused.value, FAULTS))


def test_a_guessed_proof_is_refused() -> None:
    for guess in (b"", bytes(PROOF_BYTES), bytes(PROOF_BYTES - 1), b"x" * 10_000):
        client, server = both(TEXT, TEXT)
        server.take_hello(client.begin())
        with pytest.raises(WrongToken, match="another one here"):
            server.take_proof(Frame(FrameKind.REQUEST, HELLO_ID, HELLO_METHOD, b"", guess))


def test_a_proof_cannot_be_given_back_to_who_made_it() -> None:
    """One that does not know the token connects, and repeats what it is told."""
    stranger = introduction(CLIENT, "stranger" * 4).connect(FAULTS)
    server = introduction(MASTER, TEXT).accept(FAULTS)
    answer = server.take_hello(stranger.begin())
    with pytest.raises(WrongToken):
        server.take_proof(Frame(FrameKind.REQUEST, HELLO_ID, HELLO_METHOD, b"", answer.body))


def test_a_proof_is_good_for_one_connection() -> None:
    seen: list[Frame] = []
    client, server = both(TEXT, TEXT)
    greet(client, server, seen)
    again = introduction(MASTER, TEXT, 3).accept(FAULTS)
    again.take_hello(seen[0])
    with pytest.raises(WrongToken):
        again.take_proof(seen[2])
    later = introduction(CLIENT, TEXT, 4).connect(FAULTS)
    with pytest.raises(WrongToken):
        later.take_hello(seen[1])


@pytest.mark.parametrize(
    "change",
    [{"role": "shard"}, {"version_max": PROTOCOL_MAX + 1}, {"product": "0.1.1"}, {"nonce": bytes(32)}],
    ids=lambda change: next(iter(change)),
)
def test_who_changes_a_hello_on_its_way_is_noticed(change: dict[str, object]) -> None:
    client, server = both(TEXT, TEXT)
    begun = read_hello(client.begin(), FrameKind.REQUEST, FAULTS)
    answer = server.take_hello(hello_frame(msgspec.structs.replace(begun, **change), FrameKind.REQUEST))
    with pytest.raises(WrongToken):
        client.take_hello(answer)
    client, server = both(TEXT, TEXT)
    answer = server.take_hello(client.begin())
    theirs = msgspec.structs.replace(read_hello(answer, FrameKind.ANSWER, FAULTS), **change)
    changed = msgspec.structs.replace(hello_frame(theirs, FrameKind.ANSWER), body=answer.body)
    with pytest.raises(WrongToken):
        client.take_hello(changed)


def test_who_has_none_where_one_is_wanted_is_told_how_to_give_it() -> None:
    client, server = both(None, TEXT)
    with pytest.raises(TokenMissing, match="STELAE_TOKEN_FILE"):
        server.take_hello(client.begin())


def test_who_has_one_does_not_talk_to_a_server_without() -> None:
    client, server = both(TEXT, None)
    with pytest.raises(WrongToken, match="no cluster token is known here"):
        server.take_hello(client.begin())
    with pytest.raises(WrongToken, match="knows no token"):
        client.take_hello(hello_frame(MASTER, FrameKind.ANSWER))


def test_a_server_that_wants_one_later_is_not_talked_to_without() -> None:
    client, _ = both(None, None)
    with pytest.raises(TokenMissing, match="wants the cluster's token"):
        client.take_hello(hello_frame(msgspec.structs.replace(MASTER, nonce=bytes(32)), FrameKind.ANSWER))


def test_another_store_is_refused_by_both() -> None:
    other = msgspec.structs.replace(CLIENT, store="b-store")
    with pytest.raises(OtherStore, match="another store is served here"):
        introduction(MASTER, None).accept(FAULTS).take_hello(hello_frame(other, FrameKind.REQUEST))
    with pytest.raises(OtherStore, match="'a-store' is served there, not 'b-store'"):
        introduction(other, None).connect(FAULTS).take_hello(hello_frame(MASTER, FrameKind.ANSWER))


def test_the_first_store_that_was_met_is_wanted_ever_after() -> None:
    me = introduction(CLIENT, None)
    theirs, _ = me.connect(FAULTS).take_hello(hello_frame(MASTER, FrameKind.ANSWER))
    me.remember(theirs)
    assert me.hello.store == "a-store"
    me.remember(msgspec.structs.replace(MASTER, store="b-store"))
    assert me.hello.store == "a-store"
    assert read_hello(me.connect(FAULTS).begin(), FrameKind.REQUEST, FAULTS).store == "a-store"


def test_a_short_nonce_is_no_nonce() -> None:
    hello = msgspec.structs.replace(CLIENT, nonce=b"x" * 31)
    with pytest.raises(ProtocolError, match="a nonce has 32 bytes"):
        introduction(MASTER, TEXT).accept(FAULTS).take_hello(hello_frame(hello, FrameKind.REQUEST))


def test_what_comes_instead_of_a_proof_ends_it() -> None:
    client, server = both(TEXT, TEXT)
    server.take_hello(client.begin())
    with pytest.raises(ProtocolError):
        server.take_proof(Frame(FrameKind.REQUEST, RequestId(1), "now"))
    with pytest.raises(PermissionDenied, match="no"):
        client.take_welcome(error_frame(HELLO_ID, WrongToken("no"), FAULTS))


@pytest.mark.parametrize(
    "text", ["", "x" * (TOKEN_CHARS_MIN - 1), "x" * 2_000, "x" * 16 + " y", "ü" * 20, "x" * 20 + "\n"]
)
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(InvalidArgument, match="a cluster's token") as refused:
        ClusterToken(text)
    assert not text or text not in str(refused.value)


def test_whoever_proves_needs_chance() -> None:
    with pytest.raises(InvalidArgument, match="chance"):
        Introduction(CLIENT, ClusterToken(TEXT))


def _as_it_is(frame: Frame, chance: random.Random) -> Frame:
    return frame


def _wrong(frame: Frame, chance: random.Random) -> Frame:
    if frame.body and (not frame.message or chance.random() < 0.5):
        return msgspec.structs.replace(frame, body=mutated(bytes(frame.body), chance))
    return msgspec.structs.replace(frame, message=mutated(bytes(frame.message), chance))


@pytest.mark.parametrize("place", range(3))
def test_mutated_greetings(place: int) -> None:
    """Whatever is changed on its way: it ends in words, and nobody is let in whose own words were changed."""
    chance = random.Random(place)
    refused = 0
    for seed in range(tries(2_000)):
        token, changes = ClusterToken(TEXT), [_as_it_is] * 3
        changes[place] = _wrong
        client = Introduction(CLIENT, token, Chance(seed)).connect(FAULTS)
        server = Introduction(MASTER, token, Chance(-seed)).accept(FAULTS)
        refused += _is_refused(client, server, changes, chance)
    assert refused > tries(1_800)


def _is_refused(
    client: ConnectingHandshake,
    server: AcceptingHandshake,
    changes: Sequence[Callable[[Frame, random.Random], Frame]],
    chance: random.Random,
) -> bool:
    try:
        answer = server.take_hello(changes[0](client.begin(), chance))
        _, proof = client.take_hello(changes[1](answer, chance))
        assert proof is not None
        server.take_proof(changes[2](proof, chance))
    except StelaeError:
        return True
    return False
