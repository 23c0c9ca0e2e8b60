"""A table as a Spark frame: read by Spark itself, but for what tasks merge by the store's own code, united."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import reduce
from typing import TYPE_CHECKING, Any

from stelae.adapters.executor import ThreadExecutor
from stelae.client.arguments.keys import txn_of
from stelae.client.calls.views import ALL_ROWS
from stelae.model.errors import PermissionDenied
from stelae.model.public import public
from stelae.spark.reading.holding import HOLD_TTL_S, keep_held
from stelae.spark.reading.merged import merged_frame
from stelae.spark.reading.native import native_frame, native_root
from stelae.spark.reading.overlaid import OverlaysFull
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.reading.planning import plan_read
from stelae.spark.reading.plans import PlanLimits, ReadPlan
from stelae.spark.reading.question import Question, asked_of
from stelae.spark.stores import backend_of, planned_fragments
from stelae.spark.tickets import held_tablets
from stelae.spark.types import arrow_schema_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stelae.client.api.database import Database
    from stelae.service.tickets import HeldTable

_PARTS_PER_CORE = 2
_READERS = 4
"""Threads that read blocks while a read is planned. They are made when there is something to merge."""


@public("read", "stelae.spark")
def read(
    spark: SparkSession,
    db: Database,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: Any = None,
    start: Any = None,
    stop: Any = None,
    prefix: Any = None,
    at: Any = None,
    history: int | None = None,
    cells: str = "map",
    rows: str = ALL_ROWS,
) -> DataFrame:
    """A table at a snapshot, as a frame of Spark's.

        adults = stelae.spark.read(spark, db, "users", columns=["name", "age"], where=stelae.col("age") >= 18)
        adults.groupBy("age").count().show()

    What the arguments mean is what they mean in `Table.scan`; rows come in no order. `at` None: as it is now. However
    often the frame is used, and whatever is written meanwhile, it is the table at that moment: the snapshot is held
    while the session lives and `db` is open. `columns=` saves reading the others, and leaves all rows there:
    those that have none of the columns have NULL in each. `rows="having"` leaves such rows out. `where=` is applied
    where the data is. `history=N` gives lists of versions in place of values, `cells="long"` one row for each version
    of a cell.
    """
    backend = backend_of(db)
    found = backend.find(table)
    try:
        held = backend.hold(found.id, None if at is None else txn_of(at), HOLD_TTL_S)
    except PermissionDenied:
        raise PermissionDenied(
            f"table {table!r} has rows that are in no file yet: Spark reads files, and a store opened read-only "
            "writes none. Open it for writing"
        ) from None
    try:
        question = asked_of(
            held,
            where=where,
            columns=columns,
            start=start,
            stop=stop,
            prefix=prefix,
            history=history,
            cells=cells,
            rows=rows,
        )
        frame = held_frame(spark, held, question)
        keep_held(spark, db, held.ticket, f"table {held.name!r} at {held.txn}", frame)
    except BaseException:
        backend.release(held.ticket)
        raise
    return frame


def held_frame(spark: SparkSession, held: HeldTable, question: Question) -> DataFrame:
    """What is asked of a table that somebody holds for as long as the frame is used."""
    limits = PlanLimits(parts=_PARTS_PER_CORE * spark.sparkContext.defaultParallelism)
    root = native_root(spark, held.root)
    overlays: StoreOverlays | None = StoreOverlays(held.root, held.ticket)
    try:
        plan = _plan(question, held, limits, natively=root is not None, overlays=overlays)
    except (PermissionDenied, OverlaysFull) as error:
        plan = _plan(question, held, limits, natively=root is not None, overlays=None)
        overlays = overlays if isinstance(error, OverlaysFull) else None
    return _planned_frame(spark, question, plan, root or "", overlays)


def _plan(
    question: Question, held: HeldTable, limits: PlanLimits, *, natively: bool, overlays: StoreOverlays | None
) -> ReadPlan:
    with (
        closing(ThreadExecutor(_READERS, _READERS)) as reading,
        closing(planned_fragments(held.root, reading)) as fragments,
    ):
        return plan_read(question, held_tablets(held), fragments, limits, natively=natively, overlays=overlays)


def _planned_frame(
    spark: SparkSession, question: Question, plan: ReadPlan, root: str, overlays: StoreOverlays | None
) -> DataFrame:
    """`root`: what Spark calls the place of the files that it reads itself."""
    frames = [native_frame(spark, question, each, root, overlays) for each in plan.native]
    if plan.merged or not frames:
        schema = spark_schema(question.arrow_schema)
        wanted = arrow_schema_of(schema)
        if not plan.merged:
            return spark.createDataFrame(wanted.empty_table(), schema)
        frames.append(merged_frame(spark, question, plan.merged, plan.merged_bytes, schema, wanted))
    return reduce(lambda one, other: one.union(other), frames)
