"""Rows of a plain file that are not to be read from it, by their places in it.

Where plain files lie over each other, the newest record of each row is all that is seen of it. So all of the files can
be read as they are, if the records of rows that a newer one has too are left out of each, and those of rows that are
merged because another file touches them. Which they are is found by reading the rows alone, block by block, where there
is another file than the oldest; it is kept for the next read of the same files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from stelae.storage.offline.plain import Layers
from stelae.storage.read.scans.windows import Piece, ScanWindow, plan_windows, run_ahead

Places = npt.NDArray[np.int64]

_KEPT_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """What is not read of the files of one stretch. `places`: by the file's name, in order. `touched`: the rows that
    are merged, each once, in order."""

    places: Mapping[str, Places]
    touched: pa.Array

    @property
    def size_bytes(self) -> int:
        return sum(places.nbytes for places in self.places.values()) + int(self.touched.nbytes)


class HiddenPlaces:
    """What was found lately: files never change, so it holds for ever. Safe for threads."""

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[str, ...], tuple[str, ...], RowRange], Hidden] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, layers: Layers, fragments: Fragments, rows: RowRange) -> Hidden:
        """`rows`: those of the stretch that are asked for."""
        touching = tuple(ref.file.name for ref in layers.touching if ref.file is not None)
        at = (tuple(each.file.name for each in layers.files), touching, rows)
        found = self._found.get(at)
        if found is None:
            found = hidden_places(layers, fragments, rows)
            with self._lock:
                before = self._found.pop(at, None)
                self._bytes += found.size_bytes - (0 if before is None else before.size_bytes)
                self._found[at] = found
                while self._bytes > _KEPT_BYTES_MAX and len(self._found) > 1:
                    self._bytes -= self._found.pop(next(iter(self._found))).size_bytes
        return found


def hidden_places(layers: Layers, fragments: Fragments, rows: RowRange) -> Hidden:
    refs = [*(each.ref for each in layers.files), *layers.touching]
    order = {id(ref): number for number, ref in enumerate(refs)}
    starts = {id(each.ref): _starts(each.fragment) for each in layers.files}

    def is_needed(window: ScanWindow) -> bool:
        return len(window.pieces) > 1 or any(id(piece.ref) not in starts for piece in window.pieces)

    def work(window: ScanWindow) -> tuple[list[tuple[str, Places]], list[pa.Array]]:
        oldest_first = sorted(window.pieces, key=lambda piece: order[id(piece.ref)])
        return _of_window(window.rows, oldest_first, starts)

    hidden: dict[str, list[Places]] = {}
    touched: list[pa.Array] = [pa.array([], pa.binary())]
    for found, rows_touched in run_ahead(
        filter(is_needed, plan_windows(refs, fragments, rows)), work, fragments.reading
    ):
        for name, places in found:
            hidden.setdefault(name, []).append(places)
        touched += rows_touched
    places_of = {name: np.concatenate(places) for name, places in hidden.items()}
    return Hidden(places_of, pa.concat_arrays(touched))


def _starts(fragment: Fragment) -> list[int]:
    """How many records lie before each block."""
    counts = (fragment.reader.block_records(block) for block in range(fragment.reader.block_count))
    return list(accumulate(counts, initial=0))


def _of_window(
    within: RowRange, oldest_first: Sequence[Piece], starts: Mapping[int, Sequence[int]]
) -> tuple[list[tuple[str, Places]], list[pa.Array]]:
    """Of each plain file the places that are hidden; and the rows that other files touch, in one array if any.
    `starts`: of plain files, by their reference."""
    plain: list[tuple[str, int, pa.Array]] = []
    touching: list[pa.Array] = []
    for number, piece in enumerate(oldest_first):
        is_plain = id(piece.ref) in starts
        if is_plain and number + 1 == len(oldest_first) and not plain:
            return [], []  # nothing else reaches into it here: no need to read it
        for block_number, block in zip(piece.blocks, piece.read((), keep=False), strict=True):
            low, high = extent(block.rows, within.intersect(piece.rows))
            rows = block.rows.slice(low, high - low)
            if is_plain and high > low:
                start = starts[id(piece.ref)][block_number] + low
                plain.append((piece.fragment.file.name, start, rows))
            elif high > low:
                touching.append(each_once(rows))
    union = [sorted_union(touching)] if touching else []
    sources = [*(rows for _, _, rows in plain), *union]
    found = [
        (name, hidden + start) for (name, start, _), hidden in zip(plain, covered(sources), strict=False) if len(hidden)
    ]
    return found, union


def each_once(rows: pa.Array) -> pa.Array:
    """Sorted rows, each once."""
    if len(rows) < 2:
        return rows
    is_new = pc.not_equal(rows.slice(1), rows.slice(0, len(rows) - 1))
    if is_new.true_count == len(rows) - 1:
        return rows
    return rows.filter(pa.concat_arrays([pa.array([True]), is_new]))


def sorted_union(sources: Sequence[pa.Array]) -> pa.Array:
    """Of sorted rows, none twice in one source: all of them, each once, in order."""
    if len(sources) == 1:
        return sources[0]
    overlay = overlaid(sources)
    if overlay is not None:
        return overlay.rows
    joined = pc.unique(pa.concat_arrays(sources))
    return joined.take(pc.array_sort_indices(joined))


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
