"""A plan carried out without Spark: what Spark would read of the files, by the format's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stelae.client.api.database import Database
from stelae.format import layout
from stelae.format.fragment.reader import FragmentReader
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.predicate.vector import keep
from stelae.model.ranges import RangeSet
from stelae.service.tickets import HeldTable, overlay_ticket
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.reading.planning import plan_read
from stelae.spark.reading.plans import NativeRead, PlanLimits, ReadPlan, StoredColumn
from stelae.spark.reading.question import Question, asked_of
from stelae.spark.source.parts import part_batches
from stelae.spark.stores import backend_of, blobs_of, fragments_of
from stelae.spark.tickets import held_tablets
from stelae.spark.types import arrow_schema_of, spark_schema
from tests.clusters import until

SMALL = PlanLimits(parts=3, part_bytes_max=1 << 20, part_bytes_min=1, filtered_bytes_min=0)
FEW = replace(SMALL, overlay_rows_small=0, overlay_share=0.2, beside_rows_max=20)
"""Of which some tablets are merged here, and some by tasks."""
BY_TASKS = replace(SMALL, overlay_rows_max=0, beside_rows_max=0)


def hold(db: Database, at: int | None = None) -> HeldTable:
    backend: Any = backend_of(db)
    held: HeldTable = backend.hold(backend.find("t").id, at)
    return held


def compact(db: Database) -> None:
    """Into one file for each tablet and group. A hold takes what is saved of a tablet, which follows in a moment."""
    db.table("t").compact()
    until(lambda: all(len(refs) <= 1 for tablet in held_tablets(hold(db)) for _, refs in tablet.config.groups))


def remove_files(held: HeldTable) -> None:
    """From under whoever reads them."""
    blobs = blobs_of(held.root, writing=True)
    for tablet in held_tablets(held):
        for name in tablet.files():
            blobs.delete(name)


def planned(
    held: HeldTable, limits: PlanLimits = SMALL, *, overlaid: bool = False, **asked: Any
) -> tuple[Question, ReadPlan]:
    """`overlaid`: rows that other files touch are merged now, and not by tasks."""
    question = asked_of(held, **asked)
    overlays = StoreOverlays(held.root, held.ticket) if overlaid else None
    with closing(fragments_of(held.root)) as fragments:
        return question, plan_read(question, held_tablets(held), fragments, limits, overlays=overlays)


def carried_out(question: Question, held: HeldTable, plan: ReadPlan) -> pa.Table:
    wanted = arrow_schema_of(spark_schema(question.arrow_schema))
    with closing(fragments_of(held.root)) as fragments:
        merged = [batch for part in plan.merged for batch in part_batches(question, part, fragments, wanted)]
    native = [table.cast(wanted) for read in plan.native for table in _native(question, held, read)]
    return pa.concat_tables([pa.Table.from_batches(merged, wanted), *native])


def _native(question: Question, held: HeldTable, read: NativeRead) -> Iterator[pa.Table]:
    seals = {name: file.seal for tablet in held_tablets(held) for name, file in tablet.files().items()}
    hidden = {each.file: each.bits for each in read.hidden}
    assert set(hidden) in (set(), set(read.files))
    asked = [*read.shape.keys, *(each.name for each in read.shape.columns if each.name is not None)]
    assert len({name.lower() for name in asked}) == len(asked), "Spark would say COLUMN_ALREADY_EXISTS"
    for name in read.files:
        with closing(blobs_of(held.root).open(name)) as blob:
            if overlay_ticket(name) is None:
                reader = FragmentReader(blob, seals[name])
                stored = pa.concat_tables(reader.scan()).combine_chunks().to_batches()[0]
                rows = layout.rows_of(reader.codec, stored)
            else:
                data = pa.BufferReader(bytes(blob.read(0, blob.size_bytes)))
                stored = pq.read_table(data).combine_chunks().to_batches()[0]
                rows = layout.rows_of(question.schema.codec, stored)
        seen = np.ones(len(rows), np.bool_)
        if read.rows is not None:
            seen &= [row in RangeSet(read.rows) for row in rows.to_pylist()]
        if name in hidden:
            bits = np.unpackbits(np.frombuffer(hidden[name], np.uint8), bitorder="little")[: len(rows)]
            seen &= bits == 0
        arrays = dict(zip(question.schema.codec.names, [stored.column(key) for key in read.shape.keys], strict=True))
        for each in read.shape.columns:
            arrays[each.shown] = _column(each, stored)
        if question.where is not None:
            assert read.where is not None
            found = keep(question.where, (arrays | {"row": rows}).__getitem__, len(rows))
            seen &= found.to_numpy(zero_copy_only=False)
        table = pa.table({of: arrays[of] for of in question.arrow_schema.names})
        yield table.filter(pa.array(seen))


def _column(each: StoredColumn, stored: pa.RecordBatch) -> pa.Array:
    """As Spark reads it: what is not in the file is NULL. Case does not count in names."""
    count, type_ = stored.num_rows, to_arrow(each.type)
    if each.name is None:
        return pa.array([[]] * count, type_) if each.is_cells else array_of(each.type, [each.default] * count)
    places = [at for at, name in enumerate(stored.schema.names) if name.lower() == each.name.lower()]
    if not places:
        return pa.array([[]] * count, type_) if each.is_cells else pa.nulls(count, type_)
    (place,) = places
    return stored.column(place).cast(type_)
