"""A catalog in words, for people and programs: plain dicts and texts, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from stelae.catalog.entries import Entry, Update
from stelae.catalog.objects import Index, Table, Zone
from stelae.catalog.value import Catalog, qualified
from stelae.model.hybrid import to_datetime
from stelae.model.ids import TableId, Txn
from stelae.model.purge import print_duration
from stelae.model.schema import WILDCARD, ColumnsGroup, Group


def show_time(txn: Txn) -> str:
    return to_datetime(txn).isoformat(timespec="milliseconds") if txn else "the beginning"


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
        "dropped": {
            f"{dropped.table.name} ({id_})": {"id": id_, "since": show_time(dropped.since)}
            for id_, dropped in sorted(catalog.dropped.items())
        },
    }


def _named_tables(catalog: Catalog) -> list[tuple[str, Table]]:
    return sorted(((catalog.qualified_name(table), table) for table in catalog.tables.values()), key=lambda t: t[0])


def describe_zone(zone: Zone) -> dict[str, Any]:
    return {
        "id": zone.id,
        "replicas": zone.replicas,
        "min_replicas": zone.min_replicas,
        "placement": zone.placement.name.lower(),
        "tablet_bytes": zone.tablet_bytes,
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


@dataclass(frozen=True, slots=True)
class Difference:
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
    names = _names_for(before, entry)
    parts = [f"{each.name} {_shown(names.get(each.name, {}), getattr(entry, each.name))}" for each in fields(entry)]
    return f"{kind}: {', '.join(parts)}"


def _names_for(before: Catalog, entry: Entry) -> dict[str, dict[int, str]]:
    """By field: the names of the ids that may stand in it."""
    tables: dict[int, str] = {id_: gone.table.name for id_, gone in before.dropped.items()}
    tables |= {id_: table.name for id_, table in before.tables.items()}
    table = before.tables.get(TableId(id_)) if isinstance(id_ := getattr(entry, "table", None), int) else None
    groups = table.schema.groups if table is not None else ()
    members: dict[int, str] = {}
    for group in groups:
        parts = group.columns if isinstance(group, ColumnsGroup) else group.families
        members |= {part.id: part.name for part in parts}
    return {
        "table": tables,
        "zone": {id_: zone.name for id_, zone in before.zones.items()},
        "namespace": {id_: namespace.name for id_, namespace in before.namespaces.items()},
        "index": {id_: index.name for id_, index in before.indexes.items()},
        "group": {group.id: group.name for group in groups},
        **dict.fromkeys(("columns", "families", "members"), members),
    }


def _shown(names: Mapping[int, str], value: Any) -> str:
    match value:
        case tuple():
            return ", ".join(_shown(names, item) for item in value)
        case Enum():
            return value.name.lower()
        case int() if value in names:
            return repr(names[value])
        case _:
            name = getattr(value, "name", None)
            return repr(name) if isinstance(name, str) else str(value)


def describe_update(before: Catalog, update: Update) -> dict[str, Any]:
    return {
        "version": update.version,
        "active_from": show_time(update.activation),
        "author": update.author,
        "changes": [describe_entry(before, entry) for entry in update.entries],
    }
