"""Update entries: what happened between one version of the catalog and the next. Each applies itself.

An entry is a fact that has been judged already: applying it checks nothing and asks nobody. It is also the event that
followers are told of, which is why entries are named in the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from stelae.catalog.index_entries import IndexCreated, IndexRemoved, IndexStatusSet
from stelae.catalog.objects import (
    DroppedTable,
    Namespace,
    NamespaceId,
    Table,
    TableProperties,
    Zone,
    ZoneId,
)
from stelae.catalog.pasts import with_past
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, TableId, Txn
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, GroupOptions, TableSchema


class NamespaceCreated(msgspec.Struct, frozen=True):
    namespace: Namespace

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_namespace(self.namespace)


class NamespaceDropped(msgspec.Struct, frozen=True):
    namespace: NamespaceId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.without_namespace(self.namespace)


class ZoneCreated(msgspec.Struct, frozen=True):
    zone: Zone

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_zone(self.zone)


class ZoneChanged(msgspec.Struct, frozen=True):
    """Renamed or altered: as it is from now on."""

    zone: Zone

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_zone(self.zone)


class ZoneDropped(msgspec.Struct, frozen=True):
    zone: ZoneId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.without_zone(self.zone)


class DefaultZoneSet(msgspec.Struct, frozen=True):
    zone: ZoneId

    def apply(self, catalog: Catalog) -> Catalog:
        return replace(catalog, default_zone=catalog.zones[self.zone].id)


class TableCreated(msgspec.Struct, frozen=True):
    table: Table

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_table(_versioned(self.table, catalog))


class TableDropped(msgspec.Struct, frozen=True):
    """Gone by name at once; it can be recalled until it is forgotten."""

    table: TableId

    def apply(self, catalog: Catalog) -> Catalog:
        table = catalog.tables[self.table]
        namespace = catalog.namespaces[table.namespace].name
        dropped = DroppedTable(table, namespace, catalog.version, catalog.activation)
        return catalog.without_table(self.table).with_dropped(dropped)


class TableRecalled(msgspec.Struct, frozen=True):
    table: TableId
    namespace: NamespaceId
    name: str
    zone: ZoneId

    def apply(self, catalog: Catalog) -> Catalog:
        table = replace(catalog.dropped[self.table].table, namespace=self.namespace, name=self.name, zone=self.zone)
        return catalog.without_dropped(self.table).with_table(table)


class TableForgotten(msgspec.Struct, frozen=True):
    table: TableId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.without_dropped(self.table)


class TableRenamed(msgspec.Struct, frozen=True):
    table: TableId
    namespace: NamespaceId
    name: str

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_table(replace(catalog.tables[self.table], namespace=self.namespace, name=self.name))


class TableZoneSet(msgspec.Struct, frozen=True):
    table: TableId
    zone: ZoneId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_table(replace(catalog.tables[self.table], zone=self.zone))


class TablePropertiesSet(msgspec.Struct, frozen=True):
    table: TableId
    properties: TableProperties

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_table(replace(catalog.tables[self.table], properties=self.properties))


class ColumnsAdded(msgspec.Struct, frozen=True):
    table: TableId
    group: GroupId
    columns: tuple[Column, ...]

    def apply(self, catalog: Catalog) -> Catalog:
        return _change_group(
            catalog, self.table, self.group, ColumnsGroup, lambda g: replace(g, columns=(*g.columns, *self.columns))
        )


class ColumnsDropped(msgspec.Struct, frozen=True):
    table: TableId
    columns: tuple[ColumnId, ...]

    def apply(self, catalog: Catalog) -> Catalog:
        return _change_groups(catalog, self.table, lambda group: _without(group, self.columns))


class ColumnChanged(msgspec.Struct, frozen=True):
    """Renamed, widened, made nullable, or given another default: as it is from now on."""

    table: TableId
    column: Column

    def apply(self, catalog: Catalog) -> Catalog:
        return _change_groups(catalog, self.table, self._in_group)

    def _in_group(self, group: Group) -> Group:
        if not isinstance(group, ColumnsGroup):
            return group
        return replace(group, columns=tuple(self.column if c.id == self.column.id else c for c in group.columns))


class FamiliesAdded(msgspec.Struct, frozen=True):
    table: TableId
    group: GroupId
    families: tuple[Family, ...]

    def apply(self, catalog: Catalog) -> Catalog:
        def change(group: CellsGroup) -> CellsGroup:
            return replace(group, families=(*group.families, *self.families))

        return _change_group(catalog, self.table, self.group, CellsGroup, change)


class FamiliesDropped(msgspec.Struct, frozen=True):
    table: TableId
    families: tuple[ColumnId, ...]

    def apply(self, catalog: Catalog) -> Catalog:
        return _change_groups(catalog, self.table, lambda group: _without(group, self.families))


class FamilyRenamed(msgspec.Struct, frozen=True):
    table: TableId
    family: Family

    def apply(self, catalog: Catalog) -> Catalog:
        return _change_groups(catalog, self.table, self._in_group)

    def _in_group(self, group: Group) -> Group:
        if not isinstance(group, CellsGroup):
            return group
        return replace(group, families=tuple(self.family if f.id == self.family.id else f for f in group.families))


class MembersMoved(msgspec.Struct, frozen=True):
    """Columns, or families, now live in another group of the same kind."""

    table: TableId
    members: tuple[ColumnId, ...]
    group: GroupId

    def apply(self, catalog: Catalog) -> Catalog:
        schema = catalog.tables[self.table].schema
        columns = tuple(
            c for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns if c.id in self.members
        )
        families = tuple(
            f for g in schema.groups if isinstance(g, CellsGroup) for f in g.families if f.id in self.members
        )

        def change(group: Group) -> Group:
            left = _without(group, self.members)
            if group.id != self.group:
                return left
            if isinstance(left, ColumnsGroup):
                return replace(left, columns=(*left.columns, *columns))
            return replace(left, families=(*left.families, *families))

        return _change_groups(catalog, self.table, change)


class GroupAdded(msgspec.Struct, frozen=True):
    table: TableId
    group: Group

    def apply(self, catalog: Catalog) -> Catalog:
        schema = catalog.tables[self.table].schema
        return _with_schema(catalog, self.table, replace(schema, groups=(*schema.groups, self.group)))


class GroupDropped(msgspec.Struct, frozen=True):
    table: TableId
    group: GroupId

    def apply(self, catalog: Catalog) -> Catalog:
        schema = catalog.tables[self.table].schema
        left = tuple(group for group in schema.groups if group.id != self.group)
        return _with_schema(catalog, self.table, replace(schema, groups=left))


class GroupOptionsSet(msgspec.Struct, frozen=True):
    """The policy before it has judged all that is older than the version's activation."""

    table: TableId
    group: GroupId
    options: GroupOptions

    def apply(self, catalog: Catalog) -> Catalog:
        until = Txn(catalog.activation - 1)

        def change(group: Group) -> Group:
            return replace(group, options=self.options.after(group.options, until)) if group.id == self.group else group

        return _change_groups(catalog, self.table, change)


