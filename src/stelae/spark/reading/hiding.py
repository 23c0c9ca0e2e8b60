"""A reader of Parquet for Spark that says of each row whether it is hidden: Spark's own, with a class of ours inside.

Spark counts the rows of a file with an object for each, and what is hidden must then be looked up for each.
`HidingFormat.java` says a number of every row, -1 for those that are seen, many rows at a time (decision 34). It is
compiled once for a context by the compiler that Spark has for the code it generates, and sent to the workers as a jar.
Where that does not work, in a Spark whose reader is another, rows are filtered by their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from stelae.spark.driver.compiled import Compiled
from stelae.spark.reading.plans import HiddenRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEN = "~{place} = 0"
"""That -1 stands in place of a row's place, as SQL: all of its bits are set. Said so, Spark does not take it for a
filter that Parquet could answer."""

_WORD_BYTES = 8


def hiding_frame(spark: SparkSession, frame: DataFrame, hidden: Sequence[HiddenRows]) -> DataFrame | None:
    """The same files read by a reader that says what of them is hidden, of a frame that is nothing but files; None: it
    cannot be had here."""
    from pyspark.sql import DataFrame

    frames = _frames.of(spark.sparkContext)
    if frames is None:
        return None
    names = "\n".join(each.file.rpartition("/")[2] for each in hidden)
    words = b"".join((len(each.bits) // _WORD_BYTES).to_bytes(4, "little") for each in hidden)
    bits = b"".join(each.bits for each in hidden)
    identity = sha256(names.encode() + words + bits).hexdigest()
    seen = sum(each.records for each in hidden) - int.from_bytes(bits, "little").bit_count()
    return DataFrame(frames.of(frame._jdf, identity, names, words, bits, seen), spark)


_frames = Compiled(
    "stelae.spark.reading",
    "HidingFormat.java",
    "stelae.spark.HidingFormat$Frames",
    "stelae-hiding.jar",
    "hidden rows are filtered by their places",
)
