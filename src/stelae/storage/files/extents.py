"""Which rows files reach into, and where they lie over each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ranges import RowRange
from stelae.storage.tablet.state import Ref


def rows_of_file(file: FragmentFile) -> RowRange:
    """The range from the first row of a file to its last."""
    return RowRange(file.stats.first_row, file.stats.last_row + b"\0")


def extent_of(ref: Ref) -> RowRange:
    """The same, of the rows that a reference lets through."""
    return rows_of_file(ref.file).intersect(ref.rows) if ref.file is not None else ref.rows


def layered(refs: Sequence[Ref]) -> Iterator[tuple[RowRange, tuple[Ref, ...]]]:
    """Stretches of rows in order, and which references to files reach into each of them; those that none does are left
    out."""
    extents = [(ref, rows) for ref in refs if ref.file is not None and not (rows := extent_of(ref)).is_empty]
    waiting = sorted(extents, key=lambda extent: extent[1].start, reverse=True)
    reaching: list[tuple[Ref, RowRange]] = []
    cuts = sorted({cut for _, rows in extents for cut in (rows.start, rows.stop) if cut is not None})
    for start, stop in pairwise(cuts):
        reaching = [(ref, rows) for ref, rows in reaching if rows.stop is not None and rows.stop > start]
        while waiting and waiting[-1][1].start == start:
            reaching.append(waiting.pop())
        if reaching:
            yield RowRange(start, stop), tuple(ref for ref, _ in reaching)
