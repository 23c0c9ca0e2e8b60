"""Schemas of every kind, and rows for them: right, nearly right, and wrong in every way that rows can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal as PyDecimal
from enum import IntEnum, StrEnum
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.client.intake.rule import CELLS, long_names
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, GroupId, SchemaVersion
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Mutation
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, KeyColumn, TableSchema
from stelae.model.schema_checks import check_schema
from stelae.storage.checks.rules import required_columns
from tests.strategies import column_types, key_types, key_values, values

KEY_NAMES = ("id", "Place", "größe")
COLUMN_NAMES = ("a", "B b", "Straße", "n", "Value", "ts")
FAMILIES = ("click", "View")
OTHER_NAMES: tuple[Any, ...] = ("nothing", "row:q", "_x:q", ":q", "\ud800:q", "id:q", "a:q", 7, "", "a", "A", "ID")
QUALIFIERS = ("", "q", "Q", "ä:b", "q" * 13)

LIMITS: tuple[Limits, ...] = (
    DEFAULT_LIMITS,
    DEFAULT_LIMITS,
    replace(DEFAULT_LIMITS, row_bytes_max=12, value_bytes_max=24, name_bytes_max=4),
)


WITH_CELLS = declare({"id": "string"}, [columns("g", {"a": "int64"}), cells("c", ["click"])])

Judged = list[list[Mutation] | str]
"""By row: what it says, or why it is refused."""


def judgements(judge: Callable[[Any], list[Mutation]], rows: Sequence[Any]) -> Judged:
    found: Judged = []
    for row in rows:
        try:
            found.append(judge(row))
        except InvalidArgument as error:
            found.append(str(error))
    return found


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    """Keys of any types; columns of all types, some NOT NULL, some with a default; families, and the wildcard."""
    ids = count(1)
    key = tuple(
        KeyColumn(ColumnId(next(ids)), name, type_)
        for name, type_ in zip(KEY_NAMES, draw(st.lists(key_types, min_size=1, max_size=3)), strict=False)
    )
    groups: list[Group] = []
    names = iter(draw(st.permutations(COLUMN_NAMES)))
    for number in range(draw(st.integers(0, 2))):
        id_ = GroupId(next(ids))
        some = [_column(draw, ColumnId(next(ids)), next(names)) for _ in range(draw(st.integers(1, 3)))]
        groups.append(ColumnsGroup(id_, f"columns{number}", tuple(some)))
    if draw(st.booleans()):
        families = [Family(ColumnId(next(ids)), name) for name in FAMILIES]
        groups.append(CellsGroup(GroupId(next(ids)), "cells", tuple(families)))
    if not groups or draw(st.booleans()):
        groups.append(CellsGroup(GroupId(next(ids)), "rest", wildcard=True))
    groups = draw(st.permutations(groups))
    return check_schema(TableSchema(SchemaVersion(3), key, tuple(groups), draw(st.booleans()), next(ids)))


def _column(draw: st.DrawFn, id_: ColumnId, name: str) -> Column:
    type_ = draw(column_types)
    default = None
    if isinstance(type_, t.KeyType) and draw(st.integers(0, 3)) == 0:
        default = draw(key_values(type_))
    return Column(id_, name, type_, nullable=draw(st.booleans()), default=default)


# -- values as users give them


class Weekday(IntEnum):
    MONDAY = 1


class Colour(StrEnum):
    RED = "red"


EAST = timezone(timedelta(hours=5, minutes=30))
READING = datetime(2024, 5, 6, 7, 8, 9)  # noqa: DTZ001 - a reading of a wall clock has no zone

ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 127, 128, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400),
    *(0.0, -0.0, 0.1, 1.0, 1.5, 2.0**63, 1e300, math.nan, math.inf),
    *(
        "",
        "x",
        "größe",
        "\ud800",
        "x" * 25,
        b"",
        b"x",
        b"x" * 25,
        bytearray(b"y"),
        memoryview(b"z"),
        memoryview(b"ab")[::2],
    ),
    *(PyDecimal("1.5"), PyDecimal("-0.00"), PyDecimal("1.005"), PyDecimal("NaN"), PyDecimal("1e40")),
    *(date(2024, 5, 6), READING, READING.replace(tzinfo=UTC), READING.replace(tzinfo=EAST), READING.replace(fold=1)),
    *(datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), READING.replace(year=1), time(1), timedelta(1)),
    *([], [None], [1, None], [1.0, 2.0], (1, 2), {}, {"a": None}, {"a": 1}, {1: 2}, [("a", 1), ("a", 2)], [["a"]]),
    *({0.0: 1, "x": 2}, {math.nan: 1}, [(0.0, 1), (-0.0, 2)], {None: 1}, {"a": b"1"}, set(), object(), 1j, ...),
    *(np.int8(1), np.uint64(2**63), np.float32(1.5), np.float64(2.0), np.float64(math.nan), np.longdouble(3)),
    *(np.bool_(True), np.str_("n"), np.bytes_(b"n"), np.array([1, 2]), np.array([[1]]), np.array(1), np.array(["a"])),
    *(np.datetime64("2024-05-06"), np.datetime64("2024-05-06T07:08:09.123456789"), np.datetime64("NaT")),
    *(np.timedelta64(1, "s"), pd.NaT, pd.NA, pd.Timestamp("2024-05-06"), pd.Timestamp(1, tz="UTC")),
    *(pd.Timestamp("2024-05-06", tz="Asia/Kolkata"), Weekday.MONDAY, Colour.RED, MappingProxyType({"a": 1})),
)


def given_values(type_: t.ColumnType, *, clean: bool) -> st.SearchStrategy[Any]:
    """What the type takes; if it need not be clean, also in other forms, and now and then anything."""
    good = values(type_)
    if clean:
        return good
    return st.one_of(good, good.flatmap(lambda value: st.sampled_from(_forms(type_, value))), st.sampled_from(ODD))


def _forms(type_: t.ColumnType, value: Any) -> list[Any]:
    """The same value as it may be given besides, and some near it that may not."""
    match type_:
        case t.Int(bits):
            ends = [2 ** (bits - 1) - 1, 2 ** (bits - 1), -(2 ** (bits - 1)) - 1]
            return [value, np.dtype(f"i{bits // 8}").type(value), np.int64(value), float(value), *ends, *ends]
        case t.Float(bits):
            return [value, np.dtype(f"f{bits // 8}").type(value), *([int(value)] if value.is_integer() else []), 0.1]
        case t.Decimal():
            return [value, value.normalize(), -value, value * 10, value / 10, int(value)]
        case t.String():
            return [value, np.str_(value), value.encode(), value + "\ud800", value * 4]
        case t.Binary():
            return [value, bytearray(value), memoryview(value), value * 4, [value]]
        case t.Date():
            return [value, np.datetime64(value), datetime.combine(value, time.min)]
        case t.Timestamp():
            return [value, value.replace(tzinfo=EAST), value.replace(tzinfo=None), *_timestamps(value)]
        case t.TimestampNtz():
            return [value, np.datetime64(value), value.replace(tzinfo=UTC), value.replace(fold=1), *_timestamps(value)]
        case t.Array() | t.Vector():
            return [value, tuple(value), [*value, None], value[1:], np.array(value, object), dict(enumerate(value))]
        case t.Struct():
            fewer = {name: item for name, item in value.items() if item is not None}
            return [value, fewer, MappingProxyType(value), value | {"zz": None}, list(value.items())]
        case t.Map():
            pairs = list(value.items())
            return [value, pairs, MappingProxyType(value), pairs + pairs[:1], [*pairs, (None, None)]]
        case _:
            return [value]


def _timestamps(value: datetime) -> list[Any]:
    return [pd.Timestamp(value)] if 1700 < value.year < 2200 else []


# -- rows


def _spelled(draw: st.DrawFn, name: str) -> str:
    return draw(st.sampled_from([name, name, name, name.upper(), name.casefold()]))


@st.composite
def names_of_rows(draw: st.DrawFn, schema: TableSchema, *, clean: bool) -> list[Any]:
    """Which names rows have: key columns, columns, cells and families. If they need not be clean, a key column may be
    missing, or one that a put must write, and there may be names of nothing."""
    found: list[Any] = [_spelled(draw, key.name) for key in schema.key]
    for group in schema.groups:
        if isinstance(group, ColumnsGroup) and draw(st.integers(0, 3)):
            some = draw(st.lists(st.sampled_from(group.columns), unique=True))
            needed = required_columns(group) if clean else []
            found += [_spelled(draw, column.name) for column in dict.fromkeys([*some, *needed])]
    families = [f.name for group in schema.groups if isinstance(group, CellsGroup) for f in group.families]
    called = (*families, *(family.upper() for family in families), "wild")
    places = [f"{family}:{qualifier}" for family in called for qualifier in QUALIFIERS]
    if any(isinstance(group, CellsGroup) and group.wildcard for group in schema.groups):
        places += ["*", "*"]
    else:
        places = [place for place in places if clean is False or not place.startswith("wild")]
    places += families
    has_cells = draw(st.booleans())
    if places and has_cells:
        more: list[Any] = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
        found += more
    if not clean and draw(st.integers(0, 4)) == 0:
        found.append(draw(st.sampled_from(OTHER_NAMES)))
    if not clean and draw(st.integers(0, 9)) == 0:
        found.pop(0)
    return draw(st.permutations(found))


def given_under(schema: TableSchema, name: Any, *, clean: bool) -> st.SearchStrategy[Any]:
    """A value for a name."""
    folded = str(name).casefold()
    for key in schema.key:
        if key.name.casefold() == folded:
            return given_values(key.type, clean=clean)
    for group in schema.groups:
        for column in group.columns if isinstance(group, ColumnsGroup) else ():
            if column.name.casefold() == folded:
                found = given_values(column.type, clean=clean)
                return found if clean and not column.nullable else st.none() | found
    blobs = st.binary(max_size=3) if clean else st.one_of(st.binary(max_size=3), st.none() | st.sampled_from(ODD))
    if ":" in folded:
        return blobs
    inner: Sequence[str] = ("wild:", "wild:q", "WILD:q", "click:q", "CLICK:q") if folded == "*" else QUALIFIERS
    if folded == "*" and (clean or not any(isinstance(g, CellsGroup) and g.families for g in schema.groups)):
        inner = inner[:3]
    maps = st.none() | st.dictionaries(st.sampled_from(inner), blobs, max_size=3)
    return maps if clean else st.one_of(maps, maps, st.sampled_from(ODD))


@st.composite
def given_rows(draw: st.DrawFn, schema: TableSchema, names: Sequence[Any], *, clean: bool) -> list[tuple[Any, Any]]:
    return [(name, draw(given_under(schema, name, clean=clean))) for name in names]


@st.composite
def given_dicts(draw: st.DrawFn, schema: TableSchema, *, clean: bool) -> dict[Any, Any]:
    return dict(draw(given_rows(schema, draw(names_of_rows(schema, clean=clean)), clean=clean)))


# -- Arrow arrays


_NUMBERS: tuple[pa.DataType, ...] = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal128(3, -2), pa.decimal256(60, 3), pa.decimal32(5, 3)),
)
_TEXTS: tuple[pa.DataType, ...] = (
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.binary())),
)
_TIMES: tuple[pa.DataType, ...] = (
    *(pa.date32(), pa.date64(), pa.time64("us"), pa.duration("s")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "+05:30")),
)
_PLAIN = (pa.null(), pa.bool_(), *_NUMBERS, *_TEXTS, *_TIMES)


def _arrow_types(type_: t.ColumnType) -> st.SearchStrategy[pa.DataType]:
    """Arrow types that may hold values of a type, in any layout; now and then one that does not."""
    exact = st.just(to_arrow(type_))
    match type_:
        case t.Int() | t.Float() | t.Decimal():
            near: st.SearchStrategy[pa.DataType] = st.sampled_from(_NUMBERS)
        case t.String() | t.Binary():
            near = st.sampled_from(_TEXTS)
        case t.Date() | t.Timestamp() | t.TimestampNtz():
            near = st.sampled_from(_TIMES)
        case t.Array(element):
            near = _arrow_types(element).flatmap(_lists)
        case t.Vector(length):
            near = st.sampled_from((pa.float32(), pa.float64(), pa.int64())).flatmap(lambda of: _lists(of, length))
        case t.Struct(fields):
            near = _structs(fields)
        case t.Map(key, value):
            near = st.tuples(_arrow_types(key), _arrow_types(value)).flatmap(_maps)
        case _:
            near = exact
    return st.one_of(exact, exact, near, near, st.sampled_from(_PLAIN))


def _lists(of: pa.DataType, length: int = 2) -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from([pa.list_(of), pa.large_list(of), pa.list_(of, length), pa.list_view(of)])


@st.composite
def _structs(draw: st.DrawFn, fields: Sequence[tuple[str, t.ColumnType]]) -> pa.DataType:
    some = draw(st.permutations(fields))[: draw(st.sampled_from([len(fields), len(fields), len(fields) - 1]))]
    extra = [("zz", pa.int8())] if draw(st.integers(0, 5)) == 0 else []
    return pa.struct([*((name, draw(_arrow_types(field))) for name, field in some), *extra])


def _maps(parts: tuple[pa.DataType, pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    key, value = parts
    pair = pa.struct([("key", key), ("value", value)])
    if pa.types.is_null(key):  # Arrow has no such maps
        return st.just(pa.list_(pair))
    return st.sampled_from([pa.map_(key, value), pa.map_(key, value), pa.list_(pair), pa.large_list(pair)])


_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def held_by(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of an Arrow type, as `pa.array` takes them: times as numbers, maps as pairs."""
    types = pa.types
    if types.is_null(arrow):
        return st.none()
    if types.is_boolean(arrow):
        return st.booleans()
    if types.is_integer(arrow):
        low = 0 if types.is_unsigned_integer(arrow) else -(2 ** (arrow.bit_width - 1))
        high = 2 ** (arrow.bit_width - (low != 0)) - 1
        return st.integers(max(low, -3), 3) | st.integers(low, high)
    if types.is_floating(arrow):
        return st.integers(-3, 3).map(float) | st.floats(width=arrow.bit_width)
    if types.is_decimal(arrow):
        limit = 10**arrow.precision - 1
        numbers = st.integers(-3, 3) | st.integers(-limit, limit)
        return numbers.map(lambda number: PyDecimal(f"{number}e{-arrow.scale}"))
    if types.is_fixed_size_binary(arrow):
        return st.binary(min_size=arrow.byte_width, max_size=arrow.byte_width)
    if arrow in (pa.string(), pa.large_string(), pa.string_view()):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("x" * 25)
    if arrow in (pa.binary(), pa.large_binary(), pa.binary_view()):
        return st.binary(max_size=4) | st.just(b"x" * 25)
    if types.is_temporal(arrow):
        return _times_of(arrow)
    if types.is_dictionary(arrow):
        return held_by(arrow.value_type)
    return _nested_of(arrow)


