"""Groups that are to be kept in memory: which files rank how in the cache, and their blocks read ahead of anyone.

The seed's four ranks: a file all of whose columns are in one in-memory group, in several, some of them, none. Files of
the first three are read into the cache as far as it goes; the rest come on demand.
"""

from __future__ import annotations

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ids import ColumnId, TabletId
from stelae.model.schema import ColumnsGroup, Group
from stelae.storage.files.cache import CachePriority, preloads, priority_of
from stelae.storage.files.fragments import Fragment
from stelae.storage.shard import Shard
from stelae.storage.tablet.state import TabletState


def rank_files(shard: Shard, tablet: TabletId) -> dict[str, CachePriority]:
    """Give every file of a tablet its rank, which blocks of it take from now on, and those in the cache at once."""
    state = shard.state(tablet)
    groups = [(_members(group), group.options.in_memory) for group in state.schema.groups]
    ranks = {}
    for file in _visible_files(state).values():
        fragment = shard.fragments.of(file)
        rank = priority_of(_held(fragment), groups)
        if fragment.priority != rank:
            fragment.priority = rank
            shard.cache.rerank_file(file.name, rank)
        ranks[file.name] = rank
    return ranks


def preload(shard: Shard, tablet: TabletId) -> int:
    """Read the blocks of in-memory groups that are not in the cache yet, best ranks first, while there is room for
    them. How many were read."""
    state = shard.state(tablet)
    if not any(group.options.in_memory for group in state.schema.groups):
        return 0
    ranks = rank_files(shard, tablet)
    count = 0
    for name in sorted(ranks, key=lambda name: (ranks[name], name)):
        if preloads(ranks[name]):
            count += _preload_file(shard, shard.fragments.of(_visible_files(state)[name]), state)
    return count


def _preload_file(shard: Shard, fragment: Fragment, state: TabletState) -> int:
    needed = fragment.needed(tuple(fragment.columns))
    count = 0
    for block in range(len(fragment.starts)):
        held = shard.cache.stats()
        ranked = sum(held.bytes_by_priority[: fragment.priority])
        if ranked + fragment.file.seal.size_bytes // max(1, len(fragment.starts)) > held.capacity_bytes:
            return count
        if fragment.range_of(block).overlaps(state.rows) and fragment.cached(block, needed) is None:
            fragment.block(block, needed, keep=True)
            count += 1
    return count


def _visible_files(state: TabletState) -> dict[str, FragmentFile]:
    """Without what loads have only prepared."""
    return {ref.file.name: ref.file for _, refs in state.groups for ref in refs if ref.file is not None}


def _members(group: Group) -> frozenset[int]:
    if isinstance(group, ColumnsGroup):
        return frozenset(int(column.id) for column in group.columns)
    return frozenset({int(group.id), *(int(family.id) for family in group.families)})


def _held(fragment: Fragment) -> frozenset[int]:
    """What a file holds, as groups name it: columns, or families and the group it was written for."""
    spec = fragment.spec
    if spec.kind == "columns":
        return frozenset(int(id_) for id_ in fragment.columns)
    families = frozenset(int(ColumnId(id_)) for _, id_ in spec.families)
    return families or frozenset({int(spec.group)})
