"""A scan of one group, planned: cut into windows of rows, none of which splits a block or a row without need.

From the fragments' footers alone it is known which blocks can hold which rows. The row space is cut wherever a block of
any source begins or ends, so that in each window every source has at most one piece to read, and a window that only one
source reaches needs no merge. Pieces that lie in several windows are read once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Protocol, TypeVar

import pyarrow as pa

from stelae.model import types as t
from stelae.model.errors import Overloaded
from stelae.model.ids import ColumnId
from stelae.model.predicate.pruning import Bounds
from stelae.model.ranges import RowRange
from stelae.ports.executor import Executor
from stelae.storage.files.blocks import Block
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.memory.memory import MemoryGroup
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref

MEMORY_ROWS = 16_384
SHORT_WINDOWS_MAX = 2
"""Blocks of so short a scan are kept in the cache, as those of a point read are: who reads a few rows comes again."""

AHEAD = 4

T = TypeVar("T")
_BOUNDED = (t.Int, t.String, t.Binary, t.Date, t.Float)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some blocks of a file that must be read together, because a row goes on from one to the next; nearly always
    just one."""

    ref: Ref
    fragment: Fragment
    blocks: range
    rows: RowRange


@dataclass(frozen=True, slots=True)
class ScanWindow:
    """A stretch of rows, and what may hold some of them."""

    rows: RowRange
    pieces: tuple[Piece, ...]
    memories: tuple[Ref, ...]


def plan_windows(refs: Sequence[Ref], fragments: Fragments, rows: RowRange) -> list[ScanWindow]:
    """In row order, covering the rows asked for but for stretches where no source has anything."""
    pieces = [piece for ref in refs if ref.file is not None for piece in _pieces(ref, fragments, rows)]
    memories = [ref for ref in refs if ref.file is None and ref.rows.overlaps(rows)]
    cuts = {rows.start}
    for piece in pieces:
        cuts.add(piece.rows.start)
        if piece.rows.stop is not None:
            cuts.add(piece.rows.stop)
    for ref in memories:
        inside = ref.rows.intersect(rows)
        cuts |= {row for row in _memory_cuts(ref, inside) if row in inside}
        cuts |= {inside.start, *([inside.stop] if inside.stop is not None else [])}
    ordered = sorted(cut for cut in cuts if cut in rows or cut == rows.start)
    pieces.sort(key=lambda piece: piece.rows.start)
    windows, at, open_pieces = [], 0, list[Piece]()
    for start, stop in zip(ordered, [*ordered[1:], rows.stop], strict=True):
        window = RowRange(start, stop)
        while at < len(pieces) and (stop is None or pieces[at].rows.start < stop):
            open_pieces.append(pieces[at])
            at += 1
        open_pieces = [piece for piece in open_pieces if piece.rows.stop is None or piece.rows.stop > start]
        inside_memories = tuple(ref for ref in memories if ref.rows.overlaps(window))
        if not window.is_empty and (open_pieces or inside_memories):
            windows.append(ScanWindow(window, tuple(open_pieces), inside_memories))
    return windows


def _pieces(ref: Ref, fragments: Fragments, rows: RowRange) -> Iterator[Piece]:
    if ref.file is None:
        return
    wanted = ref.rows.intersect(rows)
    if wanted.is_empty or not ref.file.stats.records:
        return
    fragment = fragments.of(ref.file)
    blocks = fragment.reader.blocks_of(wanted)
    first = blocks.start
    while first < blocks.stop:
        last = first
        while last + 1 < len(fragment.starts) and fragment.reader.footer.continued[last + 1]:
            last += 1
        stop = fragment.starts[last + 1] if last + 1 < len(fragment.starts) else ref.file.stats.last_row + b"\0"
        inside = RowRange(fragment.starts[first], stop).intersect(wanted)
        if not inside.is_empty:
            yield Piece(ref, fragment, range(first, last + 1), inside)
        first = last + 1


def _memory_cuts(ref: Ref, rows: RowRange) -> list[bytes]:
    """Every so many rows, so that a scan that stops early has not put all of memory in order."""
    source: MemoryGroup = ref.source  # type: ignore[assignment]
    return source.every(MEMORY_ROWS, rows)


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


class PieceReader:
    """Reads the pieces of some windows, each once, however many windows it lies in and from whatever thread; lets a
    piece go after the last of them."""

    def __init__(self, windows: Sequence[ScanWindow], keep: bool) -> None:
        self._keep = keep
        self._lock = Lock()
        self._held: dict[int, _Held] = {}
        for window in windows:
            for piece in window.pieces:
                self._held.setdefault(id(piece), _Held()).windows += 1

    def blocks(self, piece: Piece, columns: tuple[str, ...]) -> list[Block]:
        held = self._held[id(piece)]
        with held.lock:
            found = held.blocks.get(columns)
            if found is None:
                found = [piece.fragment.block(block, columns, self._keep) for block in piece.blocks]
                held.blocks[columns] = found
            return found

    def done(self, window: ScanWindow) -> None:
        with self._lock:
            for piece in window.pieces:
                held = self._held[id(piece)]
                held.left += 1
                if held.left == held.windows:
                    held.blocks = {}


@dataclass(slots=True)
class _Held:
    """`windows`: in how many a piece lies; `left`: how many of them are done."""

    windows: int = 0
    left: int = 0
    blocks: dict[tuple[str, ...], list[Block]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class _WithRows(Protocol):
    @property
    def rows(self) -> pa.Array: ...


C = TypeVar("C", bound=_WithRows)


def chunks_of(
    windows: Sequence[ScanWindow], work: Callable[[ScanWindow], C | None], executor: Executor | None, *, reverse: bool
) -> Iterator[C]:
    """What the windows come to, in their order or backwards, without those that come to nothing."""
    for chunk in run_ahead(windows[::-1] if reverse else windows, work, executor):
        if chunk is not None and len(chunk.rows):
            yield chunk


def run_ahead(windows: Sequence[ScanWindow], work: Callable[[ScanWindow], T], executor: Executor | None) -> Iterator[T]:
    """The work of each window, in order; on an executor a few windows ahead of whoever takes the results."""
    if executor is None or len(windows) < 2:
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
            window, future = waiting.popleft()
            # What no thread has begun is done here: this may be the thread it would wait for.
            yield work(window) if future is None or future.cancel() else future.result()
    finally:
        for _, future in waiting:
            if future is not None:
                future.cancel()
