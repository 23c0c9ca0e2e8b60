"""Rows of one call as columns: typed keys, values with what is written of them, and cells one beneath the other.

Everything here is in the order in which it was given, so a place in an array is the number of a row in the call. What
is not written is null. All rules that concern a row by itself are checked here, with that number: types, sizes, keys,
NOT NULL. What rows with the same key make together is `incoming_merge`'s concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.intake.arrays import check_sizes, fitted
from stelae.client.intake.frames import FramePart, Given
from stelae.client.intake.values import array_of_given
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId
from stelae.model.limits import Limits
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.storage.checks.rules import missing_column, null_written, required_columns
from stelae.storage.merge.order import Flags, Ints

CELLS = t.Map(t.String(), t.Binary())
NO_NULL_CELL = "a cell has no NULL: erase it, or leave it untouched with nulls='skip'"

Written: TypeAlias = Flags | bool
"""In which rows a column is written: in these, in all, or in none."""


@dataclass(frozen=True, slots=True)
class GivenColumn:
    column: Column
    values: pa.Array
    written: Written


@dataclass(frozen=True, slots=True)
class GivenCells:
    """`owners`: the number of the row that each cell belongs to, ascending. Of two that say the same cell, the later
    one counts."""

    owners: Ints
    family: pa.Array
    qualifier: pa.Array
    value: pa.Array
    ts: Ints | None = None


@dataclass(frozen=True, slots=True)
class GivenRows:
    """`is_long`: a row says one cell, and nothing else; where that was left out, nothing at all."""

    count: int
    keys: tuple[pa.Array, ...]
    columns: tuple[GivenColumn, ...] = ()
    cells: GivenCells | None = None
    is_long: bool = False


def typed(type_: t.ColumnType, given: Given, what: str, first_row: int) -> pa.Array:
    if isinstance(given, list):
        return array_of_given(type_, given, what, first_row)
    return fitted(type_, given, what, first_row)


def given_frame(names: Names, part: FramePart, first_row: int, *, skip_nulls: bool) -> GivenRows:
    keys: dict[ColumnId, pa.Array] = {}
    columns: dict[ColumnId, GivenColumn] = {}
    cells: list[GivenCells] = []
    for name, given in part.columns:
        match names.meaning(name):
            case KeyColumn() as key:
                _check_once(name, key.id in keys)
                keys[key.id] = typed(key.type, given, f"key column {key.name!r}", first_row)
            case Column() as column:
                _check_once(name, column.id in columns)
                values = typed(column.type, given, f"column {column.name!r}", first_row)
                columns[column.id] = GivenColumn(column, values, _valid(values) if skip_nulls else True)
            case Cell(family, qualifier):
                values = typed(t.Binary(), given, f"column {name!r}", first_row)
                cells.append(_cell_column(family, qualifier, values))
            case WholeFamily() as family_:
                maps = typed(CELLS, given, f"column {name!r}", first_row)
                cells.append(map_cells(names, family_, maps, first_row))
    found = tuple(keys_in_order(names.schema, keys))
    return GivenRows(part.count, found, tuple(columns.values()), side_by_side(cells, first_row, skip_nulls=skip_nulls))


def keys_in_order(schema: TableSchema, keys: dict[ColumnId, pa.Array]) -> Iterable[pa.Array]:
    for column in schema.key:
        if column.id not in keys:
            raise InvalidArgument(f"key column {column.name!r} is missing")
        yield keys[column.id]


def _check_once(name: object, is_known: bool) -> None:
    if is_known:
        raise InvalidArgument(f"column {name!r} is given twice (case does not count)")


def _valid(values: pa.Array) -> Written:
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else True


def _cell_column(family: str, qualifier: str, values: pa.Array) -> GivenCells:
    count = len(values)
    return GivenCells(np.arange(count), _repeated(family, count), _repeated(qualifier, count), values)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def map_cells(names: Names, family: WholeFamily, maps: pa.Array, first_row: int) -> GivenCells:
    """The entries of maps from qualifier, or for the wildcard from `family:qualifier`, to value."""
    offsets = maps.offsets.to_numpy()
    entries = int(offsets[-1] - offsets[0])
    keys, items = (part.slice(offsets[0], entries) for part in (maps.keys, maps.items))
    owners = np.repeat(np.arange(len(maps)), np.diff(offsets))
    if family != OTHER_CELLS:
        return GivenCells(owners, _repeated(family.family, entries), keys, items)
    encoded = keys.dictionary_encode()
    found = []
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(names.cell(name))
        except InvalidArgument as error:
            first = owners[pc.index(encoded.indices, pa.scalar(code, encoded.indices.type)).as_py()]
            raise InvalidArgument(f"row number {first_row + first}: {error}") from None
    families, qualifiers = (
        pa.array([getattr(cell, part) for cell in found], pa.string()).take(encoded.indices)
        for part in ("family", "qualifier")
    )
    return GivenCells(owners, families, qualifiers, items)


def side_by_side(cells: Sequence[GivenCells], first_row: int, *, skip_nulls: bool) -> GivenCells | None:
    """The cells of several columns, row by row; within a row as the columns come."""
    if not cells:
        return None
    whole = cells[0] if len(cells) == 1 else _concatenated(cells, [0] * len(cells))
    if whole.value.null_count:
        if not skip_nulls:
            place = pc.index(whole.value.is_null(), True).as_py()
            row = first_row + whole.owners[place]
            raise InvalidArgument(f"row number {row}: column {_column_name(whole, place)}: {NO_NULL_CELL}")
        whole = taken_cells(whole, np.flatnonzero(whole.value.is_valid().to_numpy(zero_copy_only=False)))
    return taken_cells(whole, np.argsort(whole.owners, kind="stable")) if len(cells) > 1 else whole


def taken_cells(cells: GivenCells, places: npt.NDArray[np.intp]) -> GivenCells:
    at = pa.array(places)
    family, qualifier, value = (part.take(at) for part in (cells.family, cells.qualifier, cells.value))
    return GivenCells(cells.owners[places], family, qualifier, value, None if cells.ts is None else cells.ts[places])


def _concatenated(cells: Sequence[GivenCells], first_rows: Sequence[int]) -> GivenCells:
    times = [each.ts for each in cells if each.ts is not None]
    return GivenCells(
        np.concatenate([each.owners + first for each, first in zip(cells, first_rows, strict=True)]),
        pa.concat_arrays([each.family for each in cells]),
        pa.concat_arrays([each.qualifier for each in cells]),
        pa.concat_arrays([each.value for each in cells]),
        np.concatenate(times) if times else None,
    )


def behind_each_other(parts: Sequence[GivenRows]) -> GivenRows:
    """The rows of several parts behind each other. A column that a part does not have is not written there."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.count for part in parts)]).tolist()
    columns: dict[ColumnId, Column] = {each.column.id: each.column for part in parts for each in part.columns}
    with_cells = [(part.cells, start) for part, start in zip(parts, starts, strict=False) if part.cells is not None]
    try:
        return GivenRows(
            starts[-1],
            tuple(pa.concat_arrays(keys) for keys in zip(*(part.keys for part in parts), strict=True)),
            tuple(_joined_column(column, parts) for column in columns.values()),
            _concatenated(*zip(*with_cells, strict=True)) if with_cells else None,
            is_long=parts[0].is_long,
        )
    except pa.ArrowException as error:
        raise InvalidArgument(f"too much for one call, give the rows in parts: {error}") from None


