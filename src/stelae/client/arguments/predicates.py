"""From what users say of a scan to what a backend is asked: one `ScanPredicate` of it all.

`where`, as text or expression, is planned and checked against the table's types at once, so mistakes are told where the
scan is made. What it and the bounds say about the key becomes row ranges; the conditions still are evaluated.
Columns are fixed to those there are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stelae.client.arguments.keys import bounds_of
from stelae.client.calls.views import RowShape, TableView
from stelae.model.errors import InvalidArgument
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.build import Term
from stelae.model.predicate.expr import Expr, combine
from stelae.model.predicate.keyranges import key_ranges
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ScanPredicate, plan
from stelae.model.predicate.selectors import (
    ALL_COLUMNS,
    ColumnSelector,
    Selectors,
    intersect_selectors,
    union_selectors,
)
from stelae.model.ranges import RangeSet
from stelae.model.schema import CellsGroup, ColumnsGroup, TableSchema
from stelae.model.values import show
from stelae.service.scans import condition_types
from stelae.storage.read.scans.rows import fixed


def predicate_of(
    view: TableView,
    where: object,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
) -> tuple[ScanPredicate, RowShape]:
    schema = view.schema
    expr = _expression(where)
    said = ScanPredicate() if expr is None else plan(expr)
    rows, condition = bounds_of(schema, start, stop, prefix)
    shape = _shape(view, said.columns, columns)
    found = ScanPredicate(
        said.rows.intersect(RangeSet.of([rows])), fixed(schema, shape.selectors), said.time, said.history, said.where
    )
    return with_condition(schema, found, condition), shape


def with_condition(schema: TableSchema, predicate: ScanPredicate, condition: Expr | None) -> ScanPredicate:
    """With one more condition on values, and the rows that all of them imply."""
    parts = [part for part in (predicate.where, condition) if part is not None]
    if not parts:
        return predicate
    where = combine(*parts)
    implied = key_ranges(check_types(where, condition_types(schema)), schema.codec)
    return replace(predicate, rows=predicate.rows.intersect(implied), where=where)


def _expression(where: object) -> Expr | None:
    match where:
        case None:
            return None
        case str():
            return parse(where)
        case Term():
            raise InvalidArgument(f"{where!r} alone is no condition: compare it with a value")
        case _ if isinstance(where, Expr):
            return where
        case _:
            raise InvalidArgument(f"where is text, or an expression of col(...), not {show(where)}")


def _shape(view: TableView, said: Selectors, columns: Sequence[str] | None) -> RowShape:
    """What both `column` in the text and `columns=` choose; where they have nothing in common, nothing."""
    wanted = view.shape(columns)
    if said == ALL_COLUMNS:
        return wanted
    beginnings = [known for each in said if each.is_prefix for known in _without_case(view.schema, each)]
    chosen = union_selectors([*beginnings, *view.selectors(each.text for each in said if not each.is_prefix)])
    are_keys = bool(said) and not chosen  # a key column is there whatever else is chosen
    selectors = intersect_selectors(ALL_COLUMNS if are_keys else chosen, wanted.selectors)
    return RowShape(view.schema, selectors, keys_only=are_keys or wanted.keys_only)


def _without_case(schema: TableSchema, beginning: ColumnSelector) -> list[ColumnSelector]:
    """The case of declared names does not count; that of qualifiers, and of the wildcard's families, does."""
    family, colon, qualifier = beginning.text.partition(":")
    folded = family.casefold()
    found = [beginning]
    for group in schema.groups:
        match group:
            case ColumnsGroup() if not colon:
                names = (column.name for column in group.columns)
                found += [ColumnSelector(name, is_prefix=False) for name in names if name.casefold().startswith(folded)]
            case CellsGroup():
                for name in (each.name for each in group.families):
                    known = name.casefold()
                    if known == folded or (not colon and known.startswith(folded)):
                        found.append(ColumnSelector(f"{name}:{qualifier}", is_prefix=True))
            case ColumnsGroup():
                pass
    return found
