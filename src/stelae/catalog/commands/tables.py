"""Commands on tables as a whole: making, dropping, recalling, naming, placing them."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stelae.catalog.entries import (
    Entry,
    TableCreated,
    TableDropped,
    TableForgotten,
    TablePropertiesSet,
    TableRecalled,
    TableRenamed,
    TableZoneSet,
)
from stelae.catalog.index_entries import IndexRemoved
from stelae.catalog.objects import DroppedTable, Table, TableProperties, check_object_name, check_properties
from stelae.catalog.value import DEFAULT_NAMESPACE, Catalog, name_key, qualified
from stelae.model.errors import AlreadyExists, InvalidArgument, InvalidSchema, NotFound, nearest
from stelae.model.ids import TableId
from stelae.model.purge import parse_duration
from stelae.model.schema import TableSchema
from stelae.model.schema_checks import check_schema

PROPERTIES = ("retention", "comment")


class TableName(msgspec.Struct, frozen=True):
    """`name`, or `namespace.name`."""

    namespace: str
    name: str

    @staticmethod
    def parse(text: str) -> TableName:
        namespace, dot, name = text.partition(".")
        return TableName(namespace, name) if dot else TableName(DEFAULT_NAMESPACE.name, text)

    def __str__(self) -> str:
        return qualified(self.namespace, self.name)


def check_free(catalog: Catalog, table: TableName) -> None:
    """The name can be given to a table or an index: tables and indexes of a namespace share one space of names."""
    namespace = catalog.namespace(table.namespace)
    taken = catalog.names.get(name_key(namespace.id, table.name))
    if taken is not None:
        what = "table" if TableId(taken) in catalog.tables else "index"
        raise AlreadyExists(f"{what} {str(table)!r} exists already")


def exists(catalog: Catalog, name: TableName) -> bool:
    namespace = catalog.namespace_names.get(name.namespace.casefold())
    return namespace is not None and catalog.names.get(name_key(namespace, name.name)) in catalog.tables


def found(catalog: Catalog, name: TableName) -> Table:
    return catalog.table(name.namespace, name.name)


class CreateTable(msgspec.Struct, frozen=True):
    table: TableName
    schema: TableSchema
    zone: str | None = None
    properties: TableProperties = msgspec.field(default_factory=TableProperties)
    if_not_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        what = f"table {str(self.table)!r}"
        check_object_name(what, self.table.name)
        try:
            check_free(catalog, self.table)
        except AlreadyExists:
            if self.if_not_exists:
                return ()
            raise
        try:
            check_schema(self.schema)
        except InvalidSchema as error:
            raise InvalidSchema(f"{what}: {error}") from None
        check_properties(what, self.properties)
        table = Table(
            TableId(catalog.next_id),
            catalog.namespace(self.table.namespace).id,
            self.table.name,
            catalog.default_zone if self.zone is None else catalog.zone(self.zone).id,
            self.schema,
            self.properties,
        )
        return (TableCreated(table),)


class DropTable(msgspec.Struct, frozen=True):
    """Its indexes go with it; they are not recalled."""

    table: TableName
    if_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        if self.if_exists and not exists(catalog, self.table):
            return ()
        table = found(catalog, self.table)
        gone = tuple(IndexRemoved(index.id) for index in catalog.indexes_of(table.id))
        return (*gone, TableDropped(table.id))


class RecallTable(msgspec.Struct, frozen=True):
    """The table dropped last under that name, under a new one if it is taken: into its namespace, also if that was
    made anew. A namespace or zone that is gone is replaced by the default one."""

    table: TableName
    new_name: str | None = None

    def decide(self, catalog: Catalog) -> tuple[TableRecalled, ...]:
        dropped = self._last(catalog)
        name = self.table.name if self.new_name is None else self.new_name
        check_object_name(f"table {name!r}", name)
        namespace = catalog.namespace_names.get(dropped.namespace.casefold(), DEFAULT_NAMESPACE.id)
        check_free(catalog, TableName(catalog.namespaces[namespace].name, name))
        zone = dropped.table.zone if dropped.table.zone in catalog.zones else catalog.default_zone
        return (TableRecalled(dropped.table.id, namespace, name, zone),)

    def _last(self, catalog: Catalog) -> DroppedTable:
        wanted = (self.table.namespace.casefold(), self.table.name.casefold())
        candidates = [
            dropped
            for dropped in catalog.dropped.values()
            if (dropped.namespace.casefold(), dropped.table.name.casefold()) == wanted
        ]
        if not candidates:
            known = [qualified(dropped.namespace, dropped.table.name) for dropped in catalog.dropped.values()]
            raise NotFound(f"no dropped table {str(self.table)!r} can be recalled{nearest(str(self.table), known)}")
        return max(candidates, key=lambda dropped: (dropped.version, dropped.table.id))


class ForgetTable(msgspec.Struct, frozen=True):
    """A dropped table cannot be recalled any more: its data may go."""

    table: TableId

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        return (TableForgotten(self.table),) if self.table in catalog.dropped else ()


class RenameTable(msgspec.Struct, frozen=True):
    table: TableName
    new: TableName

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        check_object_name(f"table {str(self.new)!r}", self.new.name)
        namespace = catalog.namespace(self.new.namespace)
        if (table.namespace, table.name) == (namespace.id, self.new.name):
            return ()
        if name_key(table.namespace, table.name) != name_key(namespace.id, self.new.name):
            check_free(catalog, self.new)
        if namespace.id != table.namespace and catalog.indexes_of(table.id):
            raise InvalidSchema(f"table {str(self.table)!r} has indexes and cannot change its namespace")
        return (TableRenamed(table.id, namespace.id, self.new.name),)


class SetTableZone(msgspec.Struct, frozen=True):
    table: TableName
    zone: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table, zone = found(catalog, self.table), catalog.zone(self.zone)
        return () if table.zone == zone.id else (TableZoneSet(table.id, zone.id),)


def _duration(what: str, text: str) -> int:
    try:
        return parse_duration(text)
    except InvalidSchema as error:
        raise InvalidSchema(f"{what}: retention {error}") from None


class SetProperty(msgspec.Struct, frozen=True):
    """`retention` is a duration such as 15m, `comment` any text."""

    table: TableName
    property: str
    value: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        what = f"table {str(self.table)!r}"
        if self.property == "retention":
            changed = replace(table.properties, retention_us=_duration(what, self.value))
        elif self.property == "comment":
            changed = replace(table.properties, comment=self.value)
        else:
            raise InvalidArgument(
                f"{what}: no property {self.property!r}{nearest(self.property, PROPERTIES)}; "
                f"there are {', '.join(PROPERTIES)}"
            )
        check_properties(what, changed)
        return () if changed == table.properties else (TablePropertiesSet(table.id, changed),)
