"""What `increment` adds up: exactly, in the column's type, or not at all.

NULL counts as 0, a column that was never written as its default, or 0. A sum that leaves the column's range is
InvalidArgument, a float that becomes infinite too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Context
from typing import Any

from stelae.client.api.rows import Row as FoundRow
from stelae.client.arguments.names import Names
from stelae.model.errors import InvalidArgument
from stelae.model.schema import Column, TableSchema
from stelae.model.types import DECIMAL_PRECISION_MAX, Decimal, Float, Int
from stelae.model.values import Value, coerce, show

_EXACT = Context(prec=2 * DECIMAL_PRECISION_MAX)


def incremented(schema: TableSchema, row: FoundRow | None, by: Mapping[str, Any]) -> dict[str, Value]:
    """The new values, by the columns' names. `row` is None if none of the columns was ever written."""
    names = Names(schema)
    found: dict[str, Value] = {}
    for name, step in by.items():
        column = names.meaning(name)
        if not isinstance(column, Column):
            raise InvalidArgument(f"{name!r} is no value column: only numbers are incremented")
        if column.name in found:
            raise InvalidArgument(f"column {name!r} is given twice (case does not count)")
        before = column.default if row is None else row[column.name]
        found[column.name] = _sum(column, before, step)
    return found


def _sum(column: Column, before: Value, step: Any) -> Value:
    where = f"column {column.name!r}"
    match column.type:
        case Int():
            return _fitted(column, (before or 0) + coerce(Int(64), step, where))
        case Float():
            start, added = before or 0.0, coerce(Float(64), step, where)
            total = start + added
            if math.isinf(total) and not math.isinf(start) and not math.isinf(added):
                raise _overflow(column, before, step)
            return _fitted(column, total)
        case Decimal(_, scale):
            added = coerce(Decimal(DECIMAL_PRECISION_MAX, scale), step, where)
            return _fitted(column, _EXACT.add(before or 0, added))
        case _:
            raise InvalidArgument(f"{where} is {column.type}: only numbers are incremented")


def _fitted(column: Column, total: Value) -> Value:
    return coerce(column.type, total, f"column {column.name!r}, incremented")


def _overflow(column: Column, before: Value, step: Any) -> InvalidArgument:
    return InvalidArgument(
        f"column {column.name!r}, incremented: {show(before)} + {show(step)} is out of range of {column.type}"
    )
