"""Reads log segments: what is valid in them, of every version that was ever written."""

from __future__ import annotations

from stelae.format.checksums import crc32c
from stelae.format.log.layout import (
    GROUP,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    LENGTH_CRC_1_BYTES,
    LOG_VERSION,
    PLACE_1,
    RECORD_1,
    RECORD_1_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SEALED_GROUP,
    SEALED_RECORD,
    SEGMENT,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    place_seed,
    sealed,
)
from stelae.format.log.positions import SegmentId, segment_of
from stelae.format.log.records import NO_INDEX, NO_TABLET, LogKind, LogRecord, SegmentContent, SegmentEnd
from stelae.model.errors import Corruption, UnsupportedFormat
from stelae.model.ids import Index, TabletId, Txn

_CRC_BYTES = 4
_NO_HEADER = "the header of a group is damaged"
_KINDS = {int(kind): kind for kind in LogKind}
_KINDS_1 = {int(kind): kind for kind in (LogKind.BLOCK, LogKind.EPOCH, LogKind.CHANGE)}

_record_of = tuple.__new__
"""Of a tuple of all its parts: what LogRecord(...) does, in half the time."""


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
        self._segment = segment_of(name)
        self._version = 0
        self._previous: SegmentEnd | None = None
        self._records: list[LogRecord] = []
        self._last_txn = Txn(0)
        self._last_indexes: dict[TabletId, Index] = {}
        self._is_plain = True
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
        return SegmentContent(
            self._segment,
            self._version,
            self._previous,
            tuple(self._records),
            self._last_txn,
            self._last_indexes,
            self._is_plain,
            self._end,
            torn,
        )

    def _read_all(self) -> None:
        self._read_header()
        if self._version == 1:
            self._read_groups_1()
        else:
            self._read_groups()
        if self._end < self._promised:
            raise _Damage(self._end, "the segment ends too early")

    def _read_header(self) -> None:
        header = self._data[:SEGMENT_HEADER_BYTES]
        if len(header) < SEGMENT_HEADER_BYTES or sealed(header[: SEGMENT.size]) != header:
            raise _Damage(0, "the segment header is damaged")
        magic, version, _, segment, previous, previous_end, _ = SEGMENT.unpack_from(header)
        if magic != SEGMENT_MAGIC or segment != self._segment:
            raise _Damage(0, "this is not the header of this segment")
        if not 1 <= version <= LOG_VERSION:
            raise UnsupportedFormat(
                f"{self._name}: log format version {version}; this release reads versions 1 to {LOG_VERSION}"
            )
        self._version = version
        self._previous = SegmentEnd(SegmentId(previous), previous_end) if previous_end else None
        self._end = SEGMENT_HEADER_BYTES

    def _read_groups(self) -> None:
        """This is the loop of every replay; most groups are of one record."""
        data, view, size, group_header = self._data, self._view, len(self._data), self._group_header
        unpack, sum_of, kinds, header_bytes = SEALED_RECORD.unpack_from, crc32c, _KINDS, RECORD_HEADER_BYTES
        seed, block, indexes = place_seed(self._segment), int(LogKind.BLOCK), self._last_indexes
        at, last, add = self._end, self._last_txn, self._records.append
        try:
            while at < size:
                header = group_header(at)
                if header is None:
                    raise _Damage(at, _NO_HEADER)
                length, count, _ = header
                at += GROUP_HEADER_BYTES
                stop = at + length
                limit = min(size, stop)
                while count:
                    count -= 1
                    payload = at + header_bytes
                    if payload > limit:
                        raise _Damage(at, "a record is cut short")
                    crc, length, checksum, kind, flags, table, tablet, epoch, index, txn, client, sequence = unpack(
                        data, at
                    )
                    if sum_of(view[at + _CRC_BYTES : payload], seed ^ at) != crc:
                        raise _Damage(at, "the header of a record does not have its checksum")
                    end = at + length
                    if not payload <= end <= limit:
                        raise _Damage(at, "a record is cut short")
                    content = data[payload:end]
                    if sum_of(content) != checksum:
                        raise _Damage(at, "a record does not have its checksum")
                    if kind != block or flags:
                        self._note_kind(kind, flags, tablet, at)
                    if index:
                        indexes[tablet] = index
                    if txn > last:
                        last = txn
                    fields = kinds[kind], table, tablet, epoch, index, txn, client, sequence, content, checksum
                    add(_record_of(LogRecord, fields))
                    self._end = at = end
                if at != stop:
                    raise _Damage(at, "a group holds more bytes than its records")
                self._end = at
        finally:
            self._last_txn = last

    def _read_groups_1(self) -> None:
        """Read the groups of a segment of version 1, whose records are laid out in another way."""
        while self._end < len(self._data):
            header = self._group_header(self._end)
            if header is None:
                raise _Damage(self._end, _NO_HEADER)
            length, count, _ = header
            at = self._end + GROUP_HEADER_BYTES
            stop = at + length
            at = self._read_records_1(at, min(stop, len(self._data)), count)
            if at != stop:
                raise _Damage(at, "a group holds more bytes than its records")
            self._end = stop

    def _read_records_1(self, at: int, limit: int, count: int) -> int:
        data, view, segment = self._data, self._view, self._segment
        for _ in range(count):
            payload = at + RECORD_1_HEADER_BYTES
            if payload > limit:
                raise _Damage(at, "a record is cut short")
            length, crc, kind, flags, table, tablet, epoch, txn, client, sequence = RECORD_1.unpack_from(data, at)
            end = at + length
            if not payload <= end <= limit:
                raise _Damage(at, "a record is cut short or its length is damaged")
            if crc32c(view[at + LENGTH_CRC_1_BYTES : end], crc32c(PLACE_1.pack(segment, at, length))) != crc:
                raise _Damage(at, "a record does not have its checksum")
            if kind not in _KINDS_1 or flags:
                self._refuse_kind(kind, at)
            # A change was of a table then, and an epoch said nothing: both are plain.
            content = data[payload:end]
            fields = _KINDS_1[kind], table, tablet, epoch, NO_INDEX, txn, client, sequence, content, crc32c(content)
            self._records.append(_record_of(LogRecord, fields))
            self._last_txn = max(self._last_txn, txn)
            self._end = at = end
        return at

    def _note_kind(self, kind: int, flags: int, tablet: TabletId, at: int) -> None:
        if kind not in _KINDS or flags:
            self._refuse_kind(kind, at)
        if kind != LogKind.BLOCK and (kind != LogKind.CHANGE or tablet != NO_TABLET):
            self._is_plain = False

    def _refuse_kind(self, kind: int, at: int) -> None:
        raise UnsupportedFormat(f"{self._name}: record at byte {at} is of a kind {kind} from a newer release")

    def _group_header(self, at: int) -> tuple[int, int, int] | None:
        """Length, count and synced offset of the group whose header lies here; None if none does."""
        if at + GROUP_HEADER_BYTES > len(self._data):
            return None
        magic, length, count, segment, offset, synced, crc = SEALED_GROUP.unpack_from(self._data, at)
        if magic != GROUP_MAGIC or segment != self._segment or offset != at or synced > at:
            return None
        if crc32c(self._view[at : at + GROUP.size]) != crc:
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
