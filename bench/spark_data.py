"""The data of the Spark bench: ten columns, as expressions of Spark's SQL on the row's number, the same in every run.

Rows come in an order that has nothing to do with their keys. An update is a whole new row for each twentieth key, all
over the table or side by side. Nothing of Stelae is imported: the peers' processes read this too.
"""

from __future__ import annotations

import math
from typing import Any

COLUMNS = {
    "id": "int64",
    "name": "string",
    "city": "string",
    "age": "int32",
    "score": "float64",
    "visits": "int64",
    "amount": "decimal(12, 2)",
    "seen": "timestamp",
    "active": "bool",
    "note": "string",
}
KEY = "id"
TWO = ["id", "score"]
NARROW = "visits"
"""What narrow updates change."""

TABLETS = 16
PART_OF_UPDATES = 20
"""Each so-many-th row is updated: 5%."""

EVENLY, TOGETHER = "evenly", "together"
_STEP = 7_368_787
"""A prime: multiples of it, modulo the number of rows, are all rows in another order."""


def _chance(seed: int, place: int) -> str:
    return f"xxhash64(id, {seed * 100 + place})"


def _values(seed: int) -> list[str]:
    """The ten columns of a frame that has an `id`."""
    numbers = [_chance(seed, place) for place in range(9)]
    return [
        "id",
        f"concat('user-', hex({numbers[0]})) as name",
        f"concat('city of ', pmod({numbers[1]}, 500)) as city",
        f"cast(pmod({numbers[2]}, 90) as int) as age",
        f"pmod({numbers[3]}, 1000000007) / 1000.0D as score",
        f"pmod({numbers[4]}, 100000) as visits",
        f"cast(pmod({numbers[5]}, 10000000) / 100.0D as decimal(12, 2)) as amount",
        f"timestamp_micros(1700000000000000 + pmod({numbers[6]}, 31536000000000)) as seen",
        f"pmod({numbers[7]}, 3) = 0 as active",
        f"concat('was ', repeat('seen and ', cast(pmod({numbers[8]}, 4) as int)), lower(hex({numbers[8]}))) as note",
    ]


def table_frame(spark: Any, rows: int) -> Any:
    """Every id below `rows`, once, in no order."""
    step = _STEP
    while math.gcd(step, rows) != 1:
        step += 2
    return spark.range(rows).selectExpr(f"pmod(id * {step}, {rows}) as id").selectExpr(*_values(0))


def update_frame(spark: Any, rows: int, how: str, number: int) -> Any:
    """5% of the rows, new in every column; other ones for each number."""
    count = rows // PART_OF_UPDATES
    if how == EVENLY:
        ids = f"id * {PART_OF_UPDATES} + {number % PART_OF_UPDATES} as id"
    else:
        ids = f"id + {(10 + number) % PART_OF_UPDATES * count} as id"
    return spark.range(count).selectExpr(ids).selectExpr(*_values(1 + number))


def splits(rows: int) -> list[int]:
    return [rows * place // TABLETS for place in range(1, TABLETS)]


def tablet_of(rows: int) -> str:
    """The number of the tablet of a row, as SQL."""
    return f"cast(least({TABLETS - 1}, id * {TABLETS} div {rows}) as int)"


def in_tablets(frame: Any, rows: int) -> Any:
    """As someone with native Parquet would do it by hand: one sorted part for each tablet."""
    from pyspark.sql import functions as f

    if hasattr(frame, "repartitionById"):
        spread = frame.repartitionById(TABLETS, f.expr(tablet_of(rows)))
    else:
        spread = frame.repartitionByRange(TABLETS, KEY)
    return spread.sortWithinPartitions(KEY)


def all_of(frame: Any) -> None:
    """Every column of every row is read, and nothing is done with it."""
    frame.write.format("noop").mode("overwrite").save()


def totals(frame: Any) -> list[str]:
    """By which two contenders are found to hold the same."""
    row = frame.selectExpr(
        "count(*)", "sum(id)", "sum(visits)", "sum(amount)", "sum(length(note))", "sum(unix_micros(seen) % 1000003)"
    ).first()
    return [str(value) for value in row]


SETTINGS = {
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.session.timeZone": "UTC",
}
"""Of every session alike. The store's files are zstd too."""

KEEP_GENERATED = {"spark.sql.codegen.cache.maxEntries": "2000"}
"""Spark keeps the code it generated for 100 parts of queries: of TPC-H's 22 and two contenders it would have forgotten
all before the next round, and its compiler would be what is measured."""
