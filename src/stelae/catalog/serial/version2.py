"""Version 2, of the types that version 1 cannot hold all of any more.

`GroupOptions`: with the past purge policies of the group, each as its text and its last txn. Groups that never changed
their policy are still written in version 1.

`Family`: with the past purge policies that its cells were under before it was declared. Families without are still
written in version 1.

`Zone`: with the racks that its replicas are spread over. Zones without are still written in version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stelae.catalog.objects import Placement, Zone, ZoneId
from stelae.catalog.serial.registry import ObjectType, Serializer
from stelae.model.hybrid import check_txn
from stelae.model.ids import ColumnId
from stelae.model.purge import PastPolicy, PurgePolicy, parse_purge
from stelae.model.schema import Family, GroupOptions

_SINCE = "0.1.0"


def _text(policy: PurgePolicy | None) -> str | None:
    return None if policy is None else str(policy)


def _policy(text: Any) -> PurgePolicy | None:
    return None if text is None else parse_purge(text)


def write_options(options: GroupOptions) -> list[Any]:
    return [
        options.compression,
        options.block_bytes,
        options.in_memory,
        options.bloom,
        _text(options.purge),
        write_past(options.past),
    ]


def write_past(past: Sequence[PastPolicy]) -> list[Any]:
    return [[_text(each.policy), each.until] for each in past]


def read_past(stored: list[Any]) -> tuple[PastPolicy, ...]:
    return tuple(PastPolicy(_policy(text), check_txn(until)) for text, until in stored)


def _write_family(family: Family) -> list[Any]:
    return [family.id, family.name, write_past(family.past)]


def _read_family(stored: list[Any]) -> Family:
    id_, name, past = stored
    check_kinds((id_, name, past), (int, str, list))
    return Family(ColumnId(id_), name, read_past(past))


def read_options(stored: list[Any]) -> GroupOptions:
    compression, block_bytes, in_memory, bloom, purge, past = stored
    check_kinds((compression, block_bytes, in_memory, bloom, past), (str, int, bool, bool, list))
    return GroupOptions(compression, block_bytes, in_memory, bloom, _policy(purge), read_past(past))


def check_kinds(fields: Sequence[Any], expected: Sequence[type]) -> None:
    kinds = [type(each) for each in fields]
    if kinds != list(expected):
        raise TypeError(f"the fields are {[kind.__name__ for kind in kinds]}")


def _write_zone(zone: Zone) -> list[Any]:
    return [
        zone.id,
        zone.name,
        zone.replicas,
        zone.min_replicas,
        int(zone.placement),
        zone.tablet_bytes,
        list(zone.racks),
    ]


def _read_zone(stored: list[Any]) -> Zone:
    id_, name, replicas, min_replicas, placement, tablet_bytes, racks = stored
    check_kinds(
        (id_, name, replicas, min_replicas, placement, tablet_bytes, racks), (int, str, int, int, int, int, list)
    )
    check_kinds(racks, [str] * len(racks))
    return Zone(ZoneId(id_), name, replicas, min_replicas, Placement(placement), tablet_bytes, tuple(racks))


SINCE_VERSION_1: Sequence[Serializer] = (
    Serializer(
        ObjectType.GROUP_OPTIONS,
        2,
        _SINCE,
        GroupOptions,
        write_options,
        read_options,
        is_needed=lambda options: bool(options.past),
    ),
    Serializer(
        ObjectType.FAMILY,
        2,
        _SINCE,
        Family,
        _write_family,
        _read_family,
        is_needed=lambda family: bool(family.past),
    ),
    Serializer(ObjectType.ZONE, 2, _SINCE, Zone, _write_zone, _read_zone, is_needed=lambda zone: bool(zone.racks)),
)
