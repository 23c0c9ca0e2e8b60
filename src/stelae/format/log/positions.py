"""Places in a log: segments by their names, and positions, which put all records of a log in one order."""

from __future__ import annotations

from typing import NewType

from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import TXN_MAX

NAME_SUFFIX = ".log"
OFFSET_BITS = 32
SEGMENT_BYTES_MAX = 1 << OFFSET_BITS

SegmentId = NewType("SegmentId", int)
"""The number in a segment's name. Those that follow have greater ones; beyond that it says nothing. It is as large as
a hybrid time, since it was one in version 1."""

SEGMENT_ID_MAX = SegmentId(TXN_MAX)

Position = NewType("Position", int)
"""A byte of a log: the place of its segment in the chain, from 1 on, above 32 bits of offset."""

POSITION_MIN = Position(0)
POSITION_MAX = Position(2**64 - 1)


def position_at(number: int, offset: int) -> Position:
    return Position((number << OFFSET_BITS) | offset)


def check_segment(segment: int) -> SegmentId:
    if not 0 <= segment <= SEGMENT_ID_MAX:
        raise InvalidArgument(f"{segment} is not the number of a log segment")
    return SegmentId(segment)


def segment_name(segment: SegmentId) -> str:
    """Names sort as the segments follow each other."""
    return f"{segment:016x}{NAME_SUFFIX}"


def segment_of(name: str) -> SegmentId:
    digits, dot, suffix = name.partition(".")
    if dot + suffix != NAME_SUFFIX or len(digits) != 16 or not set(digits) <= set("0123456789abcdef"):
        raise InvalidArgument(f"{name!r} is not the name of a log segment")
    return check_segment(int(digits, 16))
