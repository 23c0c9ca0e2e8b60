"""Tables as the newest catalog has them, by name and by id: what a master answers about them, and what a server asks.

Safe for threads: the catalog is an immutable value, and the newest one is taken for each question.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from stelae.catalog.commands.tables import TableName
from stelae.catalog.objects import Table
from stelae.catalog.value import Catalog
from stelae.model.errors import NotFound
from stelae.model.ids import TableId
from stelae.model.schema import TableSchema
from stelae.registry.catalog.service import CatalogService
from stelae.registry.meta import META0, META1, META_SCHEMA
from stelae.service.tables import TableInfo

_META_SCHEMAS = (META_SCHEMA,)


class TableRules(msgspec.Struct, frozen=True):
    """What the catalog says about a table's upkeep."""

    retention_us: int
    tablet_bytes: int


class KnownTables:
    def __init__(self, service: CatalogService) -> None:
        self._service = service
        self._infos: dict[TableId, TableInfo] = {}
        self._looked_up: tuple[Catalog, dict[TableId, TableInfo]] = (service.latest, {})
        """What was asked for of one version of the catalog: each scan asks."""

    @property
    def catalog(self) -> Catalog:
        return self._service.latest

    def info_of(self, table: Table) -> TableInfo:
        """The same object as long as nothing about the table changes."""
        catalog, known = self._service.latest, self._infos.get(table.id)
        name, zone = catalog.qualified_name(table), catalog.zones[table.zone].name
        if known is None or known.table is not table or (known.name, known.zone) != (name, zone):
            known = TableInfo(table, name, zone)
            self._infos[table.id] = known
        return known

    def find(self, name: str) -> TableInfo:
        """By `name` or `namespace.name`."""
        parsed = TableName.parse(name)
        return self.info_of(self._service.latest.table(parsed.namespace, parsed.name))

    def info(self, table: TableId) -> TableInfo:
        """NotFound once the table is dropped."""
        catalog = self._service.latest
        of, infos = self._looked_up
        if of is not catalog:
            infos = {}
        elif table in infos:
            return infos[table]
        found = catalog.tables.get(table)
        if found is None:
            known = self._infos.get(table)
            raise NotFound(f"table {known.name if known else table!r} was dropped")
        info = infos[table] = self.info_of(found)
        self._looked_up = catalog, infos
        return info

    def names(self) -> tuple[str, ...]:
        """The qualified names of all tables, sorted."""
        catalog = self._service.latest
        return tuple(sorted(catalog.qualified_name(table) for table in catalog.tables.values()))

    def ids(self) -> Collection[TableId]:
        """The tables that are there now."""
        return self._service.latest.tables.keys()

    def kept(self) -> Collection[TableId]:
        """The tables whose data stays: those that are there, and those that were dropped and can be recalled."""
        catalog = self._service.latest
        return {*catalog.tables, *catalog.dropped}

    def is_known(self, table: TableId) -> bool:
        """Whether the catalog has ever made the table, or it is one of META: no other can have data."""
        return table < self._service.latest.next_id or table in (META0, META1)

    def schemas_of(self, table: TableId) -> Sequence[TableSchema]:
        """The schemas the table has had, oldest first."""
        return _META_SCHEMAS if table in (META0, META1) else self._service.schemas.of(table)

    def rules(self, table: TableId) -> TableRules | None:
        """The table's retention, and how large its tablets grow; None once the table is dropped."""
        catalog = self._service.latest
        found = catalog.tables.get(table)
        if found is None:
            return None
        return TableRules(found.properties.retention_us, catalog.zones[found.zone].tablet_bytes)
