"""Table schemas: a key, and groups of columns or of cells, each stored apart.

A schema is an immutable value; `schema_checks` says whether it is valid.
Columns and families are known by id: a renamed one keeps its data, a dropped and re-added name starts empty.
Ids are given once and never again (`last_id`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from stelae.model import types as t
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.printer import literal_text
from stelae.model.public import public
from stelae.model.purge import (
    KEYS_ALONE,
    ByFamily,
    GroupPurging,
    PastPolicy,
    PurgePolicy,
    Purging,
    Reigns,
    group_purging_at,
)
from stelae.model.values import Value, coerce, show

WILDCARD = "*"


@public("KeyColumn", "stelae.schema")
class KeyColumn(msgspec.Struct, frozen=True):
    """A column that rows are found by; its values are never NULL."""

    id: ColumnId
    name: str
    type: t.KeyType


@public("Column", "stelae.schema")
class Column(msgspec.Struct, frozen=True):
    """A record that never wrote the column reads as the default (None: NULL). A NOT NULL column without a default
    must be in every put that touches its group. Its text is how it is declared."""

    id: ColumnId
    name: str
    type: t.ColumnType
    nullable: bool = True
    default: Value = None

    def __str__(self) -> str:
        null = "" if self.nullable else " not null"
        if self.default is None:
            return f"{self.type}{null}"
        kept = coerce(self.type, self.default, "default")
        return f"{self.type}{null} default {literal_text(Literal(kept))}"


@public("Family", "stelae.schema")
class Family(msgspec.Struct, frozen=True):
    """Binary cells that have a name in common: a row has as many as were put, each under a qualifier of its own."""

    id: ColumnId
    name: str
    past: tuple[PastPolicy, ...] = ()
    """Of a family that was declared while a wildcard was there: the policies that its cells were under until then,
    oldest first."""

    def purging(self, options: GroupOptions) -> Purging:
        """In a group with these options: its own past, then what the group's was since, then what that is now."""
        return options.purging_after(self.past)

    def after(self, wildcard: GroupOptions, group: GroupOptions, until: Txn) -> Family:
        """Declared in a group after the wildcard's options judged everything up to a txn. Where both always judged
        alike, there is nothing to remember."""
        if (wildcard.past, wildcard.purge) == (group.past, group.purge):
            return self
        over = tuple(each for each in wildcard.past if each.until < until)
        return replace(self, past=(*over, PastPolicy(wildcard.purge, until)))


@public("GroupOptions", "stelae.schema")
class GroupOptions(msgspec.Struct, frozen=True):
    """How the files of a group are written and kept in memory, and which old versions go (`purge`)."""

    compression: str = "zstd"
    block_bytes: int = 4 * 1024 * 1024
    in_memory: bool = False
    bloom: bool = True
    purge: PurgePolicy | None = None
    past: tuple[PastPolicy, ...] = ()
    """What `purge` was before, oldest first."""
    keys_past: tuple[PastPolicy, ...] = ()
    """Of the group that puts of keys alone go to: the policies that they were under while another group kept them,
    oldest first."""

    @property
    def purging(self) -> Purging:
        return Reigns(self.past, self.purge) if self.past else self.purge

    @property
    def keys_purging(self) -> Purging:
        """How puts of keys alone are judged."""
        return self.purging_after(self.keys_past)

    def purging_after(self, own: tuple[PastPolicy, ...]) -> Purging:
        """Of what was judged by others before: that past, then what these policies were since, then what they are."""
        if not own:
            return self.purging
        since = tuple(each for each in self.past if each.until > own[-1].until)
        return Reigns((*own, *since), self.purge)

    def after(self, before: GroupOptions, until: Txn) -> GroupOptions:
        """These options in the place of others, which judged everything up to a txn. A policy that never judged
        anything, since another came at the same txn, leaves no trace."""
        past = before.past
        if self.purge != before.purge:
            if not past or past[-1].until < until:
                past = (*past, PastPolicy(before.purge, until))
            elif past[-1].policy == self.purge:
                past = past[:-1]
        return replace(self, past=past, keys_past=before.keys_past)

    def keeping_keys_after(self, before: GroupOptions, until: Txn) -> GroupOptions:
        """Of the group that keeps the puts of keys alone from now on. Where both groups always judged alike, there is
        nothing to remember; a policy that followed itself is one."""
        if not before.keys_past and (before.past, before.purge) == (self.past, self.purge):
            return replace(self, keys_past=())
        judged = before.keys_purging
        over = judged.past if isinstance(judged, Reigns) else ()
        past = [each for each in over if each.until < until]
        while past and past[-1].policy == before.purge:
            past.pop()
        return replace(self, keys_past=(*past, PastPolicy(before.purge, until)))


