"""The columns of a table as a file has them: under other names and types perhaps, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stelae.model import types as t
from stelae.model.predicate.expr import Special
from stelae.model.schema import Column, ColumnsGroup, Group
from stelae.spark.reading.conditions import NotExact, SqlColumn, quoted, sql_literal, sql_type
from stelae.spark.reading.plans import CELLS, NativeShape, StoredColumn
from stelae.spark.reading.question import Question
from stelae.storage.offline.plain import PlainFile, row_column
from stelae.storage.offline.scans import output_schema


def native_shape(file: PlainFile, columns: Iterable[Column], besides: Iterable[StoredColumn] = ()) -> NativeShape:
    """The columns of its own group, as the file has them; `besides`: what is read of other groups, which no row that is
    read from the file has anything of. Spark reads a column that a file does not have as NULL: so files from before and
    after a column was added are read alike, unless they have another one of that name. For Spark that is also one whose
    name differs by case alone, unless the session says otherwise. No table has two such columns at a time, so no file
    has."""
    there = {name.casefold() for name in file.names}
    stored = []
    for column in columns:
        known = file.stored(column)
        if known is None and column.default is None and column.name.casefold() not in there:
            known = column.name, column.type
        name, type_ = known or (None, column.type)
        stored.append(StoredColumn(column.name, column.type, column.default, name, type_))
    for each in besides:
        is_taken = each.shown.casefold() in there or each.default is not None
        stored.append(replace(each, name=None) if is_taken else each)
    return NativeShape(file.key_names, tuple(stored), *file.row_column)


def overlay_shape(question: Question) -> NativeShape:
    """All that is read, as the table has it now."""
    schema = question.schema
    columns = {column.name: column for group in schema.groups for column in columns_in(group)}
    stored = []
    for name in output_schema(schema, question.read).names[len(schema.key) :]:
        column = columns.get(name)
        if column is None:
            stored.append(StoredColumn(name, CELLS, None, name, CELLS, is_cells=True))
        else:
            stored.append(StoredColumn(name, column.type, column.default, name, column.type))
    return NativeShape(schema.codec.names, tuple(stored), *row_column(schema.codec))


def columns_in(group: Group) -> tuple[Column, ...]:
    return group.columns if isinstance(group, ColumnsGroup) else ()


def columns_of(shape: NativeShape, question: Question) -> Mapping[str, SqlColumn]:
    """What stands for each name in a condition on such files."""
    keys = zip(question.schema.key, shape.keys, strict=True)
    found = {key.name: SqlColumn(quoted(name), key.type) for key, name in keys}
    for stored in shape.columns:
        sql = _sql_of(stored)
        if sql is not None:
            found[stored.shown] = sql
    match shape.row_type:
        case t.Binary():
            found[Special.ROW.value] = SqlColumn(quoted(shape.row), t.Binary())
        case t.String():
            found[Special.ROW.value] = SqlColumn(f"CAST({quoted(shape.row)} AS BINARY)", t.Binary(), is_stored=False)
        case _:
            pass
    return found


def _sql_of(stored: StoredColumn) -> SqlColumn | None:
    type_, default = stored.type, stored.default
    if stored.is_cells:
        return None
    if stored.name is not None and stored.stored == type_:
        return SqlColumn(quoted(stored.name), type_)
    if not isinstance(type_, t.KeyType):
        return SqlColumn("NULL" if stored.name is None else quoted(stored.name), type_, is_stored=False)
    try:
        value = sql_literal(type_, default) if stored.name is None else None
        return SqlColumn(value or f"CAST({quoted(stored.name or '')} AS {sql_type(type_)})", type_, is_stored=False)
    except NotExact:
        return None
