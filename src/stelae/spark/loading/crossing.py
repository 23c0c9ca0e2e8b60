"""How the rows of a frame get to tasks in Python: as batches of Arrow, in streams of their own (decision 50).

`mapInArrow` does it too, at twice the price: Spark wraps the columns in a struct, and adds up the buffers of all of
them after each row to see whether a batch is full. So rows become Arrow by a class of ours, `ArrowParts`, and go to
tasks as bytes. Where that cannot be had, or somebody observes the frame, `mapInArrow` is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from stelae.spark.driver.compiled import Compiled
from stelae.spark.loading.fragment_task import REPORT_SCHEMA

Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Batches of a part of the frame in, one column of reports out."""

_BATCH_ROWS = 16_384
_BATCH_BYTES = 8 * 2**20

_parts = Compiled(
    "stelae.spark.loading",
    "ArrowParts.java",
    "stelae.spark.ArrowParts$Frames",
    "stelae-parts.jar",
    "rows go to tasks by mapInArrow",
)


def reports_of(frame: Any, task: Task) -> list[bytes]:
    """Run the task on each part of a frame; what all of them report. Jobs are begun by the caller's thread."""
    context = frame.sparkSession.sparkContext
    compiled = _parts.of(context)
    parts = None if compiled is None else compiled.of(frame._jdf, _BATCH_ROWS, _BATCH_BYTES)
    if parts is None:
        return [bytes(row[0]) for row in _mapped(frame, task).collect()]
    from pyspark.core.rdd import RDD
    from pyspark.serializers import NoOpSerializer

    streams: Any = RDD(parts, context, NoOpSerializer())
    found: list[bytes] = streams.mapPartitions(_OnStreams(task, tuple(frame.columns))).collect()
    return found


class _OnStreams:
    """What a task does with the streams of its part."""

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        self._task = task
        self._names = list(names)

    def __call__(self, streams: Iterable[bytes]) -> Iterator[bytes]:
        batches = (batch for stream in streams for batch in pa.ipc.open_stream(stream))
        for report in self._task(batch.rename_columns(self._names) for batch in batches):
            yield from report.column(0).to_pylist()


def _mapped(frame: Any, task: Task) -> Any:
    """Spark takes some names of columns for paths into them, so it is not told any."""
    names = frame.columns
    plain = frame.toDF(*(f"c{place}" for place in range(len(names))))

    def named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return plain.mapInArrow(named, REPORT_SCHEMA)
