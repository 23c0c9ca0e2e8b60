"""Writing by `df.write.format("stelae")` and `df.writeStream.format("stelae")`.

Spark gives each task its partition as it is. So each task sorts what it has, and files of several tasks reach into each
other's rows; `overlaps` sees to what stands twice before the commit. Planning, each task and the commit run in their
own processes: the ticket goes from one to the next, and lives for a day.

A stream's batches are known by the query's id, which its checkpoint keeps, and their number: each is loaded once,
whatever is started again. Spark has no place to begin a load before the tasks of a batch, so they write to a directory
of the query's own beside the fragments, from which the commit takes the files over; what a batch that failed has left
there goes with the next one, or after a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stelae.adapters.clock import SystemClock
from stelae.launch.fragments import fragments_url
from stelae.model.errors import Conflict, InvalidArgument, nearest
from stelae.service.tickets import STAGING, LoadTicket, staging_prefix
from stelae.spark.driver.progress import released_on_error
from stelae.spark.loading.bad_rows import drop_others
from stelae.spark.loading.fragment_task import TaskPlan, TaskReport, decode_report, encode_report, write_task_fragments
from stelae.spark.loading.framing import shape_of_frame
from stelae.spark.loading.job import LoadOptions, aside_of, check_reports, patiently, random_job
from stelae.spark.loading.mutation_task import put_part
from stelae.spark.loading.overlaps import copy_foreign_files, without_repeats
from stelae.spark.source.reader import needed, said_place
from stelae.spark.stores import StorePlace, absolute, backend_of, blobs_of, open_store
from stelae.storage.offline.sorting import Twice

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TTL_S = 24 * 3_600.0
_KNOWN = ("path", "cluster", "table", "job", "via", "on_bad", "duplicates", "nulls", "cells", "ts", "quarantine")
_OF_SPARK = ("checkpointlocation",)
_QUERY_ID = "sql.streaming.queryId"
_EXECUTION, _ROOT_EXECUTION = "spark.sql.execution.id", "spark.sql.execution.root.id"


@dataclass
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task has to tell: its report, and of a stream the query it is of."""

    report: bytes
    query: str = ""


@dataclass(frozen=True)
class WriteOptions:
    place: StorePlace
    table: str
    job: str | None
    load: LoadOptions


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """InvalidArgument names an option that is missing, unknown, or cannot be."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _KNOWN and name not in _OF_SPARK:
            raise InvalidArgument(f"no option {name!r} for writing format stelae{nearest(name, _KNOWN)}")
    place, table = said_place(given), needed(given, "table", "the name of the table")
    ts = given.get("ts")
    if ts is not None and not ts.lstrip("-").isdigit():
        raise InvalidArgument(f"option 'ts' is whole microseconds, not {ts!r}")
    load = LoadOptions(
        mode="overwrite" if overwrite else "append",
        on_bad=given.get("on_bad", "fail"),
        quarantine=given.get("quarantine"),
        duplicates=given.get("duplicates", "error"),
        nulls=given.get("nulls", "write"),
        cells=given.get("cells", "map"),
        ts=None if ts is None else int(ts),
        via=given.get("via", "fragments"),
    )
    if not place.is_cluster:
        place = StorePlace(absolute(place.words))
    return WriteOptions(place, table, given.get("job"), load.checked())


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """For `DataSource.writer`: a load has begun when this returns."""
    said = write_options(options, overwrite=overwrite)
    with open_store(said.place) as db:
        info = patiently(db, lambda backend: backend.find(said.table))
        _shape(info.id, info.schema, schema, said.load)
        job = said.job or random_job()
        ticket = patiently(db, lambda backend: backend.begin_load(info.id, job, ttl_s=_TTL_S))
        with released_on_error(backend_of(db), ticket):
            return BatchWriter(said, ticket, _plan(ticket, schema, said.load))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """For `DataSource.streamWriter`."""
    said = write_options(options, overwrite=overwrite)
    if said.load.via == "mutations":
        raise InvalidArgument("a stream is written via='fragments': by mutations a batch could not be loaded just once")
    with open_store(said.place) as db:
        info = patiently(db, lambda backend: backend.find(said.table))
        shape = _shape(info.id, info.schema, schema, said.load)
        root = _root(db, info.id) if said.place.is_cluster else fragments_url(said.place.words)
    return StreamWriter(said, TaskPlan(shape, root, STAGING, (), aside_of(root, info.id, said.load)))


def _root(db: Any, table: Any) -> str:
    """Where a cluster has its fragments: it is told with each ticket."""
    ticket = patiently(db, lambda backend: backend.begin_load(table, random_job()))
    patiently(db, lambda backend: backend.release(ticket.ticket))
    return ticket.root


def _shape(table: Any, schema: Any, columns: StructType, load: LoadOptions) -> Any:
    return shape_of_frame(table, schema, columns, nulls=load.nulls, cells=load.cells, ts=load.ts)


def _plan(ticket: LoadTicket, columns: StructType, load: LoadOptions) -> TaskPlan:
    shape = _shape(ticket.table, ticket.schema(), columns, load)
    aside = aside_of(ticket.root, ticket.table, load)
    return TaskPlan(shape, ticket.root, ticket.prefix, ticket.starts, aside)


def _reports(messages: Sequence[TaskMessage | None]) -> list[TaskReport]:
    return [decode_report(each.report) for each in messages if each is not None]


def _finish(plan: TaskPlan, table: str, reports: list[TaskReport], load: LoadOptions) -> list[Any]:
    """The files to commit."""
    check_reports(table, plan.shape.schema, reports, load)
    twice = Twice()
    files = list(without_repeats(plan, blobs_of(plan.root, writing=True), reports, load.duplicates, twice))
    across = TaskReport(twice=twice.count, twice_rows=tuple(twice.rows))
    check_reports(table, plan.shape.schema, [across], load)
    return files


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a frame into a table as one load: Spark calls `write` in tasks, `commit` or `abort` in the driver."""

    def __init__(self, said: WriteOptions, ticket: LoadTicket, plan: TaskPlan) -> None:
        self._said = said
        self._ticket = ticket
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        _refuse_new_table(self._said.table)
        if self._ticket.committed is not None:
            return TaskMessage(encode_report(TaskReport()))
        load = self._said.load
        if load.via == "mutations":
            return TaskMessage(
                encode_report(put_part(self._plan, self._said.place, self._ticket.name, load.duplicates, iterator))
            )
        return TaskMessage(encode_report(write_task_fragments(self._plan, iterator, TaskContext.get().partitionId())))

    def commit(self, messages: list[TaskMessage | None]) -> None:
        if self._ticket.committed is not None:
            return
        reports, load = _reports(messages), self._said.load
        with open_store(self._said.place) as db, released_on_error(backend_of(db), self._ticket):
            files = _finish(self._plan, self._ticket.name, reports, load)
            patiently(
                db,
                lambda backend: backend.commit_load(self._ticket.ticket, files, replaces=load.mode == "overwrite"),
            )
        if self._plan.aside is not None:
            drop_others(*self._plan.aside, [name for report in reports for name in report.aside])

    def abort(self, messages: list[TaskMessage | None]) -> None:  # noqa: ARG002 - files nobody refers to are collected
        if self._ticket.committed is not None:
            return
        with open_store(self._said.place) as db:
            patiently(db, lambda backend: backend.release(self._ticket.ticket))


