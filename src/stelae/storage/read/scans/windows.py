"""A scan of one group, planned: cut into windows of rows, none of which splits a block or a row without need.

From the fragments' footers alone it is known which blocks can hold which rows. The row space is cut wherever a block of
any source begins or ends, so that in each window every source has at most one piece to read, and a window that only one
source reaches needs no merge. Pieces that lie in several windows are read once.

A scan is planned a stretch at a time, a few blocks first and then ever more: one that stops early has not looked at all
blocks of a large table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from stelae.format.fragment.footer import FragmentFile
from stelae.model import types as t
from stelae.model.errors import Overloaded
from stelae.model.ids import ColumnId
from stelae.model.predicate.pruning import Bounds
from stelae.model.ranges import RowRange
from stelae.ports.executor import Executor
from stelae.storage.files.blocks import Block
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.merge.order import nth_row
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref

MEMORY_ROWS = 16_384
SHORT_WINDOWS_MAX = 2
"""Blocks of so short a scan are kept in the cache, as those of a point read are: who reads a few rows comes again."""

AHEAD = 4
_STRETCH_BLOCKS = 4
_STRETCH_GROWTH = 4

T = TypeVar("T")
_BOUNDED = (t.Int, t.String, t.Binary, t.Date, t.Float)


class Piece:
    """Some blocks of a file that must be read together, because a row goes on from one to the next; nearly always
    just one. They are read once, whoever asks first, and let go with the last window that refers to the piece."""

    __slots__ = ("_lock", "_read", "blocks", "fragment", "ref", "rows")

    def __init__(self, ref: Ref, fragment: Fragment, blocks: range, rows: RowRange) -> None:
        self.ref = ref
        self.fragment = fragment
        self.blocks = blocks
        self.rows = rows
        self._lock = Lock()
        self._read: dict[tuple[str, ...], list[Block]] = {}

    def read(self, columns: tuple[str, ...], *, keep: bool) -> list[Block]:
        """With at least these columns. `keep`: in the cache, too. Safe for threads."""
        with self._lock:
            found = self._read.get(columns)
            if found is None:
                found = self._read[columns] = [self.fragment.block(block, columns, keep) for block in self.blocks]
            return found


class ScanWindow(NamedTuple):
    """A stretch of rows, and what may hold some of them."""

    rows: RowRange
    pieces: tuple[Piece, ...]
    memories: tuple[Ref, ...]


class _FileRows(NamedTuple):
    """The rows asked for that a file may have, and its blocks that can hold them."""

    ref: Ref
    fragment: Fragment
    rows: RowRange
    blocks: range


def plan_windows(
    refs: Sequence[Ref], fragments: Fragments, rows: RowRange, *, reverse: bool = False
) -> Iterator[ScanWindow]:
    """In row order, or backwards, covering the rows asked for but for stretches where no source has anything. Who lets
    go of a window lets go of what was read for it."""
    blocks_max = _STRETCH_BLOCKS
    left: RowRange | None = rows
    open_pieces: dict[tuple[int, int], Piece] = {}
    while left is not None:
        near, left, files, memories = _stretch(refs, fragments, left, blocks_max, reverse=reverse)
        pieces = [piece for file in files for piece in _pieces(file, None if left is None else near, open_pieces)]
        open_pieces = {} if left is None else {_id_of(each): each for each in pieces if each.rows.overlaps(left)}
        windows = _cut(near, pieces, memories)
        del pieces
        if not reverse:
            windows.reverse()
        while windows:
            yield windows.pop()
        blocks_max *= _STRETCH_GROWTH


def _id_of(piece: Piece) -> tuple[int, int]:
    return id(piece.ref), piece.blocks.start


def _stretch(
    refs: Sequence[Ref], fragments: Fragments, rows: RowRange, blocks_max: int, *, reverse: bool
) -> tuple[RowRange, RowRange | None, list[_FileRows], list[Ref]]:
    """The next rows, in which no file has many more blocks than that; what is left then; and what has any of them."""
    low, high = rows.start, rows.stop
    files: list[_FileRows] = []
    memories: list[Ref] = []
    cut: bytes | None = None
    for ref in refs:
        start, stop = ref.rows.start, ref.rows.stop
        if start < low:
            start = low
        if stop is None or (high is not None and high < stop):
            stop = high
        if stop is not None and stop <= start:
            continue
        source = ref.source
        if not isinstance(source, FragmentFile):
            if not source.is_empty:
                memories.append(ref)
            continue
        fragment = fragments.of(source)
        inside = RowRange(start, stop)
        blocks = fragment.reader.blocks_of(inside)
        if not blocks:
            continue
        files.append(_FileRows(ref, fragment, inside, blocks))
        if len(blocks) > blocks_max:
            at = fragment.starts[blocks.stop - blocks_max if reverse else blocks.start + blocks_max]
            if low < at and (cut is None or (at > cut if reverse else at < cut)):
                cut = at
    if cut is None:
        return rows, None, files, memories
    below, above = RowRange(low, cut), RowRange(cut, high)
    return (above, below, files, memories) if reverse else (below, above, files, memories)


def _pieces(file: _FileRows, near: RowRange | None, known: dict[tuple[int, int], Piece]) -> Iterator[Piece]:
    """Those that reach into the near rows, None being all. What an earlier stretch began with is gone on with."""
    ref, fragment, rows, blocks = file
    starts, last_row = fragment.starts, fragment.file.stats.last_row
    if near is not None:
        blocks = fragment.reader.blocks_of(rows.intersect(near))
    first = blocks.start
    while first < blocks.stop:
        past = first + 1
        if fragment.has_continued:
            while past < len(starts) and fragment.reader.footer.continued[past]:
                past += 1
        start, stop = starts[first], starts[past] if past < len(starts) else last_row + b"\0"
        if start < rows.start:
            start = rows.start
        if rows.stop is not None and rows.stop < stop:
            stop = rows.stop
        if start < stop:
            yield known.get((id(ref), first)) or Piece(ref, fragment, range(first, past), RowRange(start, stop))
        first = past


def _cut(rows: RowRange, pieces: list[Piece], memories: list[Ref]) -> list[ScanWindow]:
    low, high = rows.start, rows.stop
    cuts = {low}
    for piece in pieces:
        cuts.add(piece.rows.start)
        cuts.add(piece.rows.stop)  # type: ignore[arg-type] # a piece has an end
    for ref in memories:
        cuts.add(ref.rows.start)
        if ref.rows.stop is not None:
            cuts.add(ref.rows.stop)
        source = ref.source
        if not isinstance(source, FragmentFile) and source.row_count > MEMORY_ROWS:
            # So that a scan that stops early has not put all of memory in order.
            cuts.update(source.every(MEMORY_ROWS, ref.rows.intersect(rows)))
    ordered = sorted([cut for cut in cuts if cut >= low and (high is None or cut < high)])
    pieces.sort(key=_start_of)
    windows, at, open_pieces = list[ScanWindow](), 0, list[Piece]()
    for number, start in enumerate(ordered, 1):
        stop = ordered[number] if number < len(ordered) else high
        while at < len(pieces) and (stop is None or pieces[at].rows.start < stop):
            open_pieces.append(pieces[at])
            at += 1
        open_pieces = [piece for piece in open_pieces if piece.rows.stop > start]  # type: ignore[operator]
        inside = tuple([ref for ref in memories if ref.rows.overlaps(RowRange(start, stop))]) if memories else ()
        if open_pieces or inside:
            windows.append(ScanWindow(RowRange(start, stop), tuple(open_pieces), inside))
    return windows


def _start_of(piece: Piece) -> bytes:
    return piece.rows.start


def in_parts(
    window: ScanWindow, count: int, rows_of: Callable[[Piece], pa.Array], *, reverse: bool
) -> Iterator[ScanWindow]:
    """The window in parts, in order or backwards: in the first no source has more than so many records, in the next
    ones ever more."""
    left = window.rows
    while True:
        cut = _nearest_cut(window, left, count, rows_of, reverse=reverse)
        if cut is None:
            yield window._replace(rows=left)
            return
        below, above = RowRange(left.start, cut), RowRange(cut, left.stop)
        near, left = (above, below) if reverse else (below, above)
        yield window._replace(rows=near)
        count *= _STRETCH_GROWTH


def _nearest_cut(
    window: ScanWindow, rows: RowRange, count: int, rows_of: Callable[[Piece], pa.Array], *, reverse: bool
) -> bytes | None:
    cuts = [
        ref.source.nth(count, rows.intersect(ref.rows), reverse=reverse)
        for ref in window.memories
        if not isinstance(ref.source, FragmentFile)
    ]
    cuts += [
        nth_row(rows_of(piece), count, rows.intersect(piece.rows), reverse=reverse)
        for piece in window.pieces
        if len(piece.blocks) == 1
    ]
    inside = [cut for cut in cuts if cut is not None and cut > rows.start]
    if not inside:
        return None
    return max(inside) if reverse else min(inside)


def block_bounds(piece: Piece, column: ColumnId | None) -> Bounds | None:
    """What a piece of one block says about the values of a column; None if nothing is known."""
    part = piece.ref.part
    mine = column is not None and not isinstance(part, FamilySet) and column in part
    named = piece.fragment.columns.get(column) if mine and column is not None else None
    if named is None or len(piece.blocks) != 1 or not isinstance(named[1], _BOUNDED):
        return None
    name, type_ = named
    found = piece.fragment.reader.statistics(piece.blocks.start, name)
    if found is None or not found.has_min_max or not found.has_null_count:
        return None
    count = piece.fragment.reader.block_records(piece.blocks.start)
    exact = not isinstance(type_, t.String | t.Binary)
    return Bounds(found.min, found.max, found.null_count, count, exact)


class _WithRows(Protocol):
    @property
    def rows(self) -> pa.Array: ...


C = TypeVar("C", bound=_WithRows)


def chunks_of(
    windows: Iterator[ScanWindow],
    work: Callable[[ScanWindow, bool], C | None],
    executor: Executor | None,
    *,
    keep: bool = False,
    few: Callable[[ScanWindow], Iterator[C]] | None = None,
) -> Iterator[C]:
    """What the windows come to, without those that come to nothing. `work` is told whether blocks are kept in the
    cache. `few`: only a few rows may be wanted; what the first windows come to, a little at a time."""
    first = list(islice(windows, SHORT_WINDOWS_MAX + 1))
    is_short = len(first) <= SHORT_WINDOWS_MAX
    if is_short or few is not None:
        first.reverse()
        while first:
            if few is not None:
                yield from few(first.pop())
                continue
            chunk = work(first.pop(), True)
            if chunk is not None and len(chunk.rows):
                yield chunk
        if is_short:
            return
    for chunk in run_ahead(_after(first, windows), lambda window: work(window, keep), executor):
        if chunk is not None and len(chunk.rows):
            yield chunk


def _after(first: list[ScanWindow], rest: Iterator[ScanWindow]) -> Iterator[ScanWindow]:
    """Without holding on to those that were given out."""
    first.reverse()
    while first:
        yield first.pop()
    yield from rest


def run_ahead(windows: Iterable[ScanWindow], work: Callable[[ScanWindow], T], executor: Executor | None) -> Iterator[T]:
    """The work of each window, in order; on an executor a few windows ahead of whoever takes the results."""
    if executor is None:
        yield from map(work, windows)
        return
    waiting: deque[tuple[ScanWindow, Future[T] | None]] = deque()
    coming = iter(windows)
    try:
        while True:
            for window in islice(coming, AHEAD - len(waiting)):
                try:
                    waiting.append((window, executor.submit(work, window)))
                except Overloaded:
                    waiting.append((window, None))
            if not waiting:
                return
            yield _result(work, *waiting.popleft())
    finally:
        for _, future in waiting:
            if future is not None:
                future.cancel()


def _result(work: Callable[[ScanWindow], T], window: ScanWindow, future: Future[T] | None) -> T:
    """What no thread has begun is done here: this may be the thread it would wait for."""
    return work(window) if future is None or future.cancel() else future.result()
