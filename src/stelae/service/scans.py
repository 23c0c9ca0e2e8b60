"""What a scan asks of a store, and what its conditions may name."""

from __future__ import annotations

from dataclasses import dataclass

from stelae.model.ids import Txn
from stelae.model.predicate.binding import WILDCARD_CELLS
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.model.types import Binary, ColumnType


@dataclass(frozen=True, slots=True)
class ScanAsk:
    """`predicate.where` is not bound to the table's types yet. `limit`: no more rows than that are wanted."""

    predicate: ScanPredicate
    at: Txn
    reverse: bool = False
    limit: int | None = None


def condition_types(schema: TableSchema) -> dict[str, ColumnType]:
    """Everything a condition can name."""
    types: dict[str, ColumnType] = {column.name: column.type for column in schema.key}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            types.update((column.name, column.type) for column in group.columns)
        else:
            types.update((f"{family.name}:", Binary()) for family in group.families)
            types.update({WILDCARD_CELLS: Binary()} if group.wildcard else {})
    return types
