"""Frames into tables: `load`, which writes finished files that become visible together, and `merge`, which can also
erase.

Rows are checked as `put_many` checks them, shared out by tablet, sorted and written by Spark's tasks, and all of it is
seen from one txn on, or nothing of it ever. A job that is named is done once, however often it is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stelae.client.api.database import Database
from stelae.model.errors import InvalidArgument, NotFound, StelaeError
from stelae.model.public import public
from stelae.model.values import show
from stelae.service.reports import Progress
from stelae.spark.loading.inferring import table_for
from stelae.spark.loading.job import LoadOptions, LoadResult, random_job, run_load
from stelae.spark.stores import backend_of


@public("load", "stelae.spark")
def load(
    spark: Any,
    db: Database,
    table: str,
    frame: Any,
    *,
    job: str | None = None,
    mode: str = "append",
    on_bad: str = "fail",
    quarantine: str | None = None,
    duplicates: str = "error",
    nulls: str = "write",
    cells: str = "map",
    ts: int | None = None,
    via: str = "fragments",
    create: bool = False,
    key: Mapping[str, str] | Sequence[str] | str | None = None,
    splits: Sequence[object] | None = None,
    tablets: int | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Load a Spark frame into a table: all of it is visible at one txn, or nothing is loaded.

        result = stelae.spark.load(spark, db, "users", frame, job="nightly-2026-11-16")
        print(result)   # rows, files, size, the txn

    Columns go by their names: one that is not in the frame is left untouched, null writes NULL (`nulls="skip"`:
    nothing), and one that the table has not is an error. Families of cells come as `map<string, binary>` columns, or
    with `cells="long"` each row is one cell: the key, family, qualifier, value, and perhaps ts. Rows that are there
    already are updated; `mode="overwrite"` replaces all that is in the table, and earlier snapshots stay readable.

    `job` names what is loaded, for ever: a second run of it does nothing, and says so. Rows that break a rule are
    counted and shown in the error; with `on_bad="skip"` they go to Parquet files in `quarantine` (a directory; if not
    said, one inside the store) with the reason, and the others are loaded. Of rows that say the same again,
    `duplicates="last"` takes the last in the frame's order, and "any" whichever.

    `via="mutations"` puts few rows through the store instead; then it is not all at once. `create` makes the table if
    there is none: `key` names its key columns, `splits` are the keys at which tablets begin, or `tablets` says how many
    there are to be. `progress` is called with the tasks that are done, and all there are.
    """
    options = LoadOptions(mode, on_bad, quarantine, duplicates, nulls, cells, ts, via).checked()
    _check(spark, db, frame, job)
    is_made = create and not _is_there(db, table)
    if create:
        table_for(db, table, frame, key, splits, tablets)
    elif key is not None or splits is not None or tablets is not None:
        raise InvalidArgument("key=, splits= and tablets= are for a table that is made: say create=True")
    try:
        return run_load(spark, db, table, frame, options, job=job or random_job(), progress=progress)
    except BaseException as error:
        if is_made:
            _unmake(db, table, error)
        raise


def _is_there(db: Database, table: str) -> bool:
    try:
        db.table(table)
    except NotFound:
        return False
    return True


def _unmake(db: Database, table: str, reason: BaseException) -> None:
    """A table that was made for a load which failed, unless others have written to it."""
    try:
        if not any(True for _ in db.table(table).scan(limit=1)):
            db.drop_table(table)
    except StelaeError as error:
        reason.add_note(f"table {table!r} was made for it and could not be dropped: {error}")


@public("merge", "stelae.spark")
def merge(
    spark: Any,
    db: Database,
    table: str,
    frame: Any,
    *,
    delete: str | None = None,
    job: str | None = None,
    on_bad: str = "fail",
    quarantine: str | None = None,
    duplicates: str = "error",
    nulls: str = "write",
    progress: Progress | None = None,
) -> LoadResult:
    """Update a table by a frame of changes, all at one txn: rows are put, or erased where a condition holds.

        stelae.spark.merge(spark, db, "users", changes, delete="op = 'D'")

    `delete` is a condition in Spark's SQL on the frame's columns; where it is true, the whole row of that key is
    erased, and nothing but the key counts. A column that the table has not may stand in the condition: it is written
    nowhere. The rest is as in `load`.
    """
    options = LoadOptions("append", on_bad, quarantine, duplicates, nulls).checked()
    _check(spark, db, frame, job)
    if delete is not None and not str(delete).strip():
        raise InvalidArgument(f"delete= is a condition in SQL, such as \"op = 'D'\", not {show(delete)}")
    return run_load(spark, db, table, frame, options, job=job or random_job(), delete=delete, progress=progress)


def _check(spark: Any, db: Database, frame: Any, job: str | None) -> None:
    backend_of(db)
    if not hasattr(spark, "sparkContext"):
        raise InvalidArgument(f"not a Spark session: {show(spark)}; stelae.spark.session() gives one")
    if not hasattr(frame, "mapInArrow"):
        raise InvalidArgument(f"not a Spark frame: {show(frame)}; spark.createDataFrame makes one")
    if job is not None and not (str(job) == job and job):
        raise InvalidArgument(f"job= is text that names what is loaded, not {show(job)}")
