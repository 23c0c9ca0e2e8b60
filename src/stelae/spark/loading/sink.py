"""A sink for streams of any output mode: `foreach_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stelae.client.api.database import Database
from stelae.model.errors import InvalidArgument
from stelae.model.public import public
from stelae.spark.loading.job import LoadOptions, LoadResult, run_load
from stelae.spark.stores import backend_of

_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
"""The jobs of a query's run are a group, which is called as the run is."""


@public("foreach_batch", "stelae.spark")
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

    A batch is known by the query's id, which its checkpoint keeps, or by `job`, and its number; where a batch goes to
    one table in several parts, each needs a `job` of its own. With output mode complete say `mode="overwrite"`, so that
    each batch replaces the one before. `delete` is as in `merge`, the rest as in `load`; `told` is called with the
    result of each batch.
    """
    options = LoadOptions(mode, on_bad, quarantine, duplicates, nulls, cells, ts).checked()
    backend_of(db)

    def apply(frame: Any, batch: int) -> None:
        spark = frame.sparkSession
        name = job or spark.sparkContext.getLocalProperty(_QUERY_ID)
        if not name:
            raise InvalidArgument("this is no batch of a stream: name the job with foreach_batch(..., job=...)")
        _check_first(spark, db.path, table, name, batch)
        result = run_load(spark, db, table, frame, options, job=name, batch=batch, delete=delete, samples=False)
        if result.was_done:
            # A query that keeps state insists that each batch is computed to its end, whatever becomes of it.
            frame.write.format("noop").mode("overwrite").save()
        if told is not None:
            told(result)

    return apply


_applied: dict[tuple[str, str, str, str], int] = {}


def _check_first(spark: Any, path: str, table: str, name: str, batch: int) -> None:
    """A batch comes once in a run of a query; what comes as the same batch again would be taken for done."""
    run = spark.sparkContext.getLocalProperty(_RUN_ID)
    if not run:
        return
    if _applied.get((path, table, name, run), -1) == batch:
        raise InvalidArgument(
            f"batch {batch} was loaded into table {table!r} already, and a second load of it would do nothing: where "
            "one batch goes to a table in several parts, give each its own name with foreach_batch(..., job=...)"
        )
    for known in [known for known in _applied if known[:3] == (path, table, name)]:
        del _applied[known]
    _applied[path, table, name, run] = batch
