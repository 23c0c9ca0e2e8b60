"""THE rule of puts: how one row may be given, and what it then says.

Plain, slow and complete. Whoever puts rows, in whatever form, gets what this module says, or is refused where it
refuses, with InvalidArgument that names the row and the column. It puts together what is known in one place each:

| what | where |
|---|---|
| what a name means | `arguments.names` |
| which values a type takes, and the one form they are kept in | `model.values.coerce` |
| what may be written: NOT NULL, sizes, families, times | `storage.checks.mutations` |

All other ways are fast paths. Each takes many rows, or most, at less cost, and `tests/client/intake/test_rule.py` holds
each of them to this module:

| fast path | takes |
|---|---|
| `single_rows.PlainPuts` | one dict without large values, by the shape of its names |
| `dicts.given_dicts`, with `values.array_of_given` | many dicts, as columns of Python values |
| `rows.given_frame`, with `arrays.fitted` | frames: columns of Arrow arrays |
| `long_frames.given_long` | frames of cells, one in each row |
| `rows.check_given` | rows as columns: what `storage.checks.mutations` says of them |
| `storage.checks.columnar` | columnar blocks, from whoever sent them |

Spark's tasks take `given_frame`, `given_long` and `check_given` as they are. What a key by itself may be is said by
`mutations.key_of`; its fast path is `arguments.keys.row_maker`.

Rows of a call that are many (`put_many`, Spark) may give ints as whole floats, since frames keep ints with gaps so; a
row that is put by itself may not. The bytes a whole block may have are no rule of a row: they are counted where blocks
are cut, and only a row of tens of megabytes meets that bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.intake.values import fit_value, native_int
from stelae.model import types as t
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Cell, Mutation, Put, PutCell, WholeFamily
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.model.values import Value, check_ts, coerce, micros_of_datetime, show
from stelae.storage.checks.mutations import check_mutations
from stelae.storage.checks.rules import check_size
from stelae.storage.checks.sizes import nested_bytes

CELLS = t.Map(t.String(), t.Binary())
NO_NULL_CELL = "a cell has no NULL: erase it, or leave it untouched with nulls='skip'"

TWO_TIMES = "the cells have times of their own: leave out ts=, or the column"

LONG_PARTS = ("family", "qualifier", "value", "ts")
"""What a row of a long frame has besides its key; the time may be left out."""

_BINARY, _TEXT = t.Binary(), t.String()

Fit = Callable[[t.ColumnType, Any, str], Value]
"""`coerce` of a row that is put by itself, `fit_value` of many."""

Items = Iterable[tuple[Any, Any]]
"""A row as it is given: names and values. A name that stands twice is refused, not overwritten."""


def judged(
    names: Names, row: Items, ts: Micros | None, fit: Fit = coerce, *, skip_nulls: bool = False
) -> list[Mutation]:
    """What a row says, if it may be written."""
    mutations = said(names, row, ts, fit, skip_nulls=skip_nulls)
    check_mutations(names.schema, mutations, names.limits)
    return mutations


def judged_alone(names: Names, row: dict[Any, Any], ts: Micros | None) -> list[Mutation]:
    """What a row says that is put by itself, if it may be written. InvalidArgument names its key."""
    mutations = said_alone(names, row, ts)
    check_mutations(names.schema, mutations, names.limits)
    return mutations


def said_alone(names: Names, row: dict[Any, Any], ts: Micros | None) -> list[Mutation]:
    """As `said`, but InvalidArgument names the key, where there is one."""
    try:
        return said(names, row.items(), ts)
    except InvalidArgument as error:
        folded = {str(name).casefold(): value for name, value in row.items()}
        keys = [folded[key.name.casefold()] for key in names.schema.key if key.name.casefold() in folded]
        if len(keys) < len(names.schema.key) or str(error).startswith("key column"):
            raise
        raise InvalidArgument(f"row {show(keys[0] if len(keys) == 1 else tuple(keys))}: {error}") from None


def plain_dict(row: object) -> dict[Any, Any]:
    """A row as a dict of its own; of any other mapping the items, taken once."""
    if type(row) is dict:
        return row
    if not isinstance(row, Mapping):
        raise InvalidArgument(f"a row is a dict of column to value, not {show(row)}")
    return dict(row.items())


def said(names: Names, row: Items, ts: Micros | None, fit: Fit = coerce, *, skip_nulls: bool = False) -> list[Mutation]:
    """What a row says: a put of its columns, or of its key alone, and one of each cell. Whether that may be written is
    for `check_mutations` to say. InvalidArgument names the column, but not the row."""
    keys: dict[ColumnId, Any] = {}
    values: dict[ColumnId, Value] = {}
    cells: dict[Cell, bytes] = {}
    for name, value in row:
        match names.meaning(name):
            case Column() as column:
                if column.id in values:
                    raise given_twice(name)
                where = f"column {column.name!r}"
                _check_length(column.type, value, where, names.limits)
                values[column.id] = None if value is None else fit(column.type, value, where)
            case KeyColumn() as key:
                if key.id in keys:
                    raise given_twice(name)
                keys[key.id] = value
            case Cell() | WholeFamily() as place:
                for cell, data in cells_of(names, name, place, value, skip_nulls=skip_nulls):
                    cells.pop(cell, None)
                    cells[cell] = data
    encoded = _row(names.schema, keys, fit)
    written = tuple([(id_, values[id_]) for id_ in sorted(values) if not (skip_nulls and values[id_] is None)])
    found: list[Mutation] = [Put(encoded, written, ts)] if written or not cells else []
    found += [PutCell(encoded, cell.family, cell.qualifier, data, ts) for cell, data in cells.items()]
    return found


def _check_length(type_: t.ColumnType, value: Any, where: str, limits: Limits) -> None:
    """Arrays of numbers that are too large by their length alone are refused for it, before millions are looked at."""
    if not isinstance(type_, t.Array) or not isinstance(type_.element, t.Int | t.Float):
        return
    is_list = isinstance(value, list | tuple)
    is_array = type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 1 and value.dtype.kind in "iuf"
    if not is_list and not is_array:
        return
    without_nulls = nested_bytes(type_, []) + len(value) * type_.element.bits // 8
    if without_nulls > limits.value_bytes_max:
        check_size(where, nested_bytes(type_, value) if is_list else without_nulls, limits.value_bytes_max)


def judged_long(
    names: Names, row: Items, ts: Micros | None, fit: Fit = fit_value, *, skip_nulls: bool = False
) -> list[Mutation]:
    """What a row of a long frame says, if it may be written: one cell, or nothing where its value is left out."""
    schema, called, given = names.schema, long_names(names.schema), list(row)
    places = long_places(schema, [name for name, _ in given])
    keys = {place.id: value for place, (_, value) in zip(places, given, strict=True) if isinstance(place, KeyColumn)}
    parts = {place: value for place, (_, value) in zip(places, given, strict=True) if isinstance(place, str)}
    for part in ("family", "qualifier"):
        if parts[part] is None:
            raise InvalidArgument(f"column {called[part]!r} cannot be NULL")
        parts[part] = coerce(_TEXT, parts[part], f"column {called[part]!r}")
    family = names.family(parts["family"])
    cell = Cell(family, names.qualifier(family, parts["qualifier"]))
    if "ts" in parts:
        if ts is not None:
            raise InvalidArgument(TWO_TIMES)
        ts = cell_time(parts["ts"], f"column {called['ts']!r}")
    encoded = _row(schema, keys, fit)
    is_absent = parts["value"] is None
    if is_absent and not skip_nulls:
        raise null_cell(cell)
    data = b"" if is_absent else coerce(_BINARY, parts["value"], f"column {called['value']!r}")
    put = PutCell(encoded, family, cell.qualifier, data, ts)
    check_mutations(schema, [put], names.limits)
    return [] if is_absent else [put]


def _row(schema: TableSchema, keys: Mapping[ColumnId, Any], fit: Fit) -> Row:
    key = []
    for column in schema.key:
        if column.id not in keys:
            raise InvalidArgument(f"no value for key column {column.name!r}")
        value = keys[column.id]
        key.append(None if value is None else fit(column.type, value, f"key column {column.name!r}"))
    return schema.codec.encode(schema.codec.check(tuple(key)))


def cells_of(
    names: Names, name: str, place: Cell | WholeFamily, value: Any, *, skip_nulls: bool
) -> Iterator[tuple[Cell, bytes]]:
    """The cells that a name and its value stand for: one, or those of a mapping; of no mapping, none."""
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
            raise null_cell(cell)


def _cell(names: Names, family: WholeFamily, qualifier: str) -> Cell:
    if family == OTHER_CELLS:
        return names.cell(qualifier)
    return Cell(family.family, names.qualifier(family.family, qualifier))


def null_cell(cell: Cell) -> InvalidArgument:
    return InvalidArgument(f"column '{cell.family}:{cell.qualifier}': {NO_NULL_CELL}")


def given_twice(name: object) -> InvalidArgument:
    return InvalidArgument(f"column {name!r} is given twice (case does not count)")


def long_names(schema: TableSchema) -> dict[str, str]:
    """What the columns of a long frame are called besides the key's: `_ts` instead of `ts`, and so with the others,
    where a key column has that name already."""
    taken = {column.name.casefold() for column in schema.key}
    return {part: f"_{part}" if part in taken else part for part in LONG_PARTS}


def long_places(schema: TableSchema, names: Iterable[object]) -> list[KeyColumn | str]:
    """The key columns and the parts of a cell that the columns of a long frame are. Each stands once, and all of them
    are there but perhaps the time."""
    found: list[KeyColumn | str] = []
    for name in names:
        place = _long_place(schema, name)
        if place in found:
            raise given_twice(name)
        found.append(place)
    for part, called in long_names(schema).items():
        if part not in found and part != "ts":
            raise InvalidArgument(f"column {called!r} is missing: cells='long' takes one cell in each row")
    for key in schema.key:
        if key not in found:
            raise InvalidArgument(f"key column {key.name!r} is missing")
    return found


def _long_place(schema: TableSchema, name: object) -> KeyColumn | str:
    called = long_names(schema)
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a column is text, not {show(name)}")
    folded = name.casefold()
    for part, own in called.items():
        if own == folded:
            return part
    for column in schema.key:
        if column.name.casefold() == folded:
            return column
    if name == "txn":
        raise InvalidArgument("column 'txn' is given by the store: leave it out")
    known = [*(column.name for column in schema.key), *called.values()]
    raise InvalidArgument(f"no column {name!r} with cells='long'{nearest(name, known)}")


def cell_time(value: Any, where: str) -> Micros:
    """The time of a cell of a long frame: a moment with a zone, or whole microseconds."""
    if isinstance(value, datetime):
        return micros_of_datetime(coerce(t.Timestamp(), value, where))
    return check_ts(native_int(value), where)
