"""A task of a load: a part of a frame in, finished files out, and a report of what they are.

Batches are checked and become records; those wait in memory, and when there are too many they are sorted and put aside
as runs. At the end all of them come as one sorted stream, which is cut where tablets begin: a file for each tablet and
group. A task that fails or is not needed leaves files that nothing refers to. Nothing here talks to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.format.fragment.footer import FragmentFile, FragmentSpec
from stelae.model.ids import GroupId, Row
from stelae.model.schema import GroupOptions
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import LoadedFile
from stelae.spark.loading.bad_rows import SHOWN_MAX, BadRow, shown_rows, sifted, write_aside
from stelae.spark.loading.intake import FrameShape, Intake, run_spec
from stelae.spark.stores import blobs_of
from stelae.storage.offline.sorting import Twice, merged, sorted_run, unique
from stelae.storage.offline.writing import FileCutter, read_run

RUN_BYTES = 96 * 2**20
"""So much may wait in memory; sorting it takes about four times as much for a moment."""

BAD_ROWS_MAX = 1_000
"""A task that may not skip bad rows stops looking when it has so many."""

CHUNK_ROWS = 65_536
"""So many rows are checked at once."""

_CHUNK_BYTES = 16 * 2**20
_ASIDE_BYTES = 32 * 2**20
_COMMITTING = 2
_OF_RUNS = GroupOptions(compression="lz4", bloom=False)
"""Runs are read once, whole, and by whoever wrote them."""


class TaskReport(msgspec.Struct, frozen=True):
    """Of one task. `rows`: of the frame, those that were skipped left out. `aside`: files of skipped rows."""

    files: tuple[LoadedFile, ...] = ()
    rows: int = 0
    bad: int = 0
    shown: tuple[BadRow, ...] = ()
    is_bad_counted: bool = True
    twice: int = 0
    twice_rows: tuple[bytes, ...] = ()
    aside: tuple[str, ...] = ()
    part: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TaskReport)
REPORT_SCHEMA = "report binary"


def encode_report(report: TaskReport) -> bytes:
    return _ENCODER.encode(report)


def decode_report(data: bytes) -> TaskReport:
    return _DECODER.decode(bytes(data))


@dataclass(frozen=True)
class TaskPlan:
    """All that a task needs to know. `root`: the URL that files are written to. `aside`: where rows that break a rule
    go, as a URL and how names begin; None: they are counted, and the load fails."""

    shape: FrameShape
    root: str
    prefix: str
    starts: tuple[Row, ...]
    aside: tuple[str, str] | None = None
    run_bytes: int = RUN_BYTES
    chunk_rows: int = CHUNK_ROWS


class FragmentTask:
    """What Spark calls with the batches of a partition."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = write_task_fragments(self._plan, batches)
        yield pa.RecordBatch.from_arrays([pa.array([encode_report(report)], pa.binary())], ["report"])


def write_task_fragments(plan: TaskPlan, batches: Iterable[pa.RecordBatch], part: int = 0) -> TaskReport:
    work = _Writing(plan)
    sifting = Sifting(plan, Intake(plan.shape))
    for records in sifting.records(batches):
        work.add(records)
        if sifting.bad and plan.aside is None:
            work.forget()
    if sifting.bad and plan.aside is None:
        return sifting.report(())
    files = tuple(work.files())
    twice = work.twice
    return msgspec.structs.replace(sifting.report(files), twice=twice.count, twice_rows=tuple(twice.rows), part=part)


