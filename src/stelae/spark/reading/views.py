"""Tables under names that SQL knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stelae.client.calls.views import ALL_ROWS
from stelae.model.public import public
from stelae.spark.reading.frames import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stelae.client.api.database import Database


@public("view", "stelae.spark")
def view(
    spark: SparkSession,
    db: Database,
    table: str,
    name: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: Any = None,
    start: Any = None,
    stop: Any = None,
    prefix: Any = None,
    at: Any = None,
    rows: str = ALL_ROWS,
) -> DataFrame:
    """A table at a snapshot as a view of the session, for SQL.

        stelae.spark.view(spark, db, "users")
        spark.sql("SELECT age, count(*) FROM users GROUP BY age").show()

    It is `read` under a name: that of the table without its namespace, or `name`. Spark reads the files itself and
    knows their sizes, so SQL over it is planned as over Parquet, which it is not over `USING stelae`. Called again, the
    view shows the table as it is then; queries that have begun go on as they are. Returns the frame.
    """
    frame = read(
        spark, db, table, columns=columns, where=where, start=start, stop=stop, prefix=prefix, at=at, rows=rows
    )
    frame.createOrReplaceTempView(table.rpartition(".")[2] if name is None else name)
    return frame
