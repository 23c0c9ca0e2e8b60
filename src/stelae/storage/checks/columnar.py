"""The door for columnar blocks: a fast path of `mutations`, which it never calls. Every rule holds for a whole array at
once, or the first place where it does not is looked for (`arrays`, `sizes`).

- The batch has the key's columns, `_row` where the layout wants it, and what its op needs; nothing else but, in a put,
  columns of the schema. A column may have a type that widens to the schema's, as an older client gives it.
- `_row` is the encoding of the key columns. Rows ascend, each once; cells ascend by row, family and qualifier, those of
  one column with the newest time first.
- In a put whose nulls are not written, a row that writes no column is a put of the key alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import ColumnId
from stelae.model.keys.vector import encode_arrays
from stelae.model.limits import Limits
from stelae.model.schema import Column, Group, TableSchema
from stelae.model.values import show
from stelae.storage.checks.arrays import any_of, demanding_groups, first_lacking, first_misfit
from stelae.storage.checks.rules import check_family, null_written, shown_row
from stelae.storage.checks.sizes import first_oversized
from stelae.storage.merge.order import Flags, Positions

_CELL = (layout.FAMILY, layout.QUALIFIER, layout.VALUE)
_BINARY, _TEXT = t.Binary(), t.String()
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
            found = first_misfit(type_, values)
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
        self._check_sizes("the row", _BINARY, self._rows, self._limits.row_bytes_max)

    def _check_values(self, name: str, type_: t.ColumnType, values: pa.Array) -> None:
        found = first_misfit(type_, values)
        if found is not None:
            place, why = found
            raise self._refused(place, f"column {name!r}: {why}")
        self._check_sizes(f"column {name!r}", type_, values, self._limits.value_bytes_max)

    def _check_sizes(self, what: str, type_: t.ColumnType, values: pa.Array, limit: int) -> None:
        place = first_oversized(type_, values, limit)
        if place is not None:
            raise self._refused(place, f"{what} has more than the {limit} bytes that are allowed")

    def _check_cells(self) -> None:
        family, qualifier, value = (self._batch.column(name) for name in _CELL)
        for name in family.unique().to_pylist():
            try:
                check_family(self._schema, name, self._limits)
            except InvalidArgument as error:
                raise self._refused(pc.index(family, name).as_py(), error) from None
        self._check_sizes(f"column {layout.QUALIFIER!r}", _TEXT, qualifier, self._limits.row_bytes_max)
        self._check_sizes(f"column {layout.VALUE!r}", _BINARY, value, self._limits.value_bytes_max)
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
        if not demanding_groups(self._schema):
            return
        written = {column.id: self._written(values) for _, column, values in columns}
        lacking = first_lacking(self._schema, written, ~any_of(written.values(), self._batch.num_rows))
        if lacking is not None:
            raise self._refused(*lacking)

    def _written(self, values: pa.Array) -> Flags:
        if self._block.nulls_written or not values.null_count:
            return np.ones(len(values), np.bool_)
        flags: Flags = values.is_valid().to_numpy(zero_copy_only=False)
        return flags


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
