"""One load from beginning to end: a ticket, tasks that write files, and a commit that makes all of them visible.

Whatever goes wrong before the commit, the ticket is let go of, and nothing is loaded. A commit whose answer was lost is
asked for again: the store knows whether it happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stelae.adapters.blobs.urls import blobs_url, shown_place
from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.api.database import Database, session_of
from stelae.client.arguments.names import Names
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TableId, Txn
from stelae.model.schema import TableSchema
from stelae.service.backend import Backend
from stelae.service.reports import Progress
from stelae.service.tickets import LoadedFile, LoadTicket
from stelae.spark.driver.progress import Renewal, Summary, released_on_error, shown_seconds
from stelae.spark.driver.tasks import run_action
from stelae.spark.loading.bad_rows import SHOWN_MAX, drop_others
from stelae.spark.loading.crossing import Task, reports_of
from stelae.spark.loading.cutting import key_name, spread
from stelae.spark.loading.fragment_task import FragmentTask, TaskPlan, TaskReport, decode_report
from stelae.spark.loading.framing import chosen, shape_of_frame
from stelae.spark.loading.intake import ERASED, OWN_COLUMNS, SEQUENCE, FrameShape
from stelae.spark.loading.mutation_task import MutationTask
from stelae.spark.stores import backend_of, place_of
from stelae.spark.types import spark_types
from stelae.storage.offline.rules import shown_row

T = TypeVar("T")

_UNDOING = "nothing is loaded, and the files it has written are removed"
QUARANTINE = "quarantine"
"""Where bad rows go beside the store's fragments, unless another place is named."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a frame is loaded; see `load`."""

    mode: str = "append"
    on_bad: str = "fail"
    quarantine: str | None = None
    duplicates: str = "error"
    nulls: str = "write"
    cells: str = "map"
    ts: int | None = None
    via: str = "fragments"

    def checked(self) -> LoadOptions:
        chosen("mode", self.mode, "append", "overwrite")
        chosen("on_bad", self.on_bad, "fail", "skip")
        chosen("duplicates", self.duplicates, "error", "last", "any")
        chosen("via", self.via, "fragments", "mutations")
        if self.via == "mutations" and self.mode == "overwrite":
            raise InvalidArgument("mode='overwrite' replaces a table at one txn, which via='mutations' cannot")
        if self.quarantine is not None and self.on_bad != "skip":
            raise InvalidArgument("quarantine= is where skipped rows go: it needs on_bad='skip'")
        return self


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did. `txn`: from there on it is seen. `was_done`: the job had been done before, nothing was read.
    `quarantine`: where the skipped rows are."""

    table: str
    job: str
    txn: Txn
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    skipped: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    quarantine: str | None = None
    was_done: bool = False

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        if self.was_done:
            return Summary(
                f"table {self.table}: job {self.job!r} was done before", (("visible at", f"txn {self.txn}"),)
            )
        rate = self.rows / self.seconds if self.seconds else 0.0
        facts = [
            ("rows", f"{self.rows:,}"),
            ("files", f"{self.files:,}, {self.size_bytes / 2**20:,.1f} MiB"),
            ("visible at", f"txn {self.txn}"),
            ("took", f"{shown_seconds(self.seconds)}, {rate:,.0f} rows/s"),
        ]
        if self.duplicates:
            facts.append(("said twice", f"{self.duplicates:,}"))
        if self.skipped:
            facts.append(("skipped", f"{self.skipped:,}, see {self.quarantine}"))
        return Summary(f"loaded table {self.table}", tuple(facts))


def patiently(db: Database, request: Callable[[Backend], T]) -> T:
    """A request that may be repeated, as patiently as the database is."""
    return session_of(db).ask(lambda backend, _: request(backend))


def random_job() -> str:
    return f"load-{SystemRng().token(16).hex()}"


def run_load(
    spark: Any,
    db: Database,
    table: str,
    frame: Any,
    options: LoadOptions,
    *,
    job: str,
    batch: int = 0,
    delete: str | None = None,
    samples: bool = True,
    progress: Progress | None = None,
) -> LoadResult:
    """`batch`: of one job; `delete`: of which rows are erased; `samples`: Spark may look through the keys first."""
    clock = SystemClock()
    started = clock.monotonic_s()
    info = patiently(db, lambda backend: backend.find(table))
    if delete is not None:
        frame = _with_erasures(frame, info.schema, delete)
    columns = _columns(frame)
    _shape(info.id, info.schema, columns, options, erases=delete is not None)
    ticket = patiently(db, lambda backend: backend.begin_load(info.id, job, batch))
    if ticket.committed is not None:
        return LoadResult(ticket.name, job, ticket.committed, was_done=True)
    with released_on_error(backend_of(db), ticket):
        schema = ticket.schema()
        shape = _shape(info.id, schema, columns, options, erases=delete is not None)
        aside = aside_of(ticket.root, info.id, options)
        plan = TaskPlan(shape, ticket.root, ticket.prefix, ticket.starts, aside)
        try:
            reports = _reports(spark, db, ticket, frame, plan, options, samples=samples, progress=progress)
            check_reports(ticket.name, schema, reports, options)
            files = [file for report in reports for file in report.files]
            txn = patiently(
                db, lambda backend: backend.commit_load(ticket.ticket, files, replaces=options.mode == "overwrite")
            )
        except BaseException:
            if aside is not None:
                drop_others(*aside, ())
            raise
    if aside is not None:
        drop_others(*aside, [name for report in reports for name in report.aside])
    seconds = clock.monotonic_s() - started
    return load_result(ticket.name, job, txn, reports, files, seconds, aside)


def load_result(
    table: str,
    job: str,
    txn: Txn,
    reports: Sequence[TaskReport],
    files: Sequence[LoadedFile],
    seconds: float,
    aside: tuple[str, str] | None,
) -> LoadResult:
    skipped = sum(report.bad for report in reports)
    return LoadResult(
        table=table,
        job=job,
        txn=txn,
        rows=sum(report.rows for report in reports),
        files=len(files),
        size_bytes=sum(each.file.seal.size_bytes for each in files),
        skipped=skipped,
        duplicates=sum(report.twice for report in reports),
        seconds=seconds,
        quarantine=f"{shown_place(aside[0])}/{aside[1].rstrip('/')}" if aside is not None and skipped else None,
    )


def _columns(frame: Any) -> Any:
    """Those of the user."""
    s = spark_types()
    return s.StructType([field for field in frame.schema.fields if field.name.casefold() not in OWN_COLUMNS])


def _shape(table: Any, schema: TableSchema, columns: Any, options: LoadOptions, *, erases: bool) -> FrameShape:
    return shape_of_frame(
        table, schema, columns, nulls=options.nulls, cells=options.cells, ts=options.ts, erases=erases
    )


def _with_erasures(frame: Any, schema: TableSchema, delete: str) -> Any:
    """Columns that only the condition is about are left out after it."""
    from pyspark.sql import functions as f

    names, only_there = Names(schema), []
    for column in frame.columns:
        try:
            names.meaning(column)
        except InvalidArgument:
            if re.search(rf"(?<!\w){re.escape(column)}(?!\w)", delete, re.IGNORECASE):
                only_there.append(column)
    try:
        marked = frame.withColumn(ERASED, f.expr(delete))
        kind = marked.schema[ERASED].dataType.typeName()
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "pyspark":
            raise
        raise InvalidArgument(f"delete={delete!r} is no condition on the frame: {str(error).splitlines()[0]}") from None
    if kind != "boolean":
        raise InvalidArgument(f"delete={delete!r} is no condition, but a value of type {kind}")
    return marked.drop(*only_there)


def aside_of(root: str, table: TableId, options: LoadOptions) -> tuple[str, str] | None:
    """Where the bad rows of one load go, if they are skipped: a URL, and how the names begin."""
    if options.on_bad != "skip":
        return None
    directory = f"{root}/{QUARANTINE}" if options.quarantine is None else blobs_url(options.quarantine)
    return directory, f"{table:08x}-{SystemRng().token(6).hex()}/"


def _reports(
    spark: Any,
    db: Database,
    ticket: LoadTicket,
    frame: Any,
    plan: TaskPlan,
    options: LoadOptions,
    *,
    samples: bool,
    progress: Progress | None,
) -> list[TaskReport]:
    from pyspark.sql import functions as f

    if options.duplicates == "last":
        frame = frame.withColumn(SEQUENCE, f.monotonically_increasing_id())
    codec = plan.shape.schema.codec
    cores = spark.sparkContext.defaultParallelism
    task: Task
    if options.via == "mutations":
        task = MutationTask(plan, place_of(db), ticket.name, options.duplicates)
        keys = [f.expr(key_name(frame.columns, name)) for name in codec.names]
        spreading = frame.repartition(cores, *keys)
    else:
        task = FragmentTask(plan)
        spreading = spread(frame, codec, plan.starts, cores, samples=samples)
    renewal = Renewal(backend_of(db), [ticket.ticket])
    undoing = "rows that were put stay" if options.via == "mutations" else _UNDOING
    what = f"load {ticket.name}"
    found = run_action(spark, what, lambda: reports_of(spreading, task), progress, renewal, undoing)
    return [decode_report(report) for report in found]


def check_reports(table: str, schema: TableSchema, reports: Sequence[TaskReport], options: LoadOptions) -> None:
    """InvalidArgument tells of rows that may not be loaded, with some of them."""
    bad = sum(report.bad for report in reports)
    if bad and options.on_bad == "fail":
        count = f"{bad:,}" if all(report.is_bad_counted for report in reports) else f"{bad:,} or more"
        shown = [row for report in reports for row in report.shown][:SHOWN_MAX]
        lines = "\n".join(f"  {row}" for row in shown)
        raise InvalidArgument(
            f"table {table!r}: {count} {'row' if count == '1' else 'rows'} cannot be loaded, "
            f"{_so(options, 'so nothing was')}; on_bad='skip' leaves such rows aside\n{lines}"
        )
    twice = sum(report.twice for report in reports)
    if twice and options.duplicates == "error":
        rows = [row for report in reports for row in report.twice_rows][:SHOWN_MAX]
        keys = ", ".join(shown_row(schema.codec, row) for row in rows)
        raise InvalidArgument(
            f"table {table!r}: {twice:,} {'row' if twice == 1 else 'rows'} of the frame say again what another says, "
            f"as of {keys}; {_so(options, 'nothing was loaded')}; duplicates='last' takes the last of them, "
            "'any' whichever"
        )


def _so(options: LoadOptions, told: str) -> str:
    """What became of the rest of a frame of which some rows were refused: nothing, unless it goes row by row."""
    return "though other parts of the frame may be, by mutations" if options.via == "mutations" else told
