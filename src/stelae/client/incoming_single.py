"""One dict, the short way.

Most dicts are plain: not many names, all of columns and cells as they are declared, and values that are neither nested
nor large. `PlainPuts` turns those into puts by one lookup and one check for each name, and leaves all others to `said`
and to `check_block`, which alone say what is wrong. What it takes is bounded so that a block of it is never too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stelae.client.names import Names
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.mutation import Cell, Mutation, Put, PutCell
from stelae.model.schema import Column, ColumnsGroup, KeyColumn
from stelae.model.values import Value, coerce
from stelae.storage.checks_rules import required_columns

_NAMES_MAX = 256
_FAMILY_BYTES_MAX = 2_048
"""The name of a family, the times and the lengths: no mutation has more of them."""

_Fit = Callable[[Any], Value]


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
            return puts
        return (*puts, *[PutCell(encoded, cell.family, cell.qualifier, data, ts) for cell, data in cells.items()])

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
