"""What an alteration of a table asks for, and the commands that it is made of."""

from __future__ import annotations

from stelae.catalog.commands_columns import (
    AddColumns,
    AddFamilies,
    DropColumns,
    DropFamilies,
    DropNotNull,
    RenameColumn,
    RenameFamily,
    SetGroupOptions,
    WidenColumn,
)
from stelae.catalog.commands_tables import RenameTable, SetProperty, SetTableZone, TableName
from stelae.catalog.decide import Command
from stelae.model.declare import parse_column
from stelae.model.types import parse_type
from stelae.service.tables import AlterAsk


def commands_of(name: TableName, changes: AlterAsk) -> list[Command]:
    found: list[Command] = []
    if changes.drop:
        found.append(DropColumns(name, tuple(changes.drop)))
    if changes.drop_families:
        found.append(DropFamilies(name, tuple(changes.drop_families)))
    found += [RenameColumn(name, old, new) for old, new in changes.rename_columns.items()]
    found += [RenameFamily(name, old, new) for old, new in changes.rename_families.items()]
    found += [WidenColumn(name, column, parse_type(text)) for column, text in changes.widen.items()]
    found += [DropNotNull(name, column) for column in changes.drop_not_null]
    for group, columns in changes.add.items():
        found.append(AddColumns(name, group, tuple(parse_column(column, text) for column, text in columns.items())))
    found += [AddFamilies(name, group, tuple(families)) for group, families in changes.add_families.items()]
    found += [SetGroupOptions(name, group, purge=text) for group, text in changes.purge.items()]
    found += [SetProperty(name, property_, value) for property_, value in changes.properties.items()]
    if changes.zone is not None:
        found.append(SetTableZone(name, changes.zone))
    if changes.rename is not None:
        found.append(RenameTable(name, _new_name(name, changes.rename)))
    return found


def _new_name(name: TableName, text: str) -> TableName:
    """A name without a namespace stays in the one it is in."""
    return TableName.parse(text) if "." in text else TableName(name.namespace, text)
