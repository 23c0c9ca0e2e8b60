"""What a choice of columns comes to under a schema: which groups are read for it, and what its batches look like.

Kept for the next scan of the same choice: nothing of it depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from stelae.model.arrow import to_arrow
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.selectors import ColumnSelector, Selectors, selects_of_family, union_selectors
from stelae.model.predicate.vector import names_of
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Group, TableSchema
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.tablet.parts import declared

CELLS_TYPE = pa.map_(pa.string(), pa.binary())
OTHERS = "*"
NO_CHOICE = ColumnChoice((), exists=False)


@dataclass(frozen=True, slots=True)
class ScanPart:
    """What one stream contributes: columns, or cells by family; the wildcard group those of all families but `named`
    ones."""

    choice: ColumnChoice = NO_CHOICE
    families: tuple[str, ...] = ()
    is_wildcard: bool = False
    named: frozenset[str] = frozenset()
    selectors: Selectors = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.choice.columns

    def has_family(self, family: str) -> bool:
        return family in self.families or (self.is_wildcard and family not in self.named)


def output_schema(schema: TableSchema, columns: Selectors) -> pa.Schema:
    """What the batches of a scan look like."""
    return _known(schema, columns).shown


def _shown(schema: TableSchema, columns: Selectors) -> pa.Schema:
    fields = [pa.field(key.name, to_arrow(key.type), nullable=False) for key in schema.key]
    for part in parts_of(schema, columns).values():
        fields += [pa.field(column.name, to_arrow(column.type)) for column in part.columns]
        fields += [pa.field(family, CELLS_TYPE) for family in part.families]
        fields += [pa.field(OTHERS, CELLS_TYPE)] if part.is_wildcard else []
    return pa.schema(fields)


ReadShape: TypeAlias = tuple[tuple[str, int, str], ...]
"""Names, ids, and types with defaults, of what a scan reads."""


def fixed(schema: TableSchema, columns: Selectors) -> Selectors:
    """The same choice by the names there are now: what is added later is not part of it. Families of the wildcard group
    have no fixed names."""
    return _known(schema, columns).fixed


def _fixed(schema: TableSchema, columns: Selectors) -> Selectors:
    parts = parts_of(schema, columns)
    if any(part.is_wildcard for part in parts.values()):
        return columns
    chosen = [ColumnSelector(c.name, is_prefix=False) for part in parts.values() for c in part.columns]
    for part in parts.values():
        for family in part.families:
            whole = ColumnSelector(f"{family}:", is_prefix=True)
            chosen += [s for s in columns if s.text.startswith(whole.text)] or [whole]
    return union_selectors(chosen)


def read_shape(schema: TableSchema, columns: Selectors, where: Expr | None) -> ReadShape:
    ids = declared(schema)
    shape: list[tuple[str, int, str]] = []
    for part in parts_of(schema, with_asked(columns, asked_by(where))).values():
        shape += [(column.name, column.id, str(column)) for column in part.columns]
        shape += [(family, ids[family], "") for family in part.families]
        shape += [(OTHERS, 0, "")] if part.is_wildcard else []
    return tuple(sorted(shape))


_CHOICES_MAX = 256
_chosen: dict[tuple[int, Selectors], _Choice] = {}


class _Choice:
    """What a choice of columns comes to, kept for the next scan. By the schema's identity: to hash one would cost more
    than to look through it."""

    def __init__(self, schema: TableSchema, columns: Selectors) -> None:
        self.schema = schema
        self._columns = columns
        self.parts = _parts_of(schema, columns)

    @cached_property
    def shown(self) -> pa.Schema:
        return _shown(self.schema, self._columns)

    @cached_property
    def fixed(self) -> Selectors:
        return _fixed(self.schema, self._columns)


def _known(schema: TableSchema, columns: Selectors) -> _Choice:
    found = _chosen.get((id(schema), columns))
    if found is None or found.schema is not schema:
        if len(_chosen) >= _CHOICES_MAX:
            _chosen.clear()
        found = _chosen[(id(schema), columns)] = _Choice(schema, columns)
    return found


def parts_of(schema: TableSchema, columns: Selectors) -> dict[int, ScanPart]:
    """By group, those that have any of the columns."""
    return _known(schema, columns).parts


def rows_alone(schema: TableSchema, group: Group) -> ScanPart:
    """Of a group that nothing is read of: which rows it has."""
    if isinstance(group, CellsGroup):
        return ScanPart()
    return ScanPart(ColumnChoice((), group is schema.existence_group, group.columns))


def asked_by(where: Expr | None) -> frozenset[str]:
    """The names that a condition looks at."""
    return frozenset() if where is None else names_of(where)


def with_asked(columns: Selectors, asked: frozenset[str]) -> Selectors:
    """The columns that are shown, and those that a condition looks at."""
    if not asked:
        return columns
    return union_selectors([*columns, *(ColumnSelector(name, is_prefix=False) for name in asked)])


def _parts_of(schema: TableSchema, columns: Selectors) -> dict[int, ScanPart]:
    parts: dict[int, ScanPart] = {}
    for group in schema.groups:
        match group:
            case ColumnsGroup():
                chosen = tuple(c for c in group.columns if any(s.matches(c.name) for s in columns))
                if chosen:
                    rest = [column for column in group.columns if column not in chosen]
                    parts[group.id] = ScanPart(ColumnChoice(chosen, group is schema.existence_group, rest))
            case CellsGroup():
                families = tuple(f.name for f in group.families if selects_of_family(columns, f.name))
                others = group.wildcard and any(":" in s.text or s.is_prefix for s in columns)
                if families or others:
                    named = frozenset(declared(schema))
                    parts[group.id] = ScanPart(NO_CHOICE, families, others, named, columns)
    return parts
