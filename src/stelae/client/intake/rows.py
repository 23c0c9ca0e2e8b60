"""Rows of one call as columns: typed keys, values with what is written of them, and cells one beneath the other.

A fast path of `rule`. Everything here is in the order in which it was given, so a place in an array is the number of a
row in the call. What is not written is null. All rules that concern a row by itself are checked here, with that number:
types, sizes, keys, NOT NULL. What rows with the same key make together is the concern of `merge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.intake.arrays import fitted
from stelae.client.intake.frames import FramePart, Given
from stelae.client.intake.rule import CELLS, given_twice, null_cell
from stelae.client.intake.values import array_of_given
from stelae.format.layout import flags_of
from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros
from stelae.model.limits import Limits
from stelae.model.mutation import Cell, Mutation, Put, PutCell, WholeFamily
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.model.values import show
from stelae.storage.checks.arrays import any_of, demanding_groups, first_lacking
from stelae.storage.checks.rules import check_size, null_written
from stelae.storage.checks.sizes import first_oversized, text_bytes
from stelae.storage.merge.order import Flags, Ints

_BINARY, _TEXT = t.Binary(), t.String()

Written: TypeAlias = Flags | bool
"""In which rows a column is written: in these, in all, or in none."""


class GivenColumn(msgspec.Struct, frozen=True):
    column: Column
    values: pa.Array
    written: Written


class GivenCells(msgspec.Struct, frozen=True):
    """`owners`: the number of the row that each cell belongs to, ascending. Of two that say the same cell, the later
    one counts."""

    owners: Ints
    family: pa.Array
    qualifier: pa.Array
    value: pa.Array
    ts: Ints | None = None


class GivenRows(msgspec.Struct, frozen=True):
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
                if key.id in keys:
                    raise given_twice(name)
                keys[key.id] = typed(key.type, given, f"key column {key.name!r}", first_row)
            case Column() as column:
                if column.id in columns:
                    raise given_twice(name)
                values = typed(column.type, given, f"column {column.name!r}", first_row)
                columns[column.id] = GivenColumn(column, values, _valid(values) if skip_nulls else True)
            case Cell(family, qualifier):
                values = typed(t.Binary(), given, f"column {name!r}", first_row)
                cells.append(_cell_column(family, qualifier, values))
            case WholeFamily() as family_:
                maps = typed(CELLS, given, f"column {name!r}", first_row)
                cells.append(map_cells(names, family_, maps, first_row))
    found = tuple(keys_in_order(names.schema, keys))
    beside = cells_of_columns(names, cells, first_row, skip_nulls=skip_nulls)
    return GivenRows(part.count, found, tuple(columns.values()), beside)


def given_row(schema: TableSchema, mutations: Sequence[Mutation]) -> tuple[GivenRows, Micros | None]:
    """One row as what was said of it, which are puts of one time; and that time."""
    keys = zip(schema.key, schema.codec.decode(mutations[0].row), strict=True)
    columns: list[GivenColumn] = []
    cells: list[PutCell] = []
    ts: Micros | None = None
    for mutation in mutations:
        match mutation:
            case Put(_, values, ts):
                for id_, value in values:
                    _, column = schema.column_by_id(id_)
                    columns.append(GivenColumn(column, array_of(column.type, [value]), True))
            case PutCell(_, _, _, _, ts):
                cells.append(mutation)
            case _:
                raise InvalidArgument(f"{show(mutation)} is no put")
    beside = GivenCells(
        np.zeros(len(cells), np.int64),
        pa.array([cell.family for cell in cells], pa.string()),
        pa.array([cell.qualifier for cell in cells], pa.string()),
        pa.array([cell.value for cell in cells], pa.binary()),
    )
    typed_keys = tuple(array_of(key.type, [value]) for key, value in keys)
    return GivenRows(1, typed_keys, tuple(columns), beside if cells else None), ts


def keys_in_order(schema: TableSchema, keys: dict[ColumnId, pa.Array]) -> Iterable[pa.Array]:
    for column in schema.key:
        if column.id not in keys:
            raise InvalidArgument(f"key column {column.name!r} is missing")
        yield keys[column.id]


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


def cells_of_columns(
    names: Names, cells: Sequence[GivenCells], first_row: int, *, skip_nulls: bool
) -> GivenCells | None:
    """The cells of several columns, row by row; within a row as the columns come. A cell without a value is refused, or
    left out: then its qualifier is still one that may be."""
    if not cells:
        return None
    whole = cells[0] if len(cells) == 1 else _concatenated_cells(cells, [0] * len(cells))
    place = first_oversized(_TEXT, whole.qualifier, names.limits.row_bytes_max)
    if place is not None:
        cell, row = _cell(whole, place), first_row + whole.owners[place]
        what = f"row number {row}: qualifier of family {cell.family!r}"
        check_size(what, text_bytes(cell.qualifier), names.limits.row_bytes_max)
    if whole.value.null_count:
        if not skip_nulls:
            place = pc.index(whole.value.is_null(), True).as_py()
            raise InvalidArgument(f"row number {first_row + whole.owners[place]}: {null_cell(_cell(whole, place))}")
        whole = taken_cells(whole, np.flatnonzero(whole.value.is_valid().to_numpy(zero_copy_only=False)))
    return taken_cells(whole, np.argsort(whole.owners, kind="stable")) if len(cells) > 1 else whole


def taken_cells(cells: GivenCells, places: npt.NDArray[np.intp]) -> GivenCells:
    at = pa.array(places)
    family, qualifier, value = (part.take(at) for part in (cells.family, cells.qualifier, cells.value))
    return GivenCells(cells.owners[places], family, qualifier, value, None if cells.ts is None else cells.ts[places])


def _concatenated_cells(cells: Sequence[GivenCells], first_rows: Sequence[int]) -> GivenCells:
    times = [each.ts for each in cells if each.ts is not None]
    return GivenCells(
        np.concatenate([each.owners + first for each, first in zip(cells, first_rows, strict=True)]),
        pa.concat_arrays([each.family for each in cells]),
        pa.concat_arrays([each.qualifier for each in cells]),
        pa.concat_arrays([each.value for each in cells]),
        np.concatenate(times) if times else None,
    )


def concatenated_rows(parts: Sequence[GivenRows]) -> GivenRows:
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
            _concatenated_cells(*zip(*with_cells, strict=True)) if with_cells else None,
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


def any_written(given: GivenRows) -> Flags:
    """Rows that write some column."""
    return any_of((flags_of(each.written, given.count) for each in given.columns), given.count)


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
    """What `storage.checks.mutations` says of every row by itself, but for its bytes: `merge.encoded_rows` sees to
    those. InvalidArgument names the row by its number."""
    check_keys(schema, given)
    for each in given.columns:
        what = f"column {each.column.name!r}"
        _check_sizes(each.column.type, each.values, limits.value_bytes_max, what)
        if not each.column.nullable and each.values.null_count:
            nulls = ~flags_of(_valid(each.values), given.count)
            _refuse(flags_of(each.written, given.count) & nulls, null_written(each.column))
    if demanding_groups(schema):
        written = {each.column.id: flags_of(each.written, given.count) for each in given.columns}
        lacking = first_lacking(schema, written, bare_rows(given))
        if lacking is not None:
            place, why = lacking
            raise InvalidArgument(f"row number {place}: {why}")
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


def _check_sizes(type_: t.ColumnType, values: pa.Array, limit: int, what: str) -> None:
    place = first_oversized(type_, values, limit)
    if place is not None:
        raise InvalidArgument(f"row number {place}: {what} has more than the {limit} bytes allowed")


def _check_cell_sizes(cells: GivenCells, limits: Limits) -> None:
    place = first_oversized(_BINARY, cells.value, limits.value_bytes_max)
    if place is not None:
        cell = _cell(cells, place)
        what = f"row number {cells.owners[place]}: column '{cell.family}:{cell.qualifier}'"
        check_size(what, len(cells.value[place].as_py()), limits.value_bytes_max)


def _cell(cells: GivenCells, place: int) -> Cell:
    return Cell(cells.family[place].as_py(), cells.qualifier[place].as_py())
