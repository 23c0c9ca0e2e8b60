"""Frames as bytes, and back from bytes cut at any place.

    total length (4 bytes) | header length (4 bytes) | header | message | body

Both lengths are little-endian; the total counts the whole frame, prefix included. The header is msgpack: request id,
kind, method, flags, and the length of the message; the body is what remains. The message is msgpack of the method's own
type (`messages`), the body is opaque: a block, an Arrow batch. This layout never changes: it is how two sides first
learn each other's version (`hello`).

There is no checksum. The socket under it has one, blocks get theirs when they enter the log, and a flipped bit is met
here as any other hostile input is; where the network is not trusted, TLS says more than a checksum could.

`FrameDecoder` takes whatever comes. A length is held against the limits when its bytes are there, before anything of
that length is; a frame that is on its way takes the memory of the bytes that have come (an eighth more at most), not of
those it promises. Each byte is copied once, from the caller's buffer to the frame's own, so the caller may use its
buffer again. Which frames come out, and which fault after them, does not depend on where the bytes were cut.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from typing_extensions import Buffer

from stelae.model.errors import InvalidArgument, ProtocolError
from stelae.ports.transport import Frame, FrameKind, RequestId

PREFIX_BYTES = 8
METHOD_CHARS_MAX = 64
FLAGS_MAX = 2**16 - 1
JOINED_BYTES_MAX = 16 * 1024
"""Up to here one buffer is cheaper than several; beyond it nothing is copied."""
_ALIGNED_BYTES = 8
"""Large bodies begin at an address of so many: Arrow reads them where they lie."""

_LENGTH_END = 2**32
_ID_END = 2**64


class WireLimits(msgspec.Struct, frozen=True):
    """What a side takes and sends at most. Decoded, a byte of a message can become a hundred in memory, so messages are
    kept small and bulk goes into the body. A frame has room for the largest block and a message beside it. The first
    `first_frames` of a connection have `first_bytes_max` at most: so little is held for whoever has not said yet, in
    as many frames, who it is."""

    frame_bytes_max: int = 66 * 1024 * 1024
    message_bytes_max: int = 1024 * 1024
    header_bytes_max: int = 1024
    first_frames: int = 0
    first_bytes_max: int = 16 * 1024

    def __post_init__(self) -> None:
        if self.header_bytes_max < 1 or self.message_bytes_max < 0:
            raise InvalidArgument(f"wire limits: no header or message fits {self}")
        if not PREFIX_BYTES + self.header_bytes_max + self.message_bytes_max <= self.frame_bytes_max < _LENGTH_END:
            raise InvalidArgument(f"wire limits: a frame holds header and message, and has 32 bits of length: {self}")


DEFAULT_WIRE_LIMITS = WireLimits()


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """No field may be added: the frame that carries a hello is read by every release."""

    request_id: Annotated[int, msgspec.Meta(ge=0)]
    kind: FrameKind
    method: Annotated[str, msgspec.Meta(max_length=METHOD_CHARS_MAX)]
    flags: Annotated[int, msgspec.Meta(ge=0, le=FLAGS_MAX)]
    message_bytes: Annotated[int, msgspec.Meta(ge=0)]


_PREFIX = struct.Struct("<II")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)
_NOTHING = memoryview(b"")


def encode_frame(frame: Frame, limits: WireLimits = DEFAULT_WIRE_LIMITS) -> list[bytes | memoryview]:
    """The frame's bytes, as buffers to be sent one after the other. InvalidArgument for what the other side, with the
    same limits, would refuse."""
    message_bytes, body_bytes = _size(frame.message), _size(frame.body)
    if message_bytes > limits.message_bytes_max:
        raise InvalidArgument(f"{frame!r}: a message has at most {limits.message_bytes_max} bytes")
    head = _encode_header(frame, message_bytes)
    total = PREFIX_BYTES + len(head) + message_bytes + body_bytes
    if len(head) > limits.header_bytes_max or total > limits.frame_bytes_max:
        raise InvalidArgument(
            f"{frame!r}: a header of {len(head)} bytes in a frame of {total}; at most {limits.header_bytes_max} "
            f"and {limits.frame_bytes_max}"
        )
    prefix = _PREFIX.pack(total, len(head))
    if message_bytes + body_bytes <= JOINED_BYTES_MAX:
        return [b"".join((prefix, head, frame.message, frame.body))]
    if message_bytes <= JOINED_BYTES_MAX:
        return [b"".join((prefix, head, frame.message)), frame.body]
    return [prefix + head, *(part for part in (frame.message, frame.body) if part)]


def _encode_header(frame: Frame, message_bytes: int) -> bytes:
    if not 0 <= frame.request_id < _ID_END:
        raise InvalidArgument(f"{frame!r}: a request id is a number of 64 bits, not negative")
    if len(frame.method) > METHOD_CHARS_MAX:
        raise InvalidArgument(f"{frame!r}: a method's name has at most {METHOD_CHARS_MAX} characters")
    if not 0 <= frame.flags <= FLAGS_MAX:
        raise InvalidArgument(f"{frame!r}: flags are from 0 to {FLAGS_MAX}")
    try:
        return _ENCODER.encode(_Header(frame.request_id, frame.kind, frame.method, frame.flags, message_bytes))
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{frame!r}: the method's name is no text: {error.reason}") from None


def _size(data: bytes | memoryview) -> int:
    if isinstance(data, bytes):
        return len(data)
    if not data.c_contiguous:
        raise InvalidArgument("frame: a buffer with gaps cannot be sent as it is")
    return data.nbytes


class FrameDecoder:
    """The frames of one connection, from its bytes as they come. The only exception is ProtocolError; after it the
    decoder is dead, and so is the connection: where the next frame would begin is anybody's guess."""

    __slots__ = ("_dead", "_first", "_header", "_header_end", "_held", "_limits", "_needed", "_start", "_total")

    def __init__(self, limits: WireLimits = DEFAULT_WIRE_LIMITS) -> None:
        self._limits = limits
        self._first = limits.first_frames
        self._dead: str | None = None
        self._forget()

    def _forget(self) -> None:
        """No frame has begun. Of one that has, `held` are its bytes so far, from `start` on, and with `needed` of them
        they tell more about it: the prefix, then the header with it, then the whole."""
        self._held = bytearray()
        self._start = 0
        self._needed = PREFIX_BYTES
        self._total = self._header_end = 0
        self._header: _Header | None = None

    def drop(self) -> None:
        """Nothing more comes: keep nothing of the frame that has begun."""
        self._dead = self._dead or "it has ended"
        self._forget()

    @property
    def pending_bytes(self) -> int:
        """What has come of a frame that is not whole. A connection that ends here was broken off."""
        return len(self._held) - self._start

    @property
    def fault(self) -> ProtocolError | None:
        """What was wrong with the bytes, once something was."""
        return None if self._dead is None else ProtocolError(self._dead)

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that are whole with these bytes. Bytes that make no frame raise; but if frames stand before them,
        those are returned first: then `fault` tells, and the next call raises."""
        if self._dead is not None:
            raise ProtocolError(f"this connection is dead: {self._dead}")
        frames: list[Frame] = []
        try:
            self._take(memoryview(data), frames)
        except ProtocolError as error:
            self._dead = str(error)
            self._forget()
            if not frames:
                raise
        return frames

    def _take(self, view: memoryview, frames: list[Frame]) -> None:
        at = self._hold(view, 0, frames) if self._held else 0
        while len(view) - at >= PREFIX_BYTES:
            total, header_end = self._check_prefix(view, at)
            if len(view) - at < total:
                break
            header = self._check_header(view[at + PREFIX_BYTES : at + header_end], total - header_end)
            frames.append(_frame(header, memoryview(bytes(view[at + header_end : at + total]))))
            at += total
        if at < len(view):
            self._hold(view, at, frames)

    def _hold(self, view: memoryview, at: int, frames: list[Frame]) -> int:
        """Take bytes for the frame that has begun, until it is whole or they are used up; where it stopped."""
        while at < len(view):
            end = min(len(view), at + self._needed - len(self._held))
            self._held += view[at:end]
            at = end
            if len(self._held) == self._needed and self._advance(frames):
                break
        return at

    def _advance(self, frames: list[Frame]) -> bool:
        """Look at what is held, now that all of the next part is there. Whether the frame was whole."""
        if self._header_end == 0:
            self._total, self._header_end = self._check_prefix(self._held, 0)
            self._needed = self._header_end
            return False
        if self._header is None:
            self._header = self._check_header(self._held[PREFIX_BYTES:], self._total - self._header_end)
            self._needed = self._total
            if self._header_end < self._total:
                self._align(self._header_end + self._header.message_bytes)
                return False
        frames.append(_frame(self._header, memoryview(self._held).toreadonly()[self._start + self._header_end :]))
        self._forget()
        return True

    def _align(self, body_at: int) -> None:
        """Before much of a large frame has come: let its body begin where Arrow can read it."""
        if self._total > JOINED_BYTES_MAX:
            self._start = -body_at % _ALIGNED_BYTES
            self._held[:0] = bytes(self._start)
            self._needed += self._start

    def _check_prefix(self, data: Buffer, at: int) -> tuple[int, int]:
        """The frame's total length, and where its header ends."""
        limits = self._limits
        total, header_bytes = _PREFIX.unpack_from(data, at)
        if self._first and total > limits.first_bytes_max:
            raise ProtocolError(f"frame: {total} bytes; one of the first has at most {limits.first_bytes_max}")
        if total > limits.frame_bytes_max:
            raise ProtocolError(f"frame: {total} bytes; at most {limits.frame_bytes_max}")
        if not 0 < header_bytes <= limits.header_bytes_max:
            raise ProtocolError(f"frame: a header of {header_bytes} bytes; from 1 to {limits.header_bytes_max}")
        if PREFIX_BYTES + header_bytes > total:
            raise ProtocolError(f"frame: {total} bytes do not hold a header of {header_bytes}")
        return total, PREFIX_BYTES + header_bytes

    def _check_header(self, data: Buffer, rest_bytes: int) -> _Header:
        """The header, before any of the rest is needed."""
        try:
            header = _DECODER.decode(data)
        except ValueError as error:
            raise ProtocolError(f"frame: not a header: {error}") from None
        if header.message_bytes > self._limits.message_bytes_max:
            raise ProtocolError(
                f"frame: a message of {header.message_bytes} bytes; at most {self._limits.message_bytes_max}"
            )
        if header.message_bytes > rest_bytes:
            raise ProtocolError(f"frame: a message of {header.message_bytes} bytes where {rest_bytes} remain")
        if self._first:
            self._first -= 1
        return header


def _frame(header: _Header, rest: memoryview) -> Frame:
    cut = header.message_bytes
    message = rest[:cut] if cut else _NOTHING
    body = rest[cut:] if cut < len(rest) else _NOTHING
    return Frame(header.kind, RequestId(header.request_id), header.method, message, body, header.flags)
