"""Files as frames for a load: Parquet as it is, CSV and JSON lines by the types of the table they are for.

Text is never made to fit: a field that is no value of its column's type (`texts`), or a line that cannot be read at
all, is a bad row with a reason (`MISFIT`), and the load deals with it as with all bad rows. An empty field of CSV that
is not quoted is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stelae.client.arguments.names import Names
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.spark.driver.failures import is_of_spark
from stelae.spark.loading.intake import MISFIT
from stelae.spark.loading.texts import IN_FILES, ZONED, is_text_misfit, literal, shape_of, text_value
from stelae.spark.reading.conditions import quoted
from stelae.spark.types import column_type, spark_type

_RECORD = "__stelae_record"
_CELLS = t.Map(t.String(), t.Binary())
_NULL = "\x01\x02 stelae reads this as NULL \x02\x01"
"""Without a text of its own for NULL, Spark would take a quoted empty field for it too."""

_BYTES, _ODD_FLOAT = "$binary", "$float"


def frame_of_files(
    spark: Any,
    files: Sequence[str],
    kind: str,
    types: Mapping[str, t.ColumnType] | TableSchema | None,
    *,
    delimiter: str = ",",
    multiline: bool = False,
) -> Any:
    """`types`: of the columns, by name; or the table's, of which columns may be missing in the files; or None: what the
    files look like."""
    for file in files:
        if file.rpartition("/")[2].startswith(("_", ".")):
            raise InvalidArgument(
                f"{file}: Spark passes over files whose names begin with _ or a dot: call it otherwise"
            )
    match kind:
        case "parquet":
            frame = _read(lambda: spark.read.option("mergeSchema", True).parquet(*files))
            return frame if types is None or isinstance(types, TableSchema) else _with_types(frame, types)
        case "csv":
            return _csv(spark, files, types, delimiter, multiline)
        case "json":
            return _json(spark, files, types, multiline)
        case _:
            raise InvalidArgument(f"files are parquet, csv or json, not {kind!r}")


def _read(reading: Callable[[], Any]) -> Any:
    """What Spark says of files that it cannot read, in a line."""
    try:
        return reading()
    except Exception as error:
        if not is_of_spark(error):
            raise
        lines = [line.strip(" :") for line in str(error).splitlines()]
        told = next((line for line in lines if "[" in line), lines[0])
        raise InvalidArgument(told[told.find("[") :] if "[" in told else told) from None


def _type_of(types: Mapping[str, t.ColumnType] | TableSchema, name: str) -> t.ColumnType | None:
    """None for a column that there is not: who loads the frame tells."""
    if not isinstance(types, TableSchema):
        return types.get(name)
    try:
        match Names(types).meaning(name):
            case KeyColumn(type=type_) | Column(type=type_):
                return type_
            case Cell():
                return t.Binary()
            case WholeFamily():
                return _CELLS
    except InvalidArgument:
        return None


def _with_types(frame: Any, types: Mapping[str, t.ColumnType]) -> Any:
    missing = [name for name in types if name not in frame.columns]
    if missing:
        raise InvalidArgument(f"there is no column {missing[0]!r} in the files; they have {', '.join(frame.columns)}")
    values, misfits = [], ["CAST(NULL AS STRING)"]
    for field in frame.schema.fields:
        wanted, column = types.get(field.name), quoted(field.name)
        if wanted is None:
            raise InvalidArgument(f"column {field.name!r} of the files is not in the schema that was given")
        known, value = column_type(field.dataType, field.name), column
        if known != wanted:
            value = _converted(field.name, known, wanted)
            misfits.append(_lost(field.name, value, wanted))
        values.append(f"{value} AS {column}")
    if len(misfits) == 1:
        return frame
    return frame.selectExpr(*values, f"coalesce({', '.join(misfits)}) AS {MISFIT}")


def _converted(name: str, known: t.ColumnType, wanted: t.ColumnType) -> str:
    """NULL where anything would be lost."""
    column, moments = quoted(name), (t.Timestamp, t.TimestampNtz, t.Date)
    if isinstance(known, t.String):
        return text_value(column, wanted)
    if isinstance(known, moments) or isinstance(wanted, moments):
        raise InvalidArgument(f"column {name!r} of the files is {known}, and cannot be read as {wanted}")
    new, old = (spark_type(type_).simpleString() for type_ in (wanted, known))
    return f"IF(TRY_CAST(TRY_CAST({column} AS {new}) AS {old}) <=> {column}, TRY_CAST({column} AS {new}), NULL)"


def _lost(name: str, value: str, wanted: t.ColumnType) -> str:
    column = quoted(name)
    begin, end = literal(f"column {name!r}: '"), literal(f"' is not a {wanted}")
    given = f"CAST({column} AS STRING)"
    return f"IF({column} IS NOT NULL AND {value} IS NULL, concat({begin}, {given}, {end}), NULL)"


def _csv(spark: Any, files: Sequence[str], types: Any, delimiter: str, multiline: bool) -> Any:
    multiline = multiline or _has_line_ends(spark, files)
    reader = spark.read.options(
        header=True, sep=delimiter, quote='"', escape='"', multiLine=multiline, mode="PERMISSIVE", nullValue=_NULL
    )
    if types is None:
        inferred = _read(lambda: reader.option("inferSchema", True).csv(list(files)))
        types = {field.name: column_type(field.dataType, field.name) for field in inferred.schema.fields}
        types |= _without_zones(_read(lambda: reader.option("inferSchema", False).csv(list(files))), types)
    names = _read(lambda: reader.option("inferSchema", False).csv(list(files))).columns
    if isinstance(types, Mapping) and not isinstance(types, TableSchema):
        _check_names(names, types)
    schema = ", ".join(f"{quoted(name)} STRING" for name in [*names, _RECORD])
    # Every file must have this header: columns of CSV have no names but by it.
    raw = reader.schema(schema).options(columnNameOfCorruptRecord=_RECORD, enforceSchema=False).csv(list(files))
    values, misfits = [], [_broken("is no line of as many fields as the header")]
    for name in names:
        type_ = _type_of(types, name)
        value = quoted(name) if type_ is None else text_value(quoted(name), type_)
        values.append(f"{value} AS {quoted(name)}")
        if type_ is not None and value != quoted(name):
            misfits.append(_misfit(name, type_, is_text=True))
    return raw.selectExpr(*values, f"coalesce({', '.join(misfits)}) AS {MISFIT}")


def _without_zones(raw: Any, types: Mapping[str, t.ColumnType]) -> dict[str, t.ColumnType]:
    """Columns of what Spark took for moments, and that have no zone."""
    moments = [name for name, type_ in types.items() if isinstance(type_, t.Timestamp)]
    if not moments:
        return {}
    pattern = literal(ZONED)
    found = raw.selectExpr(*(f"coalesce(bool_or({quoted(name)} RLIKE {pattern}), false)" for name in moments)).first()
    return {name: t.TimestampNtz() for name, has_zone in zip(moments, found, strict=True) if not has_zone}


def _json(spark: Any, files: Sequence[str], types: Any, multiline: bool) -> Any:
    reader = spark.read.option("multiLine", multiline)
    inferred = _read(lambda: reader.option("columnNameOfCorruptRecord", _RECORD).json(list(files)))
    names = [name for name in inferred.columns if name != _RECORD]
    if types is None:
        if not names:
            raise InvalidArgument("there are no rows in the files that would tell their columns")
        types = _told_types(inferred, names)
        if types is None:
            return inferred if _RECORD not in inferred.columns else _marked(inferred, names)
    if not inferred.columns:
        return _none_of(spark, types)
    if isinstance(types, Mapping) and not isinstance(types, TableSchema):
        _check_names(names, types)
    fields, texts = [], dict[str, t.ColumnType]()
    for field in inferred.schema.fields:
        if field.name != _RECORD:
            wanted = _type_of(types, field.name)
            if wanted is not None:
                texts[field.name] = wanted
            fields.append((field.name, field.dataType.simpleString() if wanted is None else shape_of(wanted)))
    schema = ", ".join(f"{quoted(name)} {shape}" for name, shape in fields)
    options = {"columnNameOfCorruptRecord": _RECORD, "mode": "PERMISSIVE", "timeZone": "UTC"}
    return _marked(reader.options(**options).schema(f"{schema}, {_RECORD} STRING").json(list(files)), names, texts)


def _told_types(inferred: Any, names: Sequence[str]) -> dict[str, t.ColumnType] | None:
    """The types of all columns, if bytes or odd floats are said in any; None: they are what Spark takes them for."""
    found = {field.name: field.dataType for field in inferred.schema.fields if field.name in names}
    told = {name: said for name, type_ in found.items() if (said := _said(type_)) is not None}
    if not told:
        return None
    return {name: told.get(name) or column_type(type_, name) for name, type_ in found.items()}


def _said(type_: Any) -> t.ColumnType | None:
    names = [field.name for field in getattr(type_, "fields", ())]
    if names == [_BYTES]:
        return t.Binary()
    return t.Float(64) if names == [_ODD_FLOAT] else None


def _has_line_ends(spark: Any, files: Sequence[str]) -> bool:
    """Whether a field has a line end in it: then a line has an odd number of quotes. Such files cannot be read line by
    line, and Spark would not say so."""
    lines = _read(lambda: spark.read.text(list(files)))
    odd = "(length(value) - length(replace(value, '\"', ''))) % 2 = 1"
    return bool(lines.where(odd).limit(1).count())


def _none_of(spark: Any, types: Mapping[str, t.ColumnType] | TableSchema) -> Any:
    """A frame without rows, for files without any."""
    keys = {key.name: key.type for key in types.key} if isinstance(types, TableSchema) else dict(types)
    columns = ", ".join(f"{quoted(name)} {spark_type(type_).simpleString()}" for name, type_ in keys.items())
    return spark.createDataFrame([], columns)


def _marked(frame: Any, names: Sequence[str], texts: Mapping[str, t.ColumnType] | None = None) -> Any:
    """`texts`: columns that are text until here, and what they are to be."""
    values, misfits = [], [_broken("cannot be read as the columns' types say")]
    for name in names:
        type_ = (texts or {}).get(name)
        value = quoted(name) if type_ is None else IN_FILES.value(quoted(name), type_)
        values.append(f"{value} AS {quoted(name)}")
        if type_ is not None and value != quoted(name):
            misfits.append(_misfit(name, type_, is_text=False))
    return frame.selectExpr(*values, f"coalesce({', '.join(misfits)}) AS {MISFIT}")


def _check_names(names: Sequence[str], types: Mapping[str, t.ColumnType]) -> None:
    for name in types:
        if name not in names:
            raise InvalidArgument(f"there is no column {name!r} in the files; they have {', '.join(names)}")
    for name in names:
        if name not in types:
            raise InvalidArgument(f"column {name!r} of the files is not in the schema that was given")


def _broken(why: str) -> str:
    begin, end = literal("'"), literal(f"' {why}")
    return f"IF({_RECORD} IS NULL, NULL, concat({begin}, {_RECORD}, {end}))"


def _misfit(name: str, type_: t.ColumnType, *, is_text: bool) -> str:
    """Why a row is bad; NULL if it is not. `is_text`: nested values are JSON in the column."""
    column = quoted(name)
    wanted = f"{type_} with its zone, as 2026-01-31T12:00:00Z is" if isinstance(type_, t.Timestamp) else str(type_)
    begin, end = literal(f"column {name!r}: '"), literal(f"' is not a {wanted}")
    plain = is_text or shape_of(type_) == "string"
    given = column if plain else f"to_json({column})"
    misfit = is_text_misfit(column, type_) if is_text else IN_FILES.is_misfit(column, type_)
    return f"IF({misfit}, concat({begin}, {given}, {end}), NULL)"
