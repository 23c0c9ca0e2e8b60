"""Expressions as text: `parse(to_text(expr)) == expr`.

One expression has one text. A lower and then an upper bound on the same name print as a chain, `"a" <= row < "b"`.
Parentheses stand where they are needed and nowhere else. Names that are no plain ASCII word, or are a word of the
language, stand in backquotes; what is not printable is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal as PyDecimal

from stelae.model.errors import InvalidArgument
from stelae.model.predicate.expr import (
    And,
    ColumnRef,
    Comparator,
    Compare,
    Expr,
    IsNull,
    Not,
    Operand,
    Or,
    Special,
    Within,
)
from stelae.model.predicate.lexer import RESERVED_WORDS
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import TEXT_LENGTH_MAX

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::[A-Za-z_][A-Za-z0-9_]*)?")
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
_UPWARD = {Comparator.GT: "<", Comparator.GE: "<="}
_UPPER = (Comparator.LT, Comparator.LE)


def to_text(expr: Expr) -> str:
    """The one text of an expression; InvalidArgument if that is longer than a text may be."""
    text = _text(expr)
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidArgument(
            f"the predicate is too long: its text has {len(text)} characters of at most {TEXT_LENGTH_MAX}"
        )
    return text


def _text(expr: Expr) -> str:
    match expr:
        case Compare(operand, comparator, literal):
            return f"{_operand_text(operand)} {comparator.value} {literal_text(literal)}"
        case Within(operand, literals):
            return f"{_operand_text(operand)} in {_list_text(literals)}"
        case IsNull(operand):
            return f"{_operand_text(operand)} is null"
        case Not(Within(operand, literals)):
            return f"{_operand_text(operand)} not in {_list_text(literals)}"
        case Not(IsNull(operand)):
            return f"{_operand_text(operand)} is not null"
        case Not(And() | Or() as inner):
            return f"not ({_text(inner)})"
        case Not(inner):
            return f"not {_text(inner)}"
        case And(parts):
            return " and ".join(_chained(parts))
        case Or(parts):
            return " or ".join([_text(part) for part in parts])


def _chained(parts: tuple[Expr, ...]) -> Iterator[str]:
    """The texts of parts joined with and, two bounds on one name as one text."""
    i = 0
    while i < len(parts):
        match parts[i : i + 2]:
            case (Compare(name, lower, least), Compare(same, upper, most)) if (
                name == same and lower in _UPWARD and upper in _UPPER
            ):
                yield (
                    f"{literal_text(least)} {_UPWARD[lower]} {_operand_text(name)} {upper.value} {literal_text(most)}"
                )
                i += 2
            case _:
                yield f"({_text(parts[i])})" if isinstance(parts[i], Or) else _text(parts[i])
                i += 1


def _operand_text(operand: Operand) -> str:
    match operand:
        case Special() as special:
            return special.value
        case ColumnRef(name):
            if _BARE.fullmatch(name) and name.lower() not in RESERVED_WORDS:
                return name
            return f"`{name.replace('`', '``')}`"


def _list_text(literals: tuple[Literal, ...]) -> str:
    return f"({', '.join([literal_text(literal) for literal in literals])})"


def literal_text(literal: Literal) -> str:
    """The one text of a literal, by itself as in an expression."""
    match literal.value:
        case bool(flag):
            return "true" if flag else "false"
        case int() | float() as number:
            return repr(number)
        case PyDecimal() as number:
            return f"{number}dec"
        case str(text):
            return f'"{"".join([_character(c) for c in text])}"'
        case bytes(data):
            return f'b"{"".join([_byte(b) for b in data])}"'
        case datetime() as moment if moment.tzinfo is None:
            return f'timestamp_ntz "{moment.isoformat()}"'
        case datetime() as moment:
            return f'timestamp "{moment.replace(tzinfo=None).isoformat()}Z"'
        case date() as day:
            return f'date "{day.isoformat()}"'


def _character(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _byte(byte: int) -> str:
    character = chr(byte)
    if character in _ESCAPED:
        return _ESCAPED[character]
    return character if character.isascii() and character.isprintable() else f"\\x{byte:02x}"
