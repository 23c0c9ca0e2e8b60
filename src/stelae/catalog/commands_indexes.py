"""Commands on indexes: registered -> building -> available -> stopping -> removed, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass

from stelae.catalog.commands_columns import value_column
from stelae.catalog.commands_tables import TableName, check_free, found
from stelae.catalog.entries import Entry, IndexCreated, IndexRemoved, IndexStatusSet
from stelae.catalog.objects import Index, IndexId, IndexStatus, check_object_name
from stelae.catalog.value import Catalog
from stelae.model.errors import AlreadyExists, InvalidSchema, NotFound
from stelae.model.types import KeyType

INDEX_COLUMNS_MAX = 16


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """In the namespace of its table."""

    name: str
    table: TableName
    columns: tuple[str, ...]
    if_not_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        what = f"index {self.name!r}"
        check_object_name(what, self.name)
        try:
            check_free(catalog, TableName(self.table.namespace, self.name))
        except AlreadyExists:
            if self.if_not_exists:
                return ()
            raise
        if not 1 <= len(self.columns) <= INDEX_COLUMNS_MAX:
            raise InvalidSchema(f"{what}: has {len(self.columns)} columns, allowed are 1 to {INDEX_COLUMNS_MAX}")
        if len({name.casefold() for name in self.columns}) != len(self.columns):
            raise InvalidSchema(f"{what}: a column stands twice in {', '.join(self.columns)}")
        ids = []
        for name in self.columns:
            column = value_column(catalog, table, name)
            if not isinstance(column.type, KeyType):
                raise InvalidSchema(f"{what}: column {name!r} of {column.type} cannot be indexed")
            ids.append(column.id)
        return (IndexCreated(Index(IndexId(catalog.next_id), table.namespace, self.name, table.id, tuple(ids))),)


def _step(catalog: Catalog, name: TableName, allowed: tuple[IndexStatus, ...], to: IndexStatus) -> tuple[Entry, ...]:
    index = catalog.index(name.namespace, name.name)
    if index.status is to:
        return ()
    if index.status not in allowed:
        raise InvalidSchema(f"index {str(name)!r} is {index.status.name.lower()} and cannot become {to.name.lower()}")
    return (IndexStatusSet(index.id, to),)


@dataclass(frozen=True, slots=True)
class StartBuildingIndex:
    index: TableName

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        return _step(catalog, self.index, (IndexStatus.REGISTERED,), IndexStatus.BUILDING)


@dataclass(frozen=True, slots=True)
class MakeIndexAvailable:
    index: TableName

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        return _step(catalog, self.index, (IndexStatus.BUILDING,), IndexStatus.AVAILABLE)


@dataclass(frozen=True, slots=True)
class DropIndex:
    """An available index stops being used first; one that never was available is removed at once."""

    index: TableName
    if_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        try:
            index = catalog.index(self.index.namespace, self.index.name)
        except NotFound:
            if self.if_exists:
                return ()
            raise
        match index.status:
            case IndexStatus.REGISTERED | IndexStatus.BUILDING:
                return (IndexRemoved(index.id),)
            case IndexStatus.AVAILABLE:
                return (IndexStatusSet(index.id, IndexStatus.STOPPING),)
            case IndexStatus.STOPPING:
                return ()


@dataclass(frozen=True, slots=True)
class RemoveIndex:
    """Nobody reads it any more."""

    index: TableName

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        index = catalog.index(self.index.namespace, self.index.name)
        if index.status is not IndexStatus.STOPPING:
            raise InvalidSchema(f"index {str(self.index)!r} is {index.status.name.lower()}; drop it first")
        return (IndexRemoved(index.id),)
