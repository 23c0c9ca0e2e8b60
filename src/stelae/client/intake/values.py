"""Columns of Python values, from dicts and from frames that hold objects, as Arrow arrays in their column's form.

A fast path of `rule`: values go by `fit_value`, one at a time, except where all of them have the very type that Arrow
and `coerce` agree on, or are kept together (`model.elements`). As in frames, floats that are whole numbers fit int
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.elements import kept_at_once, shares
from stelae.model.errors import InvalidArgument
from stelae.model.values import Value, coerce

_AGREED: dict[t.ColumnType, type] = {
    t.Bool(): bool,
    **{t.Int(bits): int for bits in t.INT_BITS},
    t.Float(64): float,
    t.String(): str,
    t.Binary(): bytes,
    t.Date(): date,
}
_NONE = type(None)


def fit_value(type_: t.ColumnType, value: Any, where: str) -> Value:
    """The kept form of a value that is not None: `coerce`, with whole floats for ints."""
    return coerce(type_, native_int(value) if isinstance(type_, t.Int) else value, where)


def native_int(value: Any) -> Any:
    """Python's int where numpy's, or a float that is a whole number, stands for it; any other value as it is."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if type(value).__module__ != "numpy" or getattr(value, "ndim", None) != 0 or value.dtype.kind not in "iuf":
        return value
    number = value.item()  # an array without dimensions has no `is_integer` of its own
    return int(number) if isinstance(number, int) or number.is_integer() else value


def array_of_given(type_: t.ColumnType, values: Sequence[Any], what: str, first_row: int) -> pa.Array:
    """None for null. InvalidArgument names the row, numbered on from `first_row`, and `what` it is."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if len(kinds) <= 1 and kinds <= {_AGREED.get(type_)}:
        try:
            return pa.array(values, to_arrow(type_))
        except (pa.ArrowException, OverflowError, UnicodeError):
            pass  # told value by value, below
    at_once = kept_at_once(type_, values)
    if at_once is not None:
        return array_of(type_, at_once)
    kept: list[Value] = []
    for first, share in shares(values):
        some = kept_at_once(type_, share) if len(share) < len(values) else None
        kept += _each_fit(type_, share, what, first_row + first) if some is None else some
    return array_of(type_, kept)


def _each_fit(type_: t.ColumnType, values: Sequence[Any], what: str, first_row: int) -> list[Value]:
    kept: list[Value] = []
    for number, value in enumerate(values, first_row):
        try:
            kept.append(None if value is None else fit_value(type_, value, what))
        except InvalidArgument as error:
            raise InvalidArgument(f"row number {number}: {error}") from None
    return kept
