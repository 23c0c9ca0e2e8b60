"""Rows as dicts: one of them as mutations, many of them as columns.

A name in a dict is a key column, a value column, a cell `family:qualifier`, or a family with a mapping of qualifiers.
A column that a dict does not name is untouched; None is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.intake.frames import FramePart
from stelae.client.intake.rows import (
    CELLS,
    NO_NULL_CELL,
    GivenCells,
    GivenColumn,
    GivenRows,
    Written,
    keys_in_order,
    typed,
)
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros
from stelae.model.mutation import Cell, Mutation, Put, PutCell, WholeFamily
from stelae.model.schema import Column, KeyColumn
from stelae.model.values import Value, coerce, show
from stelae.storage.merge.order import Flags


class _Absent:
    pass


_ABSENT: Any = _Absent()
_BINARY = t.Binary()

Fit = Callable[[t.ColumnType, Any, str], Value]


def said(
    names: Names, row: Mapping[str, Any], ts: Micros | None, fit: Fit = coerce, *, skip_nulls: bool = False
) -> list[Mutation]:
    """What one dict says. InvalidArgument names the column, but not the row."""
    schema = names.schema
    keys: dict[str, Any] = {}
    values: dict[ColumnId, Value] = {}
    cells: dict[Cell, bytes] = {}
    for name, value in row.items():
        match names.meaning(name):
            case Column() as column:
                if column.id in values:
                    raise _twice(name)
                if value is not None:
                    values[column.id] = fit(column.type, value, f"column {column.name!r}")
                elif not skip_nulls:
                    values[column.id] = None
            case KeyColumn() as key:
                if key.name in keys:
                    raise _twice(name)
                if value is not None and fit is not coerce:
                    value = fit(key.type, value, f"key column {key.name!r}")
                keys[key.name] = value
            case Cell() | WholeFamily() as place:
                for cell, data in _cells(names, name, place, value, skip_nulls=skip_nulls):
                    cells.pop(cell, None)
                    cells[cell] = data
    for key in schema.key:
        if key.name not in keys:
            raise InvalidArgument(f"no value for key column {key.name!r}")
    encoded = schema.codec.encode(schema.codec.check(tuple([keys[name] for name in schema.codec.names])))
    found: list[Mutation] = [Put(encoded, tuple(sorted(values.items(), key=_id)), ts)] if values or not cells else []
    found += [PutCell(encoded, cell.family, cell.qualifier, data, ts) for cell, data in cells.items()]
    return found


def _id(written: tuple[ColumnId, Value]) -> ColumnId:
    return written[0]


def _twice(name: str) -> InvalidArgument:
    return InvalidArgument(f"column {name!r} is given twice (case does not count)")


def _cells(
    names: Names, name: str, place: Cell | WholeFamily, value: Any, *, skip_nulls: bool
) -> Iterator[tuple[Cell, bytes]]:
    if isinstance(place, Cell):
        pairs: list[tuple[Cell, Any]] = [(place, value)]
    elif value is None:
        pairs = []
    else:
        entries = coerce(CELLS, value, f"column {name!r}")
        pairs = [(_cell(names, place, qualifier), data) for qualifier, data in entries.items()]
    for cell, data in pairs:
        if data is not None:
            yield cell, coerce(_BINARY, data, f"column '{cell.family}:{cell.qualifier}'")
        elif not skip_nulls:
            raise InvalidArgument(f"column '{cell.family}:{cell.qualifier}': {NO_NULL_CELL}")


def _cell(names: Names, family: WholeFamily, qualifier: str) -> Cell:
    if family == OTHER_CELLS:
        return names.cell(qualifier)
    return Cell(family.family, names.qualifier(family.family, qualifier))


def check_dicts(rows: list[Any]) -> list[Mapping[str, Any]]:
    for number, row in enumerate(rows):
        if type(row) is not dict and not isinstance(row, Mapping):
            raise InvalidArgument(f"row number {number}: a row is a dict of column to value, not {show(row)}")
    return rows


def part_of_dicts(rows: Sequence[Mapping[str, Any]]) -> FramePart:
    """Columns of values, None where a row does not have one."""
    names = dict.fromkeys(chain.from_iterable(rows))
    return FramePart(len(rows), tuple((name, [row.get(name) for row in rows]) for name in names))


def given_dicts(names: Names, rows: Sequence[Mapping[str, Any]], *, skip_nulls: bool) -> GivenRows:
    keys: dict[ColumnId, tuple[KeyColumn, list[Any]]] = {}
    columns: dict[ColumnId, tuple[Column, list[Any]]] = {}
    places: dict[str, Cell | WholeFamily] = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        match _meaning(names, name, rows):
            case KeyColumn() as key:
                keys[key.id] = key, _listed(rows, name, keys.get(key.id, (key, None))[1])
            case Column() as column:
                columns[column.id] = column, _listed(rows, name, columns.get(column.id, (column, None))[1])
            case Cell() | WholeFamily() as place:
                places[name] = place
    given = [_given_column(column, values, skip_nulls=skip_nulls) for column, values in columns.values()]
    absent = [_ABSENT] * len(rows)
    typed_keys = {key.id: _typed_key(key, keys.get(key.id, (key, absent))[1]) for key in names.schema.key}
    found = tuple(keys_in_order(names.schema, typed_keys))
    cells = _given_cells(names, rows, places, skip_nulls=skip_nulls) if places else None
    return GivenRows(len(rows), found, tuple(given), cells)


def _meaning(names: Names, name: object, rows: Sequence[Mapping[str, Any]]) -> KeyColumn | Column | Cell | WholeFamily:
    try:
        return names.meaning(name)
    except InvalidArgument as error:
        number = next(at for at, row in enumerate(rows) if name in row)
        raise InvalidArgument(f"row number {number}: {error}") from None


def _listed(rows: Sequence[Mapping[str, Any]], name: str, before: list[Any] | None) -> list[Any]:
    """The values under a name, besides those the same column has in other rows under another."""
    values = _found(rows, name)
    if before is None:
        return values
    for at, (one, other) in enumerate(zip(before, values, strict=True)):
        if one is not _ABSENT and other is not _ABSENT:
            raise InvalidArgument(f"row number {at}: {_twice(name)}")
    return [other if one is _ABSENT else one for one, other in zip(before, values, strict=True)]


def _found(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    if set(map(type, rows)) == {dict}:
        try:
            return [row[name] for row in rows]
        except KeyError:
            pass
    return [row.get(name, _ABSENT) for row in rows]


def _absent(values: Sequence[Any]) -> Flags | None:
    """Where a value is absent; None if it is nowhere."""
    if type(_ABSENT) not in set(map(type, values)):
        return None
    return np.array([value is _ABSENT for value in values])


def _typed_key(key: KeyColumn, values: list[Any]) -> pa.Array:
    absent = _absent(values)
    if absent is not None:
        raise InvalidArgument(f"row number {int(np.argmax(absent))}: no value for key column {key.name!r}")
    return typed(key.type, values, f"key column {key.name!r}", 0)


def _given_column(column: Column, values: list[Any], *, skip_nulls: bool) -> GivenColumn:
    absent = _absent(values)
    written: Written = True
    if absent is not None:
        written = ~absent
        values = [None if value is _ABSENT else value for value in values]
    array = typed(column.type, values, f"column {column.name!r}", 0)
    if skip_nulls and array.null_count:
        written = array.is_valid().to_numpy(zero_copy_only=False)
    return GivenColumn(column, array, written)


def _given_cells(
    names: Names,
    rows: Sequence[Mapping[str, Any]],
    places: Mapping[str, Cell | WholeFamily],
    *,
    skip_nulls: bool,
) -> GivenCells:
    owners: list[int] = []
    cells: list[Cell] = []
    data: list[bytes] = []
    for at, row in enumerate(rows):
        try:
            for name, value in row.items():
                if name in places:
                    for cell, each in _cells(names, name, places[name], value, skip_nulls=skip_nulls):
                        owners.append(at)
                        cells.append(cell)
                        data.append(each)
        except InvalidArgument as error:
            raise InvalidArgument(f"row number {at}: {error}") from None
    return GivenCells(
        np.array(owners, np.int64),
        pa.array([cell.family for cell in cells], pa.string()),
        pa.array([cell.qualifier for cell in cells], pa.string()),
        pa.array(data, pa.binary()),
    )
