"""A feature table with time travel: train on what was known then, serve what is known now, from one copy.

Every day a Spark job loads each customer's features, with the day as the versions' time. For training, each label is
joined with the features as they were at its moment: a point-in-time join over the table's own history, so nothing of
the future leaks into it. Serving reads the newest row in microseconds. And a whole day can be seen again with `at=`.

    python examples/feature_table.py              # in a temporary directory
    python examples/feature_table.py --dir model  # leaves it in model/
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import stelae
import stelae.spark

CUSTOMERS, DAYS = 300, 3
FIRST_DAY = datetime(2026, 11, 14, tzinfo=UTC)
console = Console(highlight=False, soft_wrap=True)


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def load_day(spark: Any, db: stelae.Database, day: int) -> Any:
    """A day's features of all customers: what a large job over raw events would come to."""
    features = spark.range(CUSTOMERS).selectExpr(
        "concat('c-', lpad(id, 3, '0')) AS customer",
        f"CAST(10 + id % 50 + {day} * (id % 7) AS DOUBLE) AS spend",
        f"id % 5 + {day} AS orders",
    )
    moment = FIRST_DAY + timedelta(days=day)
    return stelae.spark.load(spark, db, "features", features, job=f"features-{moment:%Y-%m-%d}", ts=micros(moment))


def labels(spark: Any) -> Any:
    """Who left, and when that was decided: some hours after the features of some day."""
    return spark.range(0, CUSTOMERS, 3).selectExpr(
        "concat('c-', lpad(id, 3, '0')) AS customer",
        f"timestamp_micros({micros(FIRST_DAY)} + ((id DIV 3) % {DAYS}) * 86400000000 + 7200000000) AS decided",
        "id % 4 = 0 AS has_left",
    )


def training_set(spark: Any, db: stelae.Database) -> Any:
    """Of each feature the version that was the newest when the label was decided."""
    history = stelae.spark.read(spark, db, "features", history=DAYS)
    found = labels(spark)
    for name in ("spend", "orders"):
        known = spark.sql(
            """SELECT l.customer, l.decided, max_by(v.value, v.ts) AS value
               FROM {labels} l JOIN {versions} v ON l.customer = v.customer AND v.ts <= l.decided
               GROUP BY l.customer, l.decided""",
            labels=labels(spark),
            versions=history.selectExpr("customer", f"inline({name})"),
        )
        found = found.join(known.withColumnRenamed("value", name), ["customer", "decided"])
    return found.cache()


def is_what_was_served(training: Any, db: stelae.Database, loads: Sequence[Any]) -> bool:
    """Every row of the training set is what a service would have read at that moment."""
    features = db.table("features")
    for row in training.collect():
        day = (row["decided"].astimezone(UTC) - FIRST_DAY).days
        then = features.get(row["customer"], at=loads[day].txn)
        if then is None or (then["spend"], then["orders"]) != (row["spend"], row["orders"]):
            return False
    return True


def show(spark: Any, db: stelae.Database, training: Any) -> None:
    newest = stelae.spark.read(spark, db, "features", columns=["spend"]).withColumnRenamed("spend", "spend_now")
    table = Table("customer", "decided", "spend then", "spend now (a leak)", "has left")
    for row in training.join(newest, "customer").orderBy("customer").limit(5).collect():
        decided = f"{row['decided'].astimezone(UTC):%Y-%m-%d %H:%M}"
        table.add_row(row["customer"], decided, f"{row['spend']}", f"{row['spend_now']}", str(row["has_left"]))
    console.print(table)


def serve(db: stelae.Database) -> None:
    features = db.table("features")
    features.get("c-042")
    start = time.perf_counter()
    row = features.get("c-042")
    console.print(f"served now: {dict(row or {})} [dim](in {(time.perf_counter() - start) * 1e6:.0f} us)[/]")


def run(directory: Path) -> bool:
    spark = stelae.spark.session("feature-table")
    with stelae.open(directory / "data") as db:
        columns = {"spend": "float64", "orders": "int64"}
        groups = [stelae.columns("features", columns, purge="max-history=30")]
        db.create_table("features", key={"customer": "string"}, groups=groups, retention="30d")
        loads = [load_day(spark, db, day) for day in range(DAYS)]
        for day, load in enumerate(loads):
            frame = stelae.spark.read(spark, db, "features", columns=["spend"], at=load.txn)
            mean = frame.selectExpr("avg(spend)").collect()[0][0]
            console.print(f"day {day + 1}, at={load.txn}: {load.rows} customers, mean spend {mean:.2f}")
        training = training_set(spark, db)
        show(spark, db, training)
        serve(db)
        is_right = training.count() == CUSTOMERS // 3 and is_what_was_served(training, db, loads)
        words = "[green]each is what would have been served then[/]" if is_right else "[red]some differ[/]"
        console.print(f"{training.count()} rows to train on: {words}")
        training.unpersist()
    return is_right


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="a new directory to leave it all in")
    directory = parser.parse_args(argv).dir
    with tempfile.TemporaryDirectory(prefix="feature-table-") as temporary:
        if directory is not None:
            directory.mkdir()
        return 0 if run(Path(temporary) if directory is None else directory.absolute()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
