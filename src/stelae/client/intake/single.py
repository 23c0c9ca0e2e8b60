"""One dict, the short way.

Most dicts are plain: not many names, all of columns and cells as they are declared, and values that are neither nested
nor large. `PlainPuts` turns those into puts by one lookup and one check for each name, and leaves all others to `said`
and to `check_block`, which alone say what is wrong. What it takes is bounded so that a block of it is never too large.

Dicts come in shapes: the same names in the same order, again and again. What follows from the names alone is worked out
once for each shape that is met, and what is left to see is that the values are of the plainest kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stelae.client.arguments.names import Names
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.mutation import Cell, Mutation, Put, PutCell
from stelae.model.schema import Column, ColumnsGroup, KeyColumn
from stelae.model.values import Value, coerce
from stelae.storage.checks.rules import required_columns

_NAMES_MAX = 256
_FAMILY_BYTES_MAX = 2_048
"""The name of a family, the times and the lengths: no mutation has more of them."""

_Fit = Callable[[Any], Value]
_SHAPES_MAX = 64


class _NotPlain(Exception):
    """Nothing is said by it: the row goes the long way."""


class PlainPuts:
    """Prepared for one schema; may be kept, and used by many threads."""

    def __init__(self, names: Names) -> None:
        schema, limits = names.schema, names.limits
        self._names = names
        self._codec = schema.codec
        self._row_bytes_max = limits.row_bytes_max
        self._value_bytes_max = min(limits.value_bytes_max, limits.block_bytes_max // 4 // _NAMES_MAX)
        # Rows and qualifiers of so many mutations have at most half of a block, and values a quarter.
        named_bytes_max = _NAMES_MAX * (_FAMILY_BYTES_MAX + 5 * limits.row_bytes_max)
        self._names_max = _NAMES_MAX if named_bytes_max <= limits.block_bytes_max // 2 else 0
        self._key_name = schema.codec.names[0] if len(schema.key) == 1 else None
        self._is_text = schema.codec.types == (t.String(),) and not schema.hashed
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        is_single = len(schema.key) == 1 and not schema.hashed
        self._key_kind = {t.String(): str, t.Binary(): bytes}.get(schema.key[0].type) if is_single else None
        groups = [group for group in schema.groups if isinstance(group, ColumnsGroup)]
        self._declared = {column.name: column for group in groups for column in group.columns}
        self._met: dict[str, tuple[ColumnId, _Fit] | KeyColumn] = {key.name: key for key in schema.key}
        self._demands = [
            (
                frozenset(column.id for column in group.columns),
                frozenset(column.id for column in needed),
                group.id == schema.existence_group.id,
            )
            for group in groups
            if (needed := required_columns(group))
        ]

    def row_of(self, key: object) -> Row | None:
        """None if the key is not plain text, or too long."""
        if not self._is_text or type(key) is not str:
            return None
        try:
            row = key.encode()
        except UnicodeEncodeError:
            return None
        return Row(row) if len(row) <= self._row_bytes_max else None

    def put(self, row: Mapping[str, Any], ts: Micros | None) -> tuple[Mutation, ...] | None:
        """What the dict says, which `check_block` would let pass; None says nothing."""
        if type(row) is not dict or len(row) > self._names_max:
            return None
        names = tuple(row)
        shape = self._shapes.get(names)
        if shape is not None:
            put = shape.put(row, ts)
            if put is not None:
                return (put,)
        met = self._met
        values: list[tuple[ColumnId, Value]] = []
        cells: dict[Cell, bytes] = {}
        last = 0
        in_order = True
        try:
            encoded = self._encoded(row)
            for name, value in row.items():
                place = met.get(name) or self._place(name)
                if type(place) is tuple:
                    id_, fit = place
                    values.append((id_, fit(value)))
                    in_order = in_order and last < id_
                    last = id_
                elif type(place) is Cell:
                    if type(value) is not bytes or len(value) > self._value_bytes_max or place in cells:
                        return None
                    cells[place] = value
        except (InvalidArgument, KeyError, _NotPlain):
            return None
        if not in_order:
            values.sort(key=_id)
        if self._demands and not self._has_required(values, keeps_row=not cells):
            return None
        puts = (Put(encoded, tuple(values), ts),) if values or not cells else ()
        if not cells:
            if names not in self._shapes:
                self._keep_shape(names, in_order=in_order)
            return puts
        return (*puts, *[PutCell(encoded, cell.family, cell.qualifier, data, ts) for cell, data in cells.items()])

    def _keep_shape(self, names: tuple[str, ...], *, in_order: bool) -> None:
        """Of a dict without cells that was found to be plain."""
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes = {}
        columns = [self._declared[name] for name in names if name in self._declared]
        is_plain = in_order and all(_kind(column.type) is not None for column in columns)
        self._shapes[names] = None
        if is_plain and columns and self._key_kind is not None and len(names) == len(columns) + 1:
            at = names.index(self._codec.names[0])
            self._shapes[names] = _Shape(at, self._key_kind, columns, self._row_bytes_max, self._value_bytes_max)

    def _place(self, name: str) -> tuple[ColumnId, _Fit] | Cell:
        column = self._declared.get(name)
        if column is None:
            return self._names.cell(name)
        found = self._met[name] = column.id, _fit(column, self._value_bytes_max)
        return found

    def _encoded(self, row: Mapping[str, Any]) -> Row:
        if self._key_name is None:
            key: tuple[Any, ...] = tuple([row[name] for name in self._codec.names])
        else:
            only = row[self._key_name]
            found = self.row_of(only)
            if found is not None:
                return found
            key = (only,)
        encoded = self._codec.encode(self._codec.check(key))
        if len(encoded) > self._row_bytes_max:
            raise _NotPlain
        return encoded

    def _has_required(self, values: list[tuple[ColumnId, Value]], *, keeps_row: bool) -> bool:
        ids = {id_ for id_, _ in values}
        return all(
            needed <= ids
            for columns, needed, is_home in self._demands
            if not ids.isdisjoint(columns) or (is_home and keeps_row and not ids)
        )


class _Shape:
    """Dicts of one key column, of text or bytes, and columns in the order of their ids."""

    __slots__ = ("_bytes_max", "_ids", "_ints", "_key_at", "_kinds", "_row_bytes_max", "_sized", "_texts")

    def __init__(
        self, key_at: int, key_kind: type, columns: Sequence[Column], row_bytes_max: int, bytes_max: int
    ) -> None:
        kinds = [_kind(column.type) for column in columns]
        self._key_at = key_at
        self._kinds = (*kinds[:key_at], key_kind, *kinds[key_at:])
        self._ids = tuple(column.id for column in columns)
        self._sized = tuple(at for at, kind in enumerate(kinds) if kind in (str, bytes))
        self._texts = tuple(at for at, kind in enumerate(kinds) if kind is str)
        self._ints = tuple(
            (at, 1 << (column.type.bits - 1)) for at, column in enumerate(columns) if isinstance(column.type, t.Int)
        )
        self._row_bytes_max = row_bytes_max
        self._bytes_max = bytes_max

    def put(self, row: dict[str, Any], ts: Micros | None) -> Put | None:
        """None if some value is of another kind than its column, or large, or not ASCII: then it goes the other way."""
        values = list(row.values())
        if tuple(map(type, values)) != self._kinds:
            return None
        key = values.pop(self._key_at)
        if type(key) is str:
            if not key.isascii():
                return None
            key = key.encode()
        if len(key) > self._row_bytes_max:
            return None
        for at in self._sized:
            if len(values[at]) > self._bytes_max:
                return None
        for at in self._texts:
            if not values[at].isascii():
                return None
        for at, limit in self._ints:
            if not -limit <= values[at] < limit:
                return None
        return Put(Row(key), tuple(zip(self._ids, values)), ts)  # noqa: B905


def _kind(type_: t.ColumnType) -> type | None:
    """The kind of Python value that is kept as it is; None if there is no such."""
    match type_:
        case t.String():
            return str
        case t.Binary():
            return bytes
        case t.Int():
            return int
        case t.Float(64):
            return float
        case _:
            return None


def _id(written: tuple[ColumnId, Value]) -> ColumnId:
    return written[0]


def _fit(column: Column, size_max: int) -> _Fit:
    """What makes the kept form of a value."""
    other = _fit_any(column, size_max)
    match column.type:
        case t.String():
            return lambda value: (
                value if type(value) is str and value.isascii() and len(value) <= size_max else other(value)
            )
        case t.Binary():
            return lambda value: value if type(value) is bytes and len(value) <= size_max else other(value)
        case t.Int(bits):
            limit = 1 << (bits - 1)
            return lambda value: value if type(value) is int and -limit <= value < limit else other(value)
        case t.Float(64):
            return lambda value: value if type(value) is float else other(value)
        case _:
            return other


def _fit_any(column: Column, size_max: int) -> _Fit:
    type_, where = column.type, f"column {column.name!r}"
    is_nested = isinstance(type_, t.Array | t.Struct | t.Map | t.Vector)

    def fit(value: Any) -> Value:
        if value is None and column.nullable:
            return None
        if value is None or is_nested:
            raise _NotPlain
        kept = coerce(type_, value, where)
        if (type(kept) is str and len(kept.encode()) > size_max) or (type(kept) is bytes and len(kept) > size_max):
            raise _NotPlain
        return kept

    return fit
