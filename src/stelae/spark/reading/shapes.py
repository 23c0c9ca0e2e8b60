"""The columns of a table as a file has them: under other names and types perhaps, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stelae.model import types as t
from stelae.model.predicate.expr import Special
from stelae.model.schema import Column
from stelae.spark.reading.conditions import NotExact, SqlColumn, quoted, sql_literal, sql_type
from stelae.spark.reading.plans import NativeShape, StoredColumn
from stelae.spark.reading.question import Question
from stelae.storage.offline.plain import PlainFile


def native_shape(file: PlainFile, columns: Iterable[Column]) -> NativeShape:
    stored = []
    for column in columns:
        known = file.stored(column)
        stored.append(StoredColumn(column, None, column.type) if known is None else StoredColumn(column, *known))
    return NativeShape(file.key_names, tuple(stored), *file.row_column)


def columns_of(shape: NativeShape, question: Question) -> Mapping[str, SqlColumn]:
    """What stands for each name in a condition on such files."""
    keys = zip(question.schema.key, shape.keys, strict=True)
    found = {key.name: SqlColumn(quoted(name), key.type) for key, name in keys}
    for stored in shape.columns:
        sql = _sql_of(stored)
        if sql is not None:
            found[stored.column.name] = sql
    match shape.row_type:
        case t.Binary():
            found[Special.ROW.value] = SqlColumn(quoted(shape.row), t.Binary())
        case t.String():
            found[Special.ROW.value] = SqlColumn(f"CAST({quoted(shape.row)} AS BINARY)", t.Binary(), is_stored=False)
        case _:
            pass
    return found


def _sql_of(stored: StoredColumn) -> SqlColumn | None:
    type_, default = stored.column.type, stored.column.default
    if stored.name is not None and stored.type == type_:
        return SqlColumn(quoted(stored.name), type_)
    if not isinstance(type_, t.KeyType):
        return SqlColumn("NULL" if stored.name is None else quoted(stored.name), type_, is_stored=False)
    try:
        value = sql_literal(type_, default) if stored.name is None else None
        return SqlColumn(value or f"CAST({quoted(stored.name or '')} AS {sql_type(type_)})", type_, is_stored=False)
    except NotExact:
        return None