def _joined_column(column: Column, parts: Sequence[GivenRows]) -> GivenColumn:
    type_ = to_arrow(column.type)
    absent = {part.count: GivenColumn(column, pa.nulls(part.count, type_), False) for part in parts}
    there = [next((each for each in part.columns if each.column.id == column.id), absent[part.count]) for part in parts]
    written: Written = True
    if not all(each.written is True for each in there):
        written = np.concatenate([flags_of(each.written, len(each.values)) for each in there])
    return GivenColumn(column, pa.concat_arrays([each.values for each in there]), written)


def flags_of(written: Written, count: int) -> Flags:
    return np.full(count, written, np.bool_) if isinstance(written, bool) else written


def any_written(given: GivenRows) -> Flags:
    """Rows that write some column."""
    flags = np.zeros(given.count, np.bool_)
    for each in given.columns:
        flags |= each.written
    return flags


def rows_with_cells(given: GivenRows) -> Flags:
    flags = np.zeros(given.count, np.bool_)
    if given.cells is not None:
        flags[given.cells.owners] = True
    return flags


def bare_rows(given: GivenRows) -> Flags:
    """Rows that say their key alone."""
    if given.is_long:
        return np.zeros(given.count, np.bool_)
    return ~(any_written(given) | rows_with_cells(given))


