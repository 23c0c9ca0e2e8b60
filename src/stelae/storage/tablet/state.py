"""A tablet's data at one moment: an immutable value, and the changes that make the next one.

Each group has references to sources (memory or files), each with the rows and the part of its columns that count. What
a reader sees follows from the set of referenced records alone, so every change here keeps that set, as far as any
snapshot that may still be read can tell:

- `sealed`: writing goes on in a new memory.
- `flushed_to`: a memory's records lie in files now; the files take its place in every reference.
- `replaced`: some files of a group have been merged into others.
- `altered`: the schema changed; sources stay, their parts are placed anew.
- `split`, `joined`: the same sources, other row ranges.
- `with_load`, `with_floor`: what a bulk load or a truncation adds or hides, from one txn on.

A *floor* F hides what has a txn below F from reads at F or later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.format.log.records import NO_INDEX
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import TXN_MIN, micros_of
from stelae.model.ids import Epoch, GroupId, Index, Row, TableId, TabletId, Txn
from stelae.model.ranges import RowRange, check_cover
from stelae.model.schema import TableSchema
from stelae.storage.log.commits import TabletCommits
from stelae.storage.memory.memory import Memory, MemoryGroup
from stelae.storage.tablet.flushed import raised, united
from stelae.storage.tablet.parts import LEFT_OVER, NO_FAMILIES, SAME_NAMES, FamilySet, Naming, Part, carry, place, whole

NO_EPOCH = Epoch(0)


class Ref(msgspec.Struct, frozen=True):
    """Of a source, the records of these rows and this part. `naming`: what its families are called now."""

    source: MemoryGroup | FragmentFile
    rows: RowRange
    part: Part
    naming: Naming = SAME_NAMES

    @property
    def file(self) -> FragmentFile | None:
        return self.source if isinstance(self.source, FragmentFile) else None


Groups: TypeAlias = tuple[tuple[GroupId, tuple[Ref, ...]], ...]


class PreparedLoad(msgspec.Struct, frozen=True):
    """A bulk load whose files are finished and not yet visible: they count as older than anything."""

    load: str
    groups: Groups


class TabletState(msgspec.Struct, frozen=True, dict=True):
    """`memories`: oldest first; the last one is written to. `flushed`: per range, up to which txn files hold all.
    `commits`: what of it is decided; the same for all states of a tablet. `stable`: up to which index files hold all of
    the tablet's own records. `is_frozen`: nothing more is written to it, since it is about to leave this server.
    `purged_below`: snapshots before it cannot be read any more, since what they need may be gone from the files."""

    tablet: TabletId
    table: TableId
    rows: RowRange
    schema: TableSchema
    groups: Groups
    memories: tuple[Memory, ...]
    flushed: tuple[tuple[RowRange, Txn], ...]
    commits: TabletCommits
    stable: Index = NO_INDEX
    floors: tuple[Txn, ...] = ()
    prepared: tuple[PreparedLoad, ...] = ()
    epoch: Epoch = NO_EPOCH
    resize: int = 0
    is_frozen: bool = False
    purged_below: Txn = TXN_MIN

    @property
    def active(self) -> Memory:
        return self.memories[-1]

    @cached_property
    def _by_group(self) -> Mapping[GroupId, tuple[Ref, ...]]:
        return dict(self.groups)

    @cached_property
    def is_plain(self) -> bool:
        """Whether all that its sources hold counts as it is, at any snapshot: nothing is hidden, nothing waits."""
        return not self.floors and not self.prepared

    @cached_property
    def keeps_all(self) -> bool:
        """Whether no policy ever purged anything of it: then it does not matter at which time it is read."""
        return all(group.purging is None for group in self.schema.groups)

    @cached_property
    def readers(self) -> dict[object, object]:
        """What readers of this state have prepared for others: see `points`."""
        return {}

    def refs(self, group: GroupId) -> tuple[Ref, ...]:
        return self._by_group.get(group, ())

    def files(self) -> dict[str, FragmentFile]:
        """Every file that the tablet needs, prepared ones too."""
        groups = (*self.groups, *(group for load in self.prepared for group in load.groups))
        return {ref.file.name: ref.file for _, refs in groups for ref in refs if ref.file is not None}

    def floor_at(self, at: Txn) -> Txn:
        return max((floor for floor in self.floors if floor <= at), default=Txn(0))


def check_state(state: TabletState) -> TabletState:
    """What must always hold; InvalidArgument names what does not."""
    known = {group.id for group in state.schema.groups} | {LEFT_OVER}
    for group, refs in state.groups:
        if group not in known:
            raise InvalidArgument(f"tablet {state.tablet}: no group {group} in schema version {state.schema.version}")
        for ref in refs:
            if ref.rows.is_empty or not state.rows.covers(ref.rows):
                raise InvalidArgument(f"tablet {state.tablet}: a reference to {ref.rows} reaches outside {state.rows}")
    if state.active.schema is not state.schema or state.active.rows != state.rows:
        raise InvalidArgument(f"tablet {state.tablet}: the memory written to is not of this tablet and schema")
    check_cover([rows for rows, _ in state.flushed], state.rows)
    return state


def new_tablet(
    tablet: TabletId, table: TableId, rows: RowRange, schema: TableSchema, flushed: Txn = TXN_MIN
) -> TabletState:
    return _with_memory(TabletState(tablet, table, rows, schema, (), (), ((rows, flushed),), TabletCommits()))


def _with_memory(state: TabletState) -> TabletState:
    """A new memory of the state's own schema and rows, in every group."""
    memory = Memory(state.schema, state.rows, state.tablet)
    added = {id_: Ref(source, state.rows, _whole_of(state.schema, id_)) for id_, source in memory.groups.items()}
    groups = {id_: list(refs) for id_, refs in state.groups}
    for id_, ref in added.items():
        groups.setdefault(id_, []).append(ref)
    return check_state(replace(state, groups=_tupled(groups), memories=(*state.memories, memory)))