def _times_of(arrow: pa.DataType) -> st.SearchStrategy[int]:
    if arrow == pa.date32():
        return st.integers(-3, 20_000) | st.integers(-(2**31), 2**31 - 1)
    if arrow == pa.date64():
        days = st.integers(-3, 20_000).map(lambda day: day * 86_400_000)
        return days | st.just(2**33 * 86_400_000)  # of times of day Python would not tell
    if pa.types.is_timestamp(arrow):
        scale = _SECONDS[arrow.unit]
        return st.integers(0, 1_700_000_000).map(lambda s: s * scale) | st.sampled_from([1, 1001, 2**62, -(2**62)])
    return st.integers(0, 1000)


def _nested_of(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_struct(arrow):
        return st.fixed_dictionaries({field.name: st.none() | held_by(field.type) for field in arrow})
    if types.is_map(arrow):
        return st.lists(st.tuples(held_by(arrow.key_type), st.none() | held_by(arrow.item_type)), max_size=3)
    items = held_by(arrow.value_type)
    if types.is_fixed_size_list(arrow):
        return st.lists(st.none() | items, min_size=arrow.list_size, max_size=arrow.list_size)
    return st.lists(st.none() | items, max_size=3) | st.lists(items, max_size=3)


@st.composite
def given_arrays(draw: st.DrawFn, type_: t.ColumnType, rows: int) -> pa.Array:
    arrow = draw(_arrow_types(type_))
    may_be_null = draw(st.booleans())
    value = st.none() | held_by(arrow) if may_be_null else held_by(arrow)
    array = pa.array(draw(st.lists(value, min_size=rows + 1, max_size=rows + 1)), arrow).slice(1)
    if pa.types.is_primitive(arrow) or arrow in (pa.string(), pa.binary()):
        how = draw(st.integers(0, 5))
        if how == 0 and not pa.types.is_null(arrow) and arrow != pa.float16():
            return array.dictionary_encode()
        if how == 1 and arrow != pa.float16():
            return pc.run_end_encode(array)
    return array


class NoSuchValue:
    """Stands for a value of Arrow's that Python has not, so no column takes it."""


def python_values(type_: t.ColumnType | None, array: pa.Array) -> list[Any]:
    """The values of an array as a user would give them one by one."""
    return [_python_value(type_, array.type, array[at]) for at in range(len(array))]


def _python_value(type_: t.ColumnType | None, arrow: pa.DataType, scalar: pa.Scalar) -> Any:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):
        return NoSuchValue()
    return _as_given(type_, arrow, value)


