"""The door of the write path: a block is checked whole before any of it counts.

Whatever sent the block, what passes can be logged, replayed, kept in memory, written to files and read back under the
schema it was checked with; what does not is refused, with the row and the column at fault.

- A row is exactly the encoding of a key. It has at most `row_bytes_max` bytes, and so has a qualifier, which is as
  much a part of what a cell is found by.
- Columns and families are the schema's. A family that the wildcard takes has a name that could be declared.
- A value is in the one form its type is kept in, and has at most `value_bytes_max` bytes: of text and binary its own,
  of arrays, structs and maps those it is packed into (in a columnar block, those of its Arrow form).
- NULL is not written to a NOT NULL column, and one without a default is in every put that touches its group. A put of
  the key alone touches the group that keeps it.
- The block says something, and can be read again: a small one keeps the bounds of `format/block`.

How columnar blocks are checked, in vectors, is said in `checks_columnar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal as PyDecimal

import msgspec

from stelae.format.block import NESTED_BYTES_MAX, SMALL_MUTATIONS_MAX, Block, SmallBlock
from stelae.format.columnar import ColumnarBlock
from stelae.format.packing import pack_value
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, GroupId, Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.schema import Column, Group, TableSchema
from stelae.model.types import String
from stelae.model.values import Value, check_ts, coerce, show
from stelae.storage.checks.columnar import check_columnar
from stelae.storage.checks.rules import (
    check_family,
    check_size,
    missing_column,
    null_written,
    required_columns,
    shown_row,
)

_EXTENSIONS = frozenset((PyDecimal, date, datetime))
_EXTENSION_BYTES_MAX = 70
"""None of them is packed into more."""
_NOT_PLAIN = _EXTENSIONS | {list, dict}
_TEXT = String()
_ENCODER = msgspec.msgpack.Encoder()


def check_block(
    schema: TableSchema, block: Block, limits: Limits = DEFAULT_LIMITS, size_bytes: int | None = None
) -> None:
    """InvalidArgument if the block may not be written. `size_bytes`: of the block as it is encoded, where known."""
    if size_bytes is not None:
        check_size("block: it", size_bytes, limits.block_bytes_max)
    if not 0 < block.schema_version < 2**31:
        raise InvalidArgument(f"block: {show(block.schema_version)} is no schema version")
    match block:
        case SmallBlock():
            _SmallCheck(schema, limits).check(block)
        case ColumnarBlock():
            check_columnar(schema, block, limits)


class _SmallCheck:
    """One block: what it says again, as it does its rows and families, is checked once."""

    def __init__(self, schema: TableSchema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._rows: set[bytes] = set()
        self._families: set[str] = set()
        self._columns: dict[ColumnId, tuple[Group, Column, str]] = {}
        self._required: dict[GroupId, list[Column]] = {}
        self._nested_bytes = 0

    def check(self, block: SmallBlock) -> None:
        count = len(block.mutations)
        if not 1 <= count <= SMALL_MUTATIONS_MAX:
            raise InvalidArgument(f"block: {count} mutations; a small block has from 1 to {SMALL_MUTATIONS_MAX}")
        for mutation in block.mutations:
            if type(mutation.row) is not bytes:
                raise InvalidArgument(f"a row is bytes, not {show(mutation.row)}")
            try:
                self._check_row(mutation.row)
                self._check_mutation(mutation)
            except InvalidArgument as error:
                raise InvalidArgument(f"row {shown_row(self._schema.codec, mutation.row)}: {error}") from None
        if self._nested_bytes > NESTED_BYTES_MAX:
            check_size("block: what is nested in it", _nested_bytes(block.mutations), NESTED_BYTES_MAX)

    def _check_row(self, row: Row) -> None:
        if row in self._rows:
            return
        check_size("the row", len(row), self._limits.row_bytes_max)
        codec = self._schema.codec
        for name, value in zip(codec.names, codec.decode(row), strict=True):
            if value != value:
                raise InvalidArgument(f"key column {name!r}: a key cannot be NaN")
        self._rows.add(row)

    def _check_mutation(self, mutation: Mutation) -> None:
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
        check_size(where, _text_bytes(qualifier), self._limits.row_bytes_max)

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
            check_size(where, _text_bytes(value), self._limits.value_bytes_max)
        elif kind is list or kind is dict:
            size = _packed_bytes(value)
            check_size(where, size, self._limits.value_bytes_max)
            self._nested_bytes += size
        elif kind in _EXTENSIONS:
            self._nested_bytes += _EXTENSION_BYTES_MAX


def _check_time(ts: Micros | None) -> None:
    if ts is not None:
        check_ts(ts)


def _text_bytes(text: str | bytes) -> int:
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())


def _packed_bytes(value: Value) -> int:
    return len(_ENCODER.encode(pack_value(value)))


def _nested_bytes(mutations: Sequence[Mutation]) -> int:
    """What a reader of the block will count before it decodes a value."""
    puts = [mutation for mutation in mutations if isinstance(mutation, Put)]
    values = [value for put in puts for _, value in put.values]
    return sum(_packed_bytes(value) for value in values if type(value) in _NOT_PLAIN)


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
        case list():
            return len(kept) == len(value) and all(_same(a, b) for a, b in zip(kept, value, strict=True))
        case dict():
            own = {key: key for key in value}
            return len(kept) == len(own) and all(
                key in own and _same(key, own[key]) and _same(item, value[key]) for key, item in kept.items()
            )
        case _:
            return bool(kept == value)
