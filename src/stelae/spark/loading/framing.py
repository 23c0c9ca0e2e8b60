"""Whether a frame fits a table, before any of it is computed: names, types that can never do, columns that are missing.

What only values can show (ranges, lengths, NULL) is found by the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stelae.client.arguments.names import Names
from stelae.client.intake.rule import CELLS, TWO_TIMES, long_places
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, TableId
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.model.values import check_ts, show
from stelae.spark.loading.intake import FrameShape
from stelae.spark.types import column_type
from stelae.storage.offline.rules import missing_column, required_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_VOID = "NullType"


def chosen(option: str, given: Any, *choices: str) -> str:
    """One of the choices; InvalidArgument names the option and all of them."""
    if given not in choices:
        said = ", ".join(repr(choice) for choice in choices[:-1])
        raise InvalidArgument(f"{option}= is {said} or {choices[-1]!r}, not {show(given)}")
    return str(given)


def shape_of_frame(
    table: TableId,
    schema: TableSchema,
    columns: StructType,
    *,
    nulls: str = "write",
    cells: str = "map",
    ts: int | None = None,
    erases: bool = False,
) -> FrameShape:
    """What a frame of these columns says of the table. InvalidArgument names the column that does not fit."""
    is_long = chosen("cells", cells, "map", "long") == "long"
    skips = chosen("nulls", nulls, "write", "skip") == "skip"
    time = None if ts is None else Micros(check_ts(ts))
    _check_distinct([field.name for field in columns.fields])
    if is_long:
        has_times = _check_long(schema, columns)
        if has_times and time is not None:
            raise InvalidArgument(TWO_TIMES)
        if erases:
            raise InvalidArgument("delete= is about rows: it does not go with cells='long'")
        names = tuple(field.name for field in columns.fields)
        return FrameShape(table, schema, names, skips, True, has_times, ts=time)
    _check_columns(schema, columns)
    names = tuple(field.name for field in columns.fields)
    shape = FrameShape(table, schema, names, skips, erases=erases, ts=time)
    _check_required(shape)
    return shape


def _check_distinct(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise InvalidArgument(f"column {name!r} is given twice (case does not count)")
        seen.add(name.casefold())


def _check_columns(schema: TableSchema, columns: StructType) -> None:
    names = Names(schema)
    found: set[str] = set()
    for field in columns.fields:
        match names.meaning(field.name):
            case KeyColumn() as key:
                found.add(key.name)
                _check_type(f"key column {key.name!r}", key.type, field)
            case Column() as column:
                _check_type(f"column {column.name!r}", column.type, field)
            case Cell():
                _check_type(f"column {field.name!r}", t.Binary(), field)
            case WholeFamily():
                _check_type(f"column {field.name!r}", CELLS, field)
    _check_keys(schema, found)


def _check_keys(schema: TableSchema, found: set[str]) -> None:
    for key in schema.key:
        if key.name not in found:
            raise InvalidArgument(f"key column {key.name!r} is missing")


def _check_long(schema: TableSchema, columns: StructType) -> bool:
    """Whether there is a column of times."""
    types: dict[str, t.ColumnType] = {"family": t.String(), "qualifier": t.String(), "value": t.Binary()}
    places = long_places(schema, [field.name for field in columns.fields])
    for place, field in zip(places, columns.fields, strict=True):
        match place:
            case KeyColumn() as key:
                _check_type(f"key column {key.name!r}", key.type, field)
            case "ts":
                if not isinstance(column_type(field.dataType, field.name), t.Timestamp | t.Int):
                    raise InvalidArgument(
                        f"column {field.name!r} holds times: whole microseconds or moments with a zone"
                    )
            case part:
                _check_type(f"column {field.name!r}", types[part], field)
    return "ts" in places


def _check_type(what: str, wanted: t.ColumnType, field: Any) -> None:
    if type(field.dataType).__name__ == _VOID:
        return  # nothing but NULL, which is of any type
    given = column_type(field.dataType, field.name)
    if not _may_fit(wanted, given):
        raise InvalidArgument(f"{what} is {wanted}: {field.dataType.simpleString()} does not fit")


def _may_fit(wanted: t.ColumnType, given: t.ColumnType) -> bool:
    match wanted:
        case t.Int() | t.Float():
            return isinstance(given, t.Int | t.Float)
        case t.Decimal():
            return isinstance(given, t.Int | t.Decimal)
        case t.Array(element):
            return isinstance(given, t.Array) and _may_fit(element, given.element)
        case t.Vector():
            return isinstance(given, t.Array) and isinstance(given.element, t.Int | t.Float)
        case t.Struct(fields):
            inner = dict(fields)
            return isinstance(given, t.Struct) and all(
                name in inner and _may_fit(inner[name], field) for name, field in given.fields
            )
        case t.Map(key, value):
            return isinstance(given, t.Map) and _may_fit(key, given.key) and _may_fit(value, given.value)
        case t.Bool() | t.String() | t.Binary() | t.Date() | t.Timestamp() | t.TimestampNtz():
            return type(wanted) is type(given)


def _check_required(shape: FrameShape) -> None:
    """Where every row is known to touch a group, its needed columns must be there."""
    if shape.skips_nulls:
        return
    for group in shape.schema.groups:
        spec = shape.file_specs.get(group.id)
        there = {column.id for column in spec.columns} if spec is not None else set()
        for column in required_columns(group) if there else ():
            if column.id not in there:
                raise missing_column(column, group)
