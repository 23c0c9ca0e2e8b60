"""The schemas each table has had, as far back as the catalog can name them: what older blocks and configs were written
for. A schema's version is the catalog version that made it."""

from __future__ import annotations

from stelae.catalog.entries import TableCreated, TableForgotten, Update
from stelae.catalog.objects import Table
from stelae.catalog.value import Catalog
from stelae.model.errors import NotFound
from stelae.model.ids import TableId
from stelae.model.schema import TableSchema

_NO_TABLE = TableId(0)


class SchemaVersions:
    """Grows as the catalog does. Reading needs no lock: lists are replaced, not changed."""

    def __init__(self) -> None:
        self._schemas: dict[TableId, tuple[TableSchema, ...]] = {}

    def of(self, table: TableId) -> tuple[TableSchema, ...]:
        """All versions of the table's schema, oldest first; NotFound if the table is not known."""
        try:
            return self._schemas[table]
        except KeyError:
            raise NotFound(f"nothing is known of a table {table}") from None

    def __contains__(self, table: TableId) -> bool:
        return table in self._schemas

    def add(self, table: Table) -> None:
        known = self._schemas.get(table.id, ())
        if not known or known[-1].version < table.schema.version:
            self._schemas[table.id] = (*known, table.schema)

    def begin(self, catalog: Catalog) -> None:
        """With all tables of the oldest catalog there is."""
        for table in catalog.tables.values():
            self.add(table)
        for dropped in catalog.dropped.values():
            self.add(dropped.table)

    def follow(self, catalog: Catalog, update: Update) -> None:
        """What an update changed, in the catalog it made."""
        for entry in update.entries:
            match entry:
                case TableForgotten(id_):
                    self._schemas.pop(id_, None)
                case TableCreated(table):
                    self.add(catalog.tables.get(table.id, table))
                case _:
                    touched = catalog.tables.get(getattr(entry, "table", _NO_TABLE))
                    if touched is not None:
                        self.add(touched)
