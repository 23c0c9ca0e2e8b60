"""Rows of a file that newer files hide, by their places in it.

Where plain files lie over each other, the newest record of each row is all that is seen of it. So all of the files can
be read as they are, if the records of rows that a newer one has too are left out of each. Which they are is found by
reading the rows alone, block by block, where a newer file has some; it is kept for the next read of the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stelae.model.ranges import RowRange
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.merge.order import extent
from stelae.storage.merge.overlay import overlaid
from stelae.storage.offline.plain import PlainFile
from stelae.storage.read.scans.windows import Piece, ScanWindow, plan_windows, run_ahead

Places = npt.NDArray[np.int64]

_KEPT_BYTES_MAX = 64 * 2**20


class HiddenPlaces:
    """What was found lately: files never change, so it holds for ever. Safe for threads."""

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[str, ...], RowRange], dict[str, Places]] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, files: Sequence[PlainFile], fragments: Fragments, rows: RowRange) -> dict[str, Places]:
        """By the file's name, in order. The files come as `clean_stretches` gives them."""
        at = (tuple(each.file.name for each in files), rows)
        found = self._found.get(at)
        if found is None:
            found = hidden_places(files, fragments, rows)
            with self._lock:
                self._bytes += _size_bytes(found) - _size_bytes(self._found.pop(at, {}))
                self._found[at] = found
                while self._bytes > _KEPT_BYTES_MAX and len(self._found) > 1:
                    self._bytes -= _size_bytes(self._found.pop(next(iter(self._found))))
        return found


def _size_bytes(found: Mapping[str, Places]) -> int:
    return sum(places.nbytes for places in found.values())


def hidden_places(files: Sequence[PlainFile], fragments: Fragments, rows: RowRange) -> dict[str, Places]:
    refs = [each.ref for each in files]
    windows = (window for window in plan_windows(refs, fragments, rows) if len(window.pieces) > 1)
    order = {id(ref): number for number, ref in enumerate(refs)}
    starts = {each.file.name: _starts(each.fragment) for each in files}

    def work(window: ScanWindow) -> list[tuple[str, Places]]:
        newest_first = sorted(window.pieces, key=lambda piece: order[id(piece.ref)], reverse=True)
        return list(_of_window(window.rows, newest_first, starts))

    hidden: dict[str, list[Places]] = {}
    for found in run_ahead(windows, work, fragments.reading):
        for name, places in found:
            hidden.setdefault(name, []).append(places)
    return {name: np.concatenate(places) for name, places in hidden.items()}


def _starts(fragment: Fragment) -> list[int]:
    """How many records lie before each block."""
    counts = (fragment.reader.block_records(block) for block in range(fragment.reader.block_count))
    return list(accumulate(counts, initial=0))


def _of_window(
    within: RowRange, newest_first: Sequence[Piece], starts: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Places]]:
    sources: list[tuple[str, int, pa.Array]] = []
    for piece in newest_first:
        if piece is newest_first[-1] and not sources:
            return  # nothing is newer than the oldest: no need to read it
        name = piece.fragment.file.name
        for number, block in zip(piece.blocks, piece.read((), keep=False), strict=True):
            low, high = extent(block.rows, within.intersect(piece.rows))
            if high > low:
                sources.append((name, starts[name][number] + low, block.rows.slice(low, high - low)))
    sources.reverse()
    for (name, start, _), hidden in zip(sources, covered([rows for _, _, rows in sources]), strict=True):
        if len(hidden):
            yield name, hidden + start


def covered(sources: Sequence[pa.Array]) -> list[Places]:
    """Of the sorted rows of each source, oldest first, none twice in one: the places of those that a later one has."""
    if len(sources) < 2:
        return [np.array([], np.int64) for _ in sources]
    overlay = overlaid(sources)
    if overlay is None:
        none = pa.array([], sources[0].type)
        newer = [pa.concat_arrays([none, *sources[at:]]) for at in range(1, len(sources) + 1)]
        found = (pc.is_in(old, value_set=new) for old, new in zip(sources, newer, strict=True))
        return [np.flatnonzero(flags.to_numpy(zero_copy_only=False)) for flags in found]
    ends = list(accumulate(len(rows) for rows in sources))
    is_seen = np.zeros(ends[-1], np.bool_)
    is_seen[overlay.places] = True
    return [np.flatnonzero(~is_seen[end - len(rows) : end]) for end, rows in zip(ends, sources, strict=True)]
