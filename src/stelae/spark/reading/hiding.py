"""A reader of Parquet for Spark that says of each row whether it is hidden: Spark's own, with a class of ours inside.

Spark counts the rows of a file with an object for each, and what is hidden must then be looked up for each.
`HidingFormat.java` says a number of every row, -1 for those that are seen, many rows at a time (decision 34). It gives
Spark the files, the filters and the columns as one plan, which is analysed once, and looks for no file before it is
read: names and sizes are known (decision 54). It is compiled once for a context by the compiler that Spark has for the
code it generates, and sent to the workers as a jar. Where that does not work, in a Spark whose reader is another, rows
are filtered by their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from stelae.spark.driver.compiled import Compiled
from stelae.spark.reading.plans import HiddenRows, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SEEN = "~{place} = 0"
"""That -1 stands in place of a row's place, as SQL: all of its bits are set. Said so, Spark does not take it for a
filter that Parquet could answer."""

_WORD_BYTES = 8


def hiding_frame(
    spark: SparkSession,
    schema: StructType,
    root: str,
    hidden: Sequence[HiddenRows],
    options: Mapping[str, str],
    steps: Iterable[Step],
) -> DataFrame | None:
    """What is left of files under `root` after these steps, read by a reader that says in place of a row's place what
    is hidden; None: it cannot be had here. Spark analyses the whole of it once."""
    from pyspark.sql import DataFrame

    frames = _frames.of(spark.sparkContext)
    if frames is None:
        return None
    numbers = b"".join(
        number.to_bytes(8, "little") for each in hidden for number in (each.size_bytes, len(each.bits) // _WORD_BYTES)
    )
    bits = b"".join(each.bits for each in hidden)
    made = frames.of(
        spark._jsparkSession,
        schema.json(),
        _json([f"{root}/{each.file}" for each in hidden]),
        numbers,
        bits,
        sha256(_json([each.file.rpartition("/")[2] for each in hidden]).encode() + numbers + bits).hexdigest(),
        sum(each.records for each in hidden) - int.from_bytes(bits, "little").bit_count(),
        _json([text for option in options.items() for text in option]),
        _json([["where" if step.is_filter else "select", *step.sql] for step in steps]),
    )
    return DataFrame(made, spark)


def _json(said: Sequence[object]) -> str:
    return msgspec.json.encode(said).decode()


_frames = Compiled(
    "stelae.spark.reading",
    "HidingFormat.java",
    "stelae.spark.HidingFormat$Frames",
    "stelae-hiding.jar",
    "hidden rows are filtered by their places",
)