def _as_given(type_: t.ColumnType | None, arrow: pa.DataType, value: Any) -> Any:
    """A list of structs of two is the layout of a map, where a map is wanted; and a map is no list anywhere else."""
    types = pa.types
    if value is None:
        return None
    if types.is_map(arrow):
        if not isinstance(type_, t.Map):
            return NoSuchValue()
        pairs = [(key, _as_given(type_.value, arrow.item_type, item)) for key, item in value]
        return [(_as_given(type_.key, arrow.key_type, key), item) for key, item in pairs]
    if types.is_struct(arrow):
        inner = dict(type_.fields) if isinstance(type_, t.Struct) else {}
        return {field.name: _as_given(inner.get(field.name), field.type, value[field.name]) for field in arrow}
    if types.is_run_end_encoded(arrow) or types.is_dictionary(arrow):
        return _as_given(type_, arrow.value_type, value)
    if types.is_nested(arrow):
        of = arrow.value_type
        if isinstance(type_, t.Map) and types.is_struct(of) and of.num_fields == 2:
            return [None if pair is None else _pair(type_, of, pair) for pair in value]
        element = type_.element if isinstance(type_, t.Array) else None
        return [_as_given(element, of, item) for item in value]
    return value


def _pair(type_: t.Map, of: pa.DataType, pair: dict[str, Any]) -> tuple[Any, Any]:
    key, item = pair.values()
    return _as_given(type_.key, of[0].type, key), _as_given(type_.value, of[1].type, item)


