"""The catalog itself: an immutable value of one version, in persistent maps.

The next version shares all it does not change with the one before, so keeping a thousand of them costs little, and
making the 10,000th table costs what the 100th did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NewType

import msgspec
from msgspec.structs import replace
from rpds import HashTrieMap

from stelae.catalog.objects import DroppedTable, Index, IndexId, Namespace, NamespaceId, Table, Zone, ZoneId
from stelae.model.errors import NotFound, StelaeError, nearest
from stelae.model.ids import TableId, Txn

CatalogVersion = NewType("CatalogVersion", int)

DEFAULT_NAMESPACE = Namespace(NamespaceId(1), "default")
SYSTEM_NAMESPACE = Namespace(NamespaceId(2), "system")
DEFAULT_ZONE = Zone(ZoneId(3), "default")
_FIRST_FREE_ID = 16

NameKey = tuple[int, str]
"""Namespace id and folded name: tables and indexes of a namespace share one space of names."""


class BrokenCatalog(StelaeError):
    """A catalog that cannot be: a fault in the code that made it, or in the bytes it was read from."""


class Catalog(msgspec.Struct, frozen=True, dict=True):
    """`activation`: from this time on, until the next version's, this is the catalog. `dropped` tables can be recalled
    until they are forgotten. The maps after `next_id` are derived: they say where to find what the others hold."""

    version: CatalogVersion
    activation: Txn
    namespaces: HashTrieMap[NamespaceId, Namespace]
    zones: HashTrieMap[ZoneId, Zone]
    tables: HashTrieMap[TableId, Table]
    dropped: HashTrieMap[TableId, DroppedTable]
    indexes: HashTrieMap[IndexId, Index]
    default_zone: ZoneId
    next_id: int
    names: HashTrieMap[NameKey, int]
    namespace_names: HashTrieMap[str, NamespaceId]
    zone_names: HashTrieMap[str, ZoneId]
    table_indexes: HashTrieMap[TableId, tuple[IndexId, ...]]

    def with_namespace(self, namespace: Namespace) -> Catalog:
        return replace(
            self,
            namespaces=self.namespaces.insert(namespace.id, namespace),
            namespace_names=self.namespace_names.insert(namespace.name.casefold(), namespace.id),
            next_id=max(self.next_id, namespace.id + 1),
        )

    def without_namespace(self, id_: NamespaceId) -> Catalog:
        name = self.namespaces[id_].name.casefold()
        return replace(self, namespaces=self.namespaces.remove(id_), namespace_names=self.namespace_names.remove(name))

    def with_zone(self, zone: Zone) -> Catalog:
        """The catalog with the zone in it, new or in the place of the one with its id."""
        before = self.zones.get(zone.id)
        names = self.zone_names if before is None else self.zone_names.remove(before.name.casefold())
        return replace(
            self,
            zones=self.zones.insert(zone.id, zone),
            zone_names=names.insert(zone.name.casefold(), zone.id),
            next_id=max(self.next_id, zone.id + 1),
        )

    def without_zone(self, id_: ZoneId) -> Catalog:
        name = self.zones[id_].name.casefold()
        return replace(self, zones=self.zones.remove(id_), zone_names=self.zone_names.remove(name))

    def with_table(self, table: Table) -> Catalog:
        """The catalog with the table in it, new or in the place of the one with its id."""
        before = self.tables.get(table.id)
        names = self.names if before is None else self.names.remove(name_key(before.namespace, before.name))
        return replace(
            self,
            tables=self.tables.insert(table.id, table),
            names=_with_name(names, table.namespace, table.name, table.id),
            next_id=max(self.next_id, table.id + 1),
        )

    def without_table(self, id_: TableId) -> Catalog:
        table = self.tables[id_]
        return replace(
            self,
            tables=self.tables.remove(id_),
            names=self.names.remove(name_key(table.namespace, table.name)),
        )

    def with_dropped(self, dropped: DroppedTable) -> Catalog:
        return replace(
            self,
            dropped=self.dropped.insert(dropped.table.id, dropped),
            next_id=max(self.next_id, dropped.table.id + 1),
        )

    def without_dropped(self, id_: TableId) -> Catalog:
        return replace(self, dropped=self.dropped.remove(id_))

    def with_index(self, index: Index) -> Catalog:
        """Add, or change its status: an index keeps its name and table."""
        if index.id in self.indexes:
            return replace(self, indexes=self.indexes.insert(index.id, index))
        of_table = (*self.table_indexes.get(index.table, ()), index.id)
        return replace(
            self,
            indexes=self.indexes.insert(index.id, index),
            names=_with_name(self.names, index.namespace, index.name, index.id),
            table_indexes=self.table_indexes.insert(index.table, of_table),
            next_id=max(self.next_id, index.id + 1),
        )

    def without_index(self, id_: IndexId) -> Catalog:
        index = self.indexes[id_]
        left = tuple(other for other in self.table_indexes[index.table] if other != id_)
        by_table = self.table_indexes
        return replace(
            self,
            indexes=self.indexes.remove(id_),
            names=self.names.remove(name_key(index.namespace, index.name)),
            table_indexes=by_table.insert(index.table, left) if left else by_table.remove(index.table),
        )

    def namespace(self, name: str) -> Namespace:
        id_ = self.namespace_names.get(name.casefold())
        if id_ is None:
            known = [namespace.name for namespace in self.namespaces.values()]
            raise NotFound(f"no namespace {name!r}{nearest(name, known)}")
        return self.namespaces[id_]

    def zone(self, name: str) -> Zone:
        id_ = self.zone_names.get(name.casefold())
        if id_ is None:
            raise NotFound(f"no zone {name!r}{nearest(name, [zone.name for zone in self.zones.values()])}")
        return self.zones[id_]

    def table(self, namespace: str, name: str) -> Table:
        id_ = self.names.get(name_key(self.namespace(namespace).id, name))
        if id_ is None or TableId(id_) not in self.tables:
            known = [table.name for table in self.tables_in(self.namespace(namespace).id)]
            raise NotFound(f"no table {qualified(namespace, name)!r}{nearest(name, known)}")
        return self.tables[TableId(id_)]

    def tables_in(self, namespace: NamespaceId) -> Iterator[Table]:
        return (table for table in self.tables.values() if table.namespace == namespace)

    def indexes_of(self, table: TableId) -> tuple[Index, ...]:
        return tuple(self.indexes[id_] for id_ in self.table_indexes.get(table, ()))

    def qualified_name(self, table: Table) -> str:
        return qualified(self.namespaces[table.namespace].name, table.name)


def _with_name(
    names: HashTrieMap[NameKey, int], namespace: NamespaceId, name: str, id_: int
) -> HashTrieMap[NameKey, int]:
    key = name_key(namespace, name)
    if names.get(key, id_) != id_:
        raise BrokenCatalog(f"{name!r} ({id_}) has the same name as object {names[key]}")
    return names.insert(key, id_)


def name_key(namespace: NamespaceId, name: str) -> NameKey:
    return namespace, name.casefold()


def qualified(namespace: str, name: str) -> str:
    return name if namespace == DEFAULT_NAMESPACE.name else f"{namespace}.{name}"


def empty_catalog() -> Catalog:
    """Version 0, the same everywhere: two namespaces, one zone, nothing in them."""
    bare = Catalog(
        version=CatalogVersion(0),
        activation=Txn(0),
        namespaces=HashTrieMap(),
        zones=HashTrieMap(),
        tables=HashTrieMap(),
        dropped=HashTrieMap(),
        indexes=HashTrieMap(),
        default_zone=DEFAULT_ZONE.id,
        next_id=_FIRST_FREE_ID,
        names=HashTrieMap(),
        namespace_names=HashTrieMap(),
        zone_names=HashTrieMap(),
        table_indexes=HashTrieMap(),
    )
    return bare.with_namespace(DEFAULT_NAMESPACE).with_namespace(SYSTEM_NAMESPACE).with_zone(DEFAULT_ZONE)
