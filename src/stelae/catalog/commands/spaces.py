"""Commands on namespaces and zones. Each judges a catalog and says what is to happen, or why it may not."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stelae.catalog.entries import (
    DefaultZoneSet,
    Entry,
    NamespaceCreated,
    NamespaceDropped,
    ZoneChanged,
    ZoneCreated,
    ZoneDropped,
)
from stelae.catalog.objects import (
    TABLET_BYTES_DEFAULT,
    Namespace,
    NamespaceId,
    Placement,
    Zone,
    ZoneId,
    check_object_name,
    check_zone,
)
from stelae.catalog.value import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, Catalog
from stelae.model.errors import AlreadyExists, InvalidSchema


class CreateNamespace(msgspec.Struct, frozen=True):
    name: str
    if_not_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        check_object_name(f"namespace {self.name!r}", self.name)
        if self.name.casefold() in catalog.namespace_names:
            if self.if_not_exists:
                return ()
            raise AlreadyExists(f"namespace {self.name!r} exists already")
        return (NamespaceCreated(Namespace(NamespaceId(catalog.next_id), self.name)),)


class DropNamespace(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        if self.if_exists and self.name.casefold() not in catalog.namespace_names:
            return ()
        namespace = catalog.namespace(self.name)
        if namespace.id in (DEFAULT_NAMESPACE.id, SYSTEM_NAMESPACE.id):
            raise InvalidSchema(f"namespace {namespace.name!r} cannot be dropped: every catalog has it")
        table = next(catalog.tables_in(namespace.id), None)
        if table is not None:
            raise InvalidSchema(f"namespace {namespace.name!r} cannot be dropped: table {table.name!r} is in it")
        return (NamespaceDropped(namespace.id),)


class CreateZone(msgspec.Struct, frozen=True):
    """`is_default`: tables that name no zone go there from now on. One that is there already stays as it is."""

    name: str
    replicas: int = 1
    min_replicas: int = 1
    placement: Placement = Placement.TABLETS
    tablet_bytes: int = TABLET_BYTES_DEFAULT
    racks: tuple[str, ...] = ()
    is_default: bool = False
    if_not_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        zone = Zone(
            ZoneId(catalog.next_id),
            self.name,
            self.replicas,
            self.min_replicas,
            self.placement,
            self.tablet_bytes,
            self.racks,
        )
        check_zone(zone)
        if self.name.casefold() in catalog.zone_names:
            if self.if_not_exists:
                return ()
            raise AlreadyExists(f"zone {self.name!r} exists already")
        return (ZoneCreated(zone), DefaultZoneSet(zone.id)) if self.is_default else (ZoneCreated(zone),)


class AlterZone(msgspec.Struct, frozen=True):
    """What is None stays as it is."""

    name: str
    replicas: int | None = None
    min_replicas: int | None = None
    tablet_bytes: int | None = None
    racks: tuple[str, ...] | None = None

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        zone = catalog.zone(self.name)
        changed = replace(
            zone,
            replicas=zone.replicas if self.replicas is None else self.replicas,
            min_replicas=zone.min_replicas if self.min_replicas is None else self.min_replicas,
            tablet_bytes=zone.tablet_bytes if self.tablet_bytes is None else self.tablet_bytes,
            racks=zone.racks if self.racks is None else self.racks,
        )
        return () if changed == zone else (ZoneChanged(check_zone(changed)),)


class RenameZone(msgspec.Struct, frozen=True):
    name: str
    new_name: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        zone = catalog.zone(self.name)
        check_object_name(f"zone {self.new_name!r}", self.new_name)
        taken = catalog.zone_names.get(self.new_name.casefold())
        if taken not in (None, zone.id):
            raise AlreadyExists(f"zone {self.new_name!r} exists already")
        return () if zone.name == self.new_name else (ZoneChanged(replace(zone, name=self.new_name)),)


class DropZone(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        if self.if_exists and self.name.casefold() not in catalog.zone_names:
            return ()
        zone = catalog.zone(self.name)
        if zone.id == catalog.default_zone:
            raise InvalidSchema(f"zone {zone.name!r} cannot be dropped: it is the default zone")
        table = next((table for table in catalog.tables.values() if table.zone == zone.id), None)
        if table is not None:
            raise InvalidSchema(
                f"zone {zone.name!r} cannot be dropped: table {catalog.qualified_name(table)!r} is in it"
            )
        return (ZoneDropped(zone.id),)


class SetDefaultZone(msgspec.Struct, frozen=True):
    name: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        zone = catalog.zone(self.name)
        return () if zone.id == catalog.default_zone else (DefaultZoneSet(zone.id),)
