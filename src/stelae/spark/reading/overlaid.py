"""Rows that are merged while a read is planned, so that Spark reads them as it reads the rest: from a file.

An *overlay* has what is seen of the rows that other files than plain ones touch, and of rows that exist without any
value of the group that is read natively. It has all columns that are read, as the table has them now, and the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import msgspec
import pyarrow as pa

from stelae.format import layout
from stelae.model.arrow import to_arrow
from stelae.model.ids import GroupId
from stelae.model.ranges import RangeSet, RowRange
from stelae.spark.reading.plans import NativeFile, NativeShape
from stelae.spark.reading.question import Question
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.hidden import Hidden
from stelae.storage.offline.plain import Layers
from stelae.storage.offline.scans import RowBatch, rows_within, scan_part, scan_touched


@dataclass(frozen=True, slots=True, eq=False)
class TouchedRows:
    """Rows of a stretch that other files touch."""

    tablet: PlannedTablet
    layers: Layers
    rows: RowRange
    hidden: Hidden


@dataclass(frozen=True, slots=True, eq=False)
class BesideRows:
    """Rows of a tablet that have nothing of the group that is read natively."""

    tablet: PlannedTablet
    group: GroupId
    rows: RangeSet


@dataclass(frozen=True, slots=True, eq=False)
class WholeRows:
    """Rows of a tablet that are all merged."""

    tablet: PlannedTablet
    rows: RangeSet


class OverlaysFull(Exception):
    """Overlays take as much room as they may already: rows are to be merged by tasks."""


class Overlays(Protocol):
    """Where overlays are kept, for as long as the table is held."""

    def file(
        self, key: str, schema: pa.Schema, make: Callable[[], Iterator[pa.RecordBatch]]
    ) -> tuple[str, int, int] | None:
        """The name, the bytes and the rows of the file that holds what `make` gives; None if that is nothing. One key,
        one content: what was made for it before is used again. OverlaysFull if there is no room for it."""
        ...


def overlay_of(
    question: Question,
    shape: NativeShape,
    touched: Sequence[TouchedRows],
    beside: Sequence[BesideRows],
    whole: Sequence[WholeRows],
    overlays: Overlays,
) -> NativeFile | None:
    """The file with all of these rows; None if nothing is seen of any."""
    if not touched and not beside and not whole:
        return None
    schema = overlay_schema(question, shape)

    def make() -> Iterator[pa.RecordBatch]:
        for found in _rows(question, touched, beside, whole):
            yield _stored(found, schema)

    found = overlays.file(_key(question, touched, beside, whole), schema, make)
    if found is None:
        return None
    name, size_bytes, records = found
    return NativeFile(name, size_bytes, records, RowRange(b""))


def overlay_schema(question: Question, shape: NativeShape) -> pa.Schema:
    fields = [pa.field(key.name, to_arrow(key.type)) for key in question.schema.key]
    fields += [pa.field(each.shown, to_arrow(each.type)) for each in shape.columns]
    if shape.row == layout.ROW:
        fields.append(pa.field(layout.ROW, pa.binary()))
    return pa.schema(fields)


def _stored(found: RowBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        array = found.rows if field.name == layout.ROW else found.batch.column(field.name)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(
    question: Question, touched: Sequence[TouchedRows], beside: Sequence[BesideRows], whole: Sequence[WholeRows]
) -> Iterator[RowBatch]:
    predicate, txn = question.predicate, question.job.txn
    for each in touched:
        yield from scan_touched(
            each.tablet.tablet,
            each.tablet.fragments,
            each.layers,
            each.hidden,
            each.rows,
            question.read,
            txn,
            time=predicate.time,
            having=question.job.having,
        )
    for rows in beside:
        tablet = rows.tablet
        merged = [each.hidden.touched for each in touched if each.tablet is tablet]
        already = pa.concat_arrays([pa.array([], pa.binary()), *merged])
        found = scan_part(
            tablet.tablet, tablet.fragments, rows.rows, question.read, txn, time=predicate.time, beside=rows.group
        )
        for batch in found:
            yield from rows_within(batch, already, invert=True)
    for all_of in whole:
        yield from scan_part(
            all_of.tablet.tablet,
            all_of.tablet.fragments,
            all_of.rows,
            question.read,
            txn,
            time=predicate.time,
            having=question.job.having,
        )


def _key(
    question: Question, touched: Sequence[TouchedRows], beside: Sequence[BesideRows], whole: Sequence[WholeRows]
) -> str:
    """What the content depends on: what is read, and the files, which never change. The snapshot counts only where the
    same files may show something else at another."""
    some: list[TouchedRows | BesideRows | WholeRows] = [*touched, *beside, *whole]
    tablets = dict.fromkeys(each.tablet for each in some)
    txn, predicate = question.job.txn, question.predicate
    is_of_snapshot = any(group.options.purging for group in question.schema.groups) or any(
        file.txn_max > txn for tablet in tablets for file in tablet.tablet.files().values()
    )
    said = (
        question.job.root,
        question.job.table,
        [(each.text, each.is_prefix) for each in question.read],
        (predicate.time.start, predicate.time.stop),
        question.job.having,
        txn if is_of_snapshot else 0,
        [tablet.tablet.encode() for tablet in tablets],
        [(each.rows.start, each.rows.stop) for each in touched],
        [(rows.start, rows.stop) for each in beside for rows in each.rows],
        [(rows.start, rows.stop) for each in whole for rows in each.rows],
    )
    return sha256(msgspec.msgpack.encode(said)).hexdigest()[:32]
