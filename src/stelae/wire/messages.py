"""Messages: which methods there are, what is asked and answered with each, and both as frames.

    PUT = WireMethod("table.put", PutRequest, PutAnswer)
    SCAN = WireMethod("table.scan", ScanRequest, ScanBatch, has_stream=True)
    TABLE_MESSAGES = Messages((PUT, SCAN))

A message is a frozen msgspec Struct; what its fields may be, and how long, is said by their types (`msgspec.Meta`) and
checked before anyone sees it. Without a stream a request has one answer; with one it has any number of items, each a
message of the answer's type with a body, and then an end. Bodies are not looked at here.

Two kinds of wrong, and what each ends:
- Bytes that are no frame (`frames`), and a hello that is none (`hello`): ProtocolError. The connection ends.
- A whole frame whose message does not fit (no such method, not the type, out of bounds): MessageRefused. That one
  request is answered with the error or, if it was an answer, fails with it. The connection goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from stelae.model.errors import InvalidArgument, StelaeError, nearest
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import FaultTable, MessageRefused
from stelae.wire.frames import METHOD_CHARS_MAX

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)
M = TypeVar("M", bound=msgspec.Struct)

HELLO_METHOD = "hello"
NO_METHOD = "there is no method"
"""Begins what is told to whoever asks what nobody answers here: it is somebody else that should be asked."""
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_ENCODER = msgspec.msgpack.Encoder()

UNFIT = (ValueError, TypeError, RecursionError, StelaeError)
"""What decoding a message may raise. msgspec's own errors are ValueErrors, as is text that is not UTF-8; the others
come of what cannot be in a set, of nesting without end, and of a message's own `__post_init__`."""


class WireMethod(Generic[Q, A]):
    """One thing that can be asked. Made once, where the messages are declared."""

    __slots__ = ("_answers", "_requests", "has_stream", "name")

    def __init__(self, name: str, request: type[Q], answer: type[A], *, has_stream: bool = False) -> None:
        if len(name) > METHOD_CHARS_MAX or not _NAME.fullmatch(name) or name == HELLO_METHOD:
            raise InvalidArgument(f"{name!r} is not a method's name: use words of a-z, 0-9, '_', joined by '.'")
        for type_ in (request, answer):
            if not type_.__struct_config__.frozen:
                raise InvalidArgument(f"{name}: {type_.__name__} is a message, so it is frozen")
        self.name = name
        self.has_stream = has_stream
        self._requests = msgspec.msgpack.Decoder(request)
        self._answers = msgspec.msgpack.Decoder(answer)

    def ask(self, request_id: RequestId, request: Q, body: bytes | memoryview = b"", flags: int = 0) -> Frame:
        return Frame(FrameKind.REQUEST, request_id, self.name, _ENCODER.encode(request), body, flags)

    def answer(self, request_id: RequestId, answer: A, body: bytes | memoryview = b"", flags: int = 0) -> Frame:
        """The answer, or one item of the stream."""
        return Frame(self._answer_kind, request_id, "", _ENCODER.encode(answer), body, flags)

    def read_request(self, frame: Frame) -> Q:
        return self._read(frame, FrameKind.REQUEST, self._requests)

    def read_answer(self, frame: Frame) -> A:
        """The message of an answer, or of one item of the stream. Ends and errors have none: they are the caller's."""
        return self._read(frame, self._answer_kind, self._answers)

    @property
    def _answer_kind(self) -> FrameKind:
        return FrameKind.ITEM if self.has_stream else FrameKind.ANSWER

    def _read(self, frame: Frame, kind: FrameKind, decoder: msgspec.msgpack.Decoder[M]) -> M:
        if frame.kind is not kind:
            raise MessageRefused(f"{self.name}: {frame.kind.name} where {kind.name} was expected")
        try:
            return decoder.decode(frame.message)
        except UNFIT as error:
            raise MessageRefused(f"{self.name}: {error}") from None


class Messages:
    """The methods that one side serves, by name."""

    __slots__ = ("_methods",)

    def __init__(self, methods: Iterable[WireMethod[Any, Any]]) -> None:
        self._methods: dict[str, WireMethod[Any, Any]] = {}
        for method in methods:
            if method.name in self._methods:
                raise InvalidArgument(f"method {method.name!r} is declared twice")
            self._methods[method.name] = method

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._methods)

    def find(self, name: str) -> WireMethod[Any, Any]:
        method = self._methods.get(name)
        if method is None:
            raise MessageRefused(f"{NO_METHOD} {name!r}{nearest(name, self._methods)}")
        return method


def end_frame(request_id: RequestId) -> Frame:
    return Frame(FrameKind.END, request_id)


def cancel_frame(request_id: RequestId) -> Frame:
    return Frame(FrameKind.CANCEL, request_id)


def error_frame(request_id: RequestId, error: BaseException, faults: FaultTable) -> Frame:
    return Frame(FrameKind.ERROR, request_id, "", faults.encode(error))


def read_error(frame: Frame, faults: FaultTable) -> StelaeError:
    """What the error frame says, to be raised; MessageRefused if it says nothing."""
    return faults.decode(frame.message)
