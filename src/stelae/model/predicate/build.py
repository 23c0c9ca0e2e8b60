"""The Python face: terms, whose operators build expressions.

    col("age") > 30        (col("age") > 30) & ~col("name").startswith("A")        column == "click:home"

A term is not an expression: `==` on a term builds one, `==` on expressions compares them. So terms are neither hashable
nor true nor false. `col("row")` is `row`; the other specials have a term each, so that columns called time, column or
history can still be named with `col`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.expr import (
    IN_LIST_MAX,
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Not,
    Operand,
    Special,
    Within,
)
from stelae.model.predicate.literals import Literal, literal_of
from stelae.model.public import public
from stelae.model.values import show


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Term:
    operand: Operand

    # numpy scalars on the left side leave the comparison to the term instead of broadcasting it.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Compare:  # type: ignore[override]
        return self._compare(Comparator.EQ, other)

    def __ne__(self, other: object) -> Compare:  # type: ignore[override]
        return self._compare(Comparator.NE, other)

    def __lt__(self, other: object) -> Compare:
        return self._compare(Comparator.LT, other)

    def __le__(self, other: object) -> Compare:
        return self._compare(Comparator.LE, other)

    def __gt__(self, other: object) -> Compare:
        return self._compare(Comparator.GT, other)

    def __ge__(self, other: object) -> Compare:
        return self._compare(Comparator.GE, other)

    def startswith(self, prefix: object) -> Compare:
        """True of text or bytes that begin with the prefix: `~=` in the text form."""
        return self._compare(Comparator.PREFIX, prefix)

    def isin(self, values: Iterable[object]) -> Within:
        if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Iterable):
            raise InvalidArgument(f"{self}.isin takes a list of values, not {show(values)}")
        literals: list[Literal] = []
        for value in values:
            if len(literals) == IN_LIST_MAX:
                raise InvalidArgument(f"{self}.isin takes at most {IN_LIST_MAX} values")
            literals.append(self._literal(value))
        return Within(self.operand, tuple(literals))

    def is_null(self) -> IsNull:
        return IsNull(self.operand)

    def is_not_null(self) -> Not:
        return Not(IsNull(self.operand))

    def _compare(self, comparator: Comparator, other: object) -> Compare:
        return Compare(self.operand, comparator, self._literal(other))

    def _literal(self, value: object) -> Literal:
        if isinstance(value, Term | Expr):
            raise InvalidArgument(f"{self} cannot be compared with {value!r}: give a value, not another expression")
        try:
            return literal_of(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self}: {error}") from None

    def _is_no_expression(self, _other: object = None) -> NoReturn:
        raise InvalidArgument(
            f"{self} alone is neither true nor false: compare it with a value, and put each comparison in parentheses, "
            'as in (col("a") > 1) & (col("b") < 2)'
        )

    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _is_no_expression

    def __repr__(self) -> str:
        match self.operand:
            case ColumnRef(name):
                return f"col({name!r})"
            case Special() as special:
                return special.value


@public("col")
def col(name: str) -> Term:
    """A key or value column, a cell as "family:qualifier", or the encoded key as "row"."""
    if not isinstance(name, str):
        raise InvalidArgument(f"col takes a column's name, not {show(name)}")
    plain = str.__str__(name)
    return row if plain.lower() == Special.ROW.value else Term(ColumnRef(plain))


row = Term(Special.ROW)
"""The encoded key: compared with bytes, or with text for its UTF-8."""

column = Term(Special.COLUMN)
"""Which columns are read: a name, "family:qualifier", or with startswith a family or any beginning."""

time = Term(Special.TIME)
"""The user's time of a version: microseconds, or an aware datetime."""

history = Term(Special.HISTORY)
"""How many versions of each cell are read, newest first."""
