"""Frames come back whole from bytes cut anywhere; any other bytes are a fault, said in words, in bounded memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument, ProtocolError
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import MessageRefused
from stelae.wire.frames import (
    DEFAULT_WIRE_LIMITS,
    JOINED_BYTES_MAX,
    PREFIX_BYTES,
    FrameDecoder,
    WireLimits,
    encode_frame,
)
from tests.effort import examples, tries
from tests.wire.samples import FRAMES, frame_bytes, mutated

KIB, MIB = 1024, 1024 * 1024
MANY = tuple(FRAMES.values())
STREAM = b"".join(frame_bytes(frame) for frame in MANY)

frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, 2**64 - 1).map(RequestId),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=64),
    st.binary(max_size=40),
    st.binary(max_size=40) | st.just(bytes(3 * JOINED_BYTES_MAX)),
    st.integers(0, 2**16 - 1),
)


def outcome(data: bytes, cuts: list[int], limits: WireLimits = DEFAULT_WIRE_LIMITS) -> tuple[list[Frame], str | None]:
    """The frames that come out, and what was wrong after them."""
    decoder = FrameDecoder(limits)
    found: list[Frame] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        try:
            found += decoder.feed(data[begin:end])
        except ProtocolError as error:
            assert type(error) is ProtocolError
            assert str(decoder.fault) == str(error)
            return found, str(error)
        if decoder.fault is not None:
            return found, str(decoder.fault)
    return found, None


@given(st.lists(frames, max_size=4), st.data())
@settings(max_examples=examples(200))
def test_frames_come_back_however_they_are_cut(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(frame_bytes(frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert outcome(stream, cuts) == (sent, None)


def test_every_single_cut_and_every_byte_alone() -> None:
    for cut in range(len(STREAM) + 1):
        assert outcome(STREAM, [cut]) == (list(MANY), None)
    assert outcome(STREAM, list(range(1, len(STREAM)))) == (list(MANY), None)


def test_what_is_pending_is_told() -> None:
    data = frame_bytes(FRAMES["request"])
    decoder = FrameDecoder()
    for size in range(1, len(data)):
        assert decoder.feed(data[size - 1 : size]) == []
        assert decoder.pending_bytes == size
    assert decoder.feed(data[-1:]) == [FRAMES["request"]]
    assert decoder.pending_bytes == 0
    assert decoder.feed(b"") == []


def test_frames_own_their_bytes_and_nobody_can_change_them() -> None:
    buffer = bytearray(STREAM)
    decoder = FrameDecoder()
    cut = len(STREAM) - 60
    found = decoder.feed(memoryview(buffer)[:cut]) + decoder.feed(memoryview(buffer)[cut:])
    buffer[:] = bytes(len(buffer))
    buffer.clear()
    assert found == list(MANY)
    parts = [part for frame in found for part in (frame.message, frame.body)]
    assert all(isinstance(part, memoryview) and part.readonly for part in parts)


def test_mutated_streams_are_the_same_however_they_are_cut() -> None:
    chance = random.Random(5)
    faults = 0
    for _ in range(tries(30_000)):
        data = mutated(STREAM, chance)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
        found, fault = outcome(data, cuts)
        assert (found, fault) == outcome(data, [])
        assert fault is None or fault.startswith("frame: ")
        faults += fault is not None
    assert faults > tries(30_000) // 3


def test_mutated_single_frames() -> None:
    chance = random.Random(6)
    samples = [frame_bytes(frame) for frame in MANY]
    faults = 0
    for _ in range(tries(40_000)):
        found, fault = outcome(mutated(chance.choice(samples), chance), [])
        assert all(isinstance(frame.kind, FrameKind) for frame in found)
        faults += fault is not None
    assert faults > tries(40_000) // 3


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
@settings(max_examples=examples(500))
def test_random_bytes(data: bytes, cuts: list[int]) -> None:
    cuts = sorted(min(cut, len(data)) for cut in cuts)
    for stream in (data, struct.pack("<II", len(data) + 8, 7) + data):
        assert outcome(stream, [min(cut, len(stream)) for cut in cuts]) == outcome(stream, [])


def raw(header: object, rest: bytes = b"", total: int | None = None, header_bytes: int | None = None) -> bytes:
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    total = PREFIX_BYTES + len(packed) + len(rest) if total is None else total
    return struct.pack("<II", total, len(packed) if header_bytes is None else header_bytes) + packed + rest


GOOD: list[Any] = [7, 1, "m", 0, 0]
WRONG = {
    "zero length": (raw(GOOD, total=0), "frame: 0 bytes do not hold a header of 7"),
    "only a prefix": (struct.pack("<II", 8, 0), "a header of 0 bytes; from 1 to 1024"),
    "too long": (raw(GOOD, total=2**32 - 1), "frame: 4294967295 bytes; at most 69206016"),
    "one too long": (raw(GOOD, total=69206017), "frame: 69206017 bytes; at most 69206016"),
    "header longer than the frame": (raw(GOOD, total=14), "14 bytes do not hold a header of 7"),
    "header too long": (raw(GOOD, b"", 5000, 1025), "a header of 1025 bytes; from 1 to 1024"),
    "header not msgpack": (raw(b"\xc1\xc1"), "not a header: .*malformed|not a header: .*invalid"),
    "header cut": (raw(msgspec.msgpack.encode(GOOD)[:-1]), "not a header: Input data was truncated"),
    "garbage in the header": (raw(msgspec.msgpack.encode(GOOD) + b"\x00"), "not a header: .*trailing characters"),
    "too few fields": (raw(GOOD[:4]), "not a header: Expected `array` of at least length 5, got 4"),
    "too many fields": (raw([*GOOD, 1]), "not a header: Expected `array` of at most length 5, got 6"),
    "no list": (raw({"request_id": 7}), "not a header: Expected `array`, got `object`"),
    "unknown kind": (raw([7, 9, "m", 0, 0]), "not a header: Invalid enum value 9"),
    "kind zero": (raw([7, 0, "m", 0, 0]), "not a header: Invalid enum value 0"),
    "negative id": (raw([-1, 1, "m", 0, 0]), "not a header: Expected `int` >= 0"),
    "method not text": (raw([7, 1, b"m", 0, 0]), "not a header: Expected `str`, got `bytes`"),
    "method not UTF-8": (raw(b"\x95\x07\x01\xa1\xff\x00\x00"), "not a header: 'utf-8' codec can't decode"),
    "method too long": (raw([7, 1, "m" * 65, 0, 0]), "not a header: Expected `str` of length <= 64"),
    "flags too large": (raw([7, 1, "m", 2**16, 0]), "not a header: Expected `int` <= 65535"),
    "deep nesting": (raw(b"\x95\x07\x01" + b"\x91" * 1_000), "not a header: Expected `str`, got `array`"),
    "message longer than the frame": (raw([7, 1, "m", 0, 5], b"four"), "a message of 5 bytes where 4 remain"),
    "message too long": (raw([7, 1, "m", 0, MIB + 1], total=2 * MIB), "a message of 1048577 bytes; at most 1048576"),
    "negative message": (raw([7, 1, "m", 0, -1]), "not a header: Expected `int` >= 0"),
    "garbage between": (frame_bytes(FRAMES["end"]) + b"GET / HTTP/1.1\r\n", "frame: 542393671 bytes; at most"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    data, message = WRONG[name]
    decoder = FrameDecoder()
    if name == "garbage between":
        assert decoder.feed(data) == [FRAMES["end"]]
        assert decoder.fault is not None
    else:
        with pytest.raises(ProtocolError, match=message):
            decoder.feed(data)
    assert type(decoder.fault) is ProtocolError
    assert decoder.pending_bytes == 0
    for more in (b"", frame_bytes(FRAMES["end"])):
        with pytest.raises(ProtocolError, match=f"this connection is dead: .*({message})"):
            decoder.feed(more)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_as_soon_as_it_is_there(name: str) -> None:
    """Not only when the frame is whole: of some frames here the rest never comes."""
    data, _ = WRONG[name]
    assert outcome(data, list(range(1, len(data)))) == outcome(data, [])


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = work()
        del kept
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def fed(decoder: FrameDecoder, *parts: bytes) -> None:
    try:
        for part in parts:
            decoder.feed(part)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", 2**31, 7),
        struct.pack("<II", 2**31, 2**31 - 8),
        raw([7, 1, "m", 0, 2**31], total=2**31),
        raw([7, 1, "m", 0, 2**31], total=60 * MIB),
        raw([7, 1, "m", 0, MIB], b"begun", total=60 * MIB),
        raw(b"\xdd\xff\xff\xff\xff", total=60 * MIB),
        raw(b"\x95\x07\x01\xdb\xff\xff\xff\xff", total=60 * MIB),
    ],
    ids=["frame", "header", "header in reach", "message", "a frame that is allowed", "list", "text"],
)
def test_promised_bytes_take_no_memory(data: bytes) -> None:
    decoder = FrameDecoder()
    cut = [data[at : at + 1] for at in range(len(data))]
    assert peak_bytes(lambda: fed(decoder, data)) < 16 * KIB
    assert peak_bytes(lambda: fed(FrameDecoder(), *cut)) < 16 * KIB


@pytest.mark.parametrize("step", [1, 700, 64 * KIB], ids=["bytes", "packets", "large"])
def test_a_frame_takes_its_own_size_of_memory(step: int) -> None:
    size = 64 * KIB if step == 1 else 8 * MIB
    data = raw([7, 4, "", 0, 3], bytes(size))
    parts = [data[at : at + step] for at in range(0, len(data), step)]
    decoder = FrameDecoder()

    def work() -> list[Frame]:
        return [frame for part in parts for frame in decoder.feed(part)]

    assert [len(frame.body) for frame in work()] == [size - 3]
    assert peak_bytes(work) < size * 9 / 8 + 16 * KIB


def test_a_dead_decoder_holds_nothing() -> None:
    decoder = FrameDecoder(WireLimits(frame_bytes_max=4 * MIB))
    begun = raw([7, 4, "", 0, 0], bytes(3 * MIB))
    data = begun + b"\xff" * 8

    def work() -> list[Frame]:
        decoder.feed(data[: 2 * MIB])
        return decoder.feed(data[2 * MIB :])

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert len(work()) == 1
        assert decoder.fault is not None
        assert tracemalloc.get_traced_memory()[0] - before < 64 * KIB
    finally:
        tracemalloc.stop()


def test_limits_are_exact() -> None:
    limits = WireLimits(frame_bytes_max=65, message_bytes_max=20, header_bytes_max=8)
    full = raw([7, 1, "m", 0, 20], bytes(50))
    assert len(full) == 65
    ((frame,), fault) = outcome(full, [], limits)
    assert (fault, len(frame.message), len(frame.body)) == (None, 20, 30)
    assert b"".join(encode_frame(frame, limits)) == full
    for size, message in ((51, 20), (50, 21)):
        longer = raw([7, 1, "m", 0, message], bytes(size))
        assert outcome(longer, [], limits)[1] is not None
        with pytest.raises(InvalidArgument, match="at most"):
            encode_frame(Frame(FrameKind.REQUEST, RequestId(7), "m", bytes(message), bytes(size - message)), limits)
    with pytest.raises(InvalidArgument, match="a header of 9 bytes"):
        encode_frame(Frame(FrameKind.REQUEST, RequestId(7), "mmm"), limits)
    assert outcome(raw([7, 1, "mmm", 0, 0]), [], limits)[1] == "frame: a header of 9 bytes; from 1 to 8"


@pytest.mark.parametrize(
    "limits",
    [
        {"frame_bytes_max": 2**32},
        {"frame_bytes_max": 1024},
        {"header_bytes_max": 0},
        {"message_bytes_max": -1},
        {"message_bytes_max": 70 * MIB},
    ],
    ids=str,
)
def test_limits_that_make_no_sense(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="wire limits: "):
        WireLimits(**limits)


def test_the_largest_block_fits_beside_the_largest_message() -> None:
    frame = Frame(FrameKind.REQUEST, RequestId(2**64 - 1), "\U0010ffff" * 64, bytes(MIB), bytes(64 * MIB), 2**16 - 1)
    assert len(encode_frame(frame)) == 3


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Frame(FrameKind.END, RequestId(-1)), "request id"),
        (Frame(FrameKind.END, RequestId(2**64)), "request id"),
        (Frame(FrameKind.END, RequestId(1), "m" * 65), "a method's name has at most 64"),
        (Frame(FrameKind.END, RequestId(1), "\ud800"), "name is no text"),
        (Frame(FrameKind.END, RequestId(1), flags=2**16), "flags are from 0 to 65535"),
        (Frame(FrameKind.END, RequestId(1), flags=-1), "flags are from 0 to 65535"),
        (Frame(FrameKind.END, RequestId(1), message=bytes(MIB + 1)), "a message has at most 1048576"),
        (Frame(FrameKind.END, RequestId(1), body=bytes(66 * MIB)), "in a frame of .*; at most 1024 and 69206016"),
        (Frame(FrameKind.END, RequestId(1), body=memoryview(bytes(8))[::2]), "a buffer with gaps"),
    ],
    ids=["id below", "id above", "method", "no text", "flags above", "flags below", "message", "frame", "gaps"],
)
def test_what_cannot_be_sent_is_refused(frame: Frame, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        encode_frame(frame)


def test_large_bodies_are_not_copied() -> None:
    body, message = bytes(JOINED_BYTES_MAX), memoryview(bytes(10))
    head, *rest = encode_frame(Frame(FrameKind.ITEM, RequestId(1), "", message, body))
    assert rest[0] is body
    assert len(rest) == 1
    assert len(head) < 32 + len(message)
    long = bytes(JOINED_BYTES_MAX + 1)
    assert encode_frame(Frame(FrameKind.ITEM, RequestId(1), "", long, body))[1:] == [long, body]
    assert len(encode_frame(Frame(FrameKind.ITEM, RequestId(1), "", b"", body))) == 1
    assert len(encode_frame(Frame(FrameKind.ITEM, RequestId(1), "", b"", body + b"x"))) == 2


@pytest.mark.parametrize("chars", range(9))
def test_large_bodies_that_come_in_pieces_lie_where_arrow_reads_them(chars: int) -> None:
    body = random.Random(chars).randbytes(JOINED_BYTES_MAX + 100)
    data = frame_bytes(Frame(FrameKind.ANSWER, RequestId(1), "m" * chars, b"message", body)) * 2
    decoder = FrameDecoder()
    found = decoder.feed(data[:60]) + decoder.feed(data[60:-1])
    assert decoder.pending_bytes == len(data) // 2 - 1
    found += decoder.feed(data[-1:])
    assert [(frame.method, bytes(frame.message), bytes(frame.body)) for frame in found] == [
        ("m" * chars, b"message", body)
    ] * 2
    assert [pa.py_buffer(frame.body).address % 8 for frame in found] == [0, 0]


def test_sizes_are_in_bytes_whatever_the_view_counts() -> None:
    numbers = memoryview(bytes(8 * JOINED_BYTES_MAX)).cast("d")
    sent = Frame(FrameKind.ITEM, RequestId(1), "", b"m", numbers)  # type: ignore[arg-type]
    ((frame,), fault) = outcome(frame_bytes(sent), [])
    assert (fault, frame.body) == (None, bytes(8 * JOINED_BYTES_MAX))


def test_a_printed_frame_is_short() -> None:
    frame = Frame(FrameKind.ITEM, RequestId(9), "m", b"x", bytes(MIB), 3)
    assert repr(frame) == "Frame(ITEM 9 'm', message of 1 bytes, body of 1048576, flags 3)"


def test_a_refused_message_is_a_protocol_error_of_its_own() -> None:
    assert issubclass(MessageRefused, ProtocolError)


def test_the_first_frames_are_small() -> None:
    """However the bytes are cut; afterwards any size that is allowed otherwise will do."""
    limits = WireLimits(first_frames=2, first_bytes_max=200)
    small = b"".join(encode_frame(Frame(FrameKind.REQUEST, RequestId(0), "hello", b"x" * 100)))
    large = b"".join(encode_frame(Frame(FrameKind.REQUEST, RequestId(1), "put", b"", b"x" * 10_000)))
    for step in (1, 7, 100_000):
        for before in range(3):
            decoder, found = FrameDecoder(limits), 0
            said = small * before + large
            with suppress(ProtocolError):
                for at in range(0, len(said), step):
                    found += len(decoder.feed(said[at : at + step]))
            assert found == (3 if before == 2 else before)
            assert (decoder.fault is None) == (before == 2)
