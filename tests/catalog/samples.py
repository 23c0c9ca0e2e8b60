"""Small catalogs and commands for tests."""

from __future__ import annotations

from msgspec.structs import replace

import stelae
from stelae.catalog.commands.tables import CreateTable, TableName
from stelae.catalog.decide import Command, decide_batch
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model.declare import declare
from stelae.model.ids import Txn
from stelae.model.schema import TableSchema


def users_schema() -> TableSchema:
    return declare(
        {"id": "string"},
        [
            stelae.columns("profile", {"name": "string", "age": "int32 not null default 0"}, purge="max-history=3"),
            stelae.cells("events", ["click", "view"]),
        ],
    )


USERS = TableName.parse("users")


def create(name: str = "users", schema: TableSchema | None = None, zone: str | None = None) -> CreateTable:
    return CreateTable(TableName.parse(name), schema or users_schema(), zone)


def after(catalog: Catalog, *commands: Command) -> Catalog:
    """The version a batch makes, one tick after the one before."""
    entries = decide_batch(catalog, commands)
    if not entries:
        return catalog
    update = Update(CatalogVersion(catalog.version + 1), Txn(catalog.activation + 1), b"t", "test", entries)
    return apply_update(catalog, update)


def with_users() -> Catalog:
    return after(empty_catalog(), create())


def at(catalog: Catalog, version: int, activation: int) -> Catalog:
    return replace(catalog, version=CatalogVersion(version), activation=Txn(activation))