def _type_under(schema: TableSchema, name: Any) -> t.ColumnType:
    """What a column of a frame should hold, by its name."""
    folded = str(name).casefold()
    for key in schema.key:
        if key.name.casefold() == folded:
            return key.type
    for group in schema.groups:
        for column in group.columns if isinstance(group, ColumnsGroup) else ():
            if column.name.casefold() == folded:
                return column.type
    return t.Binary() if ":" in folded else CELLS


Frame = tuple[pa.Table, list[list[tuple[Any, Any]]]]
"""A table, and its rows as a user would give them one by one."""


@st.composite
def given_frames(draw: st.DrawFn, schema: TableSchema) -> Frame:
    clean = draw(st.booleans())
    names = [str(name) for name in draw(names_of_rows(schema, clean=clean)) if name != "\ud800:q"] or ["nothing"]
    types = [_type_under(schema, name) for name in names]
    count_ = draw(st.integers(1, 4))
    arrays = []
    for name, type_ in zip(names, types, strict=True):
        if clean:
            held = draw(st.lists(given_under(schema, name, clean=True), min_size=count_, max_size=count_))
            arrays.append(array_of(type_, held))
        else:
            arrays.append(draw(given_arrays(type_, count_)))
    return _frame(names, types, arrays)


def _frame(names: Sequence[str], types: Sequence[t.ColumnType], arrays: Sequence[pa.Array]) -> Frame:
    seen = [python_values(type_, array) for type_, array in zip(types, arrays, strict=True)]
    rows = [list(zip(names, row, strict=True)) for row in zip(*seen, strict=True)]
    return pa.table(list(arrays), names=list(names)), rows


