"""Rows of one group of columns: see `points`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from stelae.model.ids import TS_MIN, ColumnId, Row, Txn
from stelae.model.predicate.plan import ALL_TIME
from stelae.model.purge import PurgePolicy, Purging, Reigns, purges, purges_newest, purging_at
from stelae.model.ranges import RowRange, single
from stelae.model.record import ROW_EXISTS, Kind
from stelae.model.values import Value
from stelae.storage.files.extents import layered
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.files.warm import FewRows
from stelae.storage.memory.columns import ColumnsVersion, MemoryOfColumns
from stelae.storage.merge.rule import Erased, Written, survivors
from stelae.storage.read.asking import Asking, Version
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref


@dataclass(frozen=True, slots=True)
class _FromMemory:
    memory: MemoryOfColumns
    rows: RowRange
    ids: frozenset[ColumnId]


@dataclass(frozen=True)
class _FromFile:
    fragment: Fragment
    rows: RowRange
    ids: tuple[ColumnId, ...]
    needed: tuple[str, ...]

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """What the file calls the columns that it has of them."""
        return tuple(self.fragment.columns[id_][0] for id_ in self.ids if id_ in self.fragment.columns)


_Named: TypeAlias = tuple[tuple[ColumnId, str], ...]
_KNOWN_MAX = 4_096
_NEVER = Txn(-1)
_known_named: dict[_Named, _Named] = {}


def _known(named: _Named) -> _Named:
    """The same object for the same choice, also in the next state of a tablet: blocks tell by it for whom they are
    warm."""
    if len(_known_named) >= _KNOWN_MAX:
        _known_named.clear()
    return _known_named.setdefault(named, named)


class ColumnsReader:
    def __init__(
        self,
        refs: Sequence[Ref],
        fragments: Fragments,
        wanted: tuple[ColumnId, ...],
        purging: Purging,
        names: Mapping[ColumnId, str],
    ) -> None:
        self._wanted = wanted
        self._values_wanted = sum(id_ != ROW_EXISTS for id_ in wanted)
        self._purging = purging
        self._policy: PurgePolicy | None = purging.now if isinstance(purging, Reigns) else purging
        # Of what was written since, the newest is judged by the policy alone.
        self._altered_at = purging.past[-1].until if isinstance(purging, Reigns) else _NEVER
        self._memories: list[_FromMemory] = []
        self._files: list[_FromFile] = []
        of_refs: dict[int, _FromFile] = {}
        for ref in refs:
            if isinstance(ref.part, FamilySet):
                continue
            ids = frozenset(wanted) & ref.part
            if isinstance(ref.source, MemoryOfColumns):
                self._memories.append(_FromMemory(ref.source, ref.rows, ids))
            elif ref.file is not None:
                fragment = fragments.of(ref.file)
                ordered = tuple(id_ for id_ in wanted if id_ in ids)
                of_refs[id(ref)] = _FromFile(fragment, ref.rows, ordered, fragment.needed(ordered))
                self._files.append(of_refs[id(ref)])
        self._memories.reverse()
        self._ts_in_files = max((file.fragment.file.stats.ts_max for file in self._files), default=TS_MIN)
        if any(file.fragment.file.txn is not None for file in self._files):
            given = [file.fragment.file.ts or TS_MIN for file in self._files]
            self._ts_in_files = max(self._ts_in_files, *given)
        self._named = _known(tuple((id_, names[id_]) for id_ in wanted if id_ != ROW_EXISTS))
        self._starts: list[bytes] = [b""]
        self._alone: list[_FromFile | None] = [None]
        self._first, self._end = b"", b""
        self._find_stretches(refs, of_refs)

    def _find_stretches(self, refs: Sequence[Ref], of_refs: Mapping[int, _FromFile]) -> None:
        """Where stretches of rows begin, and of each the only file that reaches into it, if a record there says all;
        where rows of files begin and end at all."""
        starts, alone = self._starts, self._alone
        simple = {id_: file for id_, file in of_refs.items() if self._is_simple(file)}
        for rows, reaching in layered(refs) if simple else ():
            if starts[-1] == rows.start:
                starts.pop()
                alone.pop()
            starts += [rows.start, rows.stop or b""]
            alone += [simple.get(id(reaching[0])) if len(reaching) == 1 else None, None]
            self._first, self._end = self._first or rows.start, rows.stop or b""

    def _is_simple(self, file: _FromFile) -> bool:
        """Whether a row's only record in the file, if it is seen, says all."""
        there = all(id_ in file.ids and id_ in file.fragment.columns for id_, _ in self._named)
        spec = file.fragment.spec
        return (
            there and self._purging is None and spec.complete and not file.fragment.has_continued and bool(self._named)
        )

    def quick(self, row: Row, asking: Asking, *, bare: bool = False) -> dict[str, Value] | tuple[Value, ...] | None:
        """The row by name, if it lies in one cached block of the only file there and nowhere else: by far the most
        often. `bare`: without names, in the order of the columns, if that is quicker. None says nothing."""
        file = self._alone[bisect_right(self._starts, row) - 1]
        if file is None or asking.time is not ALL_TIME:
            return None
        for source in self._memories:
            if source.memory.may_have(row):
                return None
        fragment = file.fragment
        number = bisect_right(fragment.starts, row) - 1
        block = fragment.cached(number, file.needed) if number >= 0 else None
        if block is None:
            return None
        warm = block.warm
        if warm is not None and warm.named is self._named:
            if bare:
                return warm.values(row, asking.at, asking.floor)
            return warm.newest(row, asking.at, asking.floor)
        at, end = block.find(row)
        if end - at != 1 or not asking.floor <= block.stamp(at)[1] <= asking.at:
            return None
        if warm is None:
            grown = block.note_read(self._named, fragment.room_bytes)
            if grown:
                fragment.grew(number, grown)
        return block.named(self._named, at)

    @property
    def written(self) -> list[MemoryOfColumns]:
        """The memories that have anything at all."""
        return [source.memory for source in self._memories if not source.memory.is_empty]

    def warm_around(self, row: Row, asking: Asking) -> tuple[FewRows, bytes] | None:
        """What files have from this row up to the one that is named, ready for use; None: it has to be looked up row by
        row. Memories are not looked at."""
        place = bisect_right(self._starts, row) - 1
        file = self._alone[place]
        if file is None or asking.time is not ALL_TIME:
            return None
        fragment, end = file.fragment, self._starts[place + 1]
        number = bisect_right(fragment.starts, row) - 1
        block = fragment.cached(number, file.needed) if number >= 0 else None
        warm = None if block is None else block.warm
        if warm is None or warm.named is not self._named:
            return None
        found = warm.all(asking.at, asking.floor)
        if found is None:
            return None
        return found, min(end, fragment.starts[number + 1]) if number + 1 < len(fragment.starts) else end

    def few(self, rows: RowRange, count: int, asking: Asking) -> FewRows | None:
        """The first so many rows of a range, with the values of the columns, if they lie in cached blocks of the only
        file there and nowhere else. None: take the long way."""
        start = max(rows.start, self._first)
        place = bisect_right(self._starts, start) - 1
        file = self._alone[place]
        if file is None or asking.time is not ALL_TIME or file.fragment.file.txn_max > asking.at or asking.floor:
            return None
        if rows.stop is not None and self._is_written(rows):
            return None
        fragment, end = file.fragment, self._starts[place + 1]  # behind each file begins a stretch without it
        goes_on = rows.stop is None or rows.stop > end
        inside = RowRange(start, end if goes_on else rows.stop)
        number = max(0, bisect_right(fragment.starts, start) - 1)
        found: list[bytes] = []
        values: list[tuple[Value, ...]] = []
        while len(found) < count and number < len(fragment.starts) and fragment.starts[number] < (inside.stop or end):
            block = fragment.cached(number, file.stored)
            if block is None:
                return None
            warm = block.warm
            if warm is not None and warm.named is self._named:
                more = warm.between(inside, count - len(found), asking.at, asking.floor)
            else:
                more = block.between(inside, count - len(found), self._named)
            if more is None:
                return None
            found += more[0]
            values += more[1]
            number += 1
        if len(found) < count and goes_on and end != self._end:
            return None  # it goes on in other files
        if rows.stop is None:
            seen = rows if len(found) < count else RowRange(rows.start, found[-1] + b"\0")
            if self._is_written(seen):
                return None
        return found, values

    def _is_written(self, rows: RowRange) -> bool:
        """Whether memory has anything of these rows, or might."""
        for source in self._memories:  # noqa: SIM110 - as a generator it takes more calls
            if source.memory.blocks or source.memory.rows_between(rows):
                return True
        return False

    def newest(self, row: Row, asking: Asking) -> dict[ColumnId, Value] | None:
        holders = [source for source in self._memories if source.memory.may_have(row) and row in source.rows]
        if holders:
            found = self._last_written(row, asking, holders)
            if found is not None:
                return found
        versions = self._versions(row, asking, holders)
        if not versions:
            return None
        if len(versions) == 1 and versions[0].kind is Kind.PUT and asking.time is ALL_TIME:
            only = versions[0]
            if only.txn <= self._altered_at:
                return None if self._was_purged(only, asking) else only.values
            if self._policy is not None and purges(self._policy, 0, asking.read_us - only.ts):
                return None
            return only.values
        return {id_: kept[0].value for id_, kept in self._histories(versions, asking, 1).items()}

    def history(self, row: Row, asking: Asking, limit: int) -> dict[ColumnId, tuple[Version, ...]]:
        return self._histories(self._versions(row, asking, self._memories), asking, limit)

    def _last_written(self, row: Row, asking: Asking, holders: Sequence[_FromMemory]) -> dict[ColumnId, Value] | None:
        """The newest values, if the row's last few records in memory have all of them and nothing anywhere else can be
        newer: then the rest of its history need not be looked at."""
        source = holders[0]
        memory = source.memory
        records, is_plain = memory.newest_of(row)
        if len(holders) > 1 or not is_plain or asking.time is not ALL_TIME:
            return None
        is_in_dict = bool(records)
        if not is_in_dict:
            records = memory.newest_in_blocks(row)
        txn_in_blocks, ts_in_blocks = memory.blocks_txn_max, memory.blocks_ts_max
        found: dict[ColumnId, Value] = {}
        missing = self._values_wanted
        for version in reversed(records):
            if version.txn > asking.at:
                continue
            if version.txn < asking.floor or version.ts <= self._ts_in_files:
                return None
            is_late = version.txn > txn_in_blocks and version.ts > ts_in_blocks
            if is_in_dict and not is_late and memory.is_in_blocks(row):
                return None
            if version.txn <= self._altered_at:
                if self._was_purged(version, asking):
                    return None
            elif self._policy is not None and purges(self._policy, 0, asking.read_us - version.ts):
                return None
            for id_, value in version.values.items():
                if id_ in source.ids and id_ not in found:
                    found[id_] = value
                    missing -= id_ != ROW_EXISTS
            if missing <= 0 and found:
                return found
        return None

    def _was_purged(self, newest: ColumnsVersion, asking: Asking) -> bool:
        """Of a version of the time of a past policy, beside which there never was a newer one."""
        policy = self._policy_at(asking)
        return policy is not None and purges_newest(policy, newest.ts, newest.txn, asking.read_us)

    def _policy_at(self, asking: Asking) -> Purging:
        return purging_at(self._purging, asking.at)

    def _versions(self, row: Row, asking: Asking, holders: Sequence[_FromMemory]) -> list[ColumnsVersion]:
        at, floor = asking.at, asking.floor
        versions: list[ColumnsVersion] = []
        for source in holders:
            if row in source.rows:
                for version in source.memory.versions_of(row):
                    if floor <= version.txn <= at:
                        kept = _chosen(version, source.ids)
                        if kept is not None:
                            versions.append(kept)
        for file in self._files:
            versions += [version for version in _in_file(file, row) if floor <= version.txn <= at]
        return versions

    def _histories(
        self, versions: Sequence[ColumnsVersion], asking: Asking, limit: int
    ) -> dict[ColumnId, tuple[Version, ...]]:
        everywhere = [Erased(v.ts, v.txn, False) for v in versions if v.kind is Kind.ERASE_ROW]
        policy = self._policy_at(asking)
        result: dict[ColumnId, tuple[Version, ...]] = {}
        for id_ in self._wanted:
            about = [version for version in versions if id_ in version.values]
            puts = [Written(v.ts, v.txn, v.values[id_]) for v in about if v.kind is Kind.PUT]
            if puts:
                own = [Erased(v.ts, v.txn, v.kind is Kind.ERASE_VERSION) for v in about if v.kind is not Kind.PUT]
                erased = [*everywhere, *own]
                alive = survivors(puts, erased, policy, asking.read_us)
                kept = [Version(*put) for put in alive if put.ts in asking.time][:limit]
                if kept:
                    result[id_] = tuple(kept)
        return result


def _chosen(version: ColumnsVersion, ids: frozenset[ColumnId]) -> ColumnsVersion | None:
    """A record of memory with only the columns asked for; None if it is about none of them."""
    if version.kind is Kind.ERASE_ROW:
        return version
    if version.values.keys() <= ids:
        return version if version.values else None
    values = {id_: value for id_, value in version.values.items() if id_ in ids}
    return version._replace(values=values) if values else None


def _in_file(file: _FromFile, row: Row) -> Iterable[ColumnsVersion]:
    if row not in file.rows:
        return ()
    fragment = file.fragment
    number = bisect_right(fragment.starts, row) - 1
    if number < 0:
        return ()
    if fragment.is_continued(number):
        numbers: Iterable[int] = fragment.reader.blocks_of(single(row))
    else:
        numbers = (number,)
    found: list[ColumnsVersion] = []
    for each in numbers:
        block = fragment.cached(each, file.needed)
        if block is None:
            if not fragment.reader.may_contain(row, each):
                continue
            block = fragment.block(each, file.needed, keep=True)
        for at in range(*block.find(row)):
            version = block.columns_version(at, file.ids)
            if version is not None:
                found.append(version)
    return found
