"""Expressions as values: compared by structure, hashable, each with exactly one text.

    Expr = Compare | Within | IsNull | Not | And | Or

What a comparison asks about is a column (`ColumnRef`) or one of the four things every scan has (`Special`). The name
`row`, in any case of letters, always means the encoded key: no column can be called so.

`And` and `Or` hold at least two parts, none of their own kind: `(a and b) and c` and `a and (b and c)` are one value.
`combine` and `either` keep to that. Nesting is bounded here, where values are made, so whoever walks an expression may
recurse.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import NoReturn, TypeAlias

import msgspec

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.literals import Literal, LiteralKind
from stelae.model.values import is_encodable, show

DEPTH_MAX = 100
IN_LIST_MAX = 10_000


class Comparator(Enum):
    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    PREFIX = "~="


class Special(Enum):
    """What every scan has, whatever its table's columns are."""

    ROW = "row"
    COLUMN = "column"
    TIME = "time"
    HISTORY = "history"


class ColumnRef(msgspec.Struct, frozen=True):
    """A key or value column by name, or a cell as family:qualifier."""

    name: str

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name or not is_encodable(self.name):
            raise InvalidArgument(f"{show(self.name)} is no column name")
        if self.name.lower() == Special.ROW.value:
            raise InvalidArgument("row is the encoded key, no column")


Operand: TypeAlias = ColumnRef | Special


class _Node:
    """The operators every expression has. Python's own `and`, `or`, `not` cannot be overloaded, so they are refused."""

    __slots__ = ()

    def __and__(self, other: object) -> Expr:
        return combine(_expression(self), _expression(other))

    def __rand__(self, other: object) -> Expr:
        return combine(_expression(other), _expression(self))

    def __or__(self, other: object) -> Expr:
        return either(_expression(self), _expression(other))

    def __ror__(self, other: object) -> Expr:
        return either(_expression(other), _expression(self))

    def __invert__(self) -> Expr:
        return Not(_expression(self))

    def __bool__(self) -> NoReturn:
        raise InvalidArgument(
            "an expression has no truth value before it meets a row: join expressions with & | ~ instead of "
            "and, or, not, and write a < x < b as (x > a) & (x < b)"
        )


class Compare(_Node, msgspec.Struct, frozen=True):
    operand: Operand
    comparator: Comparator
    literal: Literal

    def __post_init__(self) -> None:
        if self.comparator is Comparator.PREFIX and self.literal.kind not in (LiteralKind.STRING, LiteralKind.BINARY):
            raise InvalidArgument(f"a prefix is text or bytes, not {self.literal}")


class Within(_Node, msgspec.Struct, frozen=True):
    """True if any of the literals equals. With no literals it is false, even of NULL."""

    operand: Operand
    literals: tuple[Literal, ...]

    def __post_init__(self) -> None:
        if len(self.literals) > IN_LIST_MAX:
            raise InvalidArgument(f"a list has at most {IN_LIST_MAX} literals, not {len(self.literals)}")


class IsNull(_Node, msgspec.Struct, frozen=True):
    operand: Operand


class Not(_Node, msgspec.Struct, frozen=True, dict=True):
    inner: Expr

    def __post_init__(self) -> None:
        _check_depth(self.depth)

    @cached_property
    def depth(self) -> int:
        return _depth_above(self.inner)


class And(_Node, msgspec.Struct, frozen=True, dict=True):
    parts: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or any(isinstance(part, And) for part in self.parts):
            raise InvalidArgument("And holds two parts or more, none of them And; use combine")
        _check_depth(self.depth)

    @cached_property
    def depth(self) -> int:
        return _depth_above(*self.parts)


class Or(_Node, msgspec.Struct, frozen=True, dict=True):
    parts: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or any(isinstance(part, Or) for part in self.parts):
            raise InvalidArgument("Or holds two parts or more, none of them Or; use either")
        _check_depth(self.depth)

    @cached_property
    def depth(self) -> int:
        return _depth_above(*self.parts)


Leaf: TypeAlias = Compare | Within | IsNull
Expr: TypeAlias = Leaf | Not | And | Or


def _depth_above(*parts: Expr) -> int:
    return 1 + max(0 if isinstance(part, Leaf) else part.depth for part in parts)


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidArgument(f"expressions nest at most {DEPTH_MAX} deep")


def combine(*exprs: Expr) -> Expr:
    """All of them, joined with and."""
    parts = conjuncts(*exprs)
    return parts[0] if len(parts) == 1 else And(parts)


def either(*exprs: Expr) -> Expr:
    """Any of them, joined with or."""
    parts = tuple(part for expr in exprs for part in (expr.parts if isinstance(expr, Or) else (expr,)))
    return parts[0] if len(parts) == 1 else Or(parts)


def conjuncts(*exprs: Expr) -> tuple[Expr, ...]:
    """What must all be true for all of these to be."""
    return tuple(part for expr in exprs for part in (expr.parts if isinstance(expr, And) else (expr,)))


def leaves(expr: Expr) -> Iterator[Leaf]:
    match expr:
        case Not(inner):
            yield from leaves(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves(part)
        case Compare() | Within() | IsNull():
            yield expr


def _expression(value: object) -> Expr:
    if isinstance(value, Expr):
        return value
    raise InvalidArgument(
        f"{show(value)} is no expression; & and | bind tighter than comparisons in Python, so put each comparison "
        'in parentheses: (col("a") > 1) & (col("b") < 2)'
    )
