"""The text face: a predicate's text as an expression.

    or          := and ("or" and)*
    and         := not ("and" not)*
    not         := "not"* ( "(" or ")" | comparison )
    comparison  := name op literal | literal op name | literal op name op literal
                 | name ["not"] "in" "(" [literal ("," literal)*] ")" | name "is" ["not"] "null"
    op          := = == != < <= > >= ~=
    literal     := text, bytes, number, true, false | date text | timestamp text | timestamp_ntz text

A chain has its name in the middle and both signs pointing one way. `row`, `column`, `time` and `history` are the
specials unless in backquotes, where all but `row` are columns. Whatever is wrong is InvalidPredicate with the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from stelae.model.errors import InvalidArgument, InvalidPredicate
from stelae.model.predicate.expr import (
    DEPTH_MAX,
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
    combine,
    either,
)
from stelae.model.predicate.lexer import Token, TokenKind, tokenize
from stelae.model.predicate.literals import Literal, Scalar, read_date, read_timestamp, read_timestamp_ntz
from stelae.model.values import show

TEXT_LENGTH_MAX = 1 << 20

_MIRRORED = {
    Comparator.EQ: Comparator.EQ,
    Comparator.NE: Comparator.NE,
    Comparator.LT: Comparator.GT,
    Comparator.LE: Comparator.GE,
    Comparator.GT: Comparator.LT,
    Comparator.GE: Comparator.LE,
}
_RISING = (Comparator.LT, Comparator.LE)
_FALLING = (Comparator.GT, Comparator.GE)
_TYPED: dict[str, Callable[[str], Scalar]] = {
    "date": read_date,
    "timestamp": read_timestamp,
    "timestamp_ntz": read_timestamp_ntz,
}
_SQL = {
    "like": '; a prefix is asked for as name ~= "prefix"',
    "between": "; a range is asked for as 1 <= name <= 2",
    "isin": "; membership is asked for as name in (1, 2)",
}

_SIDES = (TokenKind.LITERAL, TokenKind.NAME, TokenKind.QUOTED_NAME)
_SPECIALS = frozenset(special.value for special in Special)

_T = TypeVar("_T")


def parse(text: str) -> Expr:
    if not isinstance(text, str):
        raise InvalidArgument(f"a predicate's text is a str, not {show(text)} ({type(text).__name__})")
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidPredicate(f"a predicate has at most {TEXT_LENGTH_MAX} characters", text, TEXT_LENGTH_MAX)
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next = next(self._tokens)
        self._depth = 0

    def whole(self) -> Expr:
        if self._at(TokenKind.END):
            self._fail("the predicate is empty")
        expr = self._or()
        if not self._at(TokenKind.END):
            hint = _SQL.get(self._next.text.lower(), "")
            self._fail(f"expected and, or, or the end, not {self._shown()}{hint}")
        return expr

    def _or(self) -> Expr:
        start, parts = self._next.position, [self._and()]
        while self._takes(TokenKind.KEYWORD, "or"):
            parts.append(self._and())
        return self._make(start, lambda: either(*parts))

    def _and(self) -> Expr:
        start, parts = self._next.position, [self._not()]
        while self._takes(TokenKind.KEYWORD, "and"):
            parts.append(self._not())
        return self._make(start, lambda: combine(*parts))

    def _not(self) -> Expr:
        start, outer_depth, nots = self._next.position, self._depth, 0
        while self._takes(TokenKind.KEYWORD, "not", nests=True):
            nots += 1
        opening = self._next
        if self._takes(TokenKind.MARK, "(", nests=True):
            expr = self._or()
            if not self._takes(TokenKind.MARK, ")"):
                hint = _SQL.get(self._next.text.lower(), "")
                self._fail(f"expected and, or, or the ) of position {opening.position}, not {self._shown()}{hint}")
        else:
            expr = self._comparison()
        for _ in range(nots):
            expr = self._make(start, lambda: Not(expr))  # noqa: B023 - called at once
        self._depth = outer_depth
        return expr

    def _comparison(self) -> Expr:
        token = self._next
        match self._side():
            case Literal() as literal:
                return self._literal_first(literal)
            case ColumnRef() | Special() as operand:
                return self._name_first(operand, token)

    def _name_first(self, operand: Operand, name: Token) -> Expr:
        if self._takes(TokenKind.KEYWORD, "is"):
            return self._is_null(operand)
        if self._takes(TokenKind.KEYWORD, "in"):
            return self._within(operand)
        if self._takes(TokenKind.KEYWORD, "not"):
            self._expect(TokenKind.KEYWORD, "in", "in after not")
            return Not(self._within(operand))
        if not self._at(TokenKind.OPERATOR):
            hint = _SQL.get(self._next.text.lower(), "")
            self._fail(f"expected a comparison after {show(name.text)}, not {self._shown()}{hint}")
        comparator = self._comparator()
        start = self._next.position
        literal = self._literal(f"a literal after {comparator.value}")
        if self._at(TokenKind.OPERATOR):
            self._fail("a chained comparison has its name in the middle, as in 1 <= name < 2")
        return self._make(start, lambda: Compare(operand, comparator, literal))

    def _literal_first(self, left: Literal) -> Expr:
        if not self._at(TokenKind.OPERATOR):
            self._fail(f"expected a comparison after the literal, not {self._shown()}")
        first = self._mirrored()
        after = self._next
        operand = self._side()
        if isinstance(operand, Literal):
            self._fail("two literals are compared: one side must be a name; names are not written in quotes", after)
        lower = Compare(operand, first, left)
        if not self._at(TokenKind.OPERATOR):
            return lower
        sign = self._next
        second = self._comparator()
        if not (first in _FALLING and second in _RISING) and not (first in _RISING and second in _FALLING):
            self._fail("both signs of a chained comparison point one way, as in 1 <= name < 2", sign)
        upper = Compare(operand, second, self._literal(f"a literal after {second.value}"))
        if self._at(TokenKind.OPERATOR):
            self._fail("a chained comparison has two signs; join more with and")
        return combine(lower, upper)

    def _is_null(self, operand: Operand) -> Expr:
        negated = self._takes(TokenKind.KEYWORD, "not")
        self._expect(TokenKind.KEYWORD, "null", "null or not null after is")
        return Not(IsNull(operand)) if negated else IsNull(operand)

    def _within(self, operand: Operand) -> Within:
        self._expect(TokenKind.MARK, "(", "a list in parentheses after in, as in (1, 2)")
        literals: list[Literal] = []
        if self._takes(TokenKind.MARK, ")"):
            return Within(operand, ())
        while True:
            if len(literals) == IN_LIST_MAX:
                self._fail(f"a list has at most {IN_LIST_MAX} literals")
            literals.append(self._literal("a literal in the list"))
            if self._takes(TokenKind.MARK, ")"):
                return Within(operand, tuple(literals))
            self._expect(TokenKind.MARK, ",", "a comma or ) in the list")

    def _comparator(self) -> Comparator:
        token = self._take()
        return Comparator(token.text)

    def _mirrored(self) -> Comparator:
        sign = self._next
        comparator = _MIRRORED.get(self._comparator())
        if comparator is None:
            self._fail('~= has its name on the left, as in name ~= "prefix"', sign)
        return comparator

    def _literal(self, wanted: str) -> Literal:
        token = self._next
        if token.kind not in _SIDES:
            self._refuse_null()
            self._fail(f"expected {wanted}, not {self._shown()}")
        side = self._side()
        if not isinstance(side, Literal):
            quoted = f'; text is written in quotes: "{token.text}"' if token.kind is TokenKind.NAME else ""
            self._fail(f"expected {wanted}, not the name {show(token.text)}{quoted}", token)
        return side

    def _side(self) -> Operand | Literal:
        """A name or a literal, whichever comes."""
        self._refuse_null()
        token = self._next
        if token.kind not in _SIDES:
            self._fail(f"expected a name, a literal or (, not {self._shown()}")
        self._take()
        if token.literal is not None:
            return token.literal
        folded = token.text.lower()
        if folded == Special.ROW.value:
            return Special.ROW
        if token.kind is TokenKind.QUOTED_NAME:
            return ColumnRef(token.text)
        if folded in _TYPED and self._next.literal is not None and isinstance(self._next.literal.value, str):
            return self._typed(_TYPED[folded], self._next.literal.value)
        return Special(folded) if folded in _SPECIALS else ColumnRef(token.text)

    def _typed(self, read: Callable[[str], Scalar], text: str) -> Literal:
        literal = self._make(self._next.position, lambda: Literal(read(text)))
        self._take()
        return literal

    def _refuse_null(self) -> None:
        if self._at(TokenKind.KEYWORD) and self._next.text == "null":
            self._fail("nothing compares with null: write name is null, or name is not null")

    def _at(self, kind: TokenKind) -> bool:
        return self._next.kind is kind

    def _take(self) -> Token:
        token = self._next
        self._next = next(self._tokens)
        return token

    def _takes(self, kind: TokenKind, text: str, nests: bool = False) -> bool:
        """Takes the token if it is the one, and says whether it was."""
        if not self._at(kind) or self._next.text != text:
            return False
        if nests:
            self._depth += 1
            if self._depth > DEPTH_MAX:
                self._fail(f"expressions nest at most {DEPTH_MAX} deep")
        self._take()
        return True

    def _expect(self, kind: TokenKind, text: str, wanted: str) -> None:
        if not self._takes(kind, text):
            self._fail(f"expected {wanted}, not {self._shown()}")

    def _make(self, position: int, make: Callable[[], _T]) -> _T:
        """What breaks a rule of expressions or literals breaks it at this place of the text."""
        try:
            return make()
        except InvalidArgument as error:
            raise InvalidPredicate(str(error), self._text, position) from None

    def _shown(self) -> str:
        token = self._next
        if token.kind is TokenKind.END:
            return "the end"
        return show(token.text) if token.text else f"the literal {token.literal}"

    def _fail(self, message: str, at: Token | None = None) -> NoReturn:
        raise InvalidPredicate(message, self._text, (at or self._next).position)
