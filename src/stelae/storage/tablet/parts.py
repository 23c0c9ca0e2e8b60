"""Which part of a source belongs to which group, and how that changes with the schema.

A source (a fragment, or memory) keeps the columns and families it was written with for ever. A group refers to a
*part* of it: column ids, or families under the names they have in the source. Parts are kept in the tablet's config,
so a column that went from group to group is read from exactly the sources that hold what was never moved on, in
whatever order the compactions came.

`ROW_EXISTS`, as a column, stands for the puts of a key alone; among families it is the empty name. Erasures of whole
rows are in every part.

`carry` says what becomes of one schema's members in the next: columns and declared families are followed by id. A
family that only the wildcard group held stays under its name, also when it becomes declared. It is gone if a declared
family takes its name, or if the wildcard group goes and no group declares it, whether or not there is another wildcard
then; a declared one that is dropped is gone, even if the wildcard group would take its name.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.model.ids import ColumnId, GroupId
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, ColumnsGroup, Group, TableSchema

NO_FAMILY = ""
LEFT_OVER = GroupId(0)
"""Where parts go that only say which rows exist, once no group of their kind does."""


class FamilySet(msgspec.Struct, frozen=True):
    """Exactly these names, or (`others`) all but these."""

    names: frozenset[str]
    others: bool = False

    def __contains__(self, name: str) -> bool:
        return (name in self.names) != self.others

    @property
    def is_empty(self) -> bool:
        return not self.names and not self.others

    def complement(self) -> FamilySet:
        return FamilySet(self.names, not self.others)

    def intersect(self, other: FamilySet) -> FamilySet:
        match self.others, other.others:
            case False, False:
                return FamilySet(self.names & other.names)
            case False, True:
                return FamilySet(self.names - other.names)
            case True, False:
                return FamilySet(other.names - self.names)
            case _:
                return FamilySet(self.names | other.names, others=True)

    def union(self, other: FamilySet) -> FamilySet:
        return self.complement().intersect(other.complement()).complement()


NO_FAMILIES = FamilySet(frozenset())

Part: TypeAlias = frozenset[ColumnId] | FamilySet


def is_empty(part: Part) -> bool:
    return part.is_empty if isinstance(part, FamilySet) else not part


def says_existence(part: Part) -> bool:
    return NO_FAMILY in part if isinstance(part, FamilySet) else ROW_EXISTS in part


def whole(schema: TableSchema, group: Group) -> Part:
    """All that a source written for the group under the schema may hold."""
    exists = schema.existence_group.id == group.id
    match group:
        case ColumnsGroup():
            return frozenset([*(column.id for column in group.columns), *([ROW_EXISTS] if exists else [])])
        case CellsGroup():
            own = {family.name for family in group.families} | ({NO_FAMILY} if exists else set())
            if not group.wildcard:
                return FamilySet(frozenset(own))
            return FamilySet(frozenset((declared(schema).keys() | {NO_FAMILY}) - own), others=True)


def declared(schema: TableSchema) -> dict[str, ColumnId]:
    groups = [group for group in schema.groups if isinstance(group, CellsGroup)]
    return {family.name: family.id for group in groups for family in group.families}


class Carry(msgspec.Struct, frozen=True):
    """What the members of one schema are in a later one. `families`: declared names, with their new ones, None for
    what was dropped. `others`: of the names that only the wildcard held, those that stay what they were."""

    columns: frozenset[ColumnId]
    families: tuple[tuple[str, str | None], ...]
    others: FamilySet

    def family(self, name: str) -> str | None:
        return dict(self.families).get(name, name if name in self.others else None)


def carry(old: TableSchema, new: TableSchema) -> Carry:
    columns = frozenset(c.id for group in new.groups if isinstance(group, ColumnsGroup) for c in group.columns)
    names = {id_: name for name, id_ in declared(new).items()}
    families = tuple((name, names.get(id_)) for name, id_ in declared(old).items())
    taken = frozenset(name for _, name in families if name is not None)
    if _wildcard(new) is not None and _wildcard(new) == _wildcard(old):
        others = FamilySet(taken, others=True)
    else:
        others = FamilySet(frozenset(declared(new)) - taken)
    return Carry(columns | {ROW_EXISTS}, families, others)


def _wildcard(schema: TableSchema) -> GroupId | None:
    """One that takes the place of another has nothing of it."""
    return next((group.id for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard), None)


class Naming(msgspec.Struct, frozen=True):
    """The families of a source: what each is called now. Names that are in none of the pairs are still the same."""

    renamed: tuple[tuple[str, str], ...] = ()

    def now(self, name: str) -> str:
        return dict(self.renamed).get(name, name)

    def after(self, change: Carry) -> Naming:
        moved = {then: change.family(now) for then, now in self.renamed}
        moved |= {old: new for old, new in change.families if old not in moved}
        return Naming(tuple(sorted((a, b) for a, b in moved.items() if b is not None and a != b)))


SAME_NAMES = Naming()


def place(part: Part, naming: Naming, old: TableSchema, new: TableSchema) -> dict[GroupId, Part]:
    """Which groups of the new schema get which of a part, in the source's own names."""
    change = carry(old, new)
    parts: dict[GroupId, Part] = {}
    for group in new.groups:
        own = whole(new, group)
        if isinstance(part, FamilySet) and isinstance(own, FamilySet):
            parts[group.id] = _families(part, naming, change, own, old)
        elif not isinstance(part, FamilySet) and not isinstance(own, FamilySet):
            parts[group.id] = part & own
    left: Part = FamilySet(frozenset({NO_FAMILY})) if isinstance(part, FamilySet) else frozenset({ROW_EXISTS})
    if says_existence(part) and not any(says_existence(each) for each in parts.values()):
        parts[LEFT_OVER] = left
    return {group: each for group, each in parts.items() if not is_empty(each)}


def _families(part: FamilySet, naming: Naming, change: Carry, own: FamilySet, old: TableSchema) -> FamilySet:
    """The source's names whose new names are the group's. Only names the old schema declared, or the source's naming
    knows, can change; all others keep theirs, and those are the group's or not as they stand, unless the wildcard that
    held them is gone."""
    special = {*declared(old), *(then for then, _ in naming.renamed), *part.names, NO_FAMILY}
    changed = {now for _, now in change.families if now is not None}
    special |= changed | own.names
    kept: set[str] = set()
    for name in special:
        if name in part:
            now = naming.now(name)
            moved = change.family(now) if now else now
            if moved is not None and moved in own:
                kept.add(name)
    if not (part.others and own.others and change.others.others):
        return FamilySet(frozenset(kept))
    return FamilySet(frozenset(special - kept), others=True)
