"""What `update` and `increment` do where a version of the row has a time in the future.

Versions are ordered by their times, so a value written at the commit's own time would stand behind such a version and
not be seen. It is written at the first time after it instead, in the same commit as the rest. Times are looked for only
where the row's tablet has any of the future: to ask for them takes as long as the row has versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.model.ids import TS_MAX, ColumnId, Micros, Row
from stelae.model.mutation import Cell, Mutation, Put, PutCell, WholeFamily
from stelae.model.predicate.selectors import ColumnSelector, Selectors, union_selectors
from stelae.model.schema import Column, ColumnsGroup, KeyColumn, TableSchema
from stelae.model.values import Value
from stelae.storage.checks.rules import required_columns


def written_columns(schema: TableSchema, change: Iterable[str]) -> Selectors:
    """The columns and cells that a put of these names writes; of a map of cells, all that it might."""
    return union_selectors(place for place in _places(schema, change) if place is not None)


def _places(schema: TableSchema, change: Iterable[str]) -> Iterator[ColumnSelector | None]:
    """Which columns and cells each name stands for; None for a column of the key, which no put changes."""
    names = Names(schema)
    for name in change:
        match names.meaning(name):
            case KeyColumn():
                yield None
            case Column(name=known):
                yield ColumnSelector(known, is_prefix=False)
            case Cell(family, qualifier):
                yield ColumnSelector(f"{family}:{qualifier}", is_prefix=False)
            case WholeFamily() as whole:
                yield ColumnSelector("" if whole == OTHER_CELLS else f"{whole.family}:", is_prefix=True)


def put_after(schema: TableSchema, mutations: Iterable[Mutation], later: Mapping[str, Micros]) -> list[Mutation]:
    """Puts of one row, in which what `later` has times for comes after those; the rest has the commit's time."""
    found: list[Mutation] = []
    for each in mutations:
        match each:
            case Put(row, values):
                found += _put_columns(schema, row, values, later)
            case PutCell(row, family, qualifier, value) if f"{family}:{qualifier}" in later:
                found.append(PutCell(row, family, qualifier, value, _after(later[f"{family}:{qualifier}"])))
            case _:
                found.append(each)
    return found


def _put_columns(
    schema: TableSchema, row: Row, values: Sequence[tuple[ColumnId, Value]], later: Mapping[str, Micros]
) -> list[Mutation]:
    groups = [group for group in schema.groups if isinstance(group, ColumnsGroup)]
    names = {column.id: column.name for group in groups for column in group.columns}
    hidden = tuple(each for each in values if names[each[0]] in later)
    if not hidden:
        return [Put(row, tuple(values))]
    time = _after(max(later[names[id_]] for id_, _ in hidden))
    # A part of a put could lack a column that every put must have.
    if len(hidden) == len(values) or any(required_columns(group) for group in groups):
        return [Put(row, tuple(values), time)]
    return [Put(row, tuple(each for each in values if each not in hidden)), Put(row, hidden, time)]


def _after(time: Micros) -> Micros:
    """At the end of time the same: of two versions with one time the later commit counts."""
    return Micros(min(time + 1, TS_MAX))