def _whole_of(schema: TableSchema, id_: GroupId) -> Part:
    return whole(schema, schema.group(id_))


def _tupled(groups: Mapping[GroupId, Sequence[Ref]]) -> Groups:
    return tuple((id_, tuple(refs)) for id_, refs in sorted(groups.items()) if refs)


def _each(groups: Groups, change: Callable[[Ref], Ref | None]) -> Groups:
    """Every reference changed, or left out."""
    return _tupled({id_: [new for ref in refs if (new := change(ref)) is not None] for id_, refs in groups})


def _without(state: TabletState, memory: Memory) -> TabletState:
    own = {id(source) for source in memory.groups.values()}
    memories = tuple(each for each in state.memories if each is not memory)
    groups = _each(state.groups, lambda ref: None if id(ref.source) in own else ref)
    return replace(state, groups=groups, memories=memories)


def restored(empty: TabletState, groups: Groups) -> TabletState:
    """A state that holds nothing but its memory, with these references too."""
    own = {id_: list(refs) for id_, refs in groups}
    for id_, refs in empty.groups:
        own.setdefault(id_, []).extend(refs)
    return check_state(replace(empty, groups=_tupled(own)))


def sealed(state: TabletState) -> TabletState:
    """The same state if nothing was written."""
    return state if state.active.is_empty and state.active.schema is state.schema else _with_memory(state)


def frozen(state: TabletState) -> TabletState:
    return replace(state, is_frozen=True)


def flushed_to(state: TabletState, memory: Memory, files: Mapping[GroupId, FragmentFile]) -> TabletState:
    """`files`: by the groups of the memory's own schema; a group without one had nothing in it."""
    names = {id(source): files.get(id_) for id_, source in memory.groups.items()}

    def moved(ref: Ref) -> Ref | None:
        if id(ref.source) not in names:
            return ref
        file = names[id(ref.source)]
        return None if file is None else replace(ref, source=file)

    memories = tuple(each for each in state.memories if each is not memory)
    flushed = raised(state.flushed, memory.rows, memory.txn_max)
    stable = max(state.stable, memory.last_index) if memory.tablet == state.tablet else state.stable
    groups = _each(state.groups, moved)
    return check_state(replace(state, groups=groups, memories=memories, flushed=flushed, stable=stable))


