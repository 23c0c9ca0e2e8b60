"""Commands on what a table is made of: columns, families, groups.

Every change is judged by its result: the schema it would make is checked whole, so no sequence of commands reaches an
invalid one. Changes of groups are judged together with the rest of their batch: a new group may be filled, and one that
was emptied dropped, by another command. Beyond that: types only widen, NOT NULL may be dropped and not added, an added
NOT NULL column needs a default, key columns are fixed, and a column that an index uses stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec
from msgspec.structs import replace

from stelae.catalog.commands.tables import TableName, found
from stelae.catalog.entries import (
    ColumnChanged,
    ColumnsAdded,
    ColumnsDropped,
    Entry,
    FamiliesAdded,
    FamiliesDropped,
    FamilyRenamed,
    GroupAdded,
    GroupDropped,
    GroupOptionsSet,
    MembersMoved,
)
from stelae.catalog.objects import Table
from stelae.catalog.value import Catalog
from stelae.model.declare import ColumnSpec, GroupSpec, group_of
from stelae.model.errors import InvalidSchema, NotFound, nearest
from stelae.model.ids import ColumnId
from stelae.model.purge import parse_purge
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, GroupOptions
from stelae.model.schema_checks import check_schema
from stelae.model.types import ColumnType, widens

PAST_POLICIES_MAX = 32


def _judged(catalog: Catalog, table: Table, entry: Entry) -> tuple[Entry, ...]:
    try:
        check_schema(entry.apply(catalog).tables[table.id].schema)
    except InvalidSchema as error:
        raise InvalidSchema(f"table {catalog.qualified_name(table)!r}: {error}") from None
    return (entry,)


def _group(catalog: Catalog, table: Table, name: str) -> Group:
    for group in table.schema.groups:
        if group.name.casefold() == name.casefold():
            return group
    hint = nearest(name, [group.name for group in table.schema.groups])
    raise NotFound(f"table {catalog.qualified_name(table)!r}: no group {name!r}{hint}")


def _value_column(catalog: Catalog, table: Table, name: str) -> Column:
    what = f"table {catalog.qualified_name(table)!r}"
    if any(column.name.casefold() == name.casefold() for column in table.schema.key):
        raise InvalidSchema(f"{what}: {name!r} is a key column, and the key is fixed")
    columns = [c for group in table.schema.groups if isinstance(group, ColumnsGroup) for c in group.columns]
    for column in columns:
        if column.name.casefold() == name.casefold():
            return column
    raise NotFound(f"{what}: no column {name!r}{nearest(name, [column.name for column in columns])}")


def _family(catalog: Catalog, table: Table, name: str) -> Family:
    families = [f for group in table.schema.groups if isinstance(group, CellsGroup) for f in group.families]
    for family in families:
        if family.name.casefold() == name.casefold():
            return family
    hint = nearest(name, [family.name for family in families])
    raise NotFound(f"table {catalog.qualified_name(table)!r}: no family {name!r}{hint}")


def _check_unused(catalog: Catalog, table: Table, columns: tuple[Column, ...]) -> None:
    for index in catalog.indexes_of(table.id):
        for column in columns:
            if column.id in index.columns:
                raise InvalidSchema(
                    f"table {catalog.qualified_name(table)!r}: column {column.name!r} is used by index {index.name!r}"
                )


def _home(table: Table, member: ColumnId) -> Group:
    for group in table.schema.groups:
        if any(each.id == member for each in (group.columns if isinstance(group, ColumnsGroup) else group.families)):
            return group
    raise NotFound(f"no column or family with id {member} in table {table.name!r}")


def _check_same_purge(table: TableName, what: str, source: Group, target: Group) -> None:
    one, other = source.options, target.options
    if (one.purge, one.past) == (other.purge, other.past):
        return
    if one.purge == other.purge:
        why = "their purge policies are the same now, and were not before"
    else:
        why = f"one is purged by {one.purge or 'nothing'}, the other by {other.purge or 'nothing'}"
    raise InvalidSchema(
        f"table {str(table)!r}: {what} from group {source.name!r} to {target.name!r}: {why}, and what was purged must "
        "not come back"
    )


def _check_defaults(table: TableName, columns: Iterable[Column | ColumnSpec]) -> None:
    for column in columns:
        if not column.nullable and column.default is None:
            raise InvalidSchema(
                f"table {str(table)!r}: column {column.name!r} is NOT NULL and needs a default, "
                "since rows exist without it"
            )


class AddColumns(msgspec.Struct, frozen=True):
    table: TableName
    group: str
    columns: tuple[ColumnSpec, ...]

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        group = _group(catalog, table, self.group)
        if not isinstance(group, ColumnsGroup):
            raise InvalidSchema(f"table {str(self.table)!r}: group {group.name!r} holds cells, not columns")
        _check_defaults(self.table, self.columns)
        ids = count(table.schema.last_id + 1)
        columns = tuple(Column(ColumnId(next(ids)), c.name, c.type, c.nullable, c.default) for c in self.columns)
        return _judged(catalog, table, ColumnsAdded(table.id, group.id, columns)) if columns else ()


class DropColumns(msgspec.Struct, frozen=True):
    table: TableName
    columns: tuple[str, ...]

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        columns = tuple(_value_column(catalog, table, name) for name in self.columns)
        _check_unused(catalog, table, columns)
        ids = tuple(column.id for column in columns)
        return _judged(catalog, table, ColumnsDropped(table.id, ids)) if ids else ()


class WidenColumn(msgspec.Struct, frozen=True):
    table: TableName
    column: str
    type: ColumnType

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        column = _value_column(catalog, table, self.column)
        if not widens(column.type, self.type):
            raise InvalidSchema(
                f"table {str(self.table)!r}: column {column.name!r} cannot go from {column.type} to {self.type}: "
                "types only widen"
            )
        _check_unused(catalog, table, (column,))
        if column.type == self.type:
            return ()
        return _judged(catalog, table, ColumnChanged(table.id, replace(column, type=self.type)))


class DropNotNull(msgspec.Struct, frozen=True):
    table: TableName
    column: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        column = _value_column(catalog, table, self.column)
        return () if column.nullable else (ColumnChanged(table.id, replace(column, nullable=True)),)


class RenameColumn(msgspec.Struct, frozen=True):
    table: TableName
    column: str
    new_name: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        column = _value_column(catalog, table, self.column)
        if column.name == self.new_name:
            return ()
        return _judged(catalog, table, ColumnChanged(table.id, replace(column, name=self.new_name)))


class AddFamilies(msgspec.Struct, frozen=True):
    table: TableName
    group: str
    families: tuple[str, ...]

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        group = _group(catalog, table, self.group)
        if not isinstance(group, CellsGroup):
            raise InvalidSchema(f"table {str(self.table)!r}: group {group.name!r} holds columns, not cells")
        ids = count(table.schema.last_id + 1)
        families = tuple(Family(ColumnId(next(ids)), name) for name in self.families)
        return _judged(catalog, table, FamiliesAdded(table.id, group.id, families)) if families else ()


class DropFamilies(msgspec.Struct, frozen=True):
    table: TableName
    families: tuple[str, ...]

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        ids = tuple(_family(catalog, table, name).id for name in self.families)
        return _judged(catalog, table, FamiliesDropped(table.id, ids)) if ids else ()


class RenameFamily(msgspec.Struct, frozen=True):
    table: TableName
    family: str
    new_name: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        family = _family(catalog, table, self.family)
        if family.name == self.new_name:
            return ()
        return _judged(catalog, table, FamilyRenamed(table.id, replace(family, name=self.new_name)))


class MoveMembers(msgspec.Struct, frozen=True):
    """Columns, or families, into another group of the same kind. Data follows when it is compacted.

    Both groups must purge alike, and must always have: versions are judged by the group they are in, so a move between
    different policies would bring back what one of them has purged, and change what older snapshots read.
    """

    table: TableName
    members: tuple[str, ...]
    group: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        group = _group(catalog, table, self.group)
        look = _value_column if isinstance(group, ColumnsGroup) else _family
        moved: list[ColumnId] = []
        for name in self.members:
            member = look(catalog, table, name)
            home = _home(table, member.id)
            if home.id == group.id or member.id in moved:
                continue
            _check_same_purge(self.table, f"{name!r} cannot move", home, group)
            if isinstance(member, Column):
                _check_defaults(self.table, [member])
            moved.append(member.id)
        return (MembersMoved(table.id, tuple(moved), group.id),) if moved else ()


class AddGroup(msgspec.Struct, frozen=True):
    """It may be empty, if others of the same batch fill it."""

    table: TableName
    group: GroupSpec

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        added = group_of(self.group, count(table.schema.last_id + 1))
        if isinstance(added, ColumnsGroup):
            _check_defaults(self.table, added.columns)
        return (GroupAdded(table.id, added),)


class DropGroup(msgspec.Struct, frozen=True):
    """With all of its columns or families."""

    table: TableName
    group: str

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        group = _group(catalog, table, self.group)
        if isinstance(group, ColumnsGroup):
            _check_unused(catalog, table, group.columns)
        return (GroupDropped(table.id, group.id),)


class SetGroupOptions(msgspec.Struct, frozen=True):
    """What is None stays as it is; a purge text of "none" takes the policy away. Nobody here knows whether files still
    hold what a past policy purged, so none of them is ever forgotten, and their number has an end."""

    table: TableName
    group: str
    purge: str | None = None
    compression: str | None = None
    block_bytes: int | None = None
    in_memory: bool | None = None
    bloom: bool | None = None

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        table = found(catalog, self.table)
        group = _group(catalog, table, self.group)
        changed = self._changed(group.options)
        if changed == group.options:
            return ()
        if changed.purge != group.options.purge and len(group.options.past) >= PAST_POLICIES_MAX:
            raise InvalidSchema(
                f"table {catalog.qualified_name(table)!r}: group {group.name!r}: its purge policy was changed "
                f"{PAST_POLICIES_MAX} times, and no more is possible: each past policy is kept, since what it purged "
                "is gone for good; copy the table to begin anew"
            )
        # What was before is known to whoever applies the entry, together with when it ended.
        return _judged(catalog, table, GroupOptionsSet(table.id, group.id, replace(changed, past=())))

    def _changed(self, options: GroupOptions) -> GroupOptions:
        policy = options.purge
        if self.purge is not None:
            policy = None if str(self.purge).strip().lower() == "none" else parse_purge(self.purge)
        return replace(
            options,
            compression=options.compression if self.compression is None else self.compression,
            block_bytes=options.block_bytes if self.block_bytes is None else self.block_bytes,
            in_memory=options.in_memory if self.in_memory is None else self.in_memory,
            bloom=options.bloom if self.bloom is None else self.bloom,
            purge=policy,
        )
