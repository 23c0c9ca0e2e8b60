"""Groups that are to be in memory: their blocks are read into the cache before anyone asks, and stay there longest.

A file ranks by where its columns are: all in one in-memory group, in several, some of them, none (`CachePriority`).
Files of the first three ranks are read ahead, best ranks first, as far as there is room; nothing of the same rank or a
better one goes for them. What does not fit comes when it is asked for.

Each file is read ahead once. What goes out of the cache afterwards is not fetched again, so there is an end to it, also
where a group is larger than the cache.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import StelaeError
from stelae.model.ids import ColumnId
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup, Group, TableSchema
from stelae.storage.files.cache import CachePriority, priority_of
from stelae.storage.files.fragments import Fragment
from stelae.storage.shard import Shard
from stelae.storage.tablet.parts import FamilySet


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What in-memory groups have of a file: these rows of these columns. Of cells every column is read."""

    file: FragmentFile
    schema: TableSchema
    rows: RangeSet
    columns: frozenset[ColumnId]

    def is_in(self, other: _Wanted) -> bool:
        """Whether the other asked for the same, of as many rows or more."""
        same = self.file.txn == other.file.txn and self.columns == other.columns
        return same and self.rows.intersect(other.rows) == self.rows


class Preloading:
    """Knows which files were read ahead. For one thread; readers and writers go on beside it."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._seen: dict[str, _Wanted] = {}
        self._looked_at = -1
        self._pieces: Iterator[bool] = iter(())

    def step(self) -> bool:
        """Do one piece: open a file, or read a block. False if there is nothing to do."""
        if next(self._pieces, False):
            return True
        fresh = self._look()
        self._pieces = self._read(fresh)
        return bool(fresh)

    def _look(self) -> list[_Wanted]:
        """What in-memory groups have by now that was not read ahead yet. Files that none of them has any more rank as
        all others do: their blocks make room for those that took their place."""
        changes = self._shard.changes
        if changes == self._looked_at:
            return []
        self._looked_at = changes
        wanted = self._wanted()
        for name in [name for name in self._seen if name not in wanted]:
            del self._seen[name]
            self._rank(name, CachePriority.ON_DEMAND)
        fresh = [each for name, each in wanted.items() if name not in self._seen or not each.is_in(self._seen[name])]
        self._seen |= {each.file.name: each for each in fresh}
        return fresh

    def _wanted(self) -> dict[str, _Wanted]:
        """By the names of the files, without what loads have only prepared."""
        found: dict[str, _Wanted] = {}
        for state in self._shard.tablets().values():
            for group in state.schema.groups:
                for ref in state.refs(group.id) if group.options.in_memory else ():
                    if ref.file is None:
                        continue
                    columns = frozenset() if isinstance(ref.part, FamilySet) else ref.part
                    ranges: list[RowRange] = [ref.rows]
                    known = found.get(ref.file.name)
                    if known is not None:
                        columns |= known.columns
                        ranges += known.rows
                    found[ref.file.name] = _Wanted(ref.file, state.schema, RangeSet.of(ranges), columns)
        return found

    def _rank(self, name: str, rank: CachePriority) -> None:
        """What is read of the file from now on takes the rank, and what is in the cache at once."""
        self._shard.fragments.rank(name, rank)
        self._shard.cache.rerank_file(name, rank)

    def _read(self, fresh: list[_Wanted]) -> Iterator[bool]:
        """True after each piece. A file that cannot be read is passed over: who asks for it is told why."""
        found: list[tuple[CachePriority, _Wanted, Fragment]] = []
        for wanted in fresh:
            try:
                fragment = self._shard.fragments.of(wanted.file)
            except StelaeError:
                self._seen.pop(wanted.file.name, None)  # looked for again when tablets change
                continue
            rank = _rank_of(fragment, wanted.schema)
            self._rank(wanted.file.name, rank)
            found.append((rank, wanted, fragment))
            yield True
        too_large: int | None = None
        for _, wanted, fragment in sorted(found, key=lambda each: (each[0], each[1].file.name)):
            # How large a block is in memory is known when it was read. It is not worth a read to find that one as large
            # as the last that did not fit does not fit either.
            block_bytes = wanted.file.seal.size_bytes // max(1, len(fragment.starts))
            if (too_large is None or block_bytes < too_large) and not (yield from _read_file(fragment, wanted)):
                too_large = block_bytes


def _read_file(fragment: Fragment, wanted: _Wanted) -> Generator[bool, None, bool]:
    """True after each block. Returns whether all have room."""
    needed = fragment.needed(sorted(wanted.columns))
    for block in range(len(fragment.starts)):
        if any(fragment.range_of(block).overlaps(rows) for rows in wanted.rows):
            try:
                if not fragment.preload(block, needed):
                    return False
            except StelaeError:
                break
            yield True
    return True


def _rank_of(fragment: Fragment, schema: TableSchema) -> CachePriority:
    return priority_of(_held(fragment), [(_members(group), group.options.in_memory) for group in schema.groups])


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
