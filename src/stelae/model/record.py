"""Records: what a group stores of a mutation, and the order records lie in.

`lower` turns the mutations of one block into records per group. Within a block the last mention wins: a later put of
the same cell and time replaces an earlier one, a later erasure removes the earlier puts it covers, and an earlier
erasure leaves later puts alone. That a row exists is kept apart from its values: an erasure of columns or cells takes
back the puts of those, but a put of the key alone falls only with the whole row. What remains has no two records with
one (key, ts, kind), so after the block's txn is added, every record of a tablet is unique.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from operator import itemgetter

import msgspec

from stelae.model.ids import ColumnId, GroupId, Micros, Row
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.schema import CellsGroup, ColumnsGroup, TableSchema
from stelae.model.values import Value


class Kind(IntEnum):
    """What a record says. The numbers are stored."""

    PUT = 0
    ERASE_VERSION = 1
    ERASE_COLUMN = 2
    ERASE_FAMILY = 3
    ERASE_ROW = 4


ROW_EXISTS = ColumnId(0)
"""Stands, among the columns of a put, for the key itself: a put of the key alone was said."""


class ColumnsRecord(msgspec.Struct, frozen=True):
    """A put's values, or the columns an erasure is about (with None as their values). ERASE_ROW names none. A put of
    the key alone has None for ROW_EXISTS, beside what else was put at its time."""

    row: Row
    ts: Micros
    kind: Kind
    values: tuple[tuple[ColumnId, Value], ...] = ()


class CellRecord(msgspec.Struct, frozen=True):
    """ERASE_ROW has neither family nor qualifier, ERASE_FAMILY no qualifier. A PUT without a family says that the row
    exists."""

    row: Row
    family: str
    qualifier: str
    ts: Micros
    kind: Kind
    value: bytes | None = None


def columns_order(record: ColumnsRecord) -> tuple[bytes, int, int]:
    """Rows ascending, newest time first."""
    return (record.row, -record.ts, record.kind)


def cells_order(record: CellRecord) -> tuple[bytes, bytes, bytes, int, int]:
    return (record.row, record.family.encode(), record.qualifier.encode(), -record.ts, record.kind)


class _RowState(msgspec.Struct):
    puts: dict[tuple[GroupId, Micros], dict[ColumnId, Value]] = msgspec.field(default_factory=dict)
    cells: dict[tuple[str, str, Micros], bytes] = msgspec.field(default_factory=dict)
    exists: dict[Micros, None] = msgspec.field(default_factory=dict)
    erased_columns: dict[ColumnId, Micros] = msgspec.field(default_factory=dict)
    erased_versions: dict[tuple[ColumnId, Micros], None] = msgspec.field(default_factory=dict)
    erased_cells: dict[tuple[str, str], Micros] = msgspec.field(default_factory=dict)
    erased_cell_versions: dict[tuple[str, str, Micros], None] = msgspec.field(default_factory=dict)
    erased_families: dict[str, Micros] = msgspec.field(default_factory=dict)
    erased_row: Micros | None = None


def lower(
    schema: TableSchema, mutations: Iterable[Mutation], commit_ts: Micros
) -> dict[GroupId, tuple[ColumnsRecord, ...] | tuple[CellRecord, ...]]:
    """Records per group, in the group's order; groups that nothing touches are left out. Raises InvalidArgument for
    a column or family the schema does not have."""
    mutations = tuple(mutations)
    if len(mutations) == 1 and isinstance(mutations[0], Put) and mutations[0].values:
        return _lower_put(schema, mutations[0], commit_ts)
    rows: dict[Row, _RowState] = {}
    for mutation in mutations:
        _mention(schema, rows.setdefault(mutation.row, _RowState()), mutation, commit_ts)
    result: dict[GroupId, tuple[ColumnsRecord, ...] | tuple[CellRecord, ...]] = {}
    for group in schema.groups:
        match group:
            case ColumnsGroup():
                columns = [r for row, state in rows.items() for r in _columns_records(schema, group, row, state)]
                if columns:
                    result[group.id] = tuple(sorted(columns, key=columns_order))
            case CellsGroup():
                cells = [r for row, state in rows.items() for r in _cell_records(schema, group, row, state)]
                if cells:
                    result[group.id] = tuple(sorted(cells, key=cells_order))
    return result


def _lower_put(
    schema: TableSchema, put: Put, commit_ts: Micros
) -> dict[GroupId, tuple[ColumnsRecord, ...] | tuple[CellRecord, ...]]:
    """A block of one put of values, as most are: nothing else is mentioned, so nothing needs to be compared."""
    ts = commit_ts if put.ts is None else put.ts
    only, last = schema.column_by_id(put.values[0][0])[0], 0
    for id_, _ in put.values:
        if id_ <= last or schema.column_by_id(id_)[0] is not only:
            break
        last = id_
    else:
        return {only.id: (ColumnsRecord(put.row, ts, Kind.PUT, put.values),)}
    groups: dict[GroupId, dict[ColumnId, Value]] = {}
    for id_, value in put.values:
        groups.setdefault(schema.column_by_id(id_)[0].id, {})[id_] = value
    return {
        group.id: (ColumnsRecord(put.row, ts, Kind.PUT, _by_id(groups[group.id])),)
        for group in schema.groups
        if group.id in groups
    }


def _by_id(values: dict[ColumnId, Value]) -> tuple[tuple[ColumnId, Value], ...]:
    return tuple(sorted(values.items(), key=itemgetter(0)))


def _mention(schema: TableSchema, state: _RowState, mutation: Mutation, commit_ts: Micros) -> None:
    match mutation:
        case Put(_, values, ts):
            _put(schema, state, values, commit_ts if ts is None else ts)
        case PutCell(_, family, qualifier, value, ts):
            schema.family_group(family)
            state.cells[family, qualifier, commit_ts if ts is None else ts] = value
        case Erase(_, target, until):
            _erase(schema, state, target, commit_ts if until is None else until)
        case EraseVersion(_, target, ts):
            _erase_version(schema, state, target, ts)


def _put(schema: TableSchema, state: _RowState, values: tuple[tuple[ColumnId, Value], ...], ts: Micros) -> None:
    if not values:
        state.exists[ts] = None
    for id_, value in values:
        group, _ = schema.column_by_id(id_)
        state.puts.setdefault((group.id, ts), {})[id_] = value


def _forget(state: _RowState, put: tuple[GroupId, Micros], id_: ColumnId) -> None:
    values = state.puts.get(put)
    if values and id_ in values:
        del values[id_]
        if not values:
            del state.puts[put]


def _erase_version(schema: TableSchema, state: _RowState, target: Columns | Cell, ts: Micros) -> None:
    match target:
        case Columns(ids):
            for id_ in ids:
                group, _ = schema.column_by_id(id_)
                _forget(state, (group.id, ts), id_)
                state.erased_versions[id_, ts] = None
        case Cell(family, qualifier):
            schema.family_group(family)
            state.cells.pop((family, qualifier, ts), None)
            state.erased_cell_versions[family, qualifier, ts] = None


def _erase(
    schema: TableSchema, state: _RowState, target: WholeRow | WholeFamily | Columns | Cell, until: Micros
) -> None:
    match target:
        case WholeRow():
            state.puts = {put: values for put, values in state.puts.items() if put[1] > until}
            state.cells = {cell: value for cell, value in state.cells.items() if cell[2] > until}
            state.exists = {ts: None for ts in state.exists if ts > until}
            state.erased_row = until if state.erased_row is None else max(state.erased_row, until)
        case WholeFamily(family):
            schema.family_group(family)
            state.cells = {c: value for c, value in state.cells.items() if c[0] != family or c[2] > until}
            state.erased_families[family] = max(until, state.erased_families.get(family, until))
        case Columns(ids):
            for id_ in ids:
                schema.column_by_id(id_)
                for put in [put for put in state.puts if put[1] <= until]:
                    _forget(state, put, id_)
                state.erased_columns[id_] = max(until, state.erased_columns.get(id_, until))
        case Cell(family, qualifier):
            schema.family_group(family)
            state.cells = {c: value for c, value in state.cells.items() if c[:2] != (family, qualifier) or c[2] > until}
            at = (family, qualifier)
            state.erased_cells[at] = max(until, state.erased_cells.get(at, until))


def _columns_records(schema: TableSchema, group: ColumnsGroup, row: Row, state: _RowState) -> list[ColumnsRecord]:
    """One record per time and kind: erasures of several columns at one time share it, and so do values and that the
    row exists."""
    puts: dict[Micros, dict[ColumnId, Value]] = {}
    if schema.existence_group.id == group.id:
        puts |= {ts: {ROW_EXISTS: None} for ts in state.exists}
    for (id_, ts), values in state.puts.items():
        if id_ == group.id:
            puts.setdefault(ts, {}).update(values)
    records = [ColumnsRecord(row, ts, Kind.PUT, _by_id(values)) for ts, values in puts.items()]
    if state.erased_row is not None:
        records.append(ColumnsRecord(row, state.erased_row, Kind.ERASE_ROW))
    erased: dict[tuple[Micros, Kind], list[ColumnId]] = {}
    for column, ts in state.erased_columns.items():
        erased.setdefault((ts, Kind.ERASE_COLUMN), []).append(column)
    for column, ts in state.erased_versions:
        erased.setdefault((ts, Kind.ERASE_VERSION), []).append(column)
    for (ts, kind), columns in erased.items():
        mine = sorted(column for column in columns if schema.column_by_id(column)[0].id == group.id)
        if mine:
            records.append(ColumnsRecord(row, ts, kind, tuple((column, None) for column in mine)))
    return records


def _cell_records(schema: TableSchema, group: CellsGroup, row: Row, state: _RowState) -> list[CellRecord]:
    def mine(family: str) -> bool:
        return schema.family_group(family).id == group.id

    records = [CellRecord(row, f, q, ts, Kind.PUT, value) for (f, q, ts), value in state.cells.items() if mine(f)]
    if schema.existence_group.id == group.id:
        records += [CellRecord(row, "", "", ts, Kind.PUT) for ts in state.exists]
    if state.erased_row is not None:
        records.append(CellRecord(row, "", "", state.erased_row, Kind.ERASE_ROW))
    records += [CellRecord(row, f, "", ts, Kind.ERASE_FAMILY) for f, ts in state.erased_families.items() if mine(f)]
    records += [CellRecord(row, f, q, ts, Kind.ERASE_COLUMN) for (f, q), ts in state.erased_cells.items() if mine(f)]
    records += [CellRecord(row, f, q, ts, Kind.ERASE_VERSION) for f, q, ts in state.erased_cell_versions if mine(f)]
    return records
