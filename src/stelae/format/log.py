"""Log segments: groups of records, each group written and synced as one.

    segment = segment header, group*            group = group header, record*

    segment header (44 bytes)   magic 8 | version 2 | flags 2 | first txn 8 | previous first txn 8 | previous end 8 |
                                reserved 4 | crc 4
    group header (40 bytes)     magic 4 | length 4 | count 4 | first txn 8 | own offset 8 | synced 8 | crc 4
    record (58 bytes + payload) length 4 | crc 4 | kind 1 | flags 1 | table 8 | tablet 8 | epoch 8 | txn 8 | client 8 |
                                sequence 8 | payload

All numbers are little-endian; every crc is CRC32C over everything else in its part. A record's crc also covers the
segment's first txn and the record's offset, so bytes that ended up in the wrong place are not a record.

A group header says up to which offset the segment was synced before the group was written. That decides what damage
means. Damage below an offset that some later header (or the next segment's) calls synced is *corruption*: bytes that
were safe are no longer what was written. Damage above it is the *torn tail* of a crash: nobody was told that those
bytes are safe, and they are cut.

Segments form a chain: each header names the last place before it that is known to be durable, a segment and its end.
What lies beyond that end, and any segment in between, failed to sync: its writers were told so, and it never replays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from stelae.model.errors import Corruption, InvalidArgument, UnsupportedFormat
from stelae.model.hybrid import check_txn
from stelae.model.ids import ClientId, Epoch, TableId, TabletId, Txn
from stelae.model.ids import Sequence as ClientSequence
from stelae.ports.logfiles import LogFiles

LOG_VERSION = 1
SEGMENT_MAGIC = b"STELAELG"
GROUP_MAGIC = b"\xf5GRP"

_SEGMENT = struct.Struct("<8sHHQQQI")
_GROUP = struct.Struct("<4sIIQQQ")
_RECORD = struct.Struct("<BBQQQQQQ")
_PLACE = struct.Struct("<QQI")
_CRC = struct.Struct("<I")
_LENGTH_CRC = struct.Struct("<II")
_RECORD_HEADER = struct.Struct("<IIBBQQQQQQ")
_SEALED_GROUP = struct.Struct("<4sIIQQQI")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size
GROUP_HEADER_BYTES = _GROUP.size + _CRC.size
RECORD_HEADER_BYTES = _LENGTH_CRC.size + _RECORD.size
GROUP_BYTES_MAX = 2**31
NAME_SUFFIX = ".log"


class LogKind(IntEnum):
    """What a record's payload is. The numbers are stored."""

    BLOCK = 1
    EPOCH = 2
    CHANGE = 3


_LARGE_BYTES = 64 * 1024


class LogRecord(NamedTuple):
    kind: LogKind
    table: TableId
    tablet: TabletId
    epoch: Epoch
    txn: Txn
    client: ClientId
    sequence: ClientSequence
    payload: bytes | memoryview


