"""Fragments as the picker sees them: what they weigh inside one tablet and group, and what a rewrite would drop."""

from __future__ import annotations

from stelae.model.ids import Txn
from stelae.model.purge import MaxHistory
from stelae.model.ranges import RowRange
from stelae.model.schema import ColumnsGroup, Group
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref, TabletState
from stelae.storage.upkeep.picker import FragmentInfo


def describe(state: TabletState, group: Group, horizon: Txn, fragments: Fragments) -> list[FragmentInfo]:
    """One for each file; a file that several references lead to counts once."""
    found: dict[str, FragmentInfo] = {}
    for ref in state.refs(group.id):
        if ref.file is not None:
            info = _describe(ref, state, group, horizon, fragments.of(ref.file))
            known = found.get(info.file)
            found[info.file] = info if known is None else _together(known, info)
    return list(found.values())


def _together(a: FragmentInfo, b: FragmentInfo) -> FragmentInfo:
    return FragmentInfo(
        a.file,
        a.size_bytes + b.size_bytes,
        a.records + b.records,
        a.erasures + b.erasures,
        a.txn_min,
        a.txn_max,
        a.is_shared or b.is_shared,
        a.droppable_bytes + b.droppable_bytes,
        is_clean=False,
    )


def share_of(fragment: Fragment, rows: RowRange) -> float:
    """How much of a file lies in a range, by its blocks."""
    stats = fragment.file.stats
    if not fragment.starts or rows.covers(RowRange(stats.first_row, stats.last_row + b"\0")):
        return 1.0
    return len(fragment.reader.blocks_of(rows)) / len(fragment.starts)


def _describe(ref: Ref, state: TabletState, group: Group, horizon: Txn, fragment: Fragment) -> FragmentInfo:
    file, stats = fragment.file, fragment.file.stats
    share = share_of(fragment, ref.rows)
    size = int(file.seal.size_bytes * share)
    return FragmentInfo(
        file.name,
        size,
        int(stats.records * share),
        int(stats.erasures * share),
        file.txn_min,
        file.txn_max,
        share < 1.0 or not _is_own(ref, state, group, fragment),
        int(size * _droppable(ref, state, group, horizon, fragment)),
        _is_clean(ref, state, group, horizon, fragment),
    )


def _is_own(ref: Ref, state: TabletState, group: Group, fragment: Fragment) -> bool:
    """Nothing else in the tablet needs the file, as far as the group itself can say."""
    others = [
        each
        for id_, refs in state.groups
        for each in refs
        if id_ != group.id and each.file is not None and each.file.name == fragment.file.name
    ]
    return not others and (isinstance(ref.part, FamilySet) or not ref.naming.renamed)


def _is_clean(ref: Ref, state: TabletState, group: Group, horizon: Txn, fragment: Fragment) -> bool:
    """Whether every byte of the file belongs to this tablet and group, and to a version that is seen."""
    file, stats = fragment.file, fragment.file.stats
    if not isinstance(group, ColumnsGroup) or isinstance(ref.part, FamilySet) or stats.erasures:
        return False  # which cells there are is known only to who reads them
    is_whole = ref.rows.covers(RowRange(stats.first_row, stats.last_row + b"\0"))
    if not is_whole or not _is_own(ref, state, group, fragment) or not ref.part >= frozenset(fragment.columns):
        return False
    if file.txn_min < state.floor_at(horizon):
        return False
    purging = group.purging
    return purging is None or (isinstance(purging, MaxHistory) and stats.records == stats.rows)


def _droppable(ref: Ref, state: TabletState, group: Group, horizon: Txn, fragment: Fragment) -> float:
    """The part of its bytes that a rooted rewrite is expected to drop now."""
    file, stats = fragment.file, fragment.file.stats
    if not stats.records:
        return 0.0
    gone = 0.0
    if not isinstance(ref.part, FamilySet) and isinstance(group, ColumnsGroup) and fragment.columns:
        there = len(ref.part & frozenset(fragment.columns))
        gone += 1 - there / len(fragment.columns)
    if file.txn_max > horizon:
        return gone
    if file.txn_max < state.floor_at(horizon):
        return 1.0
    if stats.erasures:
        gone += 2 * stats.erasures / stats.records
    if isinstance(group.options.purge, MaxHistory) and stats.rows:
        columns = len(group.columns) if isinstance(group, ColumnsGroup) else stats.records
        gone += max(0.0, 1 - group.options.purge.versions * columns * stats.rows / stats.records)
    return min(1.0, gone)
