r"""The text of a predicate as tokens, made one at a time so that the first error in the text is the one reported.

    names       age   click:home   `any name, a backquote written twice`
    text        "..." '...'        with \" \' \\ \n \t \r \0 \uXXXX \UXXXXXXXX
    bytes       b"..." b'...'      ASCII, with \" \' \\ \n \t \r \0 \xNN
    numbers     1  -1.5  1e9  inf  -inf  nan   1.50dec (decimal)
    other       true false    = == != < <= > >= ~=    ( ) ,    and or not in is null

Words are matched whatever their case; names keep theirs. `date` and `timestamp` are names too: only the parser can
tell, by what follows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from enum import Enum

import msgspec

from stelae.model.errors import InvalidArgument, InvalidPredicate
from stelae.model.predicate.expr import Special
from stelae.model.predicate.literals import NUMBER_DIGITS_MAX, Literal, Scalar
from stelae.model.values import is_encodable, show

KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null"})
WORD_LITERALS: dict[str, Scalar] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}
RESERVED_WORDS = KEYWORDS | frozenset(WORD_LITERALS) | frozenset(special.value for special in Special)
"""Words that mean something else when written bare, so a column called so needs backquotes."""

OPERATORS = frozenset({"=", "==", "!=", "<", "<=", ">", ">=", "~="})
_MEANT = {
    "<>": "!=", "=>": ">=", "=<": "<=", "=~": "~=", "=!": "!=", "===": "=", "&&": "and", "&": "and", "||": "or",
    "|": "or", "!": "not", "~": "not",
}  # fmt: skip

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d]\w*(?::[^\W\d]\w*)?")
_NUMBER = re.compile(r"-?(?:[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?([dD][eE][cC])?|([iI][nN][fF]))(?![\w.])")
_NUMBER_LIKE = re.compile(r"[-.\w]+")
_OPERATOR_LIKE = re.compile(r"[=<>!~&|]+")
_PLAIN = re.compile(r"""[^\\"']+""")
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_NUMBER_TEXT_MAX = NUMBER_DIGITS_MAX + 20


class TokenKind(Enum):
    NAME = "a name"
    QUOTED_NAME = "a name in backquotes"
    LITERAL = "a literal"
    OPERATOR = "an operator"
    KEYWORD = "a word"
    MARK = "a bracket or comma"
    END = "the end"


class Token(msgspec.Struct, frozen=True):
    """`text` is the word, operator or name meant, folded where case does not matter."""

    kind: TokenKind
    position: int
    text: str = ""
    literal: Literal | None = None


def tokenize(text: str) -> Iterator[Token]:
    """The tokens in turn, the last of kind END; InvalidPredicate at the first place that is none."""
    position = 0
    while True:
        position = _end_of(_SPACE, text, position)
        if position == len(text):
            yield Token(TokenKind.END, position)
            return
        token, position = _token(text, position)
        yield token


def _token(text: str, start: int) -> tuple[Token, int]:
    first = text[start]
    match first:
        case '"' | "'":
            return _string(text, start)
        case "b" | "B" if text[start + 1 : start + 2] in ('"', "'"):
            return _bytes(text, start)
        case "`":
            return _quoted_name(text, start)
        case "(" | ")" | ",":
            return Token(TokenKind.MARK, start, first), start + 1
        case "=" | "<" | ">" | "!" | "~" | "&" | "|":
            return _operator(text, start)
        case _ if first in "-." or "0" <= first <= "9":
            return _number(text, start)
        case _ if _NAME.match(text, start):
            return _word(text, start)
        case _:
            raise InvalidPredicate(f"unexpected character {first!r}", text, start)


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _word(text: str, start: int) -> tuple[Token, int]:
    end = _end_of(_NAME, text, start)
    word = text[start:end]
    if text[end : end + 1] == ":":
        raise InvalidPredicate(
            f"a name cannot end in a colon: write a cell as `{word}:qualifier`, in backquotes unless it is two plain "
            f'words, and all cells of a family as column ~= "{word}:"',
            text,
            end,
        )
    folded = word.lower()
    if folded in WORD_LITERALS:
        return Token(TokenKind.LITERAL, start, word, Literal(WORD_LITERALS[folded])), end
    if folded in KEYWORDS:
        return Token(TokenKind.KEYWORD, start, folded), end
    return Token(TokenKind.NAME, start, word), end


