"""Keys, bounds, times and assignments as they are typed.

A key is its parts, one word each, as `values` reads words. Where the key has several columns, a word that begins with
[ or { is JSON: all parts as a list, or by name. Of a binary key, a word that begins with { is {"$binary": BASE64}.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from stelae.cli.words.values import BINARY, column_types, decoded, from_json, from_text, type_of
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import at_datetime, check_txn
from stelae.model.ids import Txn
from stelae.model.schema import KeyColumn, TableSchema
from stelae.model.types import Binary
from stelae.model.values import Value, show


def typed_key(schema: TableSchema, words: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """The key that the words begin with, and the words behind it."""
    names = ", ".join(f"{key.name} {key.type}" for key in schema.key)
    if not words:
        raise InvalidArgument(f"which row? The key is {names}")
    if is_json_key(schema, words[0]):
        return _of_json(schema, words[0], "key", whole=True), words[1:]
    if len(words) < len(schema.key):
        raise InvalidArgument(f"the key has {len(schema.key)} parts ({names}); given are {', '.join(map(show, words))}")
    parts = tuple(_part(key, word) for key, word in zip(schema.key, words, strict=False))
    return (parts if len(parts) > 1 else parts[0]), words[len(parts) :]


def only_key(schema: TableSchema, words: Sequence[str]) -> Any:
    key, rest = typed_key(schema, words)
    if rest:
        names = ", ".join(each.name for each in schema.key)
        raise InvalidArgument(f"{show(rest[0])} is too much: the key is {names}")
    return key


def typed_bound(schema: TableSchema, word: str | None, what: str) -> Any:
    """The first part of a key, or as JSON its first parts: for --start, --stop, --prefix, --split."""
    if word is None:
        return None
    if is_json_key(schema, word):
        return _of_json(schema, word, what, whole=False)
    return from_text(schema.key[0].type, word, what)


def is_json_key(schema: TableSchema, word: str) -> bool:
    """Whether a word is a key, or its first parts, as JSON."""
    if len(schema.key) > 1:
        return word.lstrip().startswith(("[", "{"))
    return isinstance(schema.key[0].type, Binary) and word.startswith("{") and BINARY in word


def _part(key: KeyColumn, word: str) -> Value:
    return from_text(key.type, word, f"key column {key.name!r}")


def _of_json(schema: TableSchema, word: str, what: str, *, whole: bool) -> Any:
    given = decoded(word, what)
    if len(schema.key) == 1:
        return from_json(schema.key[0].type, given, what)
    by_name = {key.name.casefold(): key for key in schema.key}
    if isinstance(given, dict):
        for name in given:
            if name.casefold() not in by_name:
                raise InvalidArgument(f"{what} {word}: {show(name)} is no key column; the key is {', '.join(by_name)}")
        return {
            by_name[name.casefold()].name: from_json(
                by_name[name.casefold()].type, part, f"{what}: key column {name!r}"
            )
            for name, part in given.items()
        }
    if len(given) > len(schema.key) or (whole and len(given) < len(schema.key)) or not given:
        raise InvalidArgument(f"{what} {word}: has {len(given)} parts, the key has {len(schema.key)}")
    return tuple(
        from_json(key.type, part, f"{what}: key column {key.name!r}")
        for key, part in zip(schema.key, given, strict=False)
    )


def typed_at(text: str | None) -> Txn | None:
    """Of --at: a txn, or a time with its zone."""
    if text is None:
        return None
    if text.isdecimal() and text.isascii():
        return check_txn(int(text[:40]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"--at {text!r}: not a time; write a txn, or a time, e.g. 2026-01-31T12:00:00+00:00"
        ) from None
    if moment.utcoffset() is None:
        raise InvalidArgument(f"--at {text!r}: has no time zone; write e.g. {moment.isoformat()}Z")
    return at_datetime(moment)


def assignments(schema: TableSchema, words: Sequence[str]) -> dict[str, Value]:
    """`name=word` and `name:=JSON`. The store refuses names it does not know."""
    types = column_types(schema)
    row: dict[str, Value] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.rstrip(":"):
            raise InvalidArgument(f"{show(word)}: write column=value, or column:=JSON")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if name in row:
            raise InvalidArgument(f"column {name!r} is given twice")
        type_ = type_of(types, name)
        where = f"column {name!r}"
        if type_ is None:
            row[name] = text
        elif is_json:
            row[name] = from_json(type_, decoded(text, where), where)
        else:
            row[name] = _worded(type_, text, where, name)
    return row


def _worded(type_: Any, text: str, where: str, name: str) -> Value:
    try:
        return from_text(type_, text, where)
    except InvalidArgument as error:
        hint = f" (for NULL: {name}:=null)" if text in ("", "null", "NULL", "None") else ""
        raise InvalidArgument(f"{error}{hint}") from None


def comma_listed(texts: Sequence[str] | None) -> list[str] | None:
    """Of an option that may be given again and may hold several names with commas: None if it was not given."""
    if not texts:
        return None
    names = [name.strip() for text in texts for name in text.split(",")]
    if "" in names:
        raise InvalidArgument(f"{', '.join(texts)!r}: a name between commas is empty")
    return names
