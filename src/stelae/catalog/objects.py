"""What a catalog describes: namespaces, zones, tables, indexes. Columns and groups are those of `model.schema`.

Objects are known by id, given once and never again; names may change hands. A table's schema version is the catalog
version that last changed it, so the two never need to be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

from stelae.model.errors import InvalidSchema
from stelae.model.ids import ColumnId, TableId, Txn
from stelae.model.schema import TableSchema, check_name

NamespaceId = NewType("NamespaceId", int)
ZoneId = NewType("ZoneId", int)
IndexId = NewType("IndexId", int)

RETENTION_US_DEFAULT = 15 * 60 * 1_000_000
RETENTION_US_MAX = 10 * 365 * 86_400 * 1_000_000
TABLET_BYTES_DEFAULT = 1024**3
TABLET_BYTES_MIN = 1024**2
REPLICAS_MAX = 16
COMMENT_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Namespace:
    """A space of names for tables and indexes: the `shop` of `shop.orders`."""

    id: NamespaceId
    name: str


class Placement(IntEnum):
    """How a zone's tablets find their nodes: balanced one by one, or by their token's place on the ring. Stored."""

    TABLETS = 1
    RING = 2


@dataclass(frozen=True, slots=True)
class Zone:
    """How many replicas the tables in it have, where, and how large their tablets grow."""

    id: ZoneId
    name: str
    replicas: int = 1
    min_replicas: int = 1
    placement: Placement = Placement.TABLETS
    tablet_bytes: int = TABLET_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class TableProperties:
    retention_us: int = RETENTION_US_DEFAULT
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    id: TableId
    namespace: NamespaceId
    name: str
    zone: ZoneId
    schema: TableSchema
    properties: TableProperties = field(default_factory=TableProperties)


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """As it was, and which catalog version dropped it, from when on."""

    table: Table
    version: int
    since: Txn


class IndexStatus(IntEnum):
    """The life of an index, in order; after STOPPING it is removed. Stored."""

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


@dataclass(frozen=True, slots=True)
class Index:
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


def check_zone(zone: Zone) -> Zone:
    what = f"zone {zone.name!r}"
    check_object_name(what, zone.name)
    if not 1 <= zone.replicas <= REPLICAS_MAX:
        raise InvalidSchema(f"{what}: has {zone.replicas} replicas, allowed are 1 to {REPLICAS_MAX}")
    if not 1 <= zone.min_replicas <= zone.replicas:
        raise InvalidSchema(f"{what}: min_replicas {zone.min_replicas} is not from 1 to its {zone.replicas} replicas")
    if zone.tablet_bytes < TABLET_BYTES_MIN:
        raise InvalidSchema(f"{what}: tablet_bytes {zone.tablet_bytes} is below {TABLET_BYTES_MIN}")
    return zone


def check_properties(what: str, properties: TableProperties) -> TableProperties:
    if not 0 <= properties.retention_us <= RETENTION_US_MAX:
        raise InvalidSchema(f"{what}: retention of {properties.retention_us} us is not from 0 to {RETENTION_US_MAX}")
    if len(properties.comment.encode(errors="surrogatepass")) > COMMENT_BYTES_MAX:
        raise InvalidSchema(f"{what}: a comment has at most {COMMENT_BYTES_MAX} bytes")
    return properties
