"""Scans of a part of a held table: the rows that a reader sees at a snapshot, with the server's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.reader import bounds
from stelae.model.arrow import compute as pc
from stelae.model.ids import GroupId, Row, Txn
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.record import Kind
from stelae.storage.files.fragments import Fragments
from stelae.storage.offline.chosen import ChosenRows
from stelae.storage.offline.hidden import Hidden
from stelae.storage.offline.plain import Layers
from stelae.storage.offline.tablets import HeldTablet
from stelae.storage.read.asking import Version
from stelae.storage.read.points.rows import RowReader
from stelae.storage.read.scans.rows import RowBatch, RowScan, ScanRequest
from stelae.storage.read.scans.shapes import output_schema
from stelae.storage.read.scans.streams import Appearing, rows_shown
from stelae.storage.tablet.config import SavedRef

__all__ = [
    "Appearing",
    "RowBatch",
    "count_records",
    "history_reader",
    "output_schema",
    "rows_shown",
    "rows_within",
    "scan_part",
    "scan_touched",
]


def scan_part(
    tablet: HeldTablet,
    fragments: Fragments,
    rows: RangeSet,
    columns: Selectors,
    at: Txn,
    *,
    where: Expr | None = None,
    time: TimeRange = ALL_TIME,
    having: bool = False,
    beside: GroupId | None = None,
) -> Iterator[RowBatch]:
    """The rows of these ranges as they are seen at a snapshot, in order. `where` is bound to the table's types.
    `having`: only rows that have one of the columns; `beside`: only rows that have nothing of this group, and without
    values of others."""
    request = ScanRequest(rows, columns, tablet.asking(at, time), where, having=having, beside=beside)
    return RowScan(tablet.state, fragments, request).batches()


def scan_touched(
    tablet: HeldTablet,
    fragments: Fragments,
    layers: Layers,
    hidden: Hidden,
    rows: RowRange,
    columns: Selectors,
    at: Txn,
    *,
    time: TimeRange = ALL_TIME,
    having: bool = False,
) -> Iterator[RowBatch]:
    """What is seen of the rows that other files touch, in order. `hidden`: what was found of the same rows of the
    stretch. Blocks that have none of them are not read."""
    if not len(hidden.touched):
        return
    request = ScanRequest(RangeSet.of([rows]), columns, tablet.asking(at, time), having=having)
    chosen = ChosenRows(fragments, layers, hidden)
    for found in RowScan(tablet.state, chosen, request).batches():
        yield from rows_within(found, hidden.touched)


def rows_within(found: RowBatch, chosen: pa.Array, *, invert: bool = False) -> Iterator[RowBatch]:
    """Of a batch, the rows that are among the chosen ones; `invert`: those that are not. Nothing, if there is none."""
    is_chosen = pc.is_in(found.rows, value_set=chosen)
    kept = pc.invert(is_chosen) if invert else is_chosen
    if kept.true_count == len(kept):
        yield found
    elif kept.true_count:
        yield RowBatch(found.rows.filter(kept), found.batch.filter(kept))


def history_reader(
    tablet: HeldTablet, fragments: Fragments, columns: Selectors, at: Txn, time: TimeRange = ALL_TIME
) -> Callable[[Row, int], dict[str, tuple[Version, ...]]]:
    """A function of a row and a limit: by column, so many versions of it at most, the newest first."""
    reader, asking = RowReader(tablet.state, fragments, columns), tablet.asking(at, time)
    return lambda row, limit: reader.history(row, asking, limit) or {}


def count_records(ref: SavedRef, fragments: Fragments) -> tuple[int, int]:
    """Of the records of a file that lie in the rows of its reference: how many there are, and how many of them
    erase. The file is read only if some of its rows are not of the reference."""
    stats = ref.file.stats
    if not stats.records or (stats.first_row in ref.rows and stats.last_row in ref.rows):
        return stats.records, stats.erasures
    fragment = fragments.of(ref.file)
    reader = fragment.reader
    columns = [name for name in reader.schema.names if name in (fragment.point, layout.KIND)]
    records = erasures = 0
    for block in reader.blocks_of(ref.rows):
        batch = reader.read_block(block, columns).combine_chunks().to_batches()[0]
        low, high = bounds(layout.rows_of(reader.codec, batch), ref.rows)
        records += high - low
        if layout.KIND in columns:
            kinds = batch.column(layout.KIND).slice(low, high - low)
            erasures += int(pc.not_equal(kinds, int(Kind.PUT)).true_count)
    return records, erasures