@public("ColumnsGroup", "stelae.schema")
class ColumnsGroup(msgspec.Struct, frozen=True):
    id: GroupId
    name: str
    columns: tuple[Column, ...]
    options: GroupOptions = msgspec.field(default_factory=GroupOptions)

    @property
    def purging(self) -> GroupPurging:
        return _purging(self.options, ())

    def purging_at(self, at: Txn) -> GroupPurging:
        """What a read at a snapshot goes by."""
        options = self.options
        if not (options.past or options.keys_past):
            return options.purge  # most have only ever had one: every scan asks
        return group_purging_at(self.purging, at)


@public("CellsGroup", "stelae.schema")
class CellsGroup(msgspec.Struct, frozen=True):
    """Named families, or as the wildcard every family that no other group names."""

    id: GroupId
    name: str
    families: tuple[Family, ...] = ()
    wildcard: bool = False
    options: GroupOptions = msgspec.field(default_factory=GroupOptions)

    @property
    def purging(self) -> GroupPurging:
        own = tuple((family.name, family.purging(self.options)) for family in self.families if family.past)
        return _purging(self.options, own)

    def purging_at(self, at: Txn) -> GroupPurging:
        """What a read at a snapshot goes by."""
        return group_purging_at(self.purging, at)


def _purging(options: GroupOptions, families: tuple[tuple[str, Purging], ...]) -> GroupPurging:
    keys = ((KEYS_ALONE, options.keys_purging),) if options.keys_past else ()
    return ByFamily((*keys, *families), options.purging) if keys or families else options.purging


Group: TypeAlias = ColumnsGroup | CellsGroup


@public("TableSchema")
class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """The key and the groups of a table; each change makes the next `version`. `hashed` rows start with a token of the
    key, so that monotone keys spread over the tablets."""

    version: SchemaVersion
    key: tuple[KeyColumn, ...]
    groups: tuple[Group, ...]
    hashed: bool = False
    last_id: int = 0

    @cached_property
    def codec(self) -> KeyCodec:
        return KeyCodec({column.name: column.type for column in self.key}, self.hashed)

    @cached_property
    def _columns(self) -> dict[str, tuple[ColumnsGroup, Column]]:
        return {c.name: (g, c) for g in self.groups if isinstance(g, ColumnsGroup) for c in g.columns}

    @cached_property
    def _columns_by_id(self) -> dict[ColumnId, tuple[ColumnsGroup, Column]]:
        return {c.id: (g, c) for g, c in self._columns.values()}

    @cached_property
    def _families(self) -> dict[str, CellsGroup]:
        return {f.name: g for g in self.groups if isinstance(g, CellsGroup) for f in g.families}

    @cached_property
    def _wildcard(self) -> CellsGroup | None:
        return next((g for g in self.groups if isinstance(g, CellsGroup) and g.wildcard), None)

    @cached_property
    def existence_group(self) -> Group:
        """Where puts of a key alone are kept: the first group of columns, or where there is none the first group."""
        return next((g for g in self.groups if isinstance(g, ColumnsGroup)), self.groups[0])

    def column(self, name: str) -> tuple[ColumnsGroup, Column]:
        """The value column of that name and its group; InvalidArgument, with the nearest name, if there is none."""
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a column is text, not {show(name)}")
        try:
            return self._columns[name]
        except KeyError:
            known = [*self._columns, *(c.name for c in self.key)]
            raise InvalidArgument(f"no column {name!r}{nearest(name, known)}") from None

    def column_by_id(self, id_: ColumnId) -> tuple[ColumnsGroup, Column]:
        try:
            return self._columns_by_id[id_]
        except KeyError:
            raise InvalidArgument(f"no column with id {id_} in schema version {self.version}") from None

    def family_group(self, family: str) -> CellsGroup:
        """The group that stores a family; InvalidArgument if no group names it and none is the wildcard."""
        if not isinstance(family, str):
            raise InvalidArgument(f"the name of a family is text, not {show(family)}")
        group = self._families.get(family) or self._wildcard
        if group is None or not family:
            raise InvalidArgument(f"no family {family!r}{nearest(family, self._families)}")
        return group

    def group(self, id_: GroupId) -> Group:
        for group in self.groups:
            if group.id == id_:
                return group
        raise InvalidArgument(f"no group with id {id_} in schema version {self.version}")