def replaced(
    state: TabletState,
    group: GroupId,
    old: Collection[Ref],
    new: Iterable[FragmentFile],
    purged_below: Txn = TXN_MIN,
) -> TabletState:
    """The references of one group to some files become references to others, which hold the same under the group's
    whole part, but for what only snapshots before `purged_below` can see. InvalidArgument if one of the old is not
    there any more: the work is then of no use."""
    present = {id(ref) for ref in state.refs(group)}
    if not all(id(ref) in present for ref in old):
        raise InvalidArgument(f"tablet {state.tablet}: what was compacted is not what the tablet has now")
    gone = {id(ref) for ref in old}
    kept = [ref for ref in state.refs(group) if id(ref) not in gone]
    added = [Ref(file, state.rows, _whole_of(state.schema, group)) for file in new]
    groups = dict(state.groups) | {group: (*added, *kept)}
    return check_state(purged(replace(state, groups=_tupled(groups)), purged_below))


def purged(state: TabletState, below: Txn) -> TabletState:
    """What only snapshots before a txn can see may be gone from its files."""
    return state if below <= state.purged_below else replace(state, purged_below=below)


def altered(state: TabletState, schema: TableSchema) -> TabletState:
    """Under a later schema. What was written so far keeps the schema it was written with."""
    loads = tuple(replace(load, groups=_placed(load.groups, state.schema, schema)) for load in state.prepared)
    groups = _placed(state.groups, state.schema, schema)
    changed = replace(state, schema=schema, groups=groups, prepared=loads)
    if state.memories and state.active.is_empty:
        changed = _without(changed, state.active)
    return _with_memory(changed)


def _placed(groups: Groups, old: TableSchema, new: TableSchema) -> Groups:
    """What is left over stays so, and is joined by what no group has any more: erasures of whole rows may be in it."""
    placed: dict[GroupId, list[Ref]] = {}
    homeless: list[Ref] = []
    change = carry(old, new)
    for group, refs in groups:
        for ref in refs:
            if group == LEFT_OVER:
                placed.setdefault(LEFT_OVER, []).append(ref)
                continue
            homes = place(ref.part, ref.naming, old, new)
            for id_, part in homes.items():
                placed.setdefault(id_, []).append(replace(ref, part=part, naming=ref.naming.after(change)))
            if not homes:
                homeless.append(replace(ref, part=NO_FAMILIES if isinstance(ref.part, FamilySet) else frozenset()))
    if LEFT_OVER in placed:
        placed[LEFT_OVER] += homeless
    return _tupled({id_: _combined(refs) for id_, refs in placed.items()})


def _combined(refs: Iterable[Ref]) -> list[Ref]:
    """References to the same rows of the same source, which came from several groups, as one."""
    seen: dict[tuple[int | str, RowRange], Ref] = {}
    for ref in refs:
        source: int | str = ref.source.name if isinstance(ref.source, FragmentFile) else id(ref.source)
        at = (source, ref.rows)
        earlier = seen.get(at)
        seen[at] = ref if earlier is None else replace(earlier, part=_union(earlier.part, ref.part))
    return list(seen.values())


def _union(a: Part, b: Part) -> Part:
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        return a | b
    if not isinstance(a, frozenset) and not isinstance(b, frozenset):
        return a.union(b)
    raise InvalidArgument("a source is of one kind")


def split(state: TabletState, at: Row, left: TabletId, right: TabletId, resize: int) -> tuple[TabletState, TabletState]:
    """Both go on with the same files, and share what is in memory until it is flushed."""
    low, high = state.rows.split(at)
    return _part_of(state, low, left, resize), _part_of(state, high, right, resize)


def _part_of(state: TabletState, rows: RowRange, tablet: TabletId, resize: int) -> TabletState:
    def cut(ref: Ref) -> Ref | None:
        inside = ref.rows.intersect(rows)
        return None if inside.is_empty else replace(ref, rows=inside)

    flushed = [(inside, txn) for each, txn in state.flushed if not (inside := each.intersect(rows)).is_empty]
    part = replace(
        state,
        tablet=tablet,
        rows=rows,
        groups=_each(state.groups, cut),
        memories=tuple(memory for memory in state.memories if memory.rows.overlaps(rows)),
        flushed=tuple(flushed),
        commits=state.commits.parted(),
        stable=NO_INDEX,
        prepared=tuple(replace(load, groups=_each(load.groups, cut)) for load in state.prepared),
        resize=resize,
    )
    if state.active.is_empty:
        part = _without(part, state.active)
    return _with_memory(part)


