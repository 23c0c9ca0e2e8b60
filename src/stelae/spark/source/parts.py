"""Rows of tablets that must be merged, read in a task with the store's own code, as batches that Spark takes.

Batches are put together until they are large: each one costs Spark and the way to it as much as many thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from stelae.client.api.rows import Version
from stelae.client.calls.rows import versions_of
from stelae.client.calls.versions import long_batch, versions_batch
from stelae.model.errors import NotFound, SnapshotTooOld
from stelae.model.hybrid import show_txn
from stelae.model.ids import Row
from stelae.model.ranges import RangeSet
from stelae.spark.reading.plans import MergedPart, TabletPart
from stelae.spark.reading.question import Question
from stelae.storage.offline.scans import RowBatch, history_reader, scan_part
from stelae.storage.offline.tablets import Fragments, HeldTablet

BATCH_ROWS = 256 * 1024
BATCH_BYTES = 64 * 2**20


def part_batches(
    question: Question, part: MergedPart, fragments: Fragments, wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """With exactly the names and types wanted, which are some of the question's. SnapshotTooOld if a file is gone."""
    batches = (batch for tablet in part.tablets for batch in _tablet(question, tablet, fragments))
    try:
        yield from large_batches(_as_wanted(batch, wanted) for batch in batches)
    except NotFound as error:
        raise SnapshotTooOld(
            f"table {question.job.name!r}: the snapshot of {show_txn(question.job.txn)} that this frame is of has been "
            f"let go, and what it needs is gone ({error}): read the table again"
        ) from None


def _tablet(question: Question, part: TabletPart, fragments: Fragments) -> Iterator[pa.RecordBatch]:
    tablet = HeldTablet.decode(part.config, question.schema, f"table {question.job.name!r}")
    scan, predicate = question.scan, question.predicate
    rows = scan_part(
        tablet,
        fragments,
        RangeSet(part.rows),
        predicate.columns,
        question.job.txn,
        where=question.where,
        time=predicate.time,
        having=question.job.having,
        beside=part.beside,
    )
    if question.is_newest:
        names = scan.batch_schema.names
        for found in rows:
            yield found.batch if found.batch.schema.names == names else found.batch.select(names)
        return
    histories = _Histories(question, tablet, fragments)
    for found in rows:
        keys = found.batch.select(scan.key_names)
        if scan.cells == "long":
            yield from long_batch(question.schema, keys, histories.of(found))
        else:
            yield versions_batch(question.schema, scan.shape, keys, histories.of(found))


class _Histories:
    """The versions of rows, one by one, as the client reads them."""

    def __init__(self, question: Question, tablet: HeldTablet, fragments: Fragments) -> None:
        predicate = question.predicate
        self._read = history_reader(tablet, fragments, predicate.columns, question.job.txn, predicate.time)
        self._limit = predicate.history or 1
        self._shape = question.scan.shape

    def of(self, found: RowBatch) -> list[dict[str, list[Version]]]:
        if self._shape.keys_only:
            return [{} for _ in range(len(found.rows))]
        return [self._versions(Row(row)) for row in found.rows.to_pylist()]

    def _versions(self, row: Row) -> dict[str, list[Version]]:
        return versions_of(self._read(row, self._limit), self._shape)


def _as_wanted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in wanted:
        array = batch.column(field.name)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def large_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth their cost."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _together(held)
            held, rows, size = [], 0, 0
    if rows:
        yield _together(held)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