def check_given(schema: TableSchema, given: GivenRows, limits: Limits) -> None:
    """What holds for every row by itself."""
    check_keys(schema, given)
    for each in given.columns:
        check_sizes(each.values, limits.value_bytes_max, f"column {each.column.name!r}", 0)
        if not each.column.nullable:
            _refuse(
                flags_of(each.written, given.count) & ~flags_of(_valid(each.values), given.count),
                null_written(each.column),
            )
    _check_required(schema, given)
    if given.cells is not None:
        _check_cell_sizes(given.cells, limits)


def _refuse(wrong: Flags, why: object) -> None:
    if wrong.any():
        raise InvalidArgument(f"row number {int(np.argmax(wrong))}: {why}")


def check_keys(schema: TableSchema, given: GivenRows) -> None:
    for key, values in zip(schema.key, given.keys, strict=True):
        where = f"key column {key.name!r}"
        if values.null_count:
            _refuse(~flags_of(_valid(values), len(values)), f"{where}: a key cannot be NULL")
        if isinstance(key.type, t.Float):
            _refuse(pc.is_nan(values).to_numpy(zero_copy_only=False), f"{where}: a key cannot be NaN")


def _check_required(schema: TableSchema, given: GivenRows) -> None:
    demanding = [(group, needed) for group in schema.groups if (needed := required_columns(group))]
    if not demanding:
        return
    written = {each.column.id: each.written for each in given.columns}
    for group, needed in demanding:
        mine = [each for each in given.columns if schema.column_by_id(each.column.id)[0].id == group.id]
        touched = any_written(GivenRows(given.count, (), tuple(mine)))
        if group.id == schema.existence_group.id:
            touched |= bare_rows(given)
        for column in needed:
            _refuse(touched & ~flags_of(written.get(column.id, False), given.count), missing_column(column, group))


def _check_cell_sizes(cells: GivenCells, limits: Limits) -> None:
    place = _first_above(cells.qualifier, limits.row_bytes_max)
    if place is not None:
        raise InvalidArgument(
            f"row number {cells.owners[place]}: a qualifier of family {str(cells.family[place])!r} "
            f"has more than the {limits.row_bytes_max} bytes allowed"
        )
    place = _first_above(cells.value, limits.value_bytes_max)
    if place is not None:
        raise InvalidArgument(
            f"row number {cells.owners[place]}: column {_column_name(cells, place)} "
            f"has more than the {limits.value_bytes_max} bytes allowed"
        )


def _first_above(values: pa.Array, limit: int) -> int | None:
    if values.nbytes <= limit:
        return None
    wrong = pc.greater(pc.binary_length(values), limit).to_numpy(zero_copy_only=False)
    return int(np.argmax(wrong)) if wrong.any() else None


def _column_name(cells: GivenCells, place: int) -> str:
    return repr(f"{cells.family[place]}:{cells.qualifier[place]}")
