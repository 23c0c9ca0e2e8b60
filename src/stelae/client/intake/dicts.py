"""Many dicts as columns: a fast path of `rule`.

A name in a dict is a key column, a value column, a cell `family:qualifier`, or a family with a mapping of qualifiers.
A column that a dict does not name is untouched; None is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from stelae.client.arguments.names import Names
from stelae.client.intake.frames import FramePart
from stelae.client.intake.rows import GivenCells, GivenColumn, GivenRows, Written, keys_in_order, typed
from stelae.client.intake.rule import cells_of, given_twice, plain_dict
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.schema import Column, KeyColumn
from stelae.storage.merge.order import Flags


class _Absent:
    pass


_ABSENT: Any = _Absent()


def plain_dicts(rows: list[Any]) -> list[dict[Any, Any]]:
    if set(map(type, rows)) <= {dict}:
        return rows
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(plain_dict(row))
        except InvalidArgument as error:
            raise InvalidArgument(f"row number {number}: {error}") from None
    return found


def part_of_dicts(rows: Sequence[dict[Any, Any]]) -> FramePart:
    """Columns of values, None where a row does not have one."""
    names = dict.fromkeys(chain.from_iterable(rows))
    return FramePart(len(rows), tuple((name, [row.get(name) for row in rows]) for name in names))


def given_dicts(names: Names, rows: Sequence[dict[Any, Any]], *, skip_nulls: bool) -> GivenRows:
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


def _meaning(names: Names, name: object, rows: Sequence[dict[Any, Any]]) -> KeyColumn | Column | Cell | WholeFamily:
    try:
        return names.meaning(name)
    except InvalidArgument as error:
        number = next(at for at, row in enumerate(rows) if name in row)
        raise InvalidArgument(f"row number {number}: {error}") from None


def _listed(rows: Sequence[dict[Any, Any]], name: str, before: list[Any] | None) -> list[Any]:
    """The values under a name, besides those the same column has in other rows under another."""
    values = _found(rows, name)
    if before is None:
        return values
    for at, (one, other) in enumerate(zip(before, values, strict=True)):
        if one is not _ABSENT and other is not _ABSENT:
            raise InvalidArgument(f"row number {at}: {given_twice(name)}")
    return [other if one is _ABSENT else one for one, other in zip(before, values, strict=True)]


def _found(rows: Sequence[dict[Any, Any]], name: str) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
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
    rows: Sequence[dict[Any, Any]],
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
                    for cell, each in cells_of(names, name, places[name], value, skip_nulls=skip_nulls):
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
