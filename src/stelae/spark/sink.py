"""A sink for streams of any output mode: `foreach_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stelae.client.database import Database
from stelae.model.errors import InvalidArgument
from stelae.spark.load_job import LoadOptions, LoadResult, run_load
from stelae.spark.stores import backend_of

_QUERY_ID = "sql.streaming.queryId"


def foreach_batch(
    db: Database,
    table: str,
    *,
    job: str | None = None,
    mode: str = "append",
    on_bad: str = "fail",
    quarantine: str | None = None,
    duplicates: str = "error",
    nulls: str = "write",
    cells: str = "map",
    ts: int | None = None,
    delete: str | None = None,
    told: Callable[[LoadResult], None] | None = None,
) -> Callable[[Any, int], None]:
    """A function for `writeStream.foreachBatch` that loads each batch exactly once, however often the query starts.

        query = (
            counts.writeStream.outputMode("update")
            .option("checkpointLocation", "checkpoints/counts")
            .foreachBatch(stelae.spark.foreach_batch(db, "counts"))
            .start()
        )

    A batch is known by the query's id, which its checkpoint keeps, or by `job`, and its number. With output mode
    complete say `mode="overwrite"`, so that each batch replaces the one before. `delete` is as in `merge`, the rest as
    in `load`; `told` is called with the result of each batch.
    """
    options = LoadOptions(mode, on_bad, quarantine, duplicates, nulls, cells, ts).checked()
    backend_of(db)

    def apply(frame: Any, batch: int) -> None:
        spark = frame.sparkSession
        name = job or spark.sparkContext.getLocalProperty(_QUERY_ID)
        if not name:
            raise InvalidArgument("this is no batch of a stream: name the job with foreach_batch(..., job=...)")
        result = run_load(spark, db, table, frame, options, job=name, batch=batch, delete=delete, samples=False)
        if result.was_done:
            # A query that keeps state insists that each batch is computed to its end, whatever becomes of it.
            frame.write.format("noop").mode("overwrite").save()
        if told is not None:
            told(result)

    return apply
