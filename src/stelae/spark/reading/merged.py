"""Rows that tasks merge, as a frame whose size Spark's planner knows.

A source written in Python can tell Spark nothing of its size: it is taken for larger than anything, and every join with
it is planned so. So the parts hang on a range of numbers, one slice for each, which the planner takes to be about as
large as the files are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from stelae.spark.reading.plans import MergedPart
from stelae.spark.reading.question import Question, ReadJob
from stelae.spark.source.parts import part_batches
from stelae.spark.stores import fragments_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NUMBER_BYTES = 8
"""What the planner takes each number for. What is made of them it takes to be as large as they are."""

_NUMBERS_MAX = 20_000_000
"""Each takes a moment to get to a task. So many stand for more than is ever sent to all of them."""


class MergeParts:
    """What a task does: it merges the part that its slice of the numbers stands for."""

    def __init__(self, job: ReadJob, parts: tuple[MergedPart, ...], starts: tuple[int, ...], wanted: pa.Schema) -> None:
        self._job = job
        self._parts = parts
        self._starts = starts
        self._wanted = wanted

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch.column(0)[0].as_py() for batch in numbers if batch.num_rows), None)
        for _ in numbers:
            continue
        if first is None:
            return
        part = self._parts[bisect_left(self._starts, first)]
        with closing(fragments_of(self._job.root)) as fragments:
            yield from part_batches(Question(self._job), part, fragments, self._wanted)


def merged_frame(
    spark: SparkSession,
    question: Question,
    parts: tuple[MergedPart, ...],
    size_bytes: int,
    schema: StructType,
    wanted: pa.Schema,
) -> DataFrame:
    """`size_bytes`: about how much lies in the files. `wanted`: the same as `schema`, for Arrow."""
    count = max(len(parts), min(_NUMBERS_MAX, size_bytes // _NUMBER_BYTES))
    # As Spark cuts a range into slices.
    starts = tuple(number * count // len(parts) for number in range(len(parts)))
    merge = MergeParts(question.job, parts, starts, wanted)
    return spark.range(0, count, 1, len(parts)).mapInArrow(merge, schema)
