"""What two sides say to each other before the first request, as values: each step is a frame in and a frame out.

    connecting                                   accepting
    hello (with a nonce, if it has a token) -->
                                             <-- hello (with a nonce; the body is its proof)
    a frame whose body is its proof          -->
                                             <-- an empty frame: welcome

Without a token on either side the two hellos are all. All frames are of the method `hello`, with request id 0. Whoever
accepts proves itself first: whoever connects says nothing more, not even who it is, to one that cannot. If only one
side has a token, or the tokens differ, both sides hear of it, in words that say what to do.

What is raised here ends the connection. Whoever accepts sends the error instead of its next frame; whoever connects
sends it, too, if it is `WrongToken`: the other side is to hear that it was not believed.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import InvalidArgument, OtherStore, ProtocolError, TokenMissing, WrongToken
from stelae.ports.rng import Rng
from stelae.ports.transport import Frame, FrameKind
from stelae.wire.faults import FaultTable
from stelae.wire.hello import HELLO_ID, Hello, agree, check_greeting, hello_frame, read_hello
from stelae.wire.messages import HELLO_METHOD
from stelae.wire.proofs import NONCE_BYTES, ClusterToken, Prover

HOW_TO_GIVE = "token=..., or STELAE_TOKEN or STELAE_TOKEN_FILE"


class Introduction:
    """Who a process is to those it talks to, and what it can prove. Safe for threads."""

    def __init__(self, hello: Hello, token: ClusterToken | None = None, rng: Rng | None = None) -> None:
        """`rng` draws a nonce for each connection; who has a token needs it."""
        if token is not None and rng is None:
            raise InvalidArgument("whoever proves a token needs chance for it")
        self._hello = hello
        self._token = token
        self._rng = rng

    @property
    def hello(self) -> Hello:
        return self._hello

    def connect(self, faults: FaultTable) -> ConnectingHandshake:
        return ConnectingHandshake(self._draw(), self._token, faults)

    def accept(self, faults: FaultTable) -> AcceptingHandshake:
        return AcceptingHandshake(self._draw(), self._token, faults)

    def remember(self, theirs: Hello) -> None:
        """Whoever wanted any store wants this one from now on, wherever it connects to."""
        if not self._hello.store and theirs.store:
            self._hello = msgspec.structs.replace(self._hello, store=theirs.store)

    def _draw(self) -> Hello:
        if self._token is None or self._rng is None:
            return self._hello
        return msgspec.structs.replace(self._hello, nonce=self._rng.token(NONCE_BYTES))


def introduce(who: Hello | Introduction) -> Introduction:
    """Of a hello alone, one that has nothing to prove."""
    return Introduction(who) if isinstance(who, Hello) else who


class ConnectingHandshake:
    """Of whoever connected. `hello.nonce` was drawn for this connection, if there is a token."""

    def __init__(self, hello: Hello, token: ClusterToken | None, faults: FaultTable) -> None:
        self._hello = hello
        self._token = token
        self._faults = faults
        self._first = hello_frame(hello, FrameKind.REQUEST)

    def begin(self) -> Frame:
        return self._first

    def take_hello(self, frame: Frame) -> tuple[Hello, Frame | None]:
        """Who the other side is, and what it is to be sent; None: no more is to be said."""
        theirs = read_hello(frame, FrameKind.ANSWER, self._faults)
        agree(self._hello, theirs)
        if self._hello.store and theirs.store != self._hello.store:
            raise OtherStore(f"the store {theirs.store!r} is served there, not {self._hello.store!r}")
        if self._token is None:
            if theirs.nonce:
                raise TokenMissing(f"the other side wants the cluster's token proved: give it with {HOW_TO_GIVE}")
            return theirs, None
        if not theirs.nonce:
            raise WrongToken(
                "the other side knows no token, and this side has one: start the servers with it, or leave it out here"
            )
        sent, came = self._first.message, frame.message
        if not self._token.is_proof(frame.body, Prover.ACCEPTING, sent, came):
            raise WrongToken(f"the other side does not know the token that this side has ({HOW_TO_GIVE})")
        return theirs, _proof_frame(self._token.prove(Prover.CONNECTING, sent, came))

    def take_welcome(self, frame: Frame) -> None:
        check_greeting(frame, FrameKind.ANSWER, self._faults)


class AcceptingHandshake:
    """Of whoever accepted a connection. `hello.nonce` was drawn for this connection, if there is a token."""

    def __init__(self, hello: Hello, token: ClusterToken | None, faults: FaultTable) -> None:
        self._hello = hello
        self._token = token
        self._faults = faults
        self._came = self._sent = b""

    @property
    def wants_proof(self) -> bool:
        return self._token is not None

    def take_hello(self, frame: Frame) -> Frame:
        """Judge the greeting of who connects, and return the answer to send."""
        theirs = read_hello(frame, FrameKind.REQUEST, self._faults)
        agree(self._hello, theirs)
        if theirs.store not in ("", self._hello.store):
            raise OtherStore(f"another store is served here: {self._hello.store!r}, not {theirs.store!r}")
        answer = hello_frame(self._hello, FrameKind.ANSWER)
        if self._token is None:
            if theirs.nonce:
                raise WrongToken(
                    "no cluster token is known here, and the other side has one: start the servers with it, or connect "
                    "without it"
                )
            return answer
        if not theirs.nonce:
            raise TokenMissing(f"whoever connects here proves the cluster's token: give it with {HOW_TO_GIVE}")
        if len(theirs.nonce) < NONCE_BYTES:
            raise ProtocolError(f"a nonce has {NONCE_BYTES} bytes, not {len(theirs.nonce)}")
        self._came, self._sent = bytes(frame.message), bytes(answer.message)
        return msgspec.structs.replace(answer, body=self._token.prove(Prover.ACCEPTING, self._came, self._sent))

    def take_proof(self, frame: Frame) -> Frame:
        """Judge the proof of who connects, and return the frame that says that it is let in."""
        if frame.kind is FrameKind.ERROR:
            raise WrongToken("it does not believe this side's proof: it has the token of another cluster")
        check_greeting(frame, FrameKind.REQUEST, self._faults)
        if self._token is None or not self._token.is_proof(frame.body, Prover.CONNECTING, self._came, self._sent):
            raise WrongToken(f"the cluster's token is another one here: look at {HOW_TO_GIVE}")
        return Frame(FrameKind.ANSWER, HELLO_ID, HELLO_METHOD)


def _proof_frame(proof: bytes) -> Frame:
    return Frame(FrameKind.REQUEST, HELLO_ID, HELLO_METHOD, b"", proof)
