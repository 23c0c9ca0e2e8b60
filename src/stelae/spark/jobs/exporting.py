"""Export: a table at a snapshot as plain files that anything reads, written by Spark.

Parquet has every type as it is, families of cells as maps. JSON has one object a line, NULLs included; bytes are
`{"$binary": BASE64}` in it, and a map is an object, whose names are its keys as text. CSV has no nested values and no
bytes: both are JSON there, and quotes are doubled; an empty field is NULL, an empty text is "". Moments are written in
UTC. `stelae import` and `stelae load` read all of it back as it was.
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
from stelae.model.hybrid import show_txn
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.model.values import show
from stelae.service.reports import Progress
from stelae.spark.driver.progress import Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_action
from stelae.spark.reading.question import asked_of
from stelae.spark.stores import absolute, backend_of, check_apart, check_apart_from

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
_NESTED_OPTIONS = {"ignoreNullFields": "false", **_MOMENTS}
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
            ("as of", show_txn(self.txn)),
            ("rows", f"{self.rows:,}"),
            *([("files", f"{self.files:,} of {self.format}, {shown_bytes(self.size_bytes)}")] if self.files else []),
            ("time", shown_seconds(self.seconds)),
        ]
        return Summary(f"exported table {self.table} to {self.path}", tuple(facts))


@public("export", "stelae.spark")
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
    check_apart_from(place, db)
    backend = backend_of(db)
    info = backend.find(table)
    with released(backend, backend.hold(info.id, None if at is None else txn_of(at))) as held:
        check_apart(place, held.root)
        frame = held_frame(_apart(spark), held, asked_of(held, where=where, columns=columns, rows=rows))
        count = run_action(
            spark,
            f"export {info.name}",
            lambda: _write_frame(frame, place, format, _real_mode(place, mode)),
            progress,
            Renewal(backend, [held.ticket]),
            "what it has written so far may stay in the directory",
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
    apart.conf.set("spark.sql.session.timeZone", "UTC")
    return apart


def _real_mode(place: str, mode: str) -> str:
    """A directory without files, as an export that was interrupted leaves it, is in nobody's way."""
    is_empty = "://" not in place and not any(True for _ in LocalBlobStore(place, read_only=True).list())
    return "append" if is_empty and mode == "error" else mode


def _write_frame(frame: DataFrame, place: str, form: str, mode: str) -> int:
    """How many rows there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    shown = {"csv": flat, "json": said}.get(form, lambda each: each)(frame)
    counted = shown.observe(seen, f.count(f.lit(1)).alias("rows"))
    try:
        counted.write.format(form).mode(mode).options(**_OPTIONS[form]).save(place)
    except Exception as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise AlreadyExists(f"{place} is there already: say mode='overwrite' or mode='append'") from None
        raise
    return int(seen.get["rows"])


def said(frame: DataFrame) -> DataFrame:
    """Only what JSON can say: bytes as `{"$binary": BASE64}`, maps with keys that are text."""
    from pyspark.sql import functions as f

    columns = [(field.name, _quoted(field.name), field.dataType) for field in frame.schema.fields]
    return frame.select(*[f.expr(_said(column, type_)).alias(name) for name, column, type_ in columns])


def flat(frame: DataFrame) -> DataFrame:
    """Only what CSV can hold: nested values and bytes as the JSON that says them."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    def simple(field: Any) -> Any:
        column = _quoted(field.name)
        if isinstance(field.dataType, t.ArrayType | t.MapType | t.StructType | t.BinaryType):
            return f.to_json(f.expr(_said(column, field.dataType)), _NESTED_OPTIONS).alias(field.name)
        return f.col(column)

    return frame.select(*[simple(field) for field in frame.schema.fields])


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _said(given: str, type_: Any, depth: int = 0) -> str:
    """SQL of a value in a form that Spark writes to JSON as it is to be read."""
    from pyspark.sql import types as t

    each, key = f"e{depth}", f"k{depth}"
    match type_:
        case t.DecimalType() if depth:  # a number would be a float to many who read it
            return f"CAST({given} AS STRING)"
        case t.BinaryType():
            return f"IF({given} IS NULL, NULL, named_struct('$binary', base64({given})))"
        case t.ArrayType(elementType=element):
            return f"transform({given}, {each} -> {_said(each, element, depth + 1)})"
        case t.StructType(fields=fields):
            parts = [
                f"'{_escaped(field.name)}', {_said(f'{given}.{_quoted(field.name)}', field.dataType, depth + 1)}"
                for field in fields
            ]
            return f"IF({given} IS NULL, NULL, named_struct({', '.join(parts)}))"
        case t.MapType(keyType=of_key, valueType=value):
            valued = f"transform_values({given}, ({key}, {each}) -> {_said(each, value, depth + 1)})"
            return f"transform_keys({valued}, ({key}, {each}) -> {_key_text(key, of_key)})"
        case _:
            return given


def _key_text(given: str, type_: Any) -> str:
    """Spark would write days and moments as the numbers they are kept as, and of bytes where they lie in memory."""
    from pyspark.sql import types as t

    match type_:
        case t.StringType():
            return given
        case t.BinaryType():
            return f"to_json({_said(given, type_)})"
        case t.TimestampType():
            return f"date_format({given}, '{_escaped(_MOMENTS['timestampFormat'])}')"
        case t.TimestampNTZType():
            return f"date_format({given}, '{_escaped(_MOMENTS['timestampNTZFormat'])}')"
        case _:
            return f"CAST({given} AS STRING)"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
