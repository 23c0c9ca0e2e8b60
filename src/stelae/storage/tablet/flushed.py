"""Up to which txn the files of a tablet hold all, range by range."""

from __future__ import annotations

from collections.abc import Iterable

from stelae.model.ids import Txn
from stelae.model.ranges import RowRange


def raised(flushed: tuple[tuple[RowRange, Txn], ...], rows: RowRange, txn: Txn) -> tuple[tuple[RowRange, Txn], ...]:
    """What was flushed before, and of these rows all up to a txn."""
    pieces: list[tuple[RowRange, Txn]] = []
    for each, at in flushed:
        inside = each.intersect(rows)
        if inside.is_empty:
            pieces.append((each, at))
            continue
        if each.start < inside.start:
            pieces.append((RowRange(each.start, inside.start), at))
        pieces.append((inside, max(at, txn)))
        if inside.stop is not None and inside.stop != each.stop:
            pieces.append((RowRange(inside.stop, each.stop), at))
    return united(pieces)


def united(pieces: Iterable[tuple[RowRange, Txn]]) -> tuple[tuple[RowRange, Txn], ...]:
    """Neighbours with the same txn as one."""
    together: list[tuple[RowRange, Txn]] = []
    for rows, txn in pieces:
        if together and together[-1][1] == txn:
            together[-1] = (together[-1][0].join(rows), txn)
        else:
            together.append((rows, txn))
    return tuple(together)
