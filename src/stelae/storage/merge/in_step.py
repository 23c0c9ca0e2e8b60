"""Streams of several groups, cut at the same rows, so that what each has of a row lies side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from stelae.model.ranges import RowRange
from stelae.storage.merge.order import extent
from stelae.storage.read.scans.cells import CellsChunk
from stelae.storage.read.scans.columns import ColumnsChunk

Chunk: TypeAlias = ColumnsChunk | CellsChunk


def in_step(streams: Sequence[Iterator[Chunk]], *, reverse: bool) -> Iterator[list[Chunk | None]]:
    """Cut all streams at the same rows: each step gives what every stream has of one stretch."""
    if len(streams) == 1:
        for only in streams[0]:
            yield [only]
        return
    held: list[Chunk | None] = [next(stream, None) for stream in streams]
    while covers := [each.covers for each in held if each is not None]:
        stretch = _nearest(covers, reverse=reverse)
        taken: list[Chunk | None] = []
        for at, chunk in enumerate(tuple(held)):
            if chunk is None or not chunk.covers.overlaps(stretch):
                taken.append(None)
                continue
            part = _cut(chunk, stretch)
            rest = _rest(chunk.covers, stretch, reverse=reverse)
            taken.append(part if len(part.rows) else None)
            left = None if rest.is_empty else _cut(chunk, rest)
            held[at] = left if left is not None and len(left.rows) > 0 else next(streams[at], None)
        yield taken


def _nearest(covers: Sequence[RowRange], *, reverse: bool) -> RowRange:
    """The stretch up to where the first of them ends."""
    if reverse:
        start = max(each.start for each in covers)
        return RowRange(start, None)
    stops = [each.stop for each in covers if each.stop is not None]
    return RowRange(b"", min(stops) if stops else None)


def _rest(covers: RowRange, stretch: RowRange, *, reverse: bool) -> RowRange:
    if reverse:
        return RowRange(covers.start, stretch.start)
    return (
        RowRange(covers.stop or b"", covers.stop or b"")
        if stretch.stop is None
        else RowRange(stretch.stop, covers.stop)
    )


def _cut(chunk: Chunk, rows: RowRange) -> Chunk:
    low, high = extent(chunk.rows, rows)
    covers = chunk.covers.intersect(rows)
    if isinstance(chunk, ColumnsChunk):
        return ColumnsChunk(
            chunk.rows.slice(low, high - low),
            tuple(values.slice(low, high - low) for values in chunk.values),
            covers,
            None if chunk.keys is None else tuple(key.slice(low, high - low) for key in chunk.keys),
        )
    first, last = int(chunk.offsets[low]), int(chunk.offsets[high])
    return CellsChunk(
        chunk.rows.slice(low, high - low),
        chunk.offsets[low : high + 1] - first,
        chunk.family.slice(first, last - first),
        chunk.qualifier.slice(first, last - first),
        chunk.ts[first:last],
        chunk.txn[first:last],
        chunk.value.slice(first, last - first),
        covers,
    )
