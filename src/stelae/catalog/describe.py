"""A catalog in words, for people and programs: plain dicts and texts, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from stelae.catalog.entries import Entry, Update
from stelae.catalog.objects import DroppedTable, Index, Table, Zone
from stelae.catalog.value import Catalog, qualified
from stelae.model.hybrid import to_datetime
from stelae.model.ids import TableId, Txn
from stelae.model.purge import print_duration
from stelae.model.schema import WILDCARD, Column, ColumnsGroup, Group


def show_time(txn: Txn) -> str:
    return to_datetime(txn).isoformat(timespec="milliseconds").replace("+00:00", "Z") if txn else "the beginning"


def describe_catalog(catalog: Catalog) -> dict[str, Any]:
    """Everything in it, by name, in the order of names."""
    return {
        "version": catalog.version,
        "active_from": show_time(catalog.activation),
        "default_zone": catalog.zones[catalog.default_zone].name,
        "namespaces": sorted(namespace.name for namespace in catalog.namespaces.values()),
        "zones": {zone.name: describe_zone(zone) for zone in sorted(catalog.zones.values(), key=lambda z: z.name)},
        "tables": dict(
            sorted((catalog.qualified_name(t), describe_table(catalog, t)) for t in catalog.tables.values())
        ),
        "indexes": dict(sorted(_index(catalog, index) for index in catalog.indexes.values())),
        "dropped": dict(_dropped(dropped) for _, dropped in sorted(catalog.dropped.items())),
    }


def _dropped(dropped: DroppedTable) -> tuple[str, dict[str, Any]]:
    name = f"{qualified(dropped.namespace, dropped.table.name)} ({dropped.table.id})"
    return name, {"id": dropped.table.id, "since": show_time(dropped.since)}


def describe_zone(zone: Zone) -> dict[str, Any]:
    return {
        "id": zone.id,
        "replicas": zone.replicas,
        "min_replicas": zone.min_replicas,
        "placement": zone.placement.name.lower(),
        "tablet_bytes": zone.tablet_bytes,
        "racks": list(zone.racks),
    }


def describe_table(catalog: Catalog, table: Table) -> dict[str, Any]:
    schema = table.schema
    return {
        "id": table.id,
        "zone": catalog.zones[table.zone].name,
        "schema_version": schema.version,
        "partition": "hash" if schema.hashed else "range",
        "key": {column.name: str(column.type) for column in schema.key},
        "groups": {group.name: _group(group) for group in schema.groups},
        "retention": print_duration(table.properties.retention_us),
        "comment": table.properties.comment,
    }


def _group(group: Group) -> dict[str, Any]:
    options = group.options
    if isinstance(group, ColumnsGroup):
        members: dict[str, Any] = {"columns": {column.name: str(column) for column in group.columns}}
    else:
        members = {"families": [WILDCARD] if group.wildcard else [family.name for family in group.families]}
    return {
        **members,
        "purge": "none" if options.purge is None else str(options.purge),
        "compression": options.compression,
        "block_bytes": options.block_bytes,
        "in_memory": options.in_memory,
        "bloom": options.bloom,
    }


def _index(catalog: Catalog, index: Index) -> tuple[str, dict[str, Any]]:
    table = catalog.tables[index.table]
    return qualified(catalog.namespaces[index.namespace].name, index.name), {
        "id": index.id,
        "table": catalog.qualified_name(table),
        "columns": [table.schema.column_by_id(column)[1].name for column in index.columns],
        "status": index.status.name.lower(),
    }


class Difference(msgspec.Struct, frozen=True):
    """At a path such as tables/users/zone; None stands for nothing there."""

    path: str
    before: Any
    after: Any


_NOT_COMPARED = ("version", "active_from")


def differences(before: Catalog, after: Catalog) -> list[Difference]:
    """What a reader of one would have to be told to know the other, apart from version and time."""
    a, b = describe_catalog(before), describe_catalog(after)
    for name in _NOT_COMPARED:
        del a[name], b[name]
    return list(_walk("", a, b))


def _walk(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield Difference(path, before, after)
        return
    for name in [*before, *(name for name in after if name not in before)]:
        yield from _walk(f"{path}/{name}" if path else name, before.get(name), after.get(name))


def describe_entry(before: Catalog, entry: Entry) -> str:
    """One line: what happened, to what. Ids that the catalog before can name are named."""
    kind = "".join(f" {c.lower()}" if c.isupper() else c for c in type(entry).__name__).strip()
    table = before.tables.get(TableId(id_)) if isinstance(id_ := getattr(entry, "table", None), int) else None
    parts = [f"{name} {_shown(before, table, name, getattr(entry, name))}" for name in entry.__struct_fields__]
    return f"{kind}: {', '.join(parts)}"


def _shown(before: Catalog, table: Table | None, field: str, value: Any) -> str:
    match value:
        case tuple():
            return ", ".join(_shown(before, table, field, item) for item in value)
        case Enum():
            return value.name.lower()
        case int():
            name = _name_of(before, table, field, value)
            return str(value) if name is None else repr(name)
        case Column():
            return f"{value.name!r} {value}"
        case _:
            name = getattr(value, "name", None)
            return repr(name) if isinstance(name, str) else str(value)


def _objects(catalog: Catalog, field: str) -> Mapping[Any, Any]:
    return {"zone": catalog.zones, "namespace": catalog.namespaces, "index": catalog.indexes}[field]


def _name_of(before: Catalog, table: Table | None, field: str, id_: int) -> str | None:
    """What the catalog before calls the id that stands in a field of an entry."""
    groups = table.schema.groups if table is not None else ()
    match field:
        case "table":
            there, gone = before.tables.get(TableId(id_)), before.dropped.get(TableId(id_))
            if there is not None:
                return before.qualified_name(there)
            return None if gone is None else qualified(gone.namespace, gone.table.name)
        case "zone" | "namespace" | "index":
            found: Any = _objects(before, field).get(id_)
            return None if found is None else str(found.name)
        case "group":
            return next((group.name for group in groups if group.id == id_), None)
        case _:
            members = [m for g in groups for m in (g.columns if isinstance(g, ColumnsGroup) else g.families)]
            return next((member.name for member in members if member.id == id_), None)


def describe_update(before: Catalog, update: Update) -> dict[str, Any]:
    """Each change in the words of the catalog that the changes before it have made."""
    changes = []
    for entry in update.entries:
        changes.append(describe_entry(before, entry))
        before = entry.apply(before)
    return {
        "version": update.version,
        "active_from": show_time(update.activation),
        "author": update.author,
        "changes": changes,
    }
