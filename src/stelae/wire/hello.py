"""The first frame each side sends: who it is, and which versions of the protocol it speaks.

Whoever connected sends a request of the method `hello`, whoever accepted an answer of it, both with request id 0, and
neither has to wait for the other's. Each then speaks the newest version that both know (`agree`); if there is none, it
sends the error instead of its hello, or after it, and closes. Whatever comes instead of a hello ends the connection: an
error frame is raised as what it says, anything else is a ProtocolError.

What else is said before the first request, where a token has to be proved, is in `handshake`.

Hellos are read by every release, older and newer: fields are only ever added, unknown ones are ignored, and the frame
around them keeps its layout. The ids and roles are for the rooms above, which decide whom they talk to.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stelae.model.errors import InvalidArgument, ProtocolError
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import FaultTable
from stelae.wire.messages import HELLO_METHOD, UNFIT, read_error

PROTOCOL_MIN = 3
PROTOCOL_MAX = 3
"""What this release speaks."""

HELLO_ID = RequestId(0)

_Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=100)]
_Nonce = Annotated[bytes, msgspec.Meta(max_length=64)]


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """`product` is the release ("0.1.0"), `store` the token of the store it has or wants (empty if it does not know
    one), `role` what it is to the other ("owner", "client", "shard"). `nonce`: drawn for this connection by who has a
    cluster's token, which then proves that it knows it and wants the same of the other; else empty."""

    version_min: _Version
    version_max: _Version
    product: _Text
    store: _Text
    role: _Text
    nonce: _Nonce = b""

    def __post_init__(self) -> None:
        if self.version_min > self.version_max:
            raise InvalidArgument(f"from version {self.version_min} to {self.version_max} there is none")


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Hello)


def hello_frame(hello: Hello, kind: FrameKind) -> Frame:
    """A request from whoever connected, an answer from whoever accepted."""
    return Frame(kind, HELLO_ID, HELLO_METHOD, _ENCODER.encode(hello))


def check_greeting(frame: Frame, kind: FrameKind, faults: FaultTable) -> None:
    """That a frame belongs to the greeting, and comes from the side that it should. What an error says is raised."""
    if frame.kind is FrameKind.ERROR:
        raise read_error(frame, faults)
    if (frame.kind, frame.request_id, frame.method) != (kind, HELLO_ID, HELLO_METHOD):
        raise ProtocolError(f"the first frame is a hello ({kind.name}), not {frame!r}")


def read_hello(frame: Frame, kind: FrameKind, faults: FaultTable) -> Hello:
    """The hello of the other side, whose kind is known."""
    check_greeting(frame, kind, faults)
    try:
        return _DECODER.decode(frame.message)
    except UNFIT as error:
        raise ProtocolError(f"not a hello: {error}") from None


def agree(mine: Hello, theirs: Hello) -> int:
    """The newest protocol version that both speak: the same whichever side asks."""
    version = min(mine.version_max, theirs.version_max)
    if version < max(mine.version_min, theirs.version_min):
        raise ProtocolError(
            f"no protocol version in common: this side ({mine.role}, release {mine.product}) speaks {_versions(mine)}, "
            f"the other ({theirs.role}, release {theirs.product}) {_versions(theirs)}; update the older one"
        )
    return version


def _versions(hello: Hello) -> str:
    if hello.version_min == hello.version_max:
        return f"{hello.version_min}"
    return f"{hello.version_min} to {hello.version_max}"
