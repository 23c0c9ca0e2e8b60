"""Keys as users give them: rows, bounds of scans, cuts between tablets, and the times of snapshots.

A bound is a key, or its first columns: a tuple of them, or of the first alone its value. In the order of keys a bound
stands before all keys that begin with it, so `start=("a",), stop=("b",)` are the keys whose first column is "a" up to
below "b". A prefix is the same, except that when it goes to the last column, and that is text or bytes, it is the
beginning of it: `prefix="us-"` of a string key.

The rows of a hash-partitioned table are not in the order of keys, so there bounds become conditions on the key columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import index
from typing import Any, Protocol, cast, runtime_checkable

from stelae.client.intake.mutations import key_of
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import at_datetime, check_txn
from stelae.model.ids import Row, TableId, Txn
from stelae.model.keys.scalar import TOKEN_BYTES, Key, KeyCodec
from stelae.model.limits import DEFAULT_LIMITS
from stelae.model.predicate.expr import ColumnRef, Comparator, Compare, Expr, combine, either
from stelae.model.predicate.literals import literal_of
from stelae.model.ranges import ALL_ROWS, RowRange, prefixed
from stelae.model.schema import TableSchema
from stelae.model.types import Binary, Int, String
from stelae.model.values import show
from stelae.service.tables import TabletInfo

RowMaker = Callable[[object], Row]

_SHORT_TEXT_MAX = DEFAULT_LIMITS.row_bytes_max // 4
"""So many characters are a row, whatever they are."""
_SIGN = 1 << 63
_PACK_INT64 = struct.Struct(">Q").pack


def row_maker(schema: TableSchema) -> RowMaker:
    """`key_of` of one schema, quick for the keys that most tables have. What is odd is told by `key_of`."""
    if len(schema.key) > 1 or schema.hashed:
        return lambda key: key_of(schema, key)
    match schema.key[0].type:
        case String():
            return _text_maker(schema)
        case Binary():
            return _bytes_maker(schema)
        case Int(64):
            return _int_maker(schema)
        case _:
            return lambda key: key_of(schema, key)


def rows_of_keys(schema: TableSchema, row_of: RowMaker, keys: Sequence[object]) -> list[Row]:
    """The rows of many keys. `row_of`: the schema's `row_maker`, which is asked for each where they are not all short
    bytes of a binary key."""
    is_own_row = len(schema.key) == 1 and not schema.hashed and isinstance(schema.key[0].type, Binary)
    if is_own_row and set(map(type, keys)) == {bytes}:
        rows = cast(list[Row], list(keys))
        if max(map(len, rows)) <= _SHORT_TEXT_MAX:
            return rows
    return [row_of(key) for key in keys]


def _text_maker(schema: TableSchema) -> RowMaker:
    def row_of(key: object) -> Row:
        if type(key) is str and len(key) <= _SHORT_TEXT_MAX:
            try:
                return Row(key.encode())
            except UnicodeEncodeError:
                pass
        return key_of(schema, key)

    return row_of


def _bytes_maker(schema: TableSchema) -> RowMaker:
    def row_of(key: object) -> Row:
        if type(key) is bytes and len(key) <= _SHORT_TEXT_MAX:
            return Row(key)
        return key_of(schema, key)

    return row_of


def _int_maker(schema: TableSchema) -> RowMaker:
    def row_of(key: object) -> Row:
        if type(key) is int:
            try:
                return Row(_PACK_INT64(key + _SIGN))
            except struct.error:
                pass
        return key_of(schema, key)

    return row_of


@runtime_checkable
class HasTxn(Protocol):
    """Whatever knows its txn, as a snapshot does: it may be given where a txn is asked for."""

    @property
    def txn(self) -> int: ...


def txn_of(at: object) -> Txn:
    """Of `at=`: a txn, a snapshot, or an aware datetime."""
    if type(at) is int:
        return check_txn(at)
    if isinstance(at, datetime):
        return at_datetime(at)
    if isinstance(at, HasTxn):
        return check_txn(at.txn)
    if isinstance(at, bool) or not hasattr(at, "__index__"):
        raise InvalidArgument(f"at= is a txn, a snapshot, or an aware datetime, not {show(at)}")
    return check_txn(index(at))


def bounds_of(schema: TableSchema, start: object, stop: object, prefix: object) -> tuple[RowRange, Expr | None]:
    """The rows from start to below stop that begin with the prefix, None being no bound; and what must hold of their
    key columns besides."""
    low = None if start is None else _leading(schema, start, "start")
    high = None if stop is None else _leading(schema, stop, "stop")
    first = None if prefix is None else _leading(schema, prefix, "prefix")
    if first is not None:
        _check_prefix(schema, first)
    if schema.hashed:
        return ALL_ROWS, _conditions(schema, low, high, first)
    codec = schema.codec
    rows = RowRange(
        b"" if low is None else codec.encode_prefix(low), None if high is None else codec.encode_prefix(high)
    )
    return (rows if first is None else rows.intersect(prefixed(codec.encode_prefix(first)))), None


def check_bounded(schema: TableSchema, name: str, start: object, stop: object, prefix: object) -> None:
    """Before a range is erased: InvalidArgument if its bounds leave nothing out, as they do when a variable that was
    to hold them is empty."""
    if prefix is None:
        is_whole = stop is None and (start is None or _is_empty(_leading(schema, start, "start")))
    else:
        is_whole = len(schema.key) == 1 and _is_empty(_leading(schema, prefix, "prefix"))
    if is_whole:
        raise InvalidArgument(
            f"table {name!r}: start={show(start)}, stop={show(stop)}, prefix={show(prefix)} bound no range of rows: "
            f"say which to erase; db.truncate_table({name!r}) erases all of them"
        )


def _is_empty(values: Key) -> bool:
    return all(value in ("", b"") for value in values)


def _leading(schema: TableSchema, given: object, what: str) -> Key:
    """Checked values of the first key columns."""
    names, types = schema.codec.names, schema.codec.types
    match given:
        case Mapping():
            values: tuple[Any, ...] = tuple(given[name] for name in names if name in given)
            if tuple(sorted(map(str, given))) != tuple(sorted(names[: len(values)])):
                raise InvalidArgument(f"{what}= {show(given)}: name the first key columns, of {', '.join(names)}")
        case tuple():
            values = given
        case _:
            values = (given,)
    if not 0 < len(values) <= len(names):
        raise InvalidArgument(f"{what}= {show(given)}: has {len(values)} parts, the key has {len(names)}")
    codec = schema.codec
    if len(values) < len(names):
        codec = KeyCodec(dict(zip(names[: len(values)], types, strict=False)))
    try:
        return codec.check(values)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}=: {error}") from None


def _check_prefix(schema: TableSchema, first: Key) -> None:
    is_text = isinstance(schema.key[-1].type, String | Binary)
    if len(schema.key) == 1 and not is_text:
        key = schema.key[0]
        raise InvalidArgument(f"prefix=: key column {key.name!r} is {key.type}: only string and binary have prefixes")
    if len(first) == len(schema.key) and not is_text:
        raise InvalidArgument(f"prefix= {show(first)} is a whole key: get it, or leave out the last column")


def _conditions(schema: TableSchema, low: Key | None, high: Key | None, first: Key | None) -> Expr | None:
    found: list[Expr] = []
    if low is not None:
        found.append(_beyond(schema, low, Comparator.GT, Comparator.GE))
    if high is not None:
        found.append(_beyond(schema, high, Comparator.LT, Comparator.LT))
    for at, value in enumerate(first or ()):
        last = at == len(schema.key) - 1
        found.append(_compare(schema, at, Comparator.PREFIX if last else Comparator.EQ, value))
    return combine(*found) if found else None


def _beyond(schema: TableSchema, bound: Key, strictly: Comparator, at_last: Comparator) -> Expr:
    """Keys after (or before) a bound: the first columns are equal, and the next one lies beyond."""
    ways: list[Expr] = []
    for at, value in enumerate(bound):
        equal = [_compare(schema, before, Comparator.EQ, bound[before]) for before in range(at)]
        ways.append(combine(*equal, _compare(schema, at, at_last if at == len(bound) - 1 else strictly, value)))
    return either(*ways)


def _compare(schema: TableSchema, at: int, comparator: Comparator, value: object) -> Expr:
    return Compare(ColumnRef(schema.key[at].name), comparator, literal_of(value))


def after_key(schema: TableSchema, last: Key, *, reverse: bool) -> Expr:
    """Keys that come after a whole key, in the order of keys."""
    beyond = Comparator.LT if reverse else Comparator.GT
    return _beyond(schema, last, beyond, beyond)


def cuts_of(schema: TableSchema, splits: Sequence[object] | None, tablets: int | None) -> tuple[Row, ...]:
    """Where the tablets after the first begin: at given keys, or in even parts of all tokens."""
    if tablets is not None:
        return _even_cuts(schema, tablets, splits)
    if splits is None:
        return ()
    if schema.hashed:
        raise InvalidArgument('splits= are keys, in whose order partition="hash" does not keep rows: say tablets=N')
    if isinstance(splits, str | bytes | Mapping) or not isinstance(splits, Sequence):
        raise InvalidArgument(f"splits= is a list of keys, not {show(splits)}")
    cuts = [Row(schema.codec.encode_prefix(_leading(schema, key, "splits"))) for key in splits]
    for before, (cut, key) in zip([b"", *cuts], zip(cuts, splits, strict=True), strict=False):
        if cut <= before:
            raise InvalidArgument(f"splits=: {show(key)} does not come after the one before it: they must ascend")
    return tuple(cuts)


def start_of(schema: TableSchema, table: TableId, key: object) -> Row:
    """Where a tablet begins that is given as itself, or by the key at which it was cut."""
    if isinstance(key, TabletInfo):
        if key.table != table:
            raise InvalidArgument(f"tablet {key.tablet} is of another table")
        row = Row(key.start)
    elif schema.hashed:
        raise InvalidArgument("of a hashed table give one of its tablets(): they do not begin at keys")
    else:
        row = Row(schema.codec.encode_prefix(_leading(schema, key, "key")))
    if not row:
        raise InvalidArgument("no tablet comes before the first one")
    return row


def _even_cuts(schema: TableSchema, tablets: int, splits: object) -> tuple[Row, ...]:
    if not schema.hashed:
        raise InvalidArgument('tablets= goes with partition="hash"; a table in the order of keys takes splits=[...]')
    if splits is not None:
        raise InvalidArgument("give splits= or tablets=, but not both")
    if type(tablets) is not int or not 1 <= tablets <= DEFAULT_LIMITS.tablets_max:
        raise InvalidArgument(f"tablets= is a number from 1 to {DEFAULT_LIMITS.tablets_max}, not {show(tablets)}")
    space = 1 << (8 * TOKEN_BYTES)
    return tuple(Row((space * at // tablets).to_bytes(TOKEN_BYTES, "big")) for at in range(1, tablets))