# -- rows of one cell


LONG_TYPES: dict[str, t.ColumnType] = {"family": t.String(), "qualifier": t.String(), "value": t.Binary()}
LONG_FAMILIES = (*FAMILIES, "CLICK", "wild", "wild", "toolong", "row", "_x", "a:b", "id", "", None)
MICROS = (0, 7, -(2**40), 2**62)


@st.composite
def names_of_long_rows(draw: st.DrawFn, schema: TableSchema, *, clean: bool) -> list[str]:
    called = long_names(schema)
    found = [_spelled(draw, key.name) for key in schema.key]
    found += [_spelled(draw, called[part]) for part in ("family", "qualifier", "value")]
    if draw(st.booleans()):
        found.append(_spelled(draw, called["ts"]))
    if not clean and draw(st.integers(0, 14)) == 0:
        found.pop(draw(st.integers(0, len(found) - 1)))
    if not clean and draw(st.integers(0, 14)) == 0:
        found.append(draw(st.sampled_from(["txn", "FAMILY", "nothing", "a", "ID"])))
    return draw(st.permutations(found))


def _long_part(schema: TableSchema, name: str) -> str:
    called = {own: part for part, own in long_names(schema).items()}
    return called.get(name.casefold(), "")


def some_families(schema: TableSchema, *, clean: bool) -> Sequence[Any]:
    """Families that there are, if some are; else any."""
    groups = [group for group in schema.groups if isinstance(group, CellsGroup)]
    there = [family.name for group in groups for family in group.families]
    there += ["wild"] if any(group.wildcard for group in groups) else []
    return there if clean and there else LONG_FAMILIES


