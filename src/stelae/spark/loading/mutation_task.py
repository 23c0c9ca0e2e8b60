"""A task of a load by mutations: its part of a frame is put through the store, as any client puts rows.

For few rows. All of them have the time at which the load began, so that a task that is done twice changes nothing. The
whole part is checked before any of it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import micros_of
from stelae.model.ids import GroupId, Txn
from stelae.spark.loading.fragment_task import Sifting, TaskPlan, TaskReport, encode_report
from stelae.spark.loading.intake import SEQUENCE, Intake
from stelae.spark.stores import StorePlace, open_store
from stelae.storage.offline.sorting import Twice, unique

_PUT_ROWS = 10_000


def session_micros(prefix: str) -> int:
    """When a load began, by how its files are called."""
    stamp = prefix.rpartition("/")[2].partition("-")[0]
    try:
        return micros_of(Txn(int(stamp, 16)))
    except ValueError:
        raise InvalidArgument(f"files of a load are called by its time, not {prefix!r}") from None


class MutationTask:
    """What Spark calls with the batches of a partition. All mentions of a key are in one partition."""

    def __init__(self, plan: TaskPlan, place: StorePlace, table: str, duplicates: str) -> None:
        self._plan = plan
        self._place = place
        self._table = table
        self._duplicates = duplicates

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = put_part(self._plan, self._place, self._table, self._duplicates, batches)
        yield pa.RecordBatch.from_arrays([pa.array([encode_report(report)], pa.binary())], ["report"])


def put_part(
    plan: TaskPlan, place: StorePlace, table: str, duplicates: str, batches: Iterable[pa.RecordBatch]
) -> TaskReport:
    """Put the rows of a partition through the store."""
    sifting = Sifting(plan, Intake(plan.shape))
    good: list[pa.Table] = []
    records: dict[GroupId, list[pa.Table]] = {group: [] for group in plan.shape.file_specs}
    for rows, found in sifting.chunks(batches):
        good.append(rows)
        for group, some in found.items():
            records[group].append(some)
    twice = Twice()
    for group, tables in records.items():
        of_group = Twice()
        for _ in unique(plan.shape.file_specs[group], tables, of_group) if tables else ():
            pass  # only what stands twice is of interest
        twice = of_group if of_group.count > twice.count else twice
    report = msgspec.structs.replace(sifting.report(()), twice=twice.count, twice_rows=tuple(twice.rows))
    is_refused = (sifting.bad and plan.aside is None) or (twice.count and duplicates == "error")
    if good and not is_refused:
        _put(plan, place, table, pa.concat_tables(good))
    return report


def _put(plan: TaskPlan, place: StorePlace, table: str, rows: pa.Table) -> None:
    if SEQUENCE in rows.column_names:
        rows = rows.sort_by(SEQUENCE).drop_columns([SEQUENCE])
    shape = plan.shape
    ts = None if shape.has_times else session_micros(plan.prefix) if shape.ts is None else shape.ts
    nulls, cells = "skip" if shape.skips_nulls else "write", "long" if shape.is_long else "map"
    with open_store(place) as db:
        handle = db.table(table)
        for at in range(0, rows.num_rows, _PUT_ROWS):
            handle.put_many(rows.slice(at, _PUT_ROWS), nulls=nulls, ts=ts, cells=cells)
