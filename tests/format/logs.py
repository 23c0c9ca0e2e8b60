"""Log records for tests, and segments of version 1, which nobody writes any more."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from stelae.format.log.positions import SegmentId
from stelae.format.log.records import LogKind, LogRecord, SegmentEnd, checksum_of
from stelae.format.log.writer import SegmentWriter
from stelae.model.ids import ClientId, Epoch, Index, TableId, TabletId, Txn
from stelae.model.ids import Sequence as ClientSequence


def log_record(
    txn: int,
    payload: bytes = b"payload",
    *,
    kind: LogKind = LogKind.BLOCK,
    table: int = 1,
    tablet: int = 2,
    epoch: int = 3,
    index: int = 0,
    client: int = 4,
    sequence: int = 0,
) -> LogRecord:
    return LogRecord(
        kind,
        TableId(table),
        TabletId(tablet),
        Epoch(epoch),
        Index(index),
        Txn(txn),
        ClientId(client),
        ClientSequence(sequence),
        payload,
        checksum_of(payload),
    )


def _sealed(header: bytes) -> bytes:
    return header + crc32c(header).to_bytes(4, "little")


class SegmentWriter1:
    """Writes version 1 as its release did."""

    def __init__(self, first_txn: SegmentId, previous: SegmentEnd | None = None) -> None:
        self._first_txn = first_txn
        self._previous = previous or SegmentEnd(SegmentId(0), 0)
        self._end = 0
        self._synced = 0

    def start(self) -> bytes:
        self._end = 44
        previous = self._previous
        fields = (b"STELAELG", 1, 0, self._first_txn, previous.segment, previous.end, 0)
        return _sealed(struct.pack("<8sHHQQQI", *fields))

    def group(self, records: Sequence[LogRecord]) -> bytes:
        begin = at = self._end
        at += 40
        body = b""
        for record in records:
            fields = (*record[:4], record.txn, record.client, record.sequence)
            content = struct.pack("<BBQQQQQQ", fields[0], 0, *fields[1:]) + record.payload
            length = 8 + len(content)
            crc = crc32c(content, crc32c(struct.pack("<QQI", self._first_txn, at, length)))
            body += struct.pack("<II", length, crc) + content
            at += length
        header = struct.pack("<4sIIQQQ", b"\xf5GRP", len(body), len(records), self._first_txn, begin, self._synced)
        self._end = at
        return _sealed(header) + body

    def mark_synced(self) -> None:
        self._synced = self._end


WRITERS: dict[int, type[SegmentWriter | SegmentWriter1]] = {1: SegmentWriter1, 2: SegmentWriter}