class Sifting:
    """Batches of a frame, checked; what became of the bad rows."""

    def __init__(self, plan: TaskPlan, intake: Intake) -> None:
        self._plan = plan
        self._intake = intake
        self._shown: list[BadRow] = []
        self._waiting: list[pa.Table] = []
        self._aside: list[str] = []
        self._rows = 0
        self._is_counted = True
        self.bad = 0

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[GroupId, pa.Table]]:
        for _, records in self.chunks(batches):
            yield records

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, dict[GroupId, pa.Table]]]:
        """The good rows of larger pieces of the frame, and their records."""
        first = 0
        for chunk in chunked(batches, self._plan.chunk_rows):
            begin, first = first, first + chunk.num_rows
            good, records, bad = sifted(chunk, lambda some: self._intake.records(some, begin))  # noqa: B023 - called at once
            if bad is not None:
                self._take(bad)
            self._rows += good.num_rows
            yield good, records
            if self._plan.aside is None and self.bad >= BAD_ROWS_MAX:
                self._is_counted = False
                return
        self._write_aside(0)

    def _take(self, bad: pa.Table) -> None:
        self.bad += bad.num_rows
        self._shown += shown_rows(bad, SHOWN_MAX - len(self._shown))
        if self._plan.aside is not None:
            self._waiting.append(bad)
            self._write_aside(_ASIDE_BYTES)

    def _write_aside(self, above_bytes: int) -> None:
        if self._plan.aside is not None and sum(table.nbytes for table in self._waiting) > above_bytes:
            self._aside.append(write_aside(*self._plan.aside, self._waiting))
            self._waiting = []

    def report(self, files: tuple[LoadedFile, ...]) -> TaskReport:
        return TaskReport(
            files=files,
            rows=self._rows,
            bad=self.bad,
            shown=tuple(self._shown),
            is_bad_counted=self._is_counted,
            aside=tuple(self._aside),
        )


def chunked(batches: Iterable[pa.RecordBatch], chunk_rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Batches put together until they are worth the trouble."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= chunk_rows or size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


class _Writing:
    """Records of all groups on their way into files."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._blobs: BlobStore = blobs_of(plan.root, writing=True)
        self._specs: Mapping[GroupId, FragmentSpec] = plan.shape.file_specs
        self._waiting: dict[GroupId, list[pa.Table]] = {group: [] for group in self._specs}
        self._waiting_bytes = 0
        self._runs: dict[GroupId, list[FragmentFile]] = {group: [] for group in self._specs}
        self._twice = {group: Twice() for group in self._specs}

    @property
    def twice(self) -> Twice:
        """A row that stands twice does so in all groups that it is written to: it counts once."""
        return max(self._twice.values(), key=lambda twice: twice.count, default=Twice())

    def add(self, records: Mapping[GroupId, pa.Table]) -> None:
        for group, table in records.items():
            if table.num_rows:
                self._waiting[group].append(table)
                self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= self._plan.run_bytes:
            for group in self._specs:
                self._put_aside(group)
            self._waiting_bytes = 0

    def forget(self) -> None:
        """Nothing will be loaded: the rest is only looked at."""
        self._waiting = {group: [] for group in self._specs}
        self._waiting_bytes = 0

    def _put_aside(self, group: GroupId) -> None:
        waiting, self._waiting[group] = self._waiting[group], []
        if waiting:
            spec = run_spec(self._specs[group])
            written = write_files(self._plan, self._blobs, group, spec, sorted_run(spec, waiting), (), _OF_RUNS)
            self._runs[group] += [each.file for each in written]

    def files(self) -> Iterator[LoadedFile]:
        """Sorted, cut, finished. The runs are gone then."""
        for group, spec in self._specs.items():
            waiting, self._waiting[group] = self._waiting[group], []
            runs = self._runs[group]
            if not runs:
                stream = unique(spec, waiting, self._twice[group]) if waiting else iter(())
            else:
                readers = [read_run(self._blobs, file) for file in runs]
                more = [sorted_run(spec, waiting)] if waiting else []
                stream = merged(spec, [*readers, *more], self._twice[group])
            yield from write_files(self._plan, self._blobs, group, spec, stream, self._plan.starts)
            for file in runs:
                self._blobs.delete(file.name)


def new_name(prefix: str) -> str:
    """A name for a file of a load, like no other's: it begins as the load's do."""
    return f"{prefix}{SystemRng().token(12).hex()}.parquet"


def write_files(
    plan: TaskPlan,
    blobs: BlobStore,
    group: GroupId,
    spec: FragmentSpec,
    tables: Iterable[pa.Table],
    starts: tuple[Row, ...],
    options: GroupOptions | None = None,
) -> Iterator[LoadedFile]:
    """Write sorted records of one group to files of the load, cut at `starts`. Each is durable when it is given out.
    `options`: if not the group's own."""
    options = plan.shape.schema.group(group).options if options is None else options
    with closing(ThreadExecutor(_COMMITTING, _COMMITTING)) as commits:
        cutter = FileCutter(blobs, options, spec, starts, lambda: new_name(plan.prefix), commits)
        for file in cutter.write(tables):
            yield LoadedFile(group, file)
