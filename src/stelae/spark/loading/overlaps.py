"""Files of one load that reach into each other's rows, written by tasks that knew nothing of each other.

Where two files hold the same record, the store could show either. So what they are records of is compared, a window of
rows at a time, and if something stands twice, the files are merged into others in which it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from stelae.format import layout
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import LoadedFile
from stelae.spark.loading.fragment_task import TaskPlan, TaskReport, new_name, write_files
from stelae.storage.offline.sorting import Twice, merged
from stelae.storage.offline.writing import read_run


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """`part`: the number of the task it is from, by which the last of several mentions is found."""

    loaded: LoadedFile
    part: int


def clusters(files: Sequence[PlacedFile]) -> Iterator[list[PlacedFile]]:
    """Files of one group that reach into each other, directly or by others."""
    ordered = sorted(files, key=lambda each: each.loaded.file.stats.first_row)
    together: list[PlacedFile] = []
    last = b""
    for each in ordered:
        stats = each.loaded.file.stats
        if together and stats.first_row > last:
            yield together
            together = []
        last = max(last, stats.last_row) if together else stats.last_row
        together.append(each)
    if together:
        yield together


def without_repeats(
    plan: TaskPlan, blobs: BlobStore, reports: Sequence[TaskReport], duplicates: str, twice: Twice
) -> Iterator[LoadedFile]:
    """The files of all reports, as they are or merged, so that nothing stands twice. What does is counted."""
    placed = [PlacedFile(each, report.part) for report in reports for each in report.files]
    for group in plan.shape.file_specs:
        of_group = Twice()
        for cluster in clusters([each for each in placed if each.loaded.group == group]):
            found = Twice()
            if len(cluster) > 1:
                _count(plan, blobs, cluster, found)
            of_group.count += found.count
            of_group.rows += found.rows
            if found.count and duplicates != "error":
                yield from _merge_cluster(plan, blobs, cluster)
            else:
                yield from (each.loaded for each in cluster)
        if of_group.count > twice.count:  # a row that stands twice does so in all groups: it counts once
            twice.count, twice.rows = of_group.count, of_group.rows


def _count(plan: TaskPlan, blobs: BlobStore, cluster: Sequence[PlacedFile], twice: Twice) -> None:
    spec = msgspec.structs.replace(plan.shape.file_specs[cluster[0].loaded.group], columns=(), nulls="written")
    names = [name for name in spec.arrow_schema().names if name != layout.VALUE]
    runs = [read_run(blobs, each.loaded.file, each.part, names) for each in cluster]
    for _ in merged(spec, runs, twice):
        pass  # only what stands twice is of interest


def _merge_cluster(plan: TaskPlan, blobs: BlobStore, cluster: Sequence[PlacedFile]) -> Iterator[LoadedFile]:
    group = cluster[0].loaded.group
    spec = plan.shape.file_specs[group]
    runs = [read_run(blobs, each.loaded.file, each.part) for each in cluster]
    yield from write_files(plan, blobs, group, spec, merged(spec, runs, Twice()), plan.starts)


def copy_foreign_files(plan: TaskPlan, blobs: BlobStore, files: Sequence[LoadedFile]) -> list[LoadedFile]:
    """The same files under names that begin as the plan's do."""
    return [each if each.file.name.startswith(plan.prefix) else _copy(plan, blobs, each) for each in files]


def _copy(plan: TaskPlan, blobs: BlobStore, given: LoadedFile) -> LoadedFile:
    name = new_name(plan.prefix)
    source, sink = blobs.open(given.file.name), blobs.create(name)
    try:
        for at in range(0, source.size_bytes, _COPY_BYTES):
            sink.write(source.read(at, min(_COPY_BYTES, source.size_bytes - at)))
        sink.commit()
    finally:
        sink.abort()
        source.close()
    return msgspec.structs.replace(given, file=msgspec.structs.replace(given.file, name=name))


_COPY_BYTES = 8 * 2**20
