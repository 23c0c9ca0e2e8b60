"""Compaction as a Spark job: tasks merge, the store decides.

The store says which files to merge and leaves them alone meanwhile; each task writes one merged file with the code that
the store's own upkeep uses; the store puts it in the place of what it was made of as soon as it is there, unless the
tablet changed too much meanwhile (a split, a new schema): then it is dropped, and counted. Reading and writing go on. A
job that ends early has compacted some of the table and left the rest as it was; files that nobody took are collected.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.api.display import shown_bytes
from stelae.format.fragment.footer import FragmentFile
from stelae.model.public import public
from stelae.service.reports import Progress
from stelae.service.tickets import CompactionTicket, CompactionWork
from stelae.spark.driver.progress import Advance, Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_tasks
from stelae.spark.stores import backend_of, blobs_of, fragments_of
from stelae.spark.tickets import tablet_to_merge
from stelae.storage.offline.merges import merge_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did. `refused`: works whose tablet had changed too much when they were done. `kept_by`: who
    still holds what was to be erased, each in words."""

    table: str
    works: int = 0
    refused: int = 0
    files_before: int = 0
    files_after: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    kept_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        if not self.works:
            kept = tuple(("still kept", who) for who in self.kept_by)
            return Summary(f"table {self.table}: nothing to compact", kept)
        facts = [
            ("files", f"{self.files_before:,} -> {self.files_after:,}"),
            ("records", f"{self.records_before:,} -> {self.records_after:,}"),
            ("size", f"{shown_bytes(self.bytes_before)} -> {shown_bytes(self.bytes_after)}"),
            ("works", f"{self.works:,}" + (f", {self.refused:,} of no use any more" if self.refused else "")),
            ("time", shown_seconds(self.seconds)),
            *(("still kept", who) for who in self.kept_by),
        ]
        return Summary(f"compacted table {self.table}", tuple(facts))


class _Merged(NamedTuple):
    number: int
    file: FragmentFile | None


@public("compact", "stelae.spark")
def compact(
    spark: SparkSession | None,
    db: Database,
    table: str,
    *,
    full: bool = True,
    erase_now: bool = False,
    progress: Progress | None = None,
) -> CompactionResult:
    """Merge the files of a table on Spark, and return what came of it; it prints as a short text.

        print(stelae.spark.compact(spark, db, "users"))

    `full`: everything into one file per tablet and group; otherwise only what is worth it now. `erase_now` drops what
    is erased or purged without regard to the table's retention. Reading and writing go on meanwhile. `progress` is
    called with the bytes that were merged and how many there are. Without Spark (None) it is done in this process.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    backend = backend_of(db)
    info = backend.find(table)
    with released(backend, backend.begin_compaction(info.id, full=full, erase_now=erase_now)) as ticket:
        works = {work.number: work for work in ticket.works}
        advance = Advance(progress, sum(work.size_bytes for work in ticket.works))
        result = CompactionResult(info.name, kept_by=ticket.kept_by)

        def adopt(merged: _Merged) -> None:
            nonlocal result
            work = works[merged.number]
            is_taken = backend.adopt(ticket.ticket, merged.number, merged.file)
            result = _counted(result, work, merged.file, is_taken=is_taken)
            advance.add(work.size_bytes)

        run_tasks(
            spark,
            f"compact {info.name}",
            ticket.works,
            partial(_merge, msgspec.structs.replace(ticket, works=())),
            adopt,
            size_bytes=lambda work: work.size_bytes,
            beat=Renewal(backend, [ticket.ticket]),
        )
    return replace(result, seconds=clock.monotonic_s() - started_s)


def _counted(
    result: CompactionResult, work: CompactionWork, file: FragmentFile | None, *, is_taken: bool
) -> CompactionResult:
    if not is_taken:
        return replace(result, works=result.works + 1, refused=result.refused + 1)
    return replace(
        result,
        works=result.works + 1,
        files_before=result.files_before + len(work.files),
        files_after=result.files_after + (file is not None),
        records_before=result.records_before + work.records,
        records_after=result.records_after + (0 if file is None else file.stats.records),
        bytes_before=result.bytes_before + work.size_bytes,
        bytes_after=result.bytes_after + (0 if file is None else file.seal.size_bytes),
    )


def _merge(ticket: CompactionTicket, work: CompactionWork) -> _Merged:
    """In a task: what `storage.upkeep` does in the store."""
    name = f"{work.prefix or ticket.prefix}{SystemRng().token(8).hex()}.parquet"
    with closing(fragments_of(ticket.root)) as fragments:
        file = merge_files(
            tablet_to_merge(ticket, work),
            fragments,
            blobs_of(ticket.root, writing=True),
            name,
            work.group,
            work.files,
            horizon=work.horizon,
            floor=work.floor,
            is_rooted=work.is_rooted,
        )
    return _Merged(work.number, file)
