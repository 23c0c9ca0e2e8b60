"""What a catalog describes: namespaces, zones, tables, indexes. Columns and groups are those of `model.schema`.

Objects are known by id, given once and never again; names may change hands. A table's schema version is the catalog
version that last changed it, so the two never need to be told apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

import msgspec

from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import ColumnId, TableId, Txn
from stelae.model.schema import TableSchema
from stelae.model.schema_checks import check_name
from stelae.model.types import String
from stelae.model.values import coerce, show

NamespaceId = NewType("NamespaceId", int)
ZoneId = NewType("ZoneId", int)
IndexId = NewType("IndexId", int)

RETENTION_US_DEFAULT = 15 * 60 * 1_000_000
RETENTION_US_MAX = 10 * 365 * 86_400 * 1_000_000
TABLET_BYTES_DEFAULT = 1024**3
TABLET_BYTES_MIN = 1024**2
TABLET_BYTES_MAX = 1024**5
REPLICAS_MAX = 16
RACKS_MAX = 64
COMMENT_BYTES_MAX = 4_096


class Namespace(msgspec.Struct, frozen=True):
    """A space of names for tables and indexes: the `shop` of `shop.orders`."""

    id: NamespaceId
    name: str


class Placement(IntEnum):
    """How a zone's tablets find their nodes: balanced one by one, or by their token's place on the ring. Stored."""

    TABLETS = 1
    RING = 2


class Zone(msgspec.Struct, frozen=True):
    """How many replicas the tables in it have, where, and how large their tablets grow. `racks`: those that replicas
    are spread over; none: any."""

    id: ZoneId
    name: str
    replicas: int = 1
    min_replicas: int = 1
    placement: Placement = Placement.TABLETS
    tablet_bytes: int = TABLET_BYTES_DEFAULT
    racks: tuple[str, ...] = ()


class TableProperties(msgspec.Struct, frozen=True):
    retention_us: int = RETENTION_US_DEFAULT
    comment: str = ""


class Table(msgspec.Struct, frozen=True):
    id: TableId
    namespace: NamespaceId
    name: str
    zone: ZoneId
    schema: TableSchema
    properties: TableProperties = msgspec.field(default_factory=TableProperties)


class DroppedTable(msgspec.Struct, frozen=True):
    """As it was, in the namespace of that name, and which catalog version dropped it, from when on."""

    table: Table
    namespace: str
    version: int
    since: Txn


class IndexStatus(IntEnum):
    """The life of an index, in order; after STOPPING it is removed. Stored."""

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


class Index(msgspec.Struct, frozen=True):
    """Nothing makes one yet. What it is, is here because its bytes are of a released format: a catalog that holds one
    is read, shown and kept whole."""

    id: IndexId
    namespace: NamespaceId
    name: str
    table: TableId
    columns: tuple[ColumnId, ...]
    status: IndexStatus = IndexStatus.REGISTERED


def check_object_name(what: str, name: str) -> str:
    """Names of namespaces, zones, tables and indexes: as of columns, and without a dot."""
    check_name(what, name)
    if "." in name:
        raise InvalidSchema(f"{what}: a name has no dot; 'namespace.table' is two names")
    return name


def _check_whole(what: str, name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidSchema(f"{what}: {name} {show(value)} is not a whole number from {low} to {high}")


def check_zone(zone: Zone) -> Zone:
    what = f"zone {zone.name!r}"
    check_object_name(what, zone.name)
    _check_whole(what, "replicas", zone.replicas, 1, REPLICAS_MAX)
    _check_whole(what, "min_replicas", zone.min_replicas, 1, zone.replicas)
    _check_whole(what, "tablet_bytes", zone.tablet_bytes, TABLET_BYTES_MIN, TABLET_BYTES_MAX)
    if type(zone.placement) is not Placement:
        raise InvalidSchema(
            f"{what}: placement {show(zone.placement)} is not one of {', '.join(p.name for p in Placement)}"
        )
    _check_racks(what, zone.racks)
    return zone


def _check_racks(what: str, racks: tuple[str, ...]) -> None:
    """Distinct names: unlike those of tables, case counts, since they are what the machines say of themselves."""
    for rack in racks:
        check_name(f"{what}: rack {show(rack)}", rack)
    if len(racks) > RACKS_MAX:
        raise InvalidSchema(f"{what}: {len(racks)} racks; at most {RACKS_MAX}")
    twice = next((rack for at, rack in enumerate(racks) if rack in racks[:at]), None)
    if twice is not None:
        raise InvalidSchema(f"{what}: rack {twice!r} is there twice")


def check_properties(what: str, properties: TableProperties) -> TableProperties:
    _check_whole(what, "retention_us", properties.retention_us, 0, RETENTION_US_MAX)
    try:
        size = len(coerce(String(), properties.comment, "comment").encode())
    except InvalidArgument as error:
        raise InvalidSchema(f"{what}: {error}") from None
    if size > COMMENT_BYTES_MAX:
        raise InvalidSchema(f"{what}: a comment has at most {COMMENT_BYTES_MAX} bytes")
    return properties
