"""A driver with a Spark of its own, which loads into a cluster and ends with -9 at some point:
`python -m tests.spark.load_kills_driver MASTERS TABLE ROWS POINT`. The points are those of `spark_driver`."""

from __future__ import annotations

import sys

import stelae
import stelae.spark
from stelae.spark.loading import cutting
from stelae.spark.loading import job as load_job
from tests.spark.spark_driver import die, local_session, told_around_commit


def main(masters: str, table: str, rows: str, point: str) -> None:
    def end_at(name: str) -> None:
        if point == name:
            die()

    vars(cutting)["TASK_BYTES"] = 1
    vars(load_job)["patiently"] = told_around_commit(end_at)
    with stelae.connect(masters) as db:
        spark = local_session()
        frame = spark.range(0, int(rows), 1, 4).selectExpr("id", "concat('b', id) AS word")
        stelae.spark.load(
            spark, db, table, frame, job=f"job {table}", mode="overwrite",
            progress=lambda done, total: end_at("tasks") if done > total // 2 else None,
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
