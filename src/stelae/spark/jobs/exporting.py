"""Export: a table at a snapshot as plain files that anything reads, written by Spark.

Parquet has every type as it is, families of cells as maps. CSV has no nested values and no bytes: maps, arrays and
structs are JSON there, bytes are base64, and quotes are doubled; an empty field is NULL, an empty text is "". JSON has
one object a line, NULLs included, bytes as base64. Moments are written in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.clock import SystemClock
from stelae.client.api.display import shown_bytes
from stelae.client.arguments.keys import txn_of
from stelae.client.calls.views import ALL_ROWS
from stelae.model.errors import AlreadyExists, InvalidArgument, nearest
from stelae.model.hybrid import to_datetime
from stelae.model.ids import Txn
from stelae.model.values import show
from stelae.service.reports import Progress
from stelae.spark.driver.progress import Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_action
from stelae.spark.reading.question import asked_of
from stelae.spark.stores import absolute, backend_of, check_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stelae.client.api.database import Database

FORMATS = ("parquet", "csv", "json")
MODES = ("error", "overwrite", "append")
_MOMENTS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "parquet": {"compression": "zstd"},
    "csv": {
        "header": True,
        "escape": '"',
        "emptyValue": '""',
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
        **_MOMENTS,
    },
    "json": {"ignoreNullFields": False, **_MOMENTS},
}


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written. `files` and `size_bytes` are those of the whole directory, and 0 if it is no local one."""

    table: str
    path: str
    format: str
    txn: Txn
    rows: int
    files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        facts = [
            ("as of", f"{self.txn} ({to_datetime(self.txn).isoformat(timespec='milliseconds')})"),
            ("rows", f"{self.rows:,}"),
            *([("files", f"{self.files:,} of {self.format}, {shown_bytes(self.size_bytes)}")] if self.files else []),
            ("time", shown_seconds(self.seconds)),
        ]
        return Summary(f"exported table {self.table} to {self.path}", tuple(facts))


def export(
    spark: SparkSession,
    db: Database,
    table: str,
    path: object,
    *,
    format: str = "parquet",  # noqa: A002 - what Spark and everybody calls it
    columns: Sequence[str] | None = None,
    where: object = None,
    at: object = None,
    rows: str = ALL_ROWS,
    mode: str = "error",
    progress: Progress | None = None,
) -> ExportResult:
    """Write a table to plain files of Parquet, CSV or JSON, in a directory.

        stelae.spark.export(spark, db, "users", "out", format="csv", columns=["name"], where='age > 30')

    `columns`, `where`, `at` and `rows` are those of `Table.scan`. `mode` says what happens if the directory is there
    already: "error", "overwrite" or "append". A path may also be a URI that Spark knows. `progress` is called with the
    tasks of Spark's that are done and how many there are.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    _check_choice("format", format, FORMATS)
    _check_choice("mode", mode, MODES)
    from stelae.spark.reading.frames import held_frame

    place = path if isinstance(path, str) and "://" in path else absolute(path)
    check_apart(place, db.path)
    backend: Any = backend_of(db)
    info = backend.find(table)
    with released(backend, backend.hold(info.id, None if at is None else txn_of(at))) as held:
        check_apart(place, held.root)
        frame = held_frame(_apart(spark), held, asked_of(held, where=where, columns=columns, rows=rows))
        count = run_action(
            spark,
            f"export {info.name}",
            lambda: _written(frame, place, format, _real_mode(place, mode)),
            progress,
            Renewal(backend, [held.ticket]),
        )
    result = ExportResult(info.name, place, format, held.txn, count)
    if "://" not in place:
        sizes = [
            each.size_bytes
            for each in LocalBlobStore(place, read_only=True).list()
            if each.name.rpartition("/")[2].startswith("part-")
        ]
        result = replace(result, files=len(sizes), size_bytes=sum(sizes))
    return replace(result, seconds=clock.monotonic_s() - started_s)


def _check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise InvalidArgument(f"{what}= is one of {', '.join(choices)}, not {show(value)}{hint}")


def _apart(spark: SparkSession) -> SparkSession:
    """A session of the same context, with settings that are not the user's: by default Spark writes moments in a form
    that others read as times without a zone."""
    apart = spark.newSession()
    apart.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return apart


def _real_mode(place: str, mode: str) -> str:
    """A directory without files, as an export that was interrupted leaves it, is in nobody's way."""
    is_empty = "://" not in place and not any(True for _ in LocalBlobStore(place, read_only=True).list())
    return "append" if is_empty and mode == "error" else mode


def _written(frame: DataFrame, place: str, form: str, mode: str) -> int:
    """How many rows there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    shown = flat(frame) if form == "csv" else frame
    counted = shown.observe(seen, f.count(f.lit(1)).alias("rows"))
    try:
        counted.write.format(form).mode(mode).options(**_OPTIONS[form]).save(place)
    except Exception as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise AlreadyExists(f"{place} is there already: say mode='overwrite' or mode='append'") from None
        raise
    return int(seen.get["rows"])


def flat(frame: DataFrame) -> DataFrame:
    """Only what CSV can hold: nested values as JSON, bytes as base64."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    def simple(field: Any) -> Any:
        quoted = f"`{field.name.replace('`', '``')}`"
        if isinstance(field.dataType, t.ArrayType | t.MapType | t.StructType):
            return f.to_json(f.col(quoted), _MOMENTS).alias(field.name)
        if isinstance(field.dataType, t.BinaryType):
            return f.base64(f.col(quoted)).alias(field.name)
        return f.col(quoted)

    return frame.select(*[simple(field) for field in frame.schema.fields])