def joined(left: TabletState, right: TabletState, tablet: TabletId, resize: int) -> TabletState:
    if left.table != right.table or left.schema.version != right.schema.version or left.floors != right.floors:
        raise InvalidArgument(
            f"tablets {left.tablet} and {right.tablet} do not join: table, schema and floor must be the same"
        )
    rows = left.rows.join(right.rows)
    groups: dict[GroupId, list[Ref]] = {}
    for state in (left, right):
        for id_, refs in state.groups:
            groups.setdefault(id_, []).extend(refs)
    whole_state = replace(
        left,
        tablet=tablet,
        rows=rows,
        groups=_tupled({id_: _rejoined(refs) for id_, refs in groups.items()}),
        memories=(*left.memories, *(each for each in right.memories if not any(each is m for m in left.memories))),
        flushed=united((*left.flushed, *right.flushed)),
        commits=left.commits.joined(right.commits),
        stable=NO_INDEX,
        prepared=(*left.prepared, *right.prepared),
        epoch=max(left.epoch, right.epoch),
        resize=resize,
        is_frozen=left.is_frozen or right.is_frozen,
        purged_below=max(left.purged_below, right.purged_below),
    )
    for state in (left, right):
        if state.active.is_empty:
            whole_state = _without(whole_state, state.active)
    return _with_memory(whole_state)


def _rejoined(refs: Iterable[Ref]) -> list[Ref]:
    """What a split took apart, as one again."""
    result: list[Ref] = []
    for ref in refs:
        for at, earlier in enumerate(result):
            same = earlier.source is ref.source or (earlier.file is not None and earlier.file == ref.file)
            alike = (earlier.part, earlier.naming) == (ref.part, ref.naming)
            if same and alike and earlier.rows.stop == ref.rows.start:
                result[at] = replace(earlier, rows=earlier.rows.join(ref.rows))
                break
        else:
            result.append(ref)
    return result


def with_prepared(
    state: TabletState,
    load: str,
    files: Mapping[GroupId, Sequence[FragmentFile]],
    schemas: Sequence[TableSchema] = (),
) -> TabletState:
    """Files written for the groups of the first of the schemas, of which the last is the one of now; without any, for
    those of now. Preparing a load again replaces what it was."""
    written_for = schemas[0] if schemas else state.schema
    refs = {id_: [Ref(file, state.rows, _whole_of(written_for, id_)) for file in some] for id_, some in files.items()}
    groups = _tupled(refs)
    for old, new in pairwise(schemas):
        groups = _placed(groups, old, new)
    rest = without_prepared(state, load).prepared
    return replace(state, prepared=(*rest, PreparedLoad(load, groups)))


def without_prepared(state: TabletState, load: str) -> TabletState:
    return replace(state, prepared=tuple(each for each in state.prepared if each.load != load))


def with_load(state: TabletState, load: str, txn: Txn) -> TabletState:
    """What a load prepared becomes visible at a txn. One that is not there (any more) changes nothing: a load may say
    so twice."""

    def given(ref: Ref) -> Ref:
        file = ref.file
        if file is None or file.txn is not None or file.stats.txn_max:
            return ref
        return replace(ref, source=FragmentFile(file.name, file.seal, file.stats, txn, micros_of(txn)))

    groups = {id_: list(refs) for id_, refs in state.groups}
    for each in state.prepared:
        for id_, refs in each.groups if each.load == load else ():
            groups.setdefault(id_, []).extend(given(ref) for ref in refs)
    return check_state(replace(without_prepared(state, load), groups=_tupled(groups)))


def with_floor(state: TabletState, floor: Txn) -> TabletState:
    return replace(state, floors=tuple(sorted({*state.floors, floor})))
