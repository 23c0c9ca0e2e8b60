"""The segments of a log that count, from the newest back."""

from __future__ import annotations

from collections.abc import Iterator

from stelae.format.log.layout import SEGMENT_HEADER_BYTES
from stelae.format.log.positions import segment_name
from stelae.format.log.reader import read_segment
from stelae.format.log.records import SegmentContent, SegmentEnd
from stelae.model.errors import Corruption
from stelae.ports.logfiles import LogFiles


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
        if header.segment > wanted.segment:
            continue
        if header.segment < wanted.segment or header.torn:
            missing = segment_name(wanted.segment)
            raise Corruption(f"follows segment {missing}, which is missing or has lost its header", chain[-1][0])
        chain.append((name, wanted.end))
        wanted = header.previous
    return chain[::-1]


def _header_of(files: LogFiles, name: str) -> SegmentContent:
    """What the header says; torn if it is damaged and nothing in the segment was synced after it."""
    header = read_segment(name, files.read(name, 0, SEGMENT_HEADER_BYTES))
    return read_segment(name, files.read(name)) if header.torn else header
