"""Columns that are chosen of one group, and what reading them takes: nothing of it depends on data."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.ids import ColumnId
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import Column
from stelae.storage.merge.select import WantedColumns


def default_of(column: Column) -> pa.Scalar | None:
    return None if column.default is None else array_of(column.type, [column.default])[0]


class ColumnChoice:
    """Columns of one group, and what reading them takes: made once for a schema.

    A row appears if it has a visible value in one of the columns, or in one of the `others`, whose values nobody asked
    for. `exists`: rows with a put of the key alone appear too.
    """

    __slots__ = ("appearing", "columns", "defaults", "exists", "ids", "others", "types", "wanted")

    def __init__(self, columns: tuple[Column, ...], exists: bool, others: Iterable[Column] = ()) -> None:
        self.columns = columns
        self.exists = exists
        self.types = tuple([(column.id, to_arrow(column.type)) for column in columns])
        self.wanted = WantedColumns((*self.types, *([(ROW_EXISTS, pa.null())] if exists else [])))
        self.ids = frozenset([column.id for column in columns])
        self.defaults = tuple([default_of(column) for column in columns])
        self.others = WantedColumns(tuple([(column.id, to_arrow(column.type)) for column in others]))
        self.appearing: frozenset[ColumnId] = self.ids | self.others.ids
