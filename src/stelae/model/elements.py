"""Many values of one type, judged together: there may be millions of them.

A fast path of `values.coerce`, and never another rule: it keeps what `coerce` would keep of each, or says nothing. Then
each is looked at, to make it fit or to say which one does not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
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
            limit = 1 << (bits - 1)
            return list(items) if -limit <= min(items) and max(items) < limit else None
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


def first_out_of_range(type_: t.ColumnType, items: Iterable[Any]) -> int | None:
    """The place of the first int that the type does not hold, if all before it are ints, or None."""
    if not isinstance(type_, t.Int):
        return None
    limit = 1 << (type_.bits - 1)
    for place, item in enumerate(items):
        if item is None:
            continue
        if type(item) is not int:
            return None
        if not -limit <= item < limit:
            return place
    return None


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
    """Of zones that always know their offset."""
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
