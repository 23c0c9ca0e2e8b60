"""The files under a shard's log: a chain of segments, of which only the last is written.

A header that may have reached the disk ends the segment before it: nothing is appended there any more. It is synced
before records follow it, so a file that could not be begun never holds a record; it is deleted or, failing that, passed
over by the chain until it can be.

A segment is named by a number above every txn that was logged before it: names sort as segments follow each other, and
a log whose records are all collected still says how far txns were given out.

The last segment stays even if it is closed and nobody needs it. The oldest header names the segment before it, so that
a file which comes back after a failed delete is known for what it is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from stelae.format.log.layout import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from stelae.format.log.positions import POSITION_MIN, Position, SegmentId, position_at, segment_name
from stelae.format.log.records import LogRecord, SegmentEnd
from stelae.format.log.writer import SegmentWriter
from stelae.model.errors import InvalidArgument, StelaeError
from stelae.ports.logfiles import LogFile, LogFiles
from stelae.storage.log.replay import ReplayedLog, SegmentInfo

DISK_ERRORS = (StelaeError, OSError)
_ANY_NUMBER = SegmentId(0)


def record_size_bytes(record: LogRecord) -> int:
    return RECORD_HEADER_BYTES + len(record.payload)


class _Active(msgspec.Struct):
    """`begin`: its place in the log. `synced`: whether there are records, and how many bytes."""

    file: LogFile
    writer: SegmentWriter
    begin: Position
    synced: tuple[bool, int]


class WalSegments:
    """`infos` and `collect` are for all threads; all else for one at a time."""

    def __init__(self, files: LogFiles, segment_bytes_max: int, replayed: ReplayedLog) -> None:
        if not replayed.finished:
            raise InvalidArgument("the log must be replayed to its end before it is written")
        self._infos = replayed.segments
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._active: _Active | None = None
        self._end: SegmentEnd | None = replayed.end
        """Up to where the log is durable, while no segment is active."""
        self.end: Position = replayed.segments[-1].end if replayed.segments else POSITION_MIN
        """Up to where the log is durable: what is written later lies at or behind it. For all threads."""
        self._number = len(replayed.segments)
        self._name_min = SegmentId(replayed.last_txn + 1)
        self._leftovers = replayed.leftovers
        self._is_vouched = not any(info.has_records for info in replayed.segments[-1:])
        """Something behind the last record calls it synced, and no bytes in doubt follow."""
        self._guard = threading.Lock()
        self._collecting = threading.Lock()

    @property
    def infos(self) -> tuple[SegmentInfo, ...]:
        """The chain, oldest first."""
        with self._guard:
            infos, active = self._infos, self._active
        return infos if active is None else (*infos[:-1], _synced_info(infos[-1], active))

    def write(self, records: Sequence[LogRecord], size_bytes: int) -> None:
        """One group, synced; `size_bytes` are those of its records. If it raises, `abandon` comes next."""
        active = self._active
        if active is None or self._is_full(active, size_bytes):
            active = self._start(SegmentId(records[0].txn))
        self._append_synced(active, records)
        self._is_vouched = False

    def abandon(self) -> bool:
        """After a failed write, put its bytes out of reach of every replay; whether that is certain."""
        active = self._active
        end = None if active is None else active.writer.durable_end
        if active is None or end is None:
            return True  # no segment could be begun
        self._retire()
        self._is_vouched = False
        with suppress(*DISK_ERRORS):
            self._files.truncate(active.file.name, end.end)
            return True
        with suppress(*DISK_ERRORS):
            self._start()
            return True
        return False

    def roll(self) -> None:
        """Give the last segment a successor, if it holds anything."""
        if not self._is_vouched:
            self._start()

    def seal(self) -> None:
        """The last write: everything durable is now called so by something behind it."""
        try:
            if self._active is None:
                self.roll()
            elif not self._is_vouched:
                self._append_synced(self._active, ())
                self._is_vouched = True
        except DISK_ERRORS:
            self.abandon()
            if not self._is_vouched:
                raise
        finally:
            self._retire()

    def collect(self, needed_from: Position) -> tuple[str, ...]:
        with self._collecting:
            deleted = list(self._sweep())
            for info in self._infos[:-1]:
                if info.has_records and info.end > needed_from:
                    break
                self._files.delete(info.name)
                with self._guard:
                    self._infos = self._infos[1:]
                deleted.append(info.name)
        return tuple(deleted)

    def _is_full(self, active: _Active, more_bytes: int) -> bool:
        size_bytes = active.file.size_bytes
        full_bytes = size_bytes + GROUP_HEADER_BYTES + more_bytes
        return size_bytes > SEGMENT_HEADER_BYTES and full_bytes > self._segment_bytes_max

    def _append_synced(self, active: _Active, records: Sequence[LogRecord]) -> None:
        active.file.append(*active.writer.group_parts(records))
        active.file.sync()
        active.writer.mark_synced()
        size_bytes = active.file.size_bytes
        self.end = Position(active.begin + size_bytes)
        if records:
            last_txn = records[0].txn if len(records) == 1 else max([record.txn for record in records])
            if last_txn >= self._name_min:
                self._name_min = SegmentId(last_txn + 1)
        active.synced = active.synced[0] or bool(records), size_bytes

    def _start(self, segment: SegmentId = _ANY_NUMBER) -> _Active:
        """Begin a segment that follows the durable end, of this number or more; its header is synced."""
        self._retire()
        if self._end is None:
            self._sweep()  # the first segment of a log says that it is, and then nothing may lie before it
        segment = max(segment, self._name_min)
        self._name_min = SegmentId(segment + 1)  # also if this fails: a file that could not be deleted may come back
        writer = SegmentWriter(segment, self._end)
        file = self._files.create(segment_name(segment))
        try:
            file.append(writer.start())
            file.sync()
        except BaseException:
            self._discard(file)
            raise
        writer.mark_synced()
        self._is_vouched = True
        self._number += 1
        begin = position_at(self._number, 0)
        self.end = position_at(self._number, file.size_bytes)
        active = _Active(file, writer, begin, (False, file.size_bytes))
        info = SegmentInfo(file.name, begin, self.end, has_records=False, size_bytes=file.size_bytes, is_active=True)
        with self._guard:
            self._infos += (info,)
            self._active = active
        return active

    def let_go(self) -> None:
        self._retire()

    def _retire(self) -> None:
        """Nothing is appended to the active segment any more."""
        with self._guard:
            active, self._active = self._active, None
            if active is None:
                return
            self._end = active.writer.durable_end
            last = replace(_synced_info(self._infos[-1], active), is_active=False)
            self._infos = (*self._infos[:-1], last)
        with suppress(*DISK_ERRORS):  # all of it that counts is synced
            active.file.close()

    def _discard(self, file: LogFile) -> None:
        with self._guard:
            self._leftovers += (file.name,)
        with suppress(*DISK_ERRORS):
            file.close()
        with suppress(*DISK_ERRORS):
            self._sweep()

    def _sweep(self) -> tuple[str, ...]:
        """Delete what failures left behind. An error stops it; what is not deleted stays known."""
        leftovers = self._leftovers
        for name in leftovers:
            self._files.delete(name)
            with self._guard:
                self._leftovers = tuple(other for other in self._leftovers if other != name)
        return leftovers


def _synced_info(info: SegmentInfo, active: _Active) -> SegmentInfo:
    has_records, size_bytes = active.synced
    end = Position(active.begin + size_bytes)
    return replace(info, end=end, has_records=has_records, size_bytes=size_bytes)