def _refuse_new_table(table: str) -> None:
    """In a task, before it writes. saveAsTable gives the same options as save, but makes a table in Spark's catalog
    that forgets them, and can then not be read. All that tells the two apart is that Spark writes within the making of
    the table, and so in an execution within another, as else only the batch of a stream is."""
    context = TaskContext.get()
    root = context.getLocalProperty(_ROOT_EXECUTION)
    if root != context.getLocalProperty(_EXECUTION) and context.getLocalProperty(_QUERY_ID) is None:
        raise InvalidArgument(
            f"nothing was written to {table!r}: saveAsTable, and CREATE TABLE AS SELECT, make a table in Spark's "
            "catalog that could not be read; write with .save() instead, and for SQL make a view: "
            "CREATE TEMPORARY VIEW v USING stelae OPTIONS (path '...', table '...')"
        )


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """One batch of a stream, which is one load. Spark makes another for each."""

    def __init__(self, said: WriteOptions, plan: TaskPlan) -> None:
        self._said = said
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID)
        if not query:
            raise InvalidArgument("this is no batch of a stream: Spark gave the task no query's id")
        plan = replace(self._plan, prefix=staging_prefix(query, SystemClock().wall_ms()))
        return TaskMessage(encode_report(write_task_fragments(plan, iterator, context.partitionId())), query)

    def commit(self, messages: list[TaskMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        query = next((each.query for each in messages if each is not None), "")
        if not query:
            return  # no task, so no rows
        reports, load = _reports(messages), self._said.load
        job, table = self._said.job or query, self._plan.shape.table
        blobs = blobs_of(self._plan.root, writing=True)
        with open_store(self._said.place) as db:
            ticket = patiently(db, lambda backend: backend.begin_load(table, job, batchId, ttl_s=_TTL_S))
            if ticket.committed is None:
                with released_on_error(backend_of(db), ticket):
                    plan = replace(self._plan, prefix=ticket.prefix, starts=ticket.starts)
                    if plan.shape.schema.version != ticket.schema().version:
                        raise Conflict(f"table {ticket.name!r} was altered meanwhile: start the stream again")
                    files = copy_foreign_files(plan, blobs, _finish(plan, ticket.name, reports, load))
                    is_whole = load.mode == "overwrite"
                    patiently(db, lambda backend: backend.commit_load(ticket.ticket, files, replaces=is_whole))
        self._clear(query, reports)

    def abort(self, messages: list[TaskMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        query = next((each.query for each in messages if each is not None), "")
        if query:
            self._clear(query, [])

    def _clear(self, query: str, reports: Sequence[TaskReport]) -> None:
        blobs = blobs_of(self._plan.root, writing=True)
        for info in list(blobs.list(f"{STAGING}{query}/")):
            blobs.delete(info.name)
        if self._plan.aside is not None:
            drop_others(*self._plan.aside, [name for report in reports for name in report.aside])
