"""What a change of namespaces or zones asks for as commands, and what the catalog has of them."""

from __future__ import annotations

from collections import Counter

from stelae.catalog.commands.spaces import (
    AlterZone,
    CreateNamespace,
    CreateZone,
    DropNamespace,
    DropZone,
    RenameZone,
    SetDefaultZone,
)
from stelae.catalog.decide import Command
from stelae.catalog.objects import TABLET_BYTES_DEFAULT, Placement
from stelae.catalog.value import Catalog
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.values import show
from stelae.service.spaces import (
    AlterZoneAsk,
    CreateNamespaceAsk,
    CreateZoneAsk,
    DropNamespaceAsk,
    DropZoneAsk,
    SpacesAsk,
    SpacesInfo,
    ZoneInfo,
)

_PLACEMENTS = {placement.name.lower(): placement for placement in Placement}


def space_commands(ask: SpacesAsk) -> list[Command]:
    match ask:
        case CreateNamespaceAsk():
            return [CreateNamespace(ask.name, ask.if_not_exists)]
        case DropNamespaceAsk():
            return [DropNamespace(ask.name, ask.if_exists)]
        case CreateZoneAsk():
            return [_created(ask)]
        case AlterZoneAsk():
            return _altered(ask)
        case DropZoneAsk():
            return [DropZone(ask.name, ask.if_exists)]


def _created(ask: CreateZoneAsk) -> CreateZone:
    placement = _PLACEMENTS.get(ask.placement)
    if placement is None:
        raise InvalidArgument(
            f"zone {ask.name!r}: placement {show(ask.placement)} is not one of {', '.join(_PLACEMENTS)}"
            f"{nearest(ask.placement, _PLACEMENTS)}"
        )
    tablet_bytes = TABLET_BYTES_DEFAULT if ask.tablet_bytes is None else ask.tablet_bytes
    return CreateZone(
        ask.name,
        ask.replicas,
        ask.min_replicas,
        placement,
        tablet_bytes,
        ask.racks,
        is_default=ask.is_default,
        if_not_exists=ask.if_not_exists,
    )


def _altered(ask: AlterZoneAsk) -> list[Command]:
    found: list[Command] = [AlterZone(ask.name, ask.replicas, ask.min_replicas, ask.tablet_bytes, ask.racks)]
    if ask.is_default:
        found.append(SetDefaultZone(ask.name))
    if ask.rename is not None:
        found.append(RenameZone(ask.name, ask.rename))
    return found


def spaces_of(catalog: Catalog) -> SpacesInfo:
    in_zones = Counter(table.zone for table in catalog.tables.values())
    zones = [
        ZoneInfo(
            name=zone.name,
            replicas=zone.replicas,
            min_replicas=zone.min_replicas,
            racks=zone.racks,
            placement=zone.placement.name.lower(),
            tablet_bytes=zone.tablet_bytes,
            tables=in_zones[zone.id],
            is_default=zone.id == catalog.default_zone,
        )
        for zone in catalog.zones.values()
    ]
    names = sorted(namespace.name for namespace in catalog.namespaces.values())
    return SpacesInfo(tuple(names), tuple(sorted(zones, key=lambda zone: zone.name)))
