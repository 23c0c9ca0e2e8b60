"""The parts of a segment as numbers in bytes, for those who write and read it: see the package."""

from __future__ import annotations

import struct

from stelae.format.checksums import crc32c
from stelae.format.log.positions import SegmentId

LOG_VERSION = 2
SEGMENT_MAGIC = b"STELAELG"
GROUP_MAGIC = b"\xf5GRP"
GROUP_BYTES_MAX = 2**31

SEGMENT = struct.Struct("<8sHHQQQI")
GROUP = struct.Struct("<4sIIQQQ")
SEALED_GROUP = struct.Struct("<4sIIQQQI")
RECORD = struct.Struct("<IIBBQQQQQQQ")
SEALED_RECORD = struct.Struct("<IIIBBQQQQQQQ")
RECORD_1 = struct.Struct("<IIBBQQQQQQ")
PLACE_1 = struct.Struct("<QQI")
CRC = struct.Struct("<I")

SEGMENT_HEADER_BYTES = SEGMENT.size + CRC.size
GROUP_HEADER_BYTES = SEALED_GROUP.size
RECORD_HEADER_BYTES = SEALED_RECORD.size
RECORD_1_HEADER_BYTES = RECORD_1.size
LENGTH_CRC_1_BYTES = 2 * CRC.size

_SEGMENT_ID = struct.Struct("<Q")


def sealed(header: bytes) -> bytes:
    return header + CRC.pack(crc32c(header))


def place_seed(segment: SegmentId) -> int:
    """What the place crc of a record begins with, xor its offset: another begin makes another crc of the same bytes."""
    return crc32c(_SEGMENT_ID.pack(segment))
