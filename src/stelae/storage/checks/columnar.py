"""The door for columnar blocks: every rule holds for a whole array at once, or the first place where it does not is
looked for.

- The batch has the key's columns, `_row` where the layout wants it, and what its op needs; nothing else but, in a put,
  columns of the schema. A column may have a type that widens to the schema's, as an older client gives it.
- `_row` is the encoding of the key columns. Rows ascend, each once; cells ascend by row, family and qualifier, those of
  one column with the newest time first.
- In a put whose nulls are not written, a row that writes no column is a put of the key alone.

Offsets, UTF-8 and digits of decimals are taken as valid: Arrow sees to them where arrays are made, and `decode_block`
where they come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.format import layout
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model import types as t
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId
from stelae.model.keys.vector import encode_arrays
from stelae.model.limits import Limits
from stelae.model.schema import Column, Group, TableSchema
from stelae.model.values import days_of_date, show
from stelae.storage.checks.rules import check_family, missing_column, null_written, required_columns, shown_row
from stelae.storage.merge.order import Flags, Positions

_CELL = (layout.FAMILY, layout.QUALIFIER, layout.VALUE)
_DAYS = days_of_date(date.min), days_of_date(date.max)
_TIME = t.Timestamp()

_Written = tuple[Group, Column, pa.Array]


def check_columnar(schema: TableSchema, block: ColumnarBlock, limits: Limits) -> None:
    """InvalidArgument names the row and the column at fault, or the column where the whole batch is."""
    if not block.batch.num_rows:
        raise InvalidArgument("block: it has no rows")
    _check_system(schema, block)
    columns = _value_columns(schema, block)
    _ColumnarCheck(schema, block, limits).check(columns)


def _check_system(schema: TableSchema, block: ColumnarBlock) -> None:
    names = block.batch.schema.names
    if len(set(names)) != len(names):
        raise InvalidArgument("block: a column stands twice")
    needed = {layout.ROW} if layout.row_is_stored(schema.codec) else set()
    needed |= set(_CELL) if block.op is ColumnarOp.PUT_CELLS else set()
    system = {name for name in names if name in layout.SYSTEM_NAMES}
    for name in sorted(needed ^ (system - {layout.TS})):
        raise InvalidArgument(
            f"block: column {name!r} {'is missing from' if name in needed else 'has no place in'} "
            f"a columnar {block.op.name.lower()} of this table"
        )
    for name in sorted(system):
        column, type_ = block.batch.column(name), layout.system_field(name).type
        if column.type != type_ or column.null_count:
            nulls = f" with {column.null_count} nulls" if column.null_count else ""
            raise InvalidArgument(f"block: column {name!r} is {column.type}{nulls} instead of {type_}")


def _value_columns(schema: TableSchema, block: ColumnarBlock) -> list[_Written]:
    """Key columns go by name and id, both of which are fixed; value columns by id alone, as names change."""
    keys = {column.name: column.id for column in schema.key}
    found: dict[int, _Written] = {}
    for field, array in zip(block.batch.schema, block.batch.columns, strict=True):
        id_ = layout.field_id(field)
        if field.name in layout.SYSTEM_NAMES:
            continue
        if id_ is not None and keys.get(field.name) == id_:
            del keys[field.name]
            continue
        if id_ is None or id_ in found:
            raise InvalidArgument(f"block: column {field.name!r} has {'no id' if id_ is None else f'id {id_} again'}")
        try:
            group, column = schema.column_by_id(ColumnId(id_))
        except InvalidArgument as error:
            raise InvalidArgument(f"block: column {field.name!r}: {error}") from None
        if block.op is not ColumnarOp.PUT:
            raise InvalidArgument(f"block: a columnar {block.op.name.lower()} writes no column {column.name!r}")
        _check_type(column, field.type)
        found[id_] = group, column, array
    for name in keys:
        raise InvalidArgument(f"block: key column {name!r} is missing")
    return list(found.values())


def _check_type(column: Column, given: pa.DataType) -> None:
    if given == to_arrow(column.type):
        return
    try:
        type_ = from_arrow(given, column.name)
    except InvalidSchema as error:
        raise InvalidArgument(f"block: {error}") from None
    if to_arrow(type_) != given or not t.widens(type_, column.type):
        raise InvalidArgument(f"block: column {column.name!r} is {column.type}, and takes no Arrow {given}")


class _ColumnarCheck:
    def __init__(self, schema: TableSchema, block: ColumnarBlock, limits: Limits) -> None:
        self._schema = schema
        self._block = block
        self._batch: pa.RecordBatch = block.batch
        self._limits = limits
        self._rows: pa.Array = self._encoded()

    def check(self, columns: Sequence[_Written]) -> None:
        self._check_rows()
        if layout.TS in self._batch.schema.names:
            self._check_values(layout.TS, _TIME, self._batch.column(layout.TS))
        if self._block.op is ColumnarOp.PUT_CELLS:
            self._check_cells()
            return
        place = _disorder([self._rows])
        if place is not None:
            raise self._refused(place + 1, f"it follows {self._shown(place)}; rows ascend, and none stands twice")
        for _, column, values in columns:
            self._check_values(column.name, column.type, values)
        if self._block.op is ColumnarOp.PUT:
            self._check_nulls(columns)

    def _encoded(self) -> pa.Array:
        codec = self._schema.codec
        keys = [self._batch.column(name) for name in codec.names]
        rows = encode_arrays(codec, keys)
        for name, type_, values in zip(codec.names, codec.types, keys, strict=True):
            found = _problem(type_, values)
            if found is not None:
                # Such a key has no form to be shown in.
                place, why = found
                raise InvalidArgument(f"row number {place}: key column {name!r}: {why}")
        return rows

    def _shown(self, place: int) -> str:
        return f"row {shown_row(self._schema.codec, self._rows[place].as_py())}"

    def _refused(self, place: int, why: object) -> InvalidArgument:
        return InvalidArgument(f"{self._shown(place)}: {why}")

    def _check_rows(self) -> None:
        if layout.ROW in self._batch.schema.names:
            given = self._batch.column(layout.ROW)
            if not given.equals(self._rows):
                place = _first_true(pc.not_equal(given, self._rows))
                raise self._refused(place, f"column {layout.ROW!r} says {show(given[place].as_py())} instead")
        self._check_sizes("the row", self._rows, self._limits.row_bytes_max)

    def _check_values(self, name: str, type_: t.ColumnType, values: pa.Array) -> None:
        found = _problem(type_, values)
        if found is not None:
            place, why = found
            raise self._refused(place, f"column {name!r}: {why}")
        self._check_sizes(f"column {name!r}", values, self._limits.value_bytes_max)

    def _check_sizes(self, what: str, values: pa.Array, limit: int) -> None:
        place = _oversized(values, limit)
        if place is not None:
            raise self._refused(place, f"{what} has more than the {limit} bytes that are allowed")

    def _check_cells(self) -> None:
        family, qualifier, value = (self._batch.column(name) for name in _CELL)
        for name in family.unique().to_pylist():
            try:
                check_family(self._schema, name, self._limits)
            except InvalidArgument as error:
                raise self._refused(pc.index(family, name).as_py(), error) from None
        self._check_sizes(f"column {layout.QUALIFIER!r}", qualifier, self._limits.row_bytes_max)
        self._check_sizes(f"column {layout.VALUE!r}", value, self._limits.value_bytes_max)
        times = self._batch.column(layout.TS) if layout.TS in self._batch.schema.names else None
        place = _disorder([self._rows, family, qualifier], times)
        if place is not None:
            column = f"{family[place + 1].as_py()}:{qualifier[place + 1].as_py()}"
            raise self._refused(
                place + 1,
                f"column {show(column)} is out of order: cells ascend by row, family and qualifier, newest time first",
            )

    def _check_nulls(self, columns: Sequence[_Written]) -> None:
        for _, column, values in columns:
            if self._block.nulls_written and values.null_count and not column.nullable:
                raise self._refused(_first_true(values.is_null()), null_written(column))
        demanding = [(group, needed) for group in self._schema.groups if (needed := required_columns(group))]
        if not demanding:
            return
        count = self._batch.num_rows
        written = {column.id: self._written(values) for _, column, values in columns}
        anything = _any_of(written.values(), count)
        for group, needed in demanding:
            touched = _any_of([written[column.id] for each, column, _ in columns if each.id == group.id], count)
            if group.id == self._schema.existence_group.id:
                touched |= ~anything
            for column in needed:
                lacks = touched & ~written[column.id] if column.id in written else touched
                if lacks.any():
                    raise self._refused(int(np.argmax(lacks)), missing_column(column, group))

    def _written(self, values: pa.Array) -> Flags:
        if self._block.nulls_written or not values.null_count:
            return np.ones(len(values), np.bool_)
        flags: Flags = values.is_valid().to_numpy(zero_copy_only=False)
        return flags


def _any_of(some: Iterable[Flags], count: int) -> Flags:
    result = np.zeros(count, np.bool_)
    for flags in some:
        result |= flags
    return result


def _first_true(flags: pa.Array) -> int:
    return int(pc.index(flags, True).as_py())


def _disorder(parts: Sequence[pa.Array], times: pa.Array | None = None) -> int | None:
    """The first place whose successor is not greater: by the parts in turn, then by a lesser time."""
    bad: list[int] = []
    equal = np.arange(len(parts[0]) - 1)
    for part in parts:
        here, there = _neighbours(part, equal)
        less = pc.less(here, there).to_numpy(zero_copy_only=False)
        equal, here, there = equal[~less], here.filter(pa.array(~less)), there.filter(pa.array(~less))
        greater = pc.greater(here, there).to_numpy(zero_copy_only=False)
        bad += equal[greater][:1].tolist()
        equal = equal[~greater]
    if times is not None:
        micros = times.view(pa.int64()).to_numpy(zero_copy_only=False)
        equal = equal[micros[equal] <= micros[equal + 1]]
    return min([*bad, *equal[:1].tolist()], default=None)


def _neighbours(part: pa.Array, at: Positions) -> tuple[pa.Array, pa.Array]:
    if len(at) == len(part) - 1:
        return part.slice(0, len(at)), part.slice(1)
    return part.take(pa.array(at)), part.take(pa.array(at + 1))


def _oversized(values: pa.Array, limit: int) -> int | None:
    """The first value of more bytes. An array that is no larger as a whole has none."""
    if not _has_sizes(values.type) or values.nbytes <= limit:
        return None
    if not pa.types.is_nested(values.type):
        lengths = pc.binary_length(values)
        return None if (pc.max(lengths).as_py() or 0) <= limit else _first_true(pc.greater(lengths, limit))
    if len(values) == 1:
        return 0
    half = len(values) // 2
    found = _oversized(values.slice(0, half), limit)
    if found is not None:
        return found
    found = _oversized(values.slice(half), limit)
    return None if found is None else half + found


def _has_sizes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_nested(type_))


def _problem(type_: t.ColumnType, values: pa.Array) -> tuple[int, str] | None:
    """The first value that its type does not have although Arrow does, and why. Found by halving."""
    why = _why(type_, values)
    if not why:
        return None
    place, count = 0, len(values)
    while count > 1:
        half = count // 2
        if _why(type_, values.slice(place, half)):
            count = half
        else:
            place, count = place + half, count - half
    return place, _why(type_, values.slice(place, 1))


def _why(type_: t.ColumnType, values: pa.Array) -> str:
    match type_:
        case t.Date():
            return _outside(values.view(pa.int32()), *_DAYS)
        case t.Timestamp() | t.TimestampNtz():
            return _outside(values.view(pa.int64()), TS_MIN, TS_MAX)
        case t.Vector():
            return "there is a NULL in a vector" if values.flatten().null_count else ""
        case t.Array(element):
            return _why(element, values.flatten())
        case t.Struct(fields):
            parts = zip(fields, values.flatten(), strict=True)
            return next((why for (_, field), part in parts if (why := _why(field, part))), "")
        case t.Map():
            return _why_map(type_, values)
        case _:
            return ""


def _outside(numbers: pa.Array, least: int, most: int) -> str:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        return ""
    return "a time outside the years 1 to 9999"


def _why_map(type_: t.Map, values: pa.Array) -> str:
    offsets = values.offsets.to_numpy()
    owners = np.repeat(np.arange(len(values)), np.diff(offsets))
    keys, items = (part.slice(offsets[0], len(owners)) for part in (values.keys, values.items))
    if values.null_count:
        seen = values.is_valid().to_numpy(zero_copy_only=False)[owners]
        owners, keys, items = owners[seen], keys.filter(pa.array(seen)), items.filter(pa.array(seen))
    if isinstance(type_.key, t.Float):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))  # the two zeros are one key
        if pc.any(pc.is_nan(keys)).as_py():
            return "a key of a map is NaN"
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    if len(np.unique(owners * len(codes) + codes)) < len(codes):
        return "a key stands twice in a map"
    return _why(type_.key, keys) or _why(type_.value, items)
