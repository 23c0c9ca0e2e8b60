"""The rule: what may be written to a table, one mutation at a time.

Plain, slow and complete. Everything else that judges what is written (`columnar` for blocks of columns, the fast paths
of `client/intake`) accepts and refuses exactly what this does; tests hold them to it.

- A row is exactly the encoding of a key. It has at most `row_bytes_max` bytes, and so has a qualifier, which is as
  much a part of what a cell is found by.
- Columns and families are the schema's. A family that the wildcard takes has a name that could be declared.
- A value is in the one form its type is kept in (`model.values`), and has at most `value_bytes_max` bytes (`sizes`).
- NULL is not written to a NOT NULL column, and one without a default is in every put that touches its group. A put of
  the key alone touches the group that keeps it.
- Times lie in the years 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from operator import is_

from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, GroupId, Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.schema import Column, Group, TableSchema
from stelae.model.types import String
from stelae.model.values import Value, check_ts, coerce, show
from stelae.storage.checks.rules import (
    check_family,
    check_size,
    missing_column,
    null_written,
    required_columns,
    shown_row,
)
from stelae.storage.checks.sizes import SIZE_OF_PACKED_MAX, nested_bytes, packed_bytes, text_bytes

_EXTENSIONS = frozenset((PyDecimal, date, datetime))
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_EXTENSION_BYTES_MAX = 70
"""A value of one of these types takes no more bytes than this in a small block."""
_TEXT = String()


def check_mutations(schema: TableSchema, mutations: Iterable[Mutation], limits: Limits) -> int:
    """InvalidArgument names the row and the column of the first mutation that may not be written. Returns a number of
    bytes that is not exceeded by what readers of a small block count as nested."""
    check = _Check(schema, limits)
    for mutation in mutations:
        if type(mutation.row) is not bytes:
            raise InvalidArgument(f"a row is bytes, not {show(mutation.row)}")
        try:
            check.row(mutation.row)
            check.mutation(mutation)
        except InvalidArgument as error:
            raise InvalidArgument(f"row {shown_row(schema.codec, mutation.row)}: {error}") from None
    return check.packed_bytes


class _Check:
    """What is said again, as rows and families are, is checked once."""

    def __init__(self, schema: TableSchema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._rows: set[bytes] = set()
        self._families: set[str] = set()
        self._columns: dict[ColumnId, tuple[Group, Column, str]] = {}
        self._required: dict[GroupId, list[Column]] = {}
        self.packed_bytes = 0

    def row(self, row: Row) -> None:
        if row in self._rows:
            return
        check_size("the row", len(row), self._limits.row_bytes_max)
        codec = self._schema.codec
        for name, value in zip(codec.names, codec.decode(row), strict=True):
            if value != value:
                raise InvalidArgument(f"key column {name!r}: a key cannot be NaN")
        self._rows.add(row)

    def mutation(self, mutation: Mutation) -> None:
        match mutation:
            case Put(_, values, ts):
                self._check_put(values)
                _check_time(ts)
            case PutCell(_, family, qualifier, value, ts):
                self._check_cell(family, qualifier)
                if type(value) is not bytes:
                    raise InvalidArgument(f"column '{family}:{qualifier}': {show(value)} is not bytes")
                check_size(f"column '{family}:{qualifier}'", len(value), self._limits.value_bytes_max)
                _check_time(ts)
            case Erase(_, target, until):
                self._check_target(target)
                _check_time(until)
            case EraseVersion(_, target, ts):
                self._check_target(target)
                check_ts(ts)

    def _check_target(self, target: WholeRow | WholeFamily | Columns | Cell) -> None:
        match target:
            case WholeRow():
                pass
            case WholeFamily(family):
                self._check_family(family)
            case Cell(family, qualifier):
                self._check_cell(family, qualifier)
            case Columns(ids):
                if not ids:
                    raise InvalidArgument("an erasure of columns names none")
                for id_ in ids:
                    self._schema.column_by_id(id_)

    def _check_family(self, family: str) -> None:
        if family not in self._families:
            check_family(self._schema, family, self._limits)
            self._families.add(family)

    def _check_cell(self, family: str, qualifier: str) -> None:
        self._check_family(family)
        where = f"qualifier of family {family!r}"
        if coerce(_TEXT, qualifier, where) is not qualifier:
            raise InvalidArgument(f"{where}: {show(qualifier)} is not plain text")
        check_size(where, text_bytes(qualifier), self._limits.row_bytes_max)

    def _check_put(self, values: Sequence[tuple[ColumnId, Value]]) -> None:
        touched: dict[GroupId, Group] = {}
        for id_, value in values:
            group, column, where = self._column(id_)
            touched[group.id] = group
            if value is not None:
                self._check_value(column, value, where)
            elif not column.nullable:
                raise null_written(column)
        if not values:
            alone = self._schema.existence_group
            touched[alone.id] = alone
        for each in touched.values():
            for needed in self._required_of(each):
                if all(id_ != needed.id for id_, _ in values):
                    raise missing_column(needed, each)

    def _column(self, id_: ColumnId) -> tuple[Group, Column, str]:
        found = self._columns.get(id_)
        if found is None:
            group, column = self._schema.column_by_id(id_)
            found = self._columns[id_] = group, column, f"column {column.name!r}"
        return found

    def _required_of(self, group: Group) -> list[Column]:
        if group.id not in self._required:
            self._required[group.id] = required_columns(group)
        return self._required[group.id]

    def _check_value(self, column: Column, value: Value, where: str) -> None:
        kept = coerce(column.type, value, where)
        if kept is not value and not _same(kept, value):
            raise InvalidArgument(f"{where}: {show(value)} is not in its kept form {show(kept)}")
        kind = type(value)
        if kind is str or kind is bytes:
            check_size(where, text_bytes(value), self._limits.value_bytes_max)
        elif kind is list or kind is dict:
            packed = packed_bytes(value)
            self.packed_bytes += packed
            if packed * SIZE_OF_PACKED_MAX > self._limits.value_bytes_max:
                check_size(where, nested_bytes(column.type, value), self._limits.value_bytes_max)
        elif kind in _EXTENSIONS:
            self.packed_bytes += _EXTENSION_BYTES_MAX


def _check_time(ts: Micros | None) -> None:
    if ts is not None:
        check_ts(ts)


def _same(kept: Value, value: Value) -> bool:
    """Equal, and of the same types all the way down: 1 is not 1.0 or True."""
    if type(kept) is not type(value):
        return False
    match kept:
        case float():
            return bool(kept == value or (kept != kept and value != value))
        case PyDecimal():
            return kept.as_tuple() == value.as_tuple()
        case datetime():
            return kept == value and kept.tzinfo is value.tzinfo and kept.fold == value.fold
        case list() if _are_plainly_same(kept, value):
            return True
        case list():
            return len(kept) == len(value) and all(_same(a, b) for a, b in zip(kept, value, strict=True))
        case dict():
            own = {key: key for key in value}
            return len(kept) == len(own) and all(
                key in own and _same(key, own[key]) and _same(item, value[key]) for key, item in kept.items()
            )
        case _:
            return bool(kept == value)


def _are_plainly_same(kept: list[Value], value: list[Value]) -> bool:
    """Whether two lists of plain values are the same, at a glance: there may be millions of them."""
    return kept == value and _PLAIN.issuperset(map(type, kept)) and all(map(is_, map(type, kept), map(type, value)))
