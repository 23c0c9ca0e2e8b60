"""What a schema keeps of the one before: the purge policies that judged something which another group judges now."""

from __future__ import annotations

from msgspec.structs import replace

from stelae.model.ids import Txn
from stelae.model.schema import CellsGroup, Group, TableSchema


def with_past(before: TableSchema, after: TableSchema, until: Txn) -> tuple[Group, ...]:
    """The groups of the schema after, where the one before judged everything up to a txn."""
    return _with_keys_past(before, _with_families_past(before, after, until), until)


def _with_families_past(before: TableSchema, after: TableSchema, until: Txn) -> TableSchema:
    """Families that are declared now have the past that their cells had under the wildcard of the schema before, also
    if that is dropped at the same time."""
    groups = [group for group in before.groups if isinstance(group, CellsGroup)]
    known = {family.id for group in groups for family in group.families}
    wildcard = next((group for group in groups if group.wildcard), None)
    if wildcard is None:
        return after
    options = wildcard.options

    def change(group: Group) -> Group:
        if not isinstance(group, CellsGroup):
            return group
        families = tuple(f if f.id in known else f.after(options, group.options, until) for f in group.families)
        return replace(group, families=families)

    return replace(after, groups=tuple(change(group) for group in after.groups))


def _with_keys_past(before: TableSchema, after: TableSchema, until: Txn) -> tuple[Group, ...]:
    """Where puts of keys alone go to another group now, they have the past that they had in the one before."""
    if not before.groups or not after.groups or before.existence_group.id == after.existence_group.id:
        return after.groups
    kept, keeps = before.existence_group, after.existence_group

    def change(group: Group) -> Group:
        if group.id == keeps.id:
            return replace(group, options=group.options.keeping_keys_after(kept.options, until))
        return replace(group, options=replace(group.options, keys_past=())) if group.options.keys_past else group

    return tuple(change(group) for group in after.groups)
