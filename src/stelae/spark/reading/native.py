"""Files read by Spark itself, as they are: under their own names and types, then as the table has them now.

Whatever the session's settings are, a missing or damaged file is an error and never fewer rows, no name of a file is
taken for a pattern, and old dates are what they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from stelae.adapters.blobs.urls import directory_of
from stelae.model.types import ColumnType, Float, Int, Struct
from stelae.spark.reading.conditions import SqlColumn, quoted, row_condition, sql_literal, sql_type
from stelae.spark.reading.constants import words_column
from stelae.spark.reading.hiding import SEEN, hiding_frame
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.reading.plans import HiddenRows, NativeRead, NativeShape, Step, StoredColumn
from stelae.spark.reading.question import Question
from stelae.spark.types import spark_type, spark_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "__globPaths__": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTED_HERE_MAX = "1000000"
_PLACE = "_tmp_metadata_row_index"
"""What Spark's reader of Parquet fills in for the place of a row in its file, where the schema has this column. It is
what is behind `_metadata.row_index`, without a struct for every row. No column of a table is called so: a leading
underscore is not theirs."""

_START = "_start"
"""Of a file, where its bits begin: as Spark reads it from the name of a directory."""

_NO_PLACE = "this Spark does not tell the places of rows in files"
_OTHER_FILE = "a fragment does not have the size that its reference says"
_NO_CELLS = "CAST(map() AS MAP<STRING, BINARY>)"
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_V1 = "spark.sql.sources.useV1SourceList"


def native_root(spark: SparkSession, url: str) -> str | None:
    """What Spark itself calls a place that has a URL of ours; None: it cannot read the files there.

    Objects of S3 it reads by Hadoop's S3A, if that is among the session's classes. Of names with characters that stand
    in patterns it lists each file twice, though it is told not to take them for patterns."""
    directory = directory_of(url)
    root = f"s3a://{url.removeprefix('s3://')}" if directory is None else f"file://{directory}"
    if any(each in root for each in "{}[]*?\\") or (directory is None and not _has_s3a(spark)):
        return None
    return root


def _has_s3a(spark: SparkSession) -> bool:
    return spark.sparkContext._jsc.hadoopConfiguration().getClassByNameOrNull(_S3A) is not None


def native_frame(
    spark: SparkSession, question: Question, read: NativeRead, root: str, overlays: StoreOverlays | None
) -> DataFrame:
    """The columns of the question's Arrow schema, in its order, of files under `root`. `overlays`: where files may have
    second names."""
    steps = list(_steps(question, read))
    if read.hidden:
        schema = _schema(_fields(question, read) | {_PLACE: Int(64)})
        seen = Step(is_filter=True, sql=(SEEN.format(place=_PLACE),))
        frame = hiding_frame(spark, schema, root, read.hidden, _OPTIONS, [seen, *steps])
        if frame is not None:
            return frame
    frame = _files_frame(spark, question, read, root, overlays)
    for step in steps:
        frame = frame.where(*step.sql) if step.is_filter else frame.selectExpr(*step.sql)
    return frame


def _files_frame(
    spark: SparkSession, question: Question, read: NativeRead, root: str, overlays: StoreOverlays | None
) -> DataFrame:
    """All columns of the files, and of their rows those that are not hidden, by their places."""
    fields = _fields(question, read)
    files = [f"{root}/{name}" for name in read.files]
    if not read.hidden:
        return _parquet(spark, fields, files)
    fields[_PLACE] = Int(64)
    names = overlays.link(_starts(read.hidden), _START) if overlays is not None else None
    if names is None:
        return _without_hidden(spark, _parquet(spark, fields, files), read.hidden, _start_sql(read.hidden))
    fields[_START] = Int(64)
    base = f"{root}/{next(iter(names.values())).rpartition('/')[0].rpartition('/')[0]}"
    named = _parquet(spark, fields, [f"{root}/{names[name]}" for name in read.files], basePath=base)
    return _without_hidden(spark, named, read.hidden, _START)


def _steps(question: Question, read: NativeRead) -> Iterator[Step]:
    """From the columns of the files, and perhaps others, to those of the question."""
    shape, there = read.shape, list(_fields(question, read))
    shown, floats = question.arrow_schema.names, _floats(question, shape)
    if read.rows is not None:
        condition = row_condition(read.rows, SqlColumn(quoted(shape.row), shape.row_type))
        yield Step(is_filter=True, sql=("FALSE" if condition is None else condition,))
    if read.where is not None:
        if floats:
            yield _chosen(there, floats)
            floats = {}
        yield Step(is_filter=True, sql=(read.where,))
    if not _is_as_stored(question, shape):
        if floats:
            yield _chosen(there, floats)
        columns = dict(_columns(question, shape))
        yield Step(is_filter=False, sql=tuple(f"{columns[name]} AS {quoted(name)}" for name in shown))
    elif floats or read.hidden or there != shown:
        yield _chosen(shown, floats)


def _chosen(names: Sequence[str], floats: Mapping[str, str]) -> Step:
    """These columns, with floats as Spark's reader of Parquet cannot see through to: it would pass over files by
    statistics that leave out NaN, and by dictionaries that tell the two zeros apart."""
    return Step(
        is_filter=False,
        sql=tuple(f"{floats[name]} AS {quoted(name)}" if name in floats else quoted(name) for name in names),
    )


def _parquet(spark: SparkSession, fields: Mapping[str, ColumnType], files: Sequence[str], **options: str) -> DataFrame:
    with _settled(spark, len(files)):
        return spark.read.options(**_OPTIONS, **options).schema(_schema(fields)).parquet(*files)


def _is_as_stored(question: Question, shape: NativeShape) -> bool:
    keys = [key.name for key in question.schema.key]
    return list(shape.keys) == keys and all(
        stored.name == stored.shown and stored.stored == stored.type and not stored.is_cells for stored in shape.columns
    )


def _starts(hidden: Sequence[HiddenRows]) -> dict[str, int]:
    """Where the bits of each file begin, in words, with those of all behind each other."""
    counts = accumulate((len(each.bits) // 8 for each in hidden), initial=0)
    return {each.file: start for each, start in zip(hidden, counts, strict=False)}


def _without_hidden(spark: SparkSession, frame: DataFrame, hidden: Sequence[HiddenRows], start: str) -> DataFrame:
    """The bits of all files behind each other are one constant. `start`: SQL of where those of a row's file begin.

    The condition is no plain comparison: of that Spark would conclude that places are not NULL, ask Parquet for such
    rows, and give none where it should fail."""
    from pyspark.sql import functions as f

    bits = words_column(spark, b"".join(each.bits for each in hidden))
    word = f.get(bits, f.expr(f"CAST({start} + shiftright({_PLACE}, 6) AS INT)"))
    # A shift goes by the lowest six bits of the place: this is the row's bit of the word.
    bit = f.call_function("shiftright", word, f.expr(f"CAST({_PLACE} AS INT)")).bitwiseAND(1)
    unknown = f.expr(f"CAST(raise_error('{_NO_PLACE}') AS BOOLEAN)")
    return frame.where(f.when(f.isnull(_PLACE), unknown).otherwise(bit == 0))


def _start_sql(hidden: Sequence[HiddenRows]) -> str:
    """Where files have no second names. They are told apart by their sizes where those differ: numbers are compared
    faster than names."""
    starts = _starts(hidden)
    by_size = {each.size_bytes: starts[each.file] for each in hidden}
    if len(by_size) == len(hidden):
        return _start_of("_metadata.file_size", [(f"{size}L", by_size[size]) for size in sorted(by_size)])
    by_name = {name.rpartition("/")[2]: start for name, start in starts.items()}
    return _start_of("_metadata.file_name", [(f"'{name}'", by_name[name]) for name in sorted(by_name)])


def _start_of(told: str, starts: Sequence[tuple[str, int]]) -> str:
    """Where a file's bits begin, by what it is told by, in order. A tree of comparisons: it is asked for every row."""
    if len(starts) == 1:
        ((value, first),) = starts
        return f"IF({told} = {value}, {first}L, CAST(raise_error('{_OTHER_FILE}') AS BIGINT))"
    middle = len(starts) // 2
    low, high = _start_of(told, starts[:middle]), _start_of(told, starts[middle:])
    return f"IF({told} < {starts[middle][0]}, {low}, {high})"


