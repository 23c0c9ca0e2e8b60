"""Reading a log back when its shard opens, and leaving on disk only what was read.

The chain of segments is followed and every segment checked before anything is changed, so Corruption leaves all files
as they are. Then, before the first record of the last segment is given out, that segment is truncated to its valid
end, even if there is nothing to cut: after a mere kill its bytes may never have been synced, and what is replayed must
not be taken back by a later crash. At the end, the files that the chain passes over are deleted.

What was given out is not kept: whoever reads the log holds as much of it as it wants to.

What no reader can see: if a sync failed and the process was killed before it could cut the segment or delete the file,
the page cache shows bytes that the disk may not have. They are replayed, and a power loss may then take them back:
the next replay reports Corruption, or if nothing was written behind them, cuts them as a torn tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from stelae.format.log.chain import read_log
from stelae.format.log.layout import SEGMENT_HEADER_BYTES
from stelae.format.log.positions import Position, position_at, segment_name, segment_of
from stelae.format.log.reader import read_segment
from stelae.format.log.records import LogRecord, SegmentContent, SegmentEnd
from stelae.model.errors import InvalidArgument, StelaeError
from stelae.model.ids import Index, TabletId, Txn
from stelae.ports.logfiles import LogFiles

_PIECE_BYTES = 1 << 20
"""So much of the room behind the last record is looked at at a time."""


class SegmentInfo(msgspec.Struct, frozen=True):
    """One segment of the chain. All its records lie at or behind `begin` and before `end`."""

    name: str
    begin: Position
    end: Position
    has_records: bool
    size_bytes: int
    is_active: bool


class LogRun(NamedTuple):
    """The records of one segment, all at or behind `begin`. `is_plain` and `last_indexes` as `SegmentContent` says."""

    begin: Position
    records: tuple[LogRecord, ...]
    is_plain: bool
    last_indexes: Mapping[TabletId, Index]


def replay(files: LogFiles) -> ReplayedLog:
    """The log in these files. Nothing is read or changed until it is iterated."""
    return ReplayedLog(files)


class ReplayedLog:
    """Gives out the records of a log once, in the order of their positions; then says where the log goes on.

    Raises Corruption, UnsupportedFormat, or the error of a disk that cannot be read or truncated. Then nothing of what
    came before counts, and the log may be replayed anew.
    """

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._started = False
        self.finished = False
        self.segments: tuple[SegmentInfo, ...] = ()
        self.end: SegmentEnd | None = None
        """The last durable place, for the header of the segment that follows."""
        self.last_txn = Txn(0)
        """Above or at every txn that the log knows to have been given out: those of its records and of its names."""
        self.leftovers: tuple[str, ...] = ()
        """Files that should be gone, and could not be deleted."""
        self.has_lost_end = False
        """Bytes at the end were no records. They may have been, and acknowledged: a torn write looks like damage."""

    def __iter__(self) -> Iterator[LogRun]:
        if self._started:
            raise InvalidArgument("a log is replayed once; call replay again")
        self._started = True
        size_bytes = {info.name: info.size_bytes for info in self._files.list()}
        last = _last_of_chain(self._files, size_bytes)
        unwanted = set(size_bytes)
        for content in read_log(self._files):
            name = segment_name(content.segment)
            if name == last:
                self.has_lost_end = self._is_any_behind(name, content.end, size_bytes)
                self._files.truncate(name, content.end)
                size_bytes[name] = content.end
            if not self.segments and content.previous:
                # A delete of it may have failed and then been seen done: if it came back once this segment is gone,
                # there would be a gap in the chain.
                unwanted.add(segment_name(content.previous.segment))
            unwanted.remove(name)
            self._add(content, size_bytes[name])
            run = LogRun(self.segments[-1].begin, content.records, content.is_plain, content.last_indexes)
            del content  # or it would still be in memory while the next one is read
            yield run
            del run
        self._finish(size_bytes, unwanted)

    def _add(self, content: SegmentContent, size_bytes: int) -> None:
        number = len(self.segments) + 1
        begin, end = position_at(number, 0), position_at(number, content.end)
        info = SegmentInfo(
            segment_name(content.segment), begin, end, bool(content.records), size_bytes, is_active=False
        )
        self.segments += (info,)
        self.end = SegmentEnd(content.segment, content.end)
        self.last_txn = max(self.last_txn, content.last_txn)

    def _is_any_behind(self, last: str, end: int, size_bytes: Mapping[str, int]) -> bool:
        """Whether anything follows the last record but room that was taken ahead."""
        behind = [(last, end), *((name, 0) for name in size_bytes if name > last)]
        return any(
            self._files.read(name, at, _PIECE_BYTES).strip(b"\0")
            for name, begin in behind
            for at in range(begin, size_bytes[name], _PIECE_BYTES)
        )

    def _finish(self, names: Iterable[str], unwanted: set[str]) -> None:
        self.last_txn = max([self.last_txn, *(Txn(segment_of(name)) for name in names)])
        for name in sorted(unwanted):
            try:
                self._files.delete(name)
            except StelaeError:
                self.leftovers += (name,)
        self.finished = True


def _last_of_chain(files: LogFiles, names: Iterable[str]) -> str | None:
    """The newest segment with a whole header."""
    for name in sorted(names, reverse=True):
        if not read_segment(name, files.read(name, 0, SEGMENT_HEADER_BYTES)).torn:
            return name
    return None
