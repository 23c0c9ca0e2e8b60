"""Frames of every kind, the messages in them, and what can happen to their bytes on the way.

`python -m tests.wire.samples` writes golden files that are missing, and no others: what a release has sent is never
written again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stelae.model.errors import Corruption, InvalidArgument
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import FaultTable
from stelae.wire.frames import encode_frame
from stelae.wire.hello import Hello, hello_frame
from stelae.wire.messages import Messages, WireMethod, cancel_frame, end_frame, error_frame

GOLDEN = Path(__file__).parent / "golden"


class PutRequest(msgspec.Struct, frozen=True):
    tablet: Annotated[int, msgspec.Meta(ge=1)]
    table: Annotated[str, msgspec.Meta(max_length=10)]
    rows: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=3)] = ()
    extra: Any = None

    def __post_init__(self) -> None:
        if self.table == "forbidden":
            raise InvalidArgument("no such table may be named")


class PutAnswer(msgspec.Struct, frozen=True, array_like=True):
    txn: int


class ScanBatch(msgspec.Struct, frozen=True):
    rows: int
    token: bytes | None = None


PUT = WireMethod("table.put", PutRequest, PutAnswer)
SCAN = WireMethod("table.scan", PutRequest, ScanBatch, has_stream=True)
TABLE_MESSAGES = Messages((PUT, SCAN))
FAULTS = FaultTable()
HELLO = Hello(version_min=1, version_max=3, product="0.1.0", store="5f0c", role="owner")

FRAMES = {
    "request": PUT.ask(RequestId(7), PutRequest(3, "users", (b"ann", b"\x00\xff")), b"a block", flags=1),
    "answer": PUT.answer(RequestId(7), PutAnswer(2**63 - 1)),
    "error": error_frame(RequestId(2**64 - 1), Corruption("bad page", "x.parquet", 4096), FAULTS),
    "item": SCAN.answer(RequestId(2**32), ScanBatch(2, b"\x01"), bytes(range(256)), flags=0xFFFF),
    "end": end_frame(RequestId(2**32)),
    "cancel": cancel_frame(RequestId(300)),
    "hello_request": hello_frame(HELLO, FrameKind.REQUEST),
    "hello_answer": hello_frame(HELLO, FrameKind.ANSWER),
}


def frame_bytes(frame: Frame) -> bytes:
    return b"".join(encode_frame(frame))


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes after one to three mishaps."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if changed:
            _mishap(changed, chance)
    return bytes(changed)


def _mishap(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    match chance.randrange(6):
        case 0:
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at] = chance.randrange(256)
        case 2:
            del data[at:]
        case 3:
            other = chance.randrange(len(data))
            data[at], data[other] = data[other], data[at]
        case 4:
            data[at:at] = chance.randbytes(chance.randrange(1, 9))
        case _:
            lie = chance.choice((0, 1, 7, 8, 9, 20, 255, 1025, 2**20, 2**26, 2**31, 2**32 - 1))
            begin = chance.choice((0, 4, at))
            data[begin : begin + 4] = lie.to_bytes(4, "little")


def main() -> None:
    for name, frame in FRAMES.items():
        file = GOLDEN / f"{name}.frame"
        if not file.exists():
            file.write_bytes(frame_bytes(frame))


if __name__ == "__main__":
    main()