_record_of = tuple.__new__
"""Of a tuple of all its parts: what LogRecord(...) does, in half the time."""


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where a segment ends for good: what lies beyond, if anything, was never acknowledged."""

    first_txn: Txn
    end: int


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """What a segment holds. `end` is where the valid bytes end; if `torn`, others follow that mean nothing."""

    first_txn: Txn
    previous: SegmentEnd | None
    records: tuple[LogRecord, ...]
    end: int
    torn: bool


def segment_name(first_txn: Txn) -> str:
    """Names sort as the segments follow each other."""
    return f"{first_txn:016x}{NAME_SUFFIX}"


def first_txn_of(name: str) -> Txn:
    digits, dot, suffix = name.partition(".")
    if dot + suffix != NAME_SUFFIX or len(digits) != 16 or not set(digits) <= set("0123456789abcdef"):
        raise InvalidArgument(f"{name!r} is not the name of a log segment")
    return check_txn(int(digits, 16))


class SegmentWriter:
    """Makes the bytes of one segment; the caller appends and syncs them, and reports each sync with `mark_synced`."""

    def __init__(self, first_txn: Txn, previous: SegmentEnd | None = None) -> None:
        self.first_txn = check_txn(first_txn)
        self._previous = previous
        self._end = 0
        self._synced = 0

    @property
    def durable_end(self) -> SegmentEnd | None:
        """The last place of the log known to be on disk, for the header of the segment that follows: in this segment,
        or if not even its header was synced, in the one before it."""
        return SegmentEnd(self.first_txn, self._synced) if self._synced else self._previous

    def start(self) -> bytes:
        """The header, to be appended first."""
        previous = self._previous or SegmentEnd(Txn(0), 0)
        fields = (SEGMENT_MAGIC, LOG_VERSION, 0, self.first_txn, previous.first_txn, previous.end, 0)
        self._end = SEGMENT_HEADER_BYTES
        return _sealed(_SEGMENT.pack(*fields))

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
            header = _record_header(record, self.first_txn, at)
            parts += (header, record.payload)
            at += len(header) + len(record.payload)
        length = at - self._end - GROUP_HEADER_BYTES
        if length > GROUP_BYTES_MAX:
            raise InvalidArgument(f"a group of {length} bytes is too large; at most {GROUP_BYTES_MAX}")
        header = _GROUP.pack(GROUP_MAGIC, length, len(records), self.first_txn, self._end, self._synced)
        self._end = at
        parts.insert(0, _sealed(header))
        return [b"".join(parts)] if length < _LARGE_BYTES else _gathered(parts)

    def mark_synced(self) -> None:
        """Everything returned so far is on disk: the next group says so."""
        self._synced = self._end


def _sealed(header: bytes) -> bytes:
    return header + _CRC.pack(crc32c(header))


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


def _record_header(record: LogRecord, first_txn: Txn, offset: int) -> bytes:
    kind, table, tablet, epoch, txn, client, sequence, payload = record
    length = RECORD_HEADER_BYTES + len(payload)
    if length > GROUP_BYTES_MAX:
        raise InvalidArgument(f"a record of {length} bytes is too large; at most {GROUP_BYTES_MAX}")
    try:
        body = _RECORD.pack(kind, 0, table, tablet, epoch, txn, client, sequence)
    except struct.error as error:
        raise InvalidArgument(f"a log record's ids are numbers of 64 bits: {error}") from None
    crc = crc32c(payload, crc32c(body, _place_crc(first_txn, offset, length)))
    return _LENGTH_CRC.pack(length, crc) + body


def _place_crc(first_txn: int, offset: int, length: int) -> int:
    return crc32c(_PLACE.pack(first_txn, offset, length))


def read_segment(name: str, data: bytes, end: int | None = None) -> SegmentContent:
    """All that is valid in a segment's bytes. `end` is where the next segment says that this one ends.

    Raises Corruption, with the offset, for damage below what is known to have been synced, and UnsupportedFormat for
    a newer version. Any other bytes are a torn tail.
    """
    return _SegmentReader(name, data, end).read()


class _Damage(Exception):
    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset


class _SegmentReader:
    def __init__(self, name: str, data: bytes, end: int | None) -> None:
        self._name = name
        self._data = data if end is None else data[:end]
        self._view = memoryview(self._data)
        self._promised = end or 0
        self._first_txn = first_txn_of(name)
        self._previous: SegmentEnd | None = None
        self._records: list[LogRecord] = []
        self._end = 0

    def read(self) -> SegmentContent:
        torn = False
        try:
            self._read_all()
        except _Damage as damage:
            synced = max(self._promised, self._claimed(damage.offset))
            if damage.offset < synced:
                raise Corruption(f"{damage} (synced up to byte {synced})", self._name, damage.offset) from None
            torn = True
        return SegmentContent(self._first_txn, self._previous, tuple(self._records), self._end, torn)

    def _read_all(self) -> None:
        self._read_header()
        while self._end < len(self._data):
            self._read_group()
        if self._end < self._promised:
            raise _Damage(self._end, "the segment ends too early")

    def _read_header(self) -> None:
        header = self._data[:SEGMENT_HEADER_BYTES]
        if len(header) < SEGMENT_HEADER_BYTES or _sealed(header[: _SEGMENT.size]) != header:
            raise _Damage(0, "the segment header is damaged")
        magic, version, _, first_txn, previous, previous_end, _ = _SEGMENT.unpack_from(header)
        if magic != SEGMENT_MAGIC or first_txn != self._first_txn:
            raise _Damage(0, "this is not the header of this segment")
        if version != LOG_VERSION:
            raise UnsupportedFormat(
                f"{self._name}: log format version {version}; this release reads version {LOG_VERSION}"
            )
        self._previous = SegmentEnd(Txn(previous), previous_end) if previous_end else None
        self._end = SEGMENT_HEADER_BYTES

    def _read_group(self) -> None:
        """Take the records of the group that begins here. This is the loop of every replay."""
        header = self._group_header(self._end)
        if header is None:
            raise _Damage(self._end, "the header of a group is damaged")
        length, count, _ = header
        data, view, first_txn, add = self._data, self._view, self._first_txn, self._records.append
        at = self._end + GROUP_HEADER_BYTES
        stop = at + length
        limit = min(stop, len(data))
        for _ in range(count):
            payload = at + RECORD_HEADER_BYTES
            if payload > limit:
                raise _Damage(at, "a record is cut short")
            length, crc, kind, flags, table, tablet, epoch, txn, client, sequence = _RECORD_HEADER.unpack_from(data, at)
            end = at + length
            if not payload <= end <= limit:
                raise _Damage(at, "a record is cut short or its length is damaged")
            if crc32c(view[at + _LENGTH_CRC.size : end], crc32c(_PLACE.pack(first_txn, at, length))) != crc:
                raise _Damage(at, "a record does not have its checksum")
            if kind not in _KINDS or flags:
                raise UnsupportedFormat(f"{self._name}: record at byte {at} is of a kind {kind} from a newer release")
            content = _KINDS[kind], table, tablet, epoch, txn, client, sequence, data[payload:end]
            add(_record_of(LogRecord, content))
            self._end = at = end
        if at != stop:
            raise _Damage(at, "a group holds more bytes than its records")
        self._end = stop

    def _group_header(self, at: int) -> tuple[int, int, int] | None:
        """Length, count and synced offset of the group whose header lies here; None if none does."""
        if at + GROUP_HEADER_BYTES > len(self._data):
            return None
        magic, length, count, first_txn, offset, synced, crc = _SEALED_GROUP.unpack_from(self._data, at)
        if magic != GROUP_MAGIC or first_txn != self._first_txn or offset != at or synced > at:
            return None
        if crc32c(self._view[at : at + _GROUP.size]) != crc:
            return None
        return length, count, synced

    def _claimed(self, damage: int) -> int:
        """The largest offset that a whole group header behind the damage calls synced."""
        claimed = 0
        at = self._data.find(GROUP_MAGIC, damage)
        while at >= 0:
            header = self._group_header(at)
            if header:
                claimed = max(claimed, header[2])
            at = self._data.find(GROUP_MAGIC, at + 1)
        return claimed


_KINDS = {int(kind): kind for kind in LogKind}


def read_log(files: LogFiles) -> Iterator[SegmentContent]:
    """The segments of a log that count, oldest first, each cut where a later one says it ends.

    The whole chain is checked before the first is given out: Corruption names a segment that is missing, or whose
    header is damaged though something after it was synced. Files that are no segments are an InvalidArgument.
    """
    names = [info.name for info in files.list()]
    for name, end in _chain(files, names):
        yield read_segment(name, files.read(name), end)


def _chain(files: LogFiles, names: list[str]) -> list[tuple[str, int | None]]:
    """The segments that count and where each ends, followed back from the newest with a whole header: those that it
    passes over were never durable."""
    headers = {name: _header_of(files, name) for name in names}
    chain: list[tuple[str, int | None]] = []
    wanted: SegmentEnd | None = None
    for name in reversed(names):
        header = headers[name]
        if wanted is None and not chain:
            if not header.torn:
                chain.append((name, None))
                wanted = header.previous
            continue
        if wanted is None:
            raise Corruption(f"is older than {chain[-1][0]}, which says that it is the first of the log", name)
        if header.first_txn > wanted.first_txn:
            continue
        if header.first_txn < wanted.first_txn or header.torn:
            missing = segment_name(wanted.first_txn)
            raise Corruption(f"follows segment {missing}, which is missing or has lost its header", chain[-1][0])
        chain.append((name, wanted.end))
        wanted = header.previous
    return chain[::-1]


def _header_of(files: LogFiles, name: str) -> SegmentContent:
    """What the header says; torn if it is damaged and nothing in the segment was synced after it."""
    header = read_segment(name, files.read(name, 0, SEGMENT_HEADER_BYTES))
    return read_segment(name, files.read(name)) if header.torn else header
