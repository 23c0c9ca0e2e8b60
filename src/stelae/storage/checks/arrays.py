"""The rules of `mutations` for Arrow arrays: a rule holds for a whole array at once, or the first place where it does
not is looked for.

Arrays are in the Arrow form of their column's type. Offsets, UTF-8 and digits of decimals are taken as valid: Arrow
sees to them where arrays are made, and `decode_block` where they come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

import numpy as np
import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId
from stelae.model.keys.vector import with_one_zero
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.model.values import days_of_date
from stelae.storage.checks.rules import missing_column, required_columns
from stelae.storage.checks.sizes import map_entries
from stelae.storage.merge.order import Flags

_DAYS = days_of_date(date.min), days_of_date(date.max)


def why_not(type_: t.ColumnType, values: pa.Array) -> str:
    """Why some value is none of its type, although Arrow has it; empty if all are."""
    match type_:
        case t.Date():
            return _outside(values.view(pa.int32()), *_DAYS)
        case t.Timestamp() | t.TimestampNtz():
            return _outside(values.view(pa.int64()), TS_MIN, TS_MAX)
        case t.Vector():
            return "there is a NULL in a vector" if values.flatten().null_count else ""
        case t.Array(element):
            return why_not(element, values.flatten())
        case t.Struct(fields):
            parts = zip(fields, values.flatten(), strict=True)
            return next((why for (_, field), part in parts if (why := why_not(field, part))), "")
        case t.Map():
            return _why_not_map(type_, values)
        case _:
            return ""


def first_misfit(type_: t.ColumnType, values: pa.Array) -> tuple[int, str] | None:
    """The first value that its type does not have although Arrow does, and why. Found by halving."""
    why = why_not(type_, values)
    if not why:
        return None
    place, count = 0, len(values)
    while count > 1:
        half = count // 2
        if why_not(type_, values.slice(place, half)):
            count = half
        else:
            place, count = place + half, count - half
    return place, why_not(type_, values.slice(place, 1))


def _outside(numbers: pa.Array, least: int, most: int) -> str:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        return ""
    return "a time outside the years 1 to 9999"


def _why_not_map(type_: t.Map, values: pa.Array) -> str:
    owners, keys, items = map_entries(values)
    if keys.null_count:
        return "a key of a map is NULL"
    if isinstance(type_.key, t.Float):
        keys = with_one_zero(type_.key, keys)
        if pc.any(pc.is_nan(keys)).as_py():
            return "a key of a map is NaN"
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    marks = owners * len(codes) + codes
    marks.sort()
    if np.any(marks[1:] == marks[:-1]):
        return "a key stands twice in a map"
    return why_not(type_.key, keys) or why_not(type_.value, items)


def first_lacking(
    schema: TableSchema, written: Mapping[ColumnId, Flags], bare: Flags
) -> tuple[int, InvalidArgument] | None:
    """The first row that does not write a column it must, and what to say of it. `written`: the rows that write a
    column. `bare`: those that say their key alone."""
    for group in demanding_groups(schema):
        touched = any_of([written[column.id] for column in group.columns if column.id in written], len(bare))
        if group.id == schema.existence_group.id:
            touched |= bare
        for column in required_columns(group):
            lacks = touched & ~written[column.id] if column.id in written else touched
            if lacks.any():
                return int(np.argmax(lacks)), missing_column(column, group)
    return None


def demanding_groups(schema: TableSchema) -> list[ColumnsGroup]:
    """Those that no put may touch without some column."""
    return [group for group in schema.groups if isinstance(group, ColumnsGroup) and required_columns(group)]


def any_of(some: Iterable[Flags], count: int) -> Flags:
    result = np.zeros(count, np.bool_)
    for flags in some:
        result |= flags
    return result
