"""A whole catalog as a sequence of objects: its head, then everything it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from stelae.catalog.check import check_catalog
from stelae.catalog.objects import DroppedTable, Index, Namespace, Table, Zone, ZoneId
from stelae.catalog.serial.registry import BadBytes
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS, SnapshotHead
from stelae.catalog.value import BrokenCatalog, Catalog, CatalogVersion, empty_catalog
from stelae.model.ids import Txn


def encode_snapshot(catalog: Catalog) -> Iterator[bytes]:
    """The objects one by one, in the same order whatever way the catalog came about."""
    encode = CATALOG_SERIALIZERS.encode
    yield encode(SnapshotHead(catalog.version, catalog.activation, catalog.default_zone, catalog.next_id))
    for objects in (catalog.namespaces, catalog.zones, catalog.tables, catalog.dropped, catalog.indexes):
        for id_ in sorted(objects):
            yield encode(objects[id_])  # type: ignore[index]


def decode_snapshot(parts: Iterable[bytes]) -> Catalog:
    """Raises BadBytes or UnsupportedFormat, or BrokenCatalog if the objects do not make a catalog."""
    objects = iter(parts)
    head = CATALOG_SERIALIZERS.decode(next(objects, b""))
    if not isinstance(head, SnapshotHead):
        raise BadBytes("a snapshot begins with its head")
    catalog = empty_catalog()
    for part in objects:
        catalog = _with(catalog, CATALOG_SERIALIZERS.decode(part))
    if catalog.next_id > head.next_id:
        raise BrokenCatalog(f"an id is not below the next one, {head.next_id}")
    return check_catalog(
        replace(
            catalog,
            version=CatalogVersion(head.version),
            activation=Txn(head.activation),
            default_zone=ZoneId(head.default_zone),
            next_id=head.next_id,
        )
    )


def _with(catalog: Catalog, value: object) -> Catalog:
    match value:
        case Namespace():
            return catalog.with_namespace(value)
        case Zone():
            return catalog.with_zone(value)
        case Table():
            return catalog.with_table(value)
        case DroppedTable():
            return catalog.with_dropped(value)
        case Index():
            return catalog.with_index(value)
        case _:
            raise BadBytes(f"a snapshot does not hold a {type(value).__name__}")
