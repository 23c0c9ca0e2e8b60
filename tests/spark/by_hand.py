"""Loads without Spark: the same tasks, run here one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pyarrow as pa

import stelae
from stelae.model.ids import Txn
from stelae.service.tickets import LoadTicket
from stelae.spark.loading.fragment_task import (
    CHUNK_ROWS,
    RUN_BYTES,
    TaskPlan,
    TaskReport,
    decode_report,
    encode_report,
    write_task_fragments,
)
from stelae.spark.loading.framing import shape_of_frame
from stelae.spark.loading.job import LoadOptions, check_reports
from stelae.spark.loading.overlaps import without_repeats
from stelae.spark.stores import backend_of, blobs_of
from stelae.spark.types import spark_schema
from stelae.storage.offline.sorting import Twice

_numbers = count()


def plan_of(
    ticket: LoadTicket,
    frame: pa.Table,
    options: LoadOptions,
    run_bytes: int = RUN_BYTES,
    chunk_rows: int = CHUNK_ROWS,
) -> TaskPlan:
    shape = shape_of_frame(
        ticket.table, ticket.schema(), spark_schema(frame.schema), nulls=options.nulls, cells=options.cells
    )
    return TaskPlan(shape, ticket.root, ticket.prefix, ticket.starts, None, run_bytes, chunk_rows)


def load_by_hand(
    db: stelae.Database,
    table: str,
    parts: Sequence[pa.Table],
    options: LoadOptions | None = None,
    *,
    run_bytes: int = RUN_BYTES,
    batch_rows: int = 3,
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[Txn, list[TaskReport]]:
    """Each part is what one task gets; parts are independent, as those of `df.write` are."""
    options = options or LoadOptions()
    backend = backend_of(db)
    ticket = backend.begin_load(backend.find(table).id, f"by-hand-{next(_numbers)}")
    try:
        plan = plan_of(ticket, parts[0], options, run_bytes, chunk_rows)
        reports = []
        for number, part in enumerate(parts):
            report = write_task_fragments(plan, part.to_batches(max_chunksize=batch_rows), number)
            reports.append(decode_report(encode_report(report)))
        check_reports(ticket.name, plan.shape.schema, reports, options)
        twice = Twice()
        files = list(without_repeats(plan, blobs_of(plan.root, writing=True), reports, options.duplicates, twice))
        across = TaskReport(twice=twice.count, twice_rows=tuple(twice.rows))
        check_reports(ticket.name, plan.shape.schema, [across], options)
        replaces = options.mode == "overwrite"
        return backend.commit_load(ticket.ticket, files, replaces=replaces), [*reports, across]
    except BaseException:
        backend.release(ticket.ticket)
        raise


def with_options(**changes: str) -> LoadOptions:
    return replace(LoadOptions(), **changes)  # type: ignore[arg-type]
