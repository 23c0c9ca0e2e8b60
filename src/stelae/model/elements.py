"""Many values of one type, judged together: there may be millions of them.

Fast paths of `values.coerce`, and never another rule: they keep what `coerce` would keep of each, or say nothing. Then
shares of the values are judged, and where a share cannot be either, each of it is looked at, to make it fit or to say
which one does not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timezone
from decimal import Context, DecimalException, Inexact, InvalidOperation
from decimal import Decimal as PyDecimal
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

from stelae.model import types as t

_NONE = type(None)
_KEPT_AS_IT_IS: dict[type, type] = {t.Float: float, t.Bool: bool, t.Binary: bytes, t.Date: date}
_ZONE, _FOLD = attrgetter("tzinfo"), attrgetter("fold")
_INT_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}
_SHARE = 1_024
_EXACT_INTS = 1 << 53
"""Ints up to here, and as far below zero, are float64 exactly."""


def kept_at_once(type_: t.ColumnType, items: Sequence[Any]) -> list[Any] | None:
    """What is kept of all items, None for None; None if each has to be looked at."""
    kinds = set(map(type, items))
    if _NONE not in kinds:
        return all_kept(type_, kinds, items)
    kept = all_kept(type_, kinds - {_NONE}, [item for item in items if item is not None])
    if kept is None:
        return None
    following = iter(kept)
    return [None if item is None else next(following) for item in items]


def all_kept(type_: t.ColumnType, kinds: set[type], items: Sequence[Any]) -> list[Any] | None:
    """As `kept_at_once`, of items of exactly these Python types: a NULL among them is for each to be looked at."""
    if not kinds:
        return []
    match type_:
        case t.Int(bits) if kinds == {int}:
            return list(items) if _are_in_range(bits, items) else None
        case t.Float(bits) if int in kinds and kinds <= ({int, float} if bits == 64 else {int}):
            return _floats_of_ints(bits, items)
        case t.Float(32) if kinds == {float}:
            rounded = array("f", items).tolist()
            return None if float("inf") in rounded or float("-inf") in rounded else rounded
        case t.Decimal(precision, scale) if kinds <= {PyDecimal, int}:
            return _decimals(precision, scale, items)
        case t.String() if kinds == {str}:
            return _texts(items)
        case t.Float(64) | t.Bool() | t.Binary() | t.Date() if kinds == {_KEPT_AS_IT_IS[type(type_)]}:
            return list(items)
        case t.Timestamp() if kinds == {datetime}:
            return _moments(items)
        case t.TimestampNtz() if kinds == {datetime}:
            return _unfolded(items) if set(map(_ZONE, items)) == {None} else None
        case t.Struct(fields) if kinds == {dict}:
            return _structs(fields, items)
        case _:
            return None


def shares(items: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Parts of many items, each with the place of its first: one item that does not fit has its share looked at, not
    millions."""
    for first in range(0, len(items), _SHARE):
        yield first, items[first : first + _SHARE]


def numbers_kept(type_: t.ColumnType, items: Any) -> list[Any] | None:
    """What is kept of a numpy array of numbers or bools in one dimension; None if it is something else, or each has to
    be looked at."""
    if type(items).__module__ != "numpy" or type(items).__name__ != "ndarray" or items.ndim != 1:
        return None
    kind, width = items.dtype.kind, items.dtype.itemsize * 8
    if not len(items) or kind not in "biuf" or width > 64:
        return None
    match type_, kind:
        case (t.Int(bits), "i" | "u"):
            is_narrower = width < bits or (width == bits and kind == "i")
            limit = 1 << (bits - 1)
            return items.tolist() if is_narrower or -limit <= int(items.min()) <= int(items.max()) < limit else None
        case (t.Float(64), "f") | (t.Bool(), "b"):
            return items.tolist()
        case (t.Float(64), "i" | "u"):
            is_exact = width < 64 or -_EXACT_INTS <= int(items.min()) <= int(items.max()) <= _EXACT_INTS
            return items.astype("f8").tolist() if is_exact else None
        case (t.Float(32), "f"):
            return items.tolist() if width <= 32 else _rounded(items)
        case _:
            return None


def _rounded(items: Any) -> list[float] | None:
    """The nearest float32 of each, unless some are too large to have one."""
    import numpy as np  # the array is of it: until one is met, none is needed

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = items.astype("f4")
    return rounded.tolist() if np.array_equal(np.isinf(rounded), np.isinf(items)) else None


def _are_in_range(bits: int, items: Sequence[int]) -> bool:
    try:
        array(_INT_CODES[bits], items)
    except OverflowError:
        return False
    return True


@cache
def decimal_form(precision: int, scale: int) -> tuple[Context, PyDecimal]:
    """What `quantize` takes to keep a decimal of the type exactly. Of the context nothing is read but what is set here,
    so threads may share it."""
    return Context(prec=precision, traps=[Inexact, InvalidOperation]), PyDecimal(1).scaleb(-scale)


def _floats_of_ints(bits: int, items: Sequence[Any]) -> list[float] | None:
    try:
        floats = array("d" if bits == 64 else "f", items).tolist()
    except OverflowError:
        return None
    return floats if floats == list(items) else None  # Python compares an int with a float exactly


def _decimals(precision: int, scale: int, items: Sequence[Any]) -> list[PyDecimal] | None:
    exact, quantum = decimal_form(precision, scale)
    try:
        fixed = list(map(exact.quantize, items, repeat(quantum)))
    except DecimalException:
        return None
    if any(map(PyDecimal.is_nan, fixed)):
        return None
    return [number or abs(number) for number in fixed]


def _texts(items: Sequence[str]) -> list[str] | None:
    try:
        "".join(items).encode()
    except UnicodeEncodeError:
        return None
    return list(items)


def _moments(items: Sequence[datetime]) -> list[datetime] | None:
    """The moments in UTC; None unless all zones are of kinds that always know their offset."""
    zones = set(map(_ZONE, items))
    if zones == {UTC}:
        return _unfolded(items)
    if not {type(zone) for zone in zones} <= {timezone, ZoneInfo}:
        return None
    try:
        return [item.astimezone(UTC) for item in items]
    except OverflowError:
        return None


def _unfolded(items: Sequence[datetime]) -> list[datetime]:
    return list(items) if not any(map(_FOLD, items)) else [item.replace(fold=0) for item in items]


def _structs(fields: tuple[tuple[str, t.ColumnType], ...], items: Sequence[dict[Any, Any]]) -> list[Any] | None:
    names = [name for name, _ in fields]
    if not set().union(*items) <= set(names):
        return None
    columns = []
    for name, type_ in fields:
        kept = kept_at_once(type_, [item.get(name) for item in items])
        if kept is None:
            return None
        columns.append(kept)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
