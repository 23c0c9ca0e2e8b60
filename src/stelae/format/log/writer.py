"""Makes the bytes of log segments."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from stelae.format.checksums import crc32c
from stelae.format.log.layout import (
    CRC,
    GROUP,
    GROUP_BYTES_MAX,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    LOG_VERSION,
    RECORD,
    RECORD_HEADER_BYTES,
    SEGMENT,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    place_seed,
    sealed,
)
from stelae.format.log.positions import SEGMENT_BYTES_MAX, SegmentId, check_segment
from stelae.format.log.records import LogRecord, SegmentEnd
from stelae.model.errors import InvalidArgument

_LARGE_BYTES = 64 * 1024
_NOWHERE = SegmentEnd(SegmentId(0), 0)


class SegmentWriter:
    """Makes the bytes of one segment; the caller appends and syncs them, and reports each sync with `mark_synced`."""

    def __init__(self, segment: SegmentId, previous: SegmentEnd | None = None) -> None:
        self.segment = check_segment(segment)
        self._seed = place_seed(segment)
        self._previous = previous
        self._end = 0
        self._synced = 0

    @property
    def durable_end(self) -> SegmentEnd | None:
        """The last place of the log known to be on disk, for the header of the segment that follows: in this segment,
        or if not even its header was synced, in the one before it."""
        return SegmentEnd(self.segment, self._synced) if self._synced else self._previous

    def start(self) -> bytes:
        """The header, to be appended first."""
        previous = self._previous or _NOWHERE
        self._end = SEGMENT_HEADER_BYTES
        return sealed(
            SEGMENT.pack(SEGMENT_MAGIC, LOG_VERSION, 0, self.segment, previous.segment, previous.end, 0),
        )

    def group(self, records: Sequence[LogRecord]) -> bytes:
        """The next group, to be appended after everything returned before. An empty one only says what is synced."""
        return b"".join(self.group_parts(records))

    def group_parts(self, records: Sequence[LogRecord]) -> list[bytes | memoryview]:
        """The same in pieces, to be appended one behind the other: what is large is not copied."""
        if self._end == 0:
            raise InvalidArgument("a segment begins with its header")
        parts: list[bytes | memoryview] = []
        at = self._end + GROUP_HEADER_BYTES
        for record in records:
            payload = record.payload
            parts += (self._record_header(record, at), payload)
            at += RECORD_HEADER_BYTES + len(payload)
        length = at - self._end - GROUP_HEADER_BYTES
        if length > GROUP_BYTES_MAX or at > SEGMENT_BYTES_MAX:
            raise InvalidArgument(f"a group of {length} bytes is too large; at most {GROUP_BYTES_MAX}")
        header = GROUP.pack(GROUP_MAGIC, length, len(records), self.segment, self._end, self._synced)
        self._end = at
        parts.insert(0, sealed(header))
        return [b"".join(parts)] if length < _LARGE_BYTES else _gathered(parts)

    def mark_synced(self) -> None:
        """Everything returned so far is on disk: the next group says so."""
        self._synced = self._end

    def _record_header(self, record: LogRecord, offset: int) -> bytes:
        kind, table, tablet, epoch, index, txn, client, sequence, payload, checksum = record
        length = RECORD_HEADER_BYTES + len(payload)
        if length > GROUP_BYTES_MAX:
            raise InvalidArgument(f"a record of {length} bytes is too large; at most {GROUP_BYTES_MAX}")
        try:
            body = RECORD.pack(length, checksum, kind, 0, table, tablet, epoch, index, txn, client, sequence)
        except struct.error as error:
            raise InvalidArgument(f"a log record's ids are numbers of 64 bits, its checksum of 32: {error}") from None
        return CRC.pack(crc32c(body, self._seed ^ offset)) + body


def _gathered(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Small pieces that lie next to each other as one; large ones as they are."""
    found: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < _LARGE_BYTES:
            small.append(part)
        else:
            found += (b"".join(small), part)
            small = []
    if small:
        found.append(b"".join(small))
    return found
