"""One value of every stored type, for golden files. `python -m tests.catalog.serial_samples` writes files that are
missing, and no others: bytes of a released version are never written again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stelae.catalog import entries as e
from stelae.catalog import index_entries as i
from stelae.catalog import objects as o
from stelae.catalog.serial.registry import ObjectType
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS, SnapshotHead
from stelae.catalog.value import CatalogVersion
from stelae.model import schema as s
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, TableId, Txn
from stelae.model.purge import PastPolicy, parse_purge
from stelae.model.types import String, parse_type

DIRECTORY = Path(__file__).parent.parent / "golden" / "catalog"

NAMESPACE = o.Namespace(o.NamespaceId(17), "shop")
ZONE = o.Zone(o.ZoneId(18), "fast", 3, 2, o.Placement.RING, 5_000_000)
OPTIONS = s.GroupOptions("lz4", 65_536, True, False, parse_purge("max-age=7d and max-history=3"))
COLUMN = s.Column(ColumnId(3), "price", parse_type("decimal(9, 2)"), nullable=False, default=Decimal("-1.50"))
MOMENT = s.Column(ColumnId(4), "seen", parse_type("timestamp"), default=datetime(2024, 5, 6, tzinfo=UTC))
FAMILY = s.Family(ColumnId(6), "click")
COLUMNS_GROUP = s.ColumnsGroup(GroupId(2), "data", (COLUMN, MOMENT), OPTIONS)
CELLS_GROUP = s.CellsGroup(GroupId(5), "events", (FAMILY,), wildcard=False)
KEY = s.KeyColumn(ColumnId(1), "id", String())
SCHEMA = s.TableSchema(SchemaVersion(4), (KEY,), (COLUMNS_GROUP, CELLS_GROUP), hashed=True, last_id=6)
PROPERTIES = o.TableProperties(60_000_000, "for the shop")
TABLE = o.Table(TableId(19), NAMESPACE.id, "orders", ZONE.id, SCHEMA, PROPERTIES)
INDEX = o.Index(o.IndexId(20), NAMESPACE.id, "by_price", TABLE.id, (COLUMN.id,), o.IndexStatus.BUILDING)
CREATED = e.TableCreated(TABLE)

SAMPLES: dict[ObjectType, Any] = {
    ObjectType.NAMESPACE: NAMESPACE,
    ObjectType.ZONE: ZONE,
    ObjectType.TABLE: TABLE,
    ObjectType.TABLE_SCHEMA: SCHEMA,
    ObjectType.KEY_COLUMN: KEY,
    ObjectType.COLUMN: COLUMN,
    ObjectType.FAMILY: FAMILY,
    ObjectType.GROUP_OPTIONS: OPTIONS,
    ObjectType.COLUMNS_GROUP: COLUMNS_GROUP,
    ObjectType.CELLS_GROUP: CELLS_GROUP,
    ObjectType.TABLE_PROPERTIES: PROPERTIES,
    ObjectType.DROPPED_TABLE: o.DroppedTable(TABLE, "shop", 9, Txn(123_456_789)),
    ObjectType.INDEX: INDEX,
    ObjectType.NAMESPACE_CREATED: e.NamespaceCreated(NAMESPACE),
    ObjectType.NAMESPACE_DROPPED: e.NamespaceDropped(NAMESPACE.id),
    ObjectType.ZONE_CREATED: e.ZoneCreated(ZONE),
    ObjectType.ZONE_CHANGED: e.ZoneChanged(ZONE),
    ObjectType.ZONE_DROPPED: e.ZoneDropped(ZONE.id),
    ObjectType.DEFAULT_ZONE_SET: e.DefaultZoneSet(ZONE.id),
    ObjectType.TABLE_CREATED: CREATED,
    ObjectType.TABLE_DROPPED: e.TableDropped(TABLE.id),
    ObjectType.TABLE_RECALLED: e.TableRecalled(TABLE.id, NAMESPACE.id, "back", ZONE.id),
    ObjectType.TABLE_FORGOTTEN: e.TableForgotten(TABLE.id),
    ObjectType.TABLE_RENAMED: e.TableRenamed(TABLE.id, NAMESPACE.id, "sales"),
    ObjectType.TABLE_ZONE_SET: e.TableZoneSet(TABLE.id, ZONE.id),
    ObjectType.TABLE_PROPERTIES_SET: e.TablePropertiesSet(TABLE.id, PROPERTIES),
    ObjectType.COLUMNS_ADDED: e.ColumnsAdded(TABLE.id, GroupId(2), (COLUMN, MOMENT)),
    ObjectType.COLUMNS_DROPPED: e.ColumnsDropped(TABLE.id, (COLUMN.id, MOMENT.id)),
    ObjectType.COLUMN_CHANGED: e.ColumnChanged(TABLE.id, COLUMN),
    ObjectType.FAMILIES_ADDED: e.FamiliesAdded(TABLE.id, GroupId(5), (FAMILY,)),
    ObjectType.FAMILIES_DROPPED: e.FamiliesDropped(TABLE.id, (FAMILY.id,)),
    ObjectType.FAMILY_RENAMED: e.FamilyRenamed(TABLE.id, FAMILY),
    ObjectType.MEMBERS_MOVED: e.MembersMoved(TABLE.id, (FAMILY.id,), GroupId(5)),
    ObjectType.GROUP_ADDED: e.GroupAdded(TABLE.id, CELLS_GROUP),
    ObjectType.GROUP_DROPPED: e.GroupDropped(TABLE.id, GroupId(5)),
    ObjectType.GROUP_OPTIONS_SET: e.GroupOptionsSet(TABLE.id, GroupId(5), OPTIONS),
    ObjectType.INDEX_CREATED: i.IndexCreated(INDEX),
    ObjectType.INDEX_STATUS_SET: i.IndexStatusSet(INDEX.id, o.IndexStatus.AVAILABLE),
    ObjectType.INDEX_REMOVED: i.IndexRemoved(INDEX.id),
    ObjectType.UPDATE: e.Update(CatalogVersion(7), Txn(987_654_321), b"\x00token", "ann", (CREATED,)),
    ObjectType.SNAPSHOT_HEAD: SnapshotHead(7, 987_654_321, 3, 21),
}

LATER_SAMPLES: dict[tuple[ObjectType, int], Any] = {
    (ObjectType.GROUP_OPTIONS, 2): replace(
        OPTIONS, past=(PastPolicy(None, Txn(5)), PastPolicy(parse_purge("max-history=1"), Txn(123_456_789)))
    ),
    (ObjectType.GROUP_OPTIONS, 3): replace(OPTIONS, keys_past=(PastPolicy(parse_purge("max-age=1h"), Txn(5)),)),
    (ObjectType.FAMILY, 2): replace(FAMILY, past=(PastPolicy(parse_purge("max-age=1h"), Txn(5)),)),
    (ObjectType.ZONE, 2): replace(ZONE, racks=("a", "rack 2")),
}
"""Values that need a later version of their serializer: those that do not are still written in the first."""


def sample_of(type_: ObjectType, version: int) -> Any:
    return LATER_SAMPLES.get((type_, version), SAMPLES[type_])


def file_of(type_: ObjectType, version: int) -> Path:
    return DIRECTORY / f"{type_.name.lower()}.{version}.bin"


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for serializer in CATALOG_SERIALIZERS.serializers:
        file = file_of(serializer.object_type, serializer.version)
        if not file.exists():
            file.write_bytes(CATALOG_SERIALIZERS.encode(sample_of(serializer.object_type, serializer.version)))


if __name__ == "__main__":
    main()
