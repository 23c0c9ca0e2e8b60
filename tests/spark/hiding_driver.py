"""A driver whose tasks run in a process of their own, that reads a table with hidden rows: `python -m
tests.spark.hiding_driver DIR`.

It says how many rows and what sum the executor found, where that ran, and whether the reader was the one that says what
is hidden; then it loads another table there.
"""

from __future__ import annotations

import sys

import stelae
import stelae.spark
from stelae.spark.loading import crossing

MASTER = "local-cluster[1,1,512]"


def main(directory: str) -> None:
    small = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    with stelae.open(directory) as db:
        spark = stelae.spark.session("stelae-hiding", MASTER, **small)
        frame = stelae.spark.read(spark, db, "t")
        found = frame.selectExpr("count(*)", "sum(n)").first()
        plan = frame._jdf.queryExecution().executedPlan().toString()
        numbers = spark.range(1_100).selectExpr("id", "id AS n")
        loaded = stelae.spark.load(spark, db, "copy", numbers, create=True, key=["id"])
        is_ours = crossing._parts.of(spark.sparkContext) is not None
        print(f"loaded {loaded.rows} rows, by our class {is_ours}")
        executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        print(f"rows {found[0]}, sum {found[1]}, said by the reader {'~_tmp_metadata_row_index' in plan}")
        print(f"processes {len(executors)}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