def _floats(question: Question, shape: NativeShape) -> dict[str, str]:
    """The columns that hold floats where a filter may look for them, and the same value in other words."""
    keys = zip(shape.keys, (key.type for key in question.schema.key), strict=True)
    found: dict[str, str] = {}
    for name, type_ in (*keys, *((each.name, each.stored) for each in shape.columns)):
        if name is not None and isinstance(type_, Float):
            found[name] = f"nanvl({quoted(name)}, {quoted(name)})"
        elif name is not None and isinstance(type_, Struct) and _has_floats(type_):
            found[name] = f"coalesce({quoted(name)}, {quoted(name)})"
    return found


def _has_floats(type_: ColumnType) -> bool:
    return isinstance(type_, Float) or (
        isinstance(type_, Struct) and any(_has_floats(each) for _, each in type_.fields)
    )


@contextmanager
def _settled(spark: SparkSession, files: int) -> Iterator[None]:
    """Settings of the session that a read needs, for a moment. Files are looked at from here: for each a job of its own
    would take longer than all of them. And it is Spark's older reader of Parquet that knows of its files."""
    listing, readers = spark.conf.get(_LISTING), spark.conf.get(_V1)
    before = {_LISTING: listing} if files > int(listing or 0) else {}
    before |= {_V1: readers} if "parquet" not in (readers or "").split(",") else {}
    for name in before:
        spark.conf.set(name, _LISTED_HERE_MAX if name == _LISTING else "parquet")
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")


def _fields(question: Question, read: NativeRead) -> dict[str, ColumnType]:
    """The row only where something looks at it: by the columns that a frame has, Spark guesses how large some of them
    are, and with one more that nobody reads, joins would be planned for a fraction of what comes."""
    shape = read.shape
    keys = zip(shape.keys, question.schema.key, strict=True)
    fields: dict[str, ColumnType] = {name: key.type for name, key in keys}
    fields |= {stored.name: stored.stored for stored in shape.columns if stored.name is not None}
    if read.rows is not None or read.where is not None:
        fields.setdefault(shape.row, shape.row_type)
    return fields


def _schema(fields: Mapping[str, ColumnType]) -> Any:
    s = spark_types()
    return s.StructType([s.StructField(name, spark_type(type_)) for name, type_ in fields.items()])


def _columns(question: Question, shape: NativeShape) -> Iterator[tuple[str, str]]:
    """What is shown of each, in SQL."""
    for name, key in zip(shape.keys, question.schema.key, strict=True):
        yield key.name, quoted(name)
    for stored in shape.columns:
        yield stored.shown, _column(stored)


def _column(stored: StoredColumn) -> str:
    if stored.is_cells:
        return _NO_CELLS if stored.name is None else f"coalesce({quoted(stored.name)}, {_NO_CELLS})"
    if stored.name is None:
        return sql_literal(stored.type, stored.default)
    name = quoted(stored.name)
    return name if stored.stored == stored.type else f"CAST({name} AS {sql_type(stored.type)})"