@st.composite
def given_long_rows(
    draw: st.DrawFn, schema: TableSchema, names: Sequence[str], *, clean: bool
) -> list[tuple[Any, Any]]:
    odd = st.nothing() if clean else st.none() | st.sampled_from(ODD)
    found = []
    for name in names:
        match _long_part(schema, name):
            case "family":
                value = draw(st.sampled_from(some_families(schema, clean=clean)) | odd)
            case "qualifier":
                value = draw(st.sampled_from(QUALIFIERS) | odd)
            case "value":
                value = draw(st.binary(max_size=3) | odd)
            case "ts":
                moments = st.sampled_from(
                    [READING.replace(tzinfo=UTC), READING, 1.0, 1.5, np.float64(1.5), np.int64(7)]
                )
                value = draw(st.sampled_from([0, 7]) if clean else st.sampled_from(MICROS) | moments | odd)
            case _:
                value = draw(given_under(schema, name, clean=clean))
        found.append((name, value))
    return found


@st.composite
def given_long_frames(draw: st.DrawFn, schema: TableSchema) -> Frame:
    clean = draw(st.booleans())
    names = draw(names_of_long_rows(schema, clean=clean))
    count_ = draw(st.integers(1, 4))
    types: list[t.ColumnType] = []
    arrays = []
    for name in names:
        part = _long_part(schema, name)
        type_ = LONG_TYPES.get(part) or (t.Timestamp() if part == "ts" else _type_under(schema, name))
        types.append(type_)
        families = some_families(schema, clean=clean)
        arrays.append(_long_array(draw, part, type_, count_, families, clean=clean))
    return _frame(names, types, arrays)


def _long_array(
    draw: st.DrawFn, part: str, type_: t.ColumnType, rows: int, families: Sequence[Any], *, clean: bool
) -> pa.Array:
    some: dict[str, Sequence[Any]] = {
        "family": families,
        "qualifier": QUALIFIERS if clean else (*QUALIFIERS, None),
        "value": (b"", b"1") if clean else (b"", b"1", None, b"x" * 25),
    }
    if part in some and (clean or draw(st.integers(0, 3))):
        array = pa.array(draw(st.lists(st.sampled_from(some[part]), min_size=rows, max_size=rows)), to_arrow(type_))
        return array.dictionary_encode() if draw(st.integers(0, 5)) == 0 else array
    if part == "ts" and (clean or draw(st.booleans())):
        array = pa.array(draw(st.lists(st.sampled_from([0, 7, 9]), min_size=rows, max_size=rows)), pa.int64())
        kinds = [pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("ms", "+05:30"), pa.float64()]
        array = array.cast(draw(st.sampled_from(kinds)))
        return array.dictionary_encode() if draw(st.integers(0, 5)) == 0 else array
    if clean:
        return array_of(type_, draw(st.lists(values(type_), min_size=rows, max_size=rows)))
    return draw(given_arrays(type_, rows))
