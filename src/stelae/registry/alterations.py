"""What an alteration of a table asks for, and the commands that it is made of."""

from __future__ import annotations

from typing import Any

from stelae.catalog.commands.columns import (
    AddColumns,
    AddFamilies,
    AddGroup,
    DropColumns,
    DropFamilies,
    DropGroup,
    DropNotNull,
    MoveMembers,
    RenameColumn,
    RenameFamily,
    SetGroupOptions,
    WidenColumn,
)
from stelae.catalog.commands.tables import RenameTable, SetProperty, SetTableZone, TableName
from stelae.catalog.decide import Command
from stelae.model.declare import GroupSpec, cells, columns, parse_column
from stelae.model.errors import InvalidSchema
from stelae.model.types import parse_type
from stelae.service.tables import AlterAsk, GroupAsk


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
    found += [AddGroup(name, _group_spec(group)) for group in changes.add_groups]
    found += [MoveMembers(name, tuple(members), group) for group, members in changes.move.items()]
    found += [DropGroup(name, group) for group in changes.drop_groups]
    for group, added in changes.add.items():
        found.append(AddColumns(name, group, tuple(parse_column(column, text) for column, text in added.items())))
    found += [AddFamilies(name, group, tuple(families)) for group, families in changes.add_families.items()]
    found += [SetGroupOptions(name, group, purge=text) for group, text in changes.purge.items()]
    for group, options in changes.options.items():
        found.append(
            SetGroupOptions(
                name,
                group,
                compression=options.compression,
                block_bytes=options.block_bytes,
                in_memory=options.in_memory,
                bloom=options.bloom,
            )
        )
    found += [SetProperty(name, property_, value) for property_, value in changes.properties.items()]
    if changes.zone is not None:
        found.append(SetTableZone(name, changes.zone))
    if changes.rename is not None:
        found.append(RenameTable(name, _new_name(name, changes.rename)))
    return found


def _group_spec(group: GroupAsk) -> GroupSpec:
    if (group.columns is None) == (group.families is None):
        raise InvalidSchema(f"group {group.name!r}: it has columns or families, one of the two")
    options: dict[str, Any] = {
        "purge": group.purge,
        "compression": group.compression,
        "block_bytes": group.block_bytes,
        "in_memory": group.in_memory,
        "bloom": group.bloom,
    }
    if group.families is not None:
        return cells(group.name, group.families, **options)
    return columns(group.name, group.columns or {}, **options)


def _new_name(name: TableName, text: str) -> TableName:
    """A name without a namespace stays in the one it is in."""
    return TableName.parse(text) if "." in text else TableName(name.namespace, text)