def _operator(text: str, start: int) -> tuple[Token, int]:
    end = _end_of(_OPERATOR_LIKE, text, start)
    operator = text[start:end]
    if operator not in OPERATORS:
        hint = f"; write {_MEANT[operator]}" if operator in _MEANT else ""
        raise InvalidPredicate(f"{show(operator)} is no operator{hint}", text, start)
    return Token(TokenKind.OPERATOR, start, "=" if operator == "==" else operator), end


def _number(text: str, start: int) -> tuple[Token, int]:
    match = _NUMBER.match(text, start)
    if match is None:
        shown = text[start : _end_of(_NUMBER_LIKE, text, start)]
        raise InvalidPredicate(
            f"{show(shown)} is no number: numbers are written as 1, -1.5, 1e9, inf or, if decimal, 1.50dec", text, start
        )
    if match.end() - start > _NUMBER_TEXT_MAX:
        raise InvalidPredicate(f"a number has at most {NUMBER_DIGITS_MAX} digits", text, start)
    try:
        literal = Literal(_number_value(match))
    except (InvalidArgument, InvalidOperation) as error:
        reason = str(error) if isinstance(error, InvalidArgument) else f"{show(match.group())} is out of range"
        raise InvalidPredicate(reason, text, start) from None
    return Token(TokenKind.LITERAL, start, match.group(), literal), match.end()


def _number_value(match: re.Match[str]) -> Scalar:
    fraction, exponent, suffix, infinity = match.groups()
    if suffix:
        return PyDecimal(match.group()[: -len(suffix)])
    if not (fraction or exponent or infinity):
        return int(match.group())
    number = float(match.group())
    if math.isinf(number) and not infinity:
        raise InvalidArgument(f"{show(match.group())} is too large for a float; write inf or a decimal")
    return number


def _quoted_name(text: str, start: int) -> tuple[Token, int]:
    end = start + 1
    while True:
        end = text.find("`", end)
        if end < 0:
            raise InvalidPredicate("the backquote is never closed", text, start)
        if text[end + 1 : end + 2] != "`":
            break
        end += 2
    name = text[start + 1 : end].replace("``", "`")
    if not name or not is_encodable(name):
        raise InvalidPredicate("a name between backquotes cannot be empty or hold a lone surrogate", text, start)
    return Token(TokenKind.QUOTED_NAME, start, name), end + 1


def _string(text: str, start: int) -> tuple[Token, int]:
    pieces, end = _quoted(text, start, of_bytes=False)
    try:
        return Token(TokenKind.LITERAL, start, "", Literal("".join(pieces))), end
    except InvalidArgument as error:
        raise InvalidPredicate(str(error), text, start) from None


def _bytes(text: str, start: int) -> tuple[Token, int]:
    # Every piece is ASCII or stands for one byte, so Latin-1 maps each character to its byte.
    pieces, end = _quoted(text, start + 1, of_bytes=True)
    return Token(TokenKind.LITERAL, start, "", Literal("".join(pieces).encode("latin-1"))), end


def _quoted(text: str, start: int, of_bytes: bool) -> tuple[list[str], int]:
    """The unescaped pieces between the quote at start and its match, and where what follows begins."""
    quote, position = text[start], start + 1
    pieces: list[str] = []
    while position < len(text):
        end = _end_of(_PLAIN, text, position)
        if end > position:
            piece = text[position:end]
            if of_bytes and not piece.isascii():
                at = next(i for i, character in enumerate(piece) if not character.isascii())
                raise InvalidPredicate(r"bytes are written in ASCII; write others as \xNN", text, position + at)
        elif text[position] == quote:
            return pieces, position + 1
        elif text[position] == "\\":
            piece, end = _escape(text, position, of_bytes)
        else:
            piece, end = text[position], position + 1
        pieces.append(piece)
        position = end
    raise InvalidPredicate("the quote is never closed", text, start)


def _escape(text: str, start: int, of_bytes: bool) -> tuple[str, int]:
    letter = text[start + 1 : start + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], start + 2
    if letter not in ("x" if of_bytes else "uU") or not letter:
        allowed = r"\xNN" if of_bytes else r"\uXXXX \UXXXXXXXX"
        raise InvalidPredicate(
            rf"unknown escape {show(text[start : start + 2])}; known are \" \' \\ \n \t \r \0 {allowed}", text, start
        )
    digits = text[start + 2 : start + 2 + _HEX_DIGITS[letter]]
    if not re.fullmatch(rf"[0-9a-fA-F]{{{_HEX_DIGITS[letter]}}}", digits) or int(digits, 16) > 0x10FFFF:
        raise InvalidPredicate(f"\\{letter} takes {_HEX_DIGITS[letter]} hexadecimal digits of a character", text, start)
    return chr(int(digits, 16)), start + 2 + len(digits)