Entry: TypeAlias = (
    NamespaceCreated
    | NamespaceDropped
    | ZoneCreated
    | ZoneChanged
    | ZoneDropped
    | DefaultZoneSet
    | TableCreated
    | TableDropped
    | TableRecalled
    | TableForgotten
    | TableRenamed
    | TableZoneSet
    | TablePropertiesSet
    | ColumnsAdded
    | ColumnsDropped
    | ColumnChanged
    | FamiliesAdded
    | FamiliesDropped
    | FamilyRenamed
    | MembersMoved
    | GroupAdded
    | GroupDropped
    | GroupOptionsSet
    | IndexCreated
    | IndexStatusSet
    | IndexRemoved
)


class Update(msgspec.Struct, frozen=True):
    """One version: what happened, when it counts, who said so. `token` tells two attempts at one version apart."""

    version: CatalogVersion
    activation: Txn
    token: bytes
    author: str
    entries: tuple[Entry, ...]


def apply_update(catalog: Catalog, update: Update) -> Catalog:
    """The next version. Entries see the new version number, which becomes that of every schema they change."""
    following = replace(catalog, version=update.version, activation=update.activation)
    for entry in update.entries:
        following = entry.apply(following)
    grown = (FamiliesAdded, GroupAdded, GroupDropped)
    for table in {entry.table for entry in update.entries if isinstance(entry, grown)}:
        if table in catalog.tables and table in following.tables:
            before, after = catalog.tables[table].schema, following.tables[table].schema
            groups = with_past(before, after, Txn(update.activation - 1))
            following = _with_schema(following, table, replace(after, groups=groups))
    return following


def _versioned(table: Table, catalog: Catalog) -> Table:
    return replace(table, schema=replace(table.schema, version=SchemaVersion(catalog.version)))


def _with_schema(catalog: Catalog, table: TableId, schema: TableSchema) -> Catalog:
    """Every id in use stays used: what is added takes `last_id` along."""
    used = [schema.last_id, *(group.id for group in schema.groups)]
    for group in schema.groups:
        members = group.columns if isinstance(group, ColumnsGroup) else group.families
        used += [member.id for member in members]
    changed = replace(catalog.tables[table], schema=replace(schema, last_id=max(used)))
    return catalog.with_table(_versioned(changed, catalog))


def _change_groups(catalog: Catalog, table: TableId, change: Callable[[Group], Group]) -> Catalog:
    schema = catalog.tables[table].schema
    return _with_schema(catalog, table, replace(schema, groups=tuple(change(group) for group in schema.groups)))


_G = TypeVar("_G", ColumnsGroup, CellsGroup)


def _change_group(
    catalog: Catalog, table: TableId, id_: GroupId, kind: type[_G], change: Callable[[_G], _G]
) -> Catalog:
    return _change_groups(
        catalog, table, lambda group: change(group) if group.id == id_ and isinstance(group, kind) else group
    )


def _without(group: Group, members: tuple[ColumnId, ...]) -> Group:
    if isinstance(group, ColumnsGroup):
        return replace(group, columns=tuple(column for column in group.columns if column.id not in members))
    return replace(group, families=tuple(family for family in group.families if family.id not in members))
