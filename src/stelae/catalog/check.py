"""What holds in every catalog.

`check_catalog` looks at all of it: after loading, and in tests. `check_touched` looks at what a batch changed, before
it is written: a full look at 100,000 tables for each command would cost more than the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stelae.catalog.entries import Entry, TableCreated, ZoneChanged, ZoneCreated
from stelae.catalog.objects import Index, Table, check_object_name, check_properties, check_zone
from stelae.catalog.value import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, BrokenCatalog, Catalog, name_key
from stelae.model.errors import InvalidSchema
from stelae.model.ids import TableId
from stelae.model.schema import ColumnsGroup
from stelae.model.schema_checks import check_schema


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenCatalog(what)


def check_catalog(catalog: Catalog) -> Catalog:
    try:
        for namespace in catalog.namespaces.values():
            check_object_name(f"namespace {namespace.name!r}", namespace.name)
        for zone in catalog.zones.values():
            check_zone(zone)
        for table in catalog.tables.values():
            _check_table(catalog, table)
        for index in catalog.indexes.values():
            _check_index(catalog, index)
    except InvalidSchema as error:
        raise BrokenCatalog(str(error)) from None
    _require(catalog.default_zone in catalog.zones, "the default zone is not there")
    for always in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
        _require(catalog.namespaces.get(always.id) == always, f"namespace {always.name!r} is not there")
    _require(not set(catalog.tables) & set(catalog.dropped), "a table is there and dropped at once")
    _check_ids(catalog)
    _check_derived(catalog)
    return catalog


def _check_table(catalog: Catalog, table: Table) -> None:
    what = f"table {table.name!r} ({table.id})"
    check_object_name(what, table.name)
    check_properties(what, table.properties)
    try:
        check_schema(table.schema)
    except InvalidSchema as error:
        raise InvalidSchema(f"table {table.name!r}: {error}") from None
    _require(table.namespace in catalog.namespaces, f"{what}: its namespace {table.namespace} is not there")
    _require(table.zone in catalog.zones, f"{what}: its zone {table.zone} is not there")
    _require(1 <= table.schema.version <= catalog.version, f"{what}: schema version {table.schema.version}")


def _check_index(catalog: Catalog, index: Index) -> None:
    what = f"index {index.name!r} ({index.id})"
    table = catalog.tables.get(index.table)
    _require(table is not None, f"{what}: its table {index.table} is not there")
    if table is not None:
        _require(table.namespace == index.namespace, f"{what}: in another namespace than its table")
        groups = [group for group in table.schema.groups if isinstance(group, ColumnsGroup)]
        known = {column.id for group in groups for column in group.columns}
        _require(set(index.columns) <= known, f"{what}: a column of it is not there")


def _ids(catalog: Catalog) -> Iterator[int]:
    yield from catalog.namespaces
    yield from catalog.zones
    yield from catalog.tables
    yield from catalog.dropped
    yield from catalog.indexes


def _check_ids(catalog: Catalog) -> None:
    ids = list(_ids(catalog))
    _require(len(ids) == len(set(ids)), "two objects have one id")
    _require(all(0 < id_ < catalog.next_id for id_ in ids), f"an id is not below the next one, {catalog.next_id}")


def _check_derived(catalog: Catalog) -> None:
    names = {name_key(t.namespace, t.name): int(t.id) for t in catalog.tables.values()}
    names |= {name_key(i.namespace, i.name): int(i.id) for i in catalog.indexes.values()}
    _require(dict(catalog.names.items()) == names, "the names do not lead to the objects")
    _require(len(names) == len(catalog.tables) + len(catalog.indexes), "two objects have one name")
    namespaces = {n.name.casefold(): n.id for n in catalog.namespaces.values()}
    _require(dict(catalog.namespace_names.items()) == namespaces, "the names do not lead to the namespaces")
    zones = {z.name.casefold(): z.id for z in catalog.zones.values()}
    _require(dict(catalog.zone_names.items()) == zones, "the names do not lead to the zones")
    of_tables: dict[TableId, set[int]] = {}
    for index in catalog.indexes.values():
        of_tables.setdefault(index.table, set()).add(index.id)
    listed = {table: set(ids) for table, ids in catalog.table_indexes.items()}
    _require(listed == of_tables, "the tables do not list their indexes")


def check_touched(catalog: Catalog, entries: Iterable[Entry]) -> None:
    """What the entries changed holds, in the catalog they led to."""
    for entry in entries:
        match entry:
            case TableCreated(table):
                touched: TableId | None = table.id
            case ZoneCreated(zone) | ZoneChanged(zone):
                touched = None
                if zone.id in catalog.zones:
                    check_zone(catalog.zones[zone.id])
            case _:
                id_ = getattr(entry, "table", None)
                touched = TableId(id_) if isinstance(id_, int) else None
        if touched is not None and touched in catalog.tables:
            _check_table(catalog, catalog.tables[touched])
            for index in catalog.indexes_of(touched):
                _check_index(catalog, index)
