"""What a scan does, taken apart: which rows it visits, what it reads of each, and which it keeps.

The parts of the outermost `and` are sorted by what they are about:

| about | becomes | may use |
|---|---|---|
| `row` alone | `rows` | everything, with or and not in any nesting |
| `column` | `columns` | = ~= in, joined with and, or |
| `time` | `time` | = < <= > >= with microseconds, a timestamp, or its text |
| `history` | `history` | = with a number from 1 |
| anything else | `where` | everything, `row` too |

So a row is wanted if it lies in `rows` and `where` is true of it, exactly where the whole is true of it. `column`,
`time` and `history` say what is read, not which rows match: under `or` or `not` together with anything else they would
mean nothing, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import reduce
from typing import NoReturn

import msgspec
from msgspec.structs import force_setattr

from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN
from stelae.model.predicate.expr import (
    And,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Not,
    Or,
    Special,
    Within,
    combine,
    conjuncts,
    either,
    leaves,
)
from stelae.model.predicate.literals import Literal, read_timestamp
from stelae.model.predicate.printer import to_text
from stelae.model.predicate.rowsets import intersect_all, rows_condition, rows_of_leaf, rows_where
from stelae.model.predicate.selectors import (
    ALL_COLUMNS,
    ColumnSelector,
    Selectors,
    in_one_form,
    intersect_selectors,
    union_selectors,
)
from stelae.model.ranges import EVERYTHING, RangeSet
from stelae.model.values import micros_of_datetime

SCAN_HISTORY_MAX = (1 << 31) - 1


class TimeRange(msgspec.Struct, frozen=True):
    """User times from start to below stop, in microseconds. There is one empty range."""

    start: int = TS_MIN
    stop: int = TS_MAX + 1

    def __post_init__(self) -> None:
        start, stop = max(self.start, TS_MIN), min(self.stop, TS_MAX + 1)
        force_setattr(self, "start", start if start < stop else TS_MIN)
        force_setattr(self, "stop", stop if start < stop else TS_MIN)

    def __contains__(self, micros: int) -> bool:
        return self.start <= micros < self.stop

    @property
    def is_empty(self) -> bool:
        return self.start == self.stop

    def intersect(self, other: TimeRange) -> TimeRange:
        return TimeRange(max(self.start, other.start), min(self.stop, other.stop))


ALL_TIME = TimeRange()


class ScanPredicate(msgspec.Struct, frozen=True):
    """`columns` are in their one form, and all of them if nothing was said; `history` is None if nothing was said."""

    rows: RangeSet = EVERYTHING
    columns: Selectors = ALL_COLUMNS
    time: TimeRange = ALL_TIME
    history: int | None = None
    where: Expr | None = None

    def __post_init__(self) -> None:
        if not in_one_form(self.columns):
            raise InvalidArgument("column selectors are not in their one form; use union_selectors")
        if self.history is not None and not 1 <= self.history <= SCAN_HISTORY_MAX:
            raise InvalidArgument(f"history is a number from 1 to {SCAN_HISTORY_MAX}, not {self.history}")

    def to_expr(self) -> Expr:
        parts = [
            rows_condition(self.rows),
            _columns_condition(self.columns),
            *_time_conditions(self.time),
            None if self.history is None else Compare(Special.HISTORY, Comparator.EQ, Literal(self.history)),
            self.where,
        ]
        said = [part for part in parts if part is not None]
        return combine(*said) if said else Compare(Special.ROW, Comparator.GE, Literal(""))

    def to_text(self) -> str:
        return to_text(self.to_expr())


def plan(expr: Expr) -> ScanPredicate:
    about: dict[Special | None, list[Expr]] = {}
    for part in conjuncts(expr):
        about.setdefault(_about(part), []).append(part)
    where = about.get(None, [])
    return ScanPredicate(
        rows=intersect_all([rows_where(part) for part in about.get(Special.ROW, [])]),
        columns=_meet([_columns(part) for part in about.get(Special.COLUMN, [])]),
        time=reduce(TimeRange.intersect, [_time(part) for part in about.get(Special.TIME, [])], ALL_TIME),
        history=_one_history([_history(part) for part in about.get(Special.HISTORY, [])]),
        where=combine(*where) if where else None,
    )


def _about(part: Expr) -> Special | None:
    """The one special all of a part is about; None for what is evaluated per row."""
    operands: set[Special | None] = set()
    for leaf in leaves(part):
        operands.add(leaf.operand if isinstance(leaf.operand, Special) else None)
        if leaf.operand is Special.ROW:
            rows_of_leaf(leaf)  # refuses what a row does not compare with
    if len(operands) == 1:
        return operands.pop()
    for special in (Special.COLUMN, Special.TIME, Special.HISTORY):
        if special in operands:
            _refuse_place(special)
    return None


def _refuse_place(special: Special) -> NoReturn:
    only = "; only conditions on column may be joined with or" if special is Special.COLUMN else ""
    raise InvalidArgument(
        f"{special.value} says what is read of each row, not which rows match: it can be joined to other conditions "
        f"only with and, and not stand under or or not{only}"
    )


def _columns(expr: Expr) -> Selectors:
    match expr:
        case Compare(_, Comparator.EQ, literal):
            return (ColumnSelector(_column_text(literal), is_prefix=False),)
        case Compare(_, Comparator.PREFIX, literal):
            return (ColumnSelector(_column_text(literal), is_prefix=True),)
        case Within(_, literals):
            return union_selectors([ColumnSelector(_column_text(literal), is_prefix=False) for literal in literals])
        case Or(parts):
            return union_selectors([each for part in parts for each in _columns(part)])
        case And(parts):
            return _meet([_columns(part) for part in parts])
        case Not():
            _refuse_place(Special.COLUMN)
        case Compare() | IsNull():
            raise InvalidArgument(
                'column is compared with = ~= or in: column = "name", column ~= "click:", column in ("a", "b")'
            )


def _meet(all_selectors: Iterable[Selectors]) -> Selectors:
    return reduce(intersect_selectors, all_selectors, ALL_COLUMNS)


def _column_text(literal: Literal) -> str:
    if not isinstance(literal.value, str):
        raise InvalidArgument(f"column is compared with names in quotes, not with {literal}")
    return literal.value


def _columns_condition(columns: Selectors) -> Expr | None:
    if columns == ALL_COLUMNS:
        return None
    prefixes: list[Expr] = [
        Compare(Special.COLUMN, Comparator.PREFIX, Literal(each.text)) for each in columns if each.is_prefix
    ]
    names: list[Expr] = [
        Compare(Special.COLUMN, Comparator.EQ, Literal(each.text)) for each in columns if not each.is_prefix
    ]
    return either(*prefixes, *names) if prefixes or names else Within(Special.COLUMN, ())


def _time(expr: Expr) -> TimeRange:
    match expr:
        case Compare(_, Comparator.EQ, literal):
            return TimeRange(_micros(literal), _micros(literal) + 1)
        case Compare(_, Comparator.LT, literal):
            return TimeRange(stop=_micros(literal))
        case Compare(_, Comparator.LE, literal):
            return TimeRange(stop=_micros(literal) + 1)
        case Compare(_, Comparator.GT, literal):
            return TimeRange(start=_micros(literal) + 1)
        case Compare(_, Comparator.GE, literal):
            return TimeRange(start=_micros(literal))
        case Compare() | Within() | IsNull():
            raise InvalidArgument("time is one range: compare it with = < <= > or >=, as in 10 <= time < 20")
        case Not() | And() | Or():
            _refuse_place(Special.TIME)


def _micros(literal: Literal) -> int:
    match literal.value:
        case bool():
            pass
        case int(micros):
            return micros
        case str(text):
            return micros_of_datetime(read_timestamp(text))
        case datetime() as moment if moment.tzinfo is not None:
            return micros_of_datetime(moment)
        case _:
            pass
    raise InvalidArgument(f"time is compared with microseconds or a timestamp that has a zone, not with {literal}")


def _time_conditions(time: TimeRange) -> list[Expr]:
    from_start = Compare(Special.TIME, Comparator.GE, Literal(time.start))
    to_stop = Compare(Special.TIME, Comparator.LT, Literal(time.stop))
    return [
        *([from_start] if time.start != ALL_TIME.start else []),
        *([to_stop] if time.stop != ALL_TIME.stop else []),
    ]


def _history(expr: Expr) -> int:
    match expr:
        case Compare(_, Comparator.EQ, literal) if (
            type(literal.value) is int and 1 <= literal.value <= SCAN_HISTORY_MAX
        ):
            return literal.value
        case Compare() | Within() | IsNull():
            raise InvalidArgument(f"history is how many versions are read: history = 1, up to {SCAN_HISTORY_MAX}")
        case Not() | And() | Or():
            _refuse_place(Special.HISTORY)


def _one_history(said: list[int]) -> int | None:
    if len(set(said)) > 1:
        raise InvalidArgument(f"history is given twice, as {said[0]} and as {next(n for n in said if n != said[0])}")
    return said[0] if said else None
