"""From what users say of a scan to what a backend is asked: one `ScanPredicate` of it all.

`where`, as text or expression, is planned and bound to the table's types at once, so mistakes are told where the scan
is made, and a store in this process does not look at the types again. What it and the bounds say about the key becomes
row ranges; the conditions still are evaluated. Columns are fixed to those there are now.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stelae.client.arguments.keys import bounds_of
from stelae.client.calls.views import RowShape, TableView
from stelae.model.errors import InvalidArgument
from stelae.model.predicate.build import Term
from stelae.model.predicate.expr import Expr, combine
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
from stelae.service.scans import Binding, bind
from stelae.storage.read.scans.shapes import fixed

_ALL = ScanPredicate()


def predicate_of(
    view: TableView,
    where: object,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
) -> tuple[ScanPredicate, Binding, RowShape]:
    """What is asked, what it is bound to, and what its rows look like."""
    expr = _expression(where)
    said = _ALL if expr is None else plan(expr)
    rows, condition = said.rows, said.where
    if start is not None or stop is not None or prefix is not None:
        inside, bounded = bounds_of(view.schema, start, stop, prefix)
        bounds = RangeSet(() if inside.is_empty else (inside,))
        rows = bounds if expr is None else rows.intersect(bounds)
        condition = _both(condition, bounded)
    shape = _shape(view, said.columns, columns)
    predicate = ScanPredicate(rows, fixed(view.schema, shape.selectors), said.time, said.history, condition)
    return (*bind(predicate, view.schema), shape)


def with_condition(schema: TableSchema, predicate: ScanPredicate, condition: Expr) -> tuple[ScanPredicate, Binding]:
    """With one more condition on values, and the rows that all of them imply."""
    return bind(replace(predicate, where=_both(predicate.where, condition)), schema)


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return b if a is None else a
    return combine(a, b)


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
    return RowShape(view.schema, intersect_selectors(chosen, wanted.selectors), keys_only=are_keys or wanted.keys_only)


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
