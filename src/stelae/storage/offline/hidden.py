"""Rows of a plain file that are not to be read from it, by their places in it.

Where plain files lie over each other, the newest record of each row is all that is seen of it. So all of the files can
be read as they are, if the records of rows that a newer one has too are left out of each, and those of rows that are
merged because another file touches them, or that are erased. Which they are is found by reading the rows alone, block
by block, the newest file first: a block of an older one is looked at where a newer one has rows. It is kept for the
next read of the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import TS_MIN
from stelae.model.ranges import RowRange
from stelae.model.record import Kind
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.merge.order import Flags, extent
from stelae.storage.merge.overlay import overlaid
from stelae.storage.merge.select import RawColumns
from stelae.storage.offline.marked import Marked, Places
from stelae.storage.offline.mixed import Mixed
from stelae.storage.offline.plain import Layers
from stelae.storage.read.scans.columns import times_of
from stelae.storage.read.scans.windows import Piece, ScanWindow, plan_windows, run_ahead
from stelae.storage.tablet.state import Ref

_KEPT_BYTES_MAX = 64 * 2**20


class Hidden(msgspec.Struct, frozen=True, eq=False):
    """What is not read of the files of one stretch. `marked`: which records, by the file's name. `touched`: the rows
    that are merged, each once, in order; those that are only erased are not among them."""

    marked: Mapping[str, Marked]
    touched: pa.Array

    @property
    def size_bytes(self) -> int:
        return sum(marked.size_bytes for marked in self.marked.values()) + int(self.touched.nbytes)


class HiddenPlaces:
    """What was found lately: files never change, so it holds for ever. In all it takes `_KEPT_BYTES_MAX` at most: what
    is larger by itself is looked for again by the next read. Safe for threads."""

    def __init__(self) -> None:
        self._found: dict[object, Hidden] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, layers: Layers, fragments: Fragments, rows: RowRange) -> Hidden:
        """`rows`: those of the stretch that are asked for."""
        touching, erasing = _names(layers.touching), _names(layers.erasing)
        at = (tuple((each.file.name, each.mixed) for each in layers.files), touching, erasing, rows)
        found = self._found.get(at)
        if found is None:
            found = hidden_places(layers, fragments, rows)
            if found.size_bytes > _KEPT_BYTES_MAX:
                return found
            with self._lock:
                before = self._found.pop(at, None)
                self._bytes += found.size_bytes - (0 if before is None else before.size_bytes)
                self._found[at] = found
                while self._bytes > _KEPT_BYTES_MAX:
                    self._bytes -= self._found.pop(next(iter(self._found))).size_bytes
        return found


def _names(refs: Iterable[Ref]) -> tuple[str, ...]:
    return tuple(ref.file.name for ref in refs if ref.file is not None)


def hidden_places(layers: Layers, fragments: Fragments, rows: RowRange) -> Hidden:
    refs = [*(each.ref for each in layers.files), *layers.touching]
    order = {id(ref): number for number, ref in enumerate(refs)}
    plain = {id(each.ref): each for each in layers.files}
    erasing = {id(ref) for ref in layers.erasing}
    starts = {id(each.ref): _starts(each.fragment) for each in layers.files}

    def is_needed(window: ScanWindow) -> bool:
        """Where one plain file is alone, all of it is read."""
        alone = plain.get(id(window.pieces[0].ref)) if len(window.pieces) == 1 else None
        return alone is None or alone.mixed is not None

    def work(window: ScanWindow) -> _Found:
        found = _Found()
        pieces = sorted(window.pieces, key=lambda piece: order[id(piece.ref)])
        found.erases_after(piece for piece in pieces if id(piece.ref) in plain)
        while pieces:
            piece = pieces.pop()
            file = plain.get(id(piece.ref))
            if file is None:
                found.add_touching(piece, window.rows, erases=id(piece.ref) in erasing)
            elif file.mixed is not None:
                found.add_mixed(piece, window.rows, file.mixed, starts[id(piece.ref)])
            elif pieces or found.has_rows:
                found.add_plain(piece, window.rows, starts[id(piece.ref)])
        return found

    hidden: dict[str, Marked] = {}
    touched: list[pa.Array] = [pa.array([], pa.binary())]
    for found in run_ahead(filter(is_needed, plan_windows(refs, fragments, rows)), work, fragments.reading):
        union = found.touched()
        for name, places in found.places(union):
            hidden.setdefault(name, Marked()).add(places)
        touched.append(union)
    return Hidden(hidden, pa.concat_arrays(touched))


def _starts(fragment: Fragment) -> list[int]:
    """How many records lie before each block."""
    counts = (fragment.reader.block_records(block) for block in range(fragment.reader.block_count))
    return list(accumulate(counts, initial=0))


class _Source(NamedTuple):
    """Rows of a block of a plain file, and the place of the first of them."""

    name: str
    start: int
    rows: pa.Array


class _Found:
    """What there is in one window, file by file, the newest first. `has_rows`: whether there was any row yet."""

    def __init__(self) -> None:
        self.has_rows = False
        self._plain: list[_Source] = []
        self._mixed: list[_Source] = []
        self._touching: list[pa.Array] = []
        self._erased: list[pa.Array] = []
        self._txn = self._ts = 0

    def erases_after(self, pieces: Iterable[Piece]) -> None:
        """Of plain files: an erasure is above all records of them only if it is above these."""
        pieces = list(pieces)
        self._txn = max((piece.fragment.file.txn_max for piece in pieces), default=TXN_MIN)
        self._ts = max((times_of(piece)[1] for piece in pieces), default=TS_MIN)

    def add_touching(self, piece: Piece, within: RowRange, *, erases: bool) -> None:
        """`erases`: rows may be erased whole."""
        columns = piece.fragment.needed_marks(()) if erases else ()
        rows = within.intersect(piece.rows)
        for block in piece.read(columns, keep=False):
            low, high = extent(block.rows, rows)
            if high == low:
                continue
            self.has_rows = True
            if erases:
                raw = block.raw_columns(rows, (), with_values=False)
                gone = self._gone(raw)
                self._erased.append(each_once(raw.rows.filter(pa.array(gone))))
                self._touching.append(each_once(raw.rows.filter(pa.array(~gone))))
            else:
                self._touching.append(each_once(block.rows.slice(low, high - low)))

    def _gone(self, raw: RawColumns) -> Flags:
        """Which records erase all that plain files have of their rows."""
        if raw.kinds is None:
            return np.zeros(len(raw.rows), np.bool_)
        return (raw.kinds == Kind.ERASE_ROW) & (raw.txn > self._txn) & (raw.ts >= self._ts)

    def add_plain(self, piece: Piece, within: RowRange, starts: Sequence[int]) -> None:
        """`starts`: how many records lie before each block."""
        name, rows = piece.fragment.file.name, within.intersect(piece.rows)
        for number, block in reversed([*zip(piece.blocks, piece.read((), keep=False), strict=True)]):
            low, high = extent(block.rows, rows)
            if high > low:
                self.has_rows = True
                self._plain.append(_Source(name, starts[number] + low, block.rows.slice(low, high - low)))

    def add_mixed(self, piece: Piece, within: RowRange, mixed: Mixed, starts: Sequence[int]) -> None:
        name, rows = piece.fragment.file.name, within.intersect(piece.rows)
        raws = []
        columns = piece.fragment.needed_marks(mixed.columns)
        for number, block in zip(piece.blocks, piece.read(columns, keep=False), strict=True):
            low, high = extent(block.rows, rows)
            if high > low:
                self._mixed.append(_Source(name, starts[number] + low, block.rows.slice(low, high - low)))
                raws.append(block.raw_columns(rows, tuple(mixed.columns), with_values=False))
        flags = pa.array(mixed.flags(raws))
        if flags.true_count:
            self._touching.append(each_once(pa.concat_arrays([raw.rows for raw in raws]).filter(flags)))

    def touched(self) -> pa.Array:
        """The rows that are merged, each once, in order."""
        return sorted_union(self._touching) if self._touching else pa.array([], pa.binary())

    def places(self, touched: pa.Array) -> Iterator[tuple[str, Places]]:
        """Of each plain file, what is not read from it."""
        above = [rows for rows in (touched, *self._erased) if len(rows)]
        plain = self._plain[::-1]
        sources = [*(each.rows for each in plain), *([sorted_union(above)] if above else [])]
        for each, hidden in zip(plain, covered(sources), strict=False):
            if len(hidden):
                yield each.name, hidden + each.start
        if self._mixed and sources:
            others = pa.concat_arrays(sources)
            for each in self._mixed:
                hidden = np.flatnonzero(pc.is_in(each.rows, value_set=others).to_numpy(zero_copy_only=False))
                if len(hidden):
                    yield each.name, hidden + each.start


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
