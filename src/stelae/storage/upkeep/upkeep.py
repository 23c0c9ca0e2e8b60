"""What keeps a shard small and quick: flushes, compactions, saved configs, and the removal of what nobody needs.

Each is a plain function that a thread runs beside readers and writers: it takes states as they are, does its work
without the lock, and puts the result in place under it, unless what it worked on is gone.

The order that makes a crash harmless:
1. A file is on the store, whole, before any state refers to it.
2. A config is saved before what it makes needless goes: the log of a flushed memory, the files of a compaction.
3. A file that no saved config, no state and no work under way names is garbage, whatever happened (`collecting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument
from stelae.model.events import Listener, TabletsJoined, TabletSplit, tell_nobody
from stelae.model.ids import GroupId, Row, TableId, TabletId, Txn
from stelae.model.schema import Group, TableSchema
from stelae.storage.files.names import file_name
from stelae.storage.files.writing import Shape, everything, fragment_spec, shape_of, write_fragment
from stelae.storage.memory.columns import MemoryOfColumns
from stelae.storage.memory.memory import Memory
from stelae.storage.merge.records import Keeping, merged_records
from stelae.storage.shard import Commit, Shard
from stelae.storage.tablet.changes import TableChange
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.parts import LEFT_OVER, whole
from stelae.storage.tablet.state import Ref, TabletState, flushed_to, joined, purged, replaced, sealed, split
from stelae.storage.upkeep.collecting import Collecting
from stelae.storage.upkeep.estimate import describe
from stelae.storage.upkeep.merges import Flush, Merge, flush_told
from stelae.storage.upkeep.picker import Pick, pick, pick_all
from stelae.storage.upkeep.serializer import MemoryInfo, choose_memory

_COMMITTED_S = 10.0
"""How long a flush waits for the other replicas of a tablet."""


def _no_time() -> float:
    return 0.0


class Upkeep(Collecting):
    """One at a time for each memory and each pick; several threads may work on different ones."""

    def __init__(
        self,
        shard: Shard,
        saved: Iterable[TabletConfig] = (),
        away: Collection[TabletId] = (),
        tell: Listener = tell_nobody,
        monotonic_s: Callable[[], float] = _no_time,
    ) -> None:
        """`tell` hears what was done, and how long it took by `monotonic_s`."""
        super().__init__(shard, saved, away, tell)
        self._monotonic_s = monotonic_s
        self._flushing: set[int] = set()

    # -- flushing

    def seal(self, tablet: TabletId) -> None:
        with self._shard.lock:
            state = self._shard.state(tablet)
            self._shard.install([sealed(state)])

    def pick_flush(self) -> Memory | None:
        """What the serializer says; it is sealed when this returns."""
        shard = self._shard
        with shard.lock:
            states = list(shard.tablets().values())
            active = {id(state.active): state.tablet for state in states}
            waits = {entry.record.tablet for entry in shard.commits.waiting()}
            # What not all replicas have yet is not written to files: it may never count.
            memories = [m for m in shard.memories() if not m.is_empty and m.tablet not in waits]
            of = {id(m): state.table for state in states for m in state.memories}
            infos = [
                MemoryInfo(m.size_bytes, m.txn_min, m.rows, id(m) not in active, of[id(m)], m.log_from)
                for m in memories
            ]
            at = choose_memory(infos, shard.segments(), shard.settings.serializer)
            if at is None:
                return None
            memory = memories[at]
            if id(memory) in self._flushing:
                return None
            if id(memory) in active:
                self.seal(active[id(memory)])
            return memory

    def flush(self, memory: Memory) -> tuple[FragmentFile, ...]:
        """Write a sealed memory to files and put them in its place. Saving the configs is apart."""
        flush = self.reserve_flush(memory)
        if flush is None:
            return ()
        begun_s = self._monotonic_s()
        try:
            self.write_flush(flush)
            users = self.adopt_flush(flush)
        finally:
            self.give_up_flush(flush)
        if users:
            self._shard.forget_memory(memory)
        else:
            self._shard.recount_memory()  # whoever took the tablets away has counted, or will
        written = tuple(flush.files.values())
        self.tell(flush_told(flush.table, users, written, self._monotonic_s() - begun_s))
        return written

    def reserve_flush(self, memory: Memory) -> Flush | None:
        """A sealed memory, for one who writes it to files: nobody else does meanwhile. None if somebody does already,
        or if no tablet has it any more."""
        shard = self._shard
        with shard.lock:
            users = self.users_of(memory)
            if any(state.active is memory for state in users):
                raise InvalidArgument("a memory is sealed before it is flushed")
            for older in (m for state in users for m in state.memories if not m.is_empty and m is not memory):
                if older.txn_min < memory.txn_min and older.rows.overlaps(memory.rows):
                    raise InvalidArgument("of one range of rows the older memory is flushed first")
            if id(memory) in self._flushing or not users:
                return None
            self._flushing.add(id(memory))
            return Flush(users[0].table, memory)

    def write_flush(self, flush: Flush) -> None:
        """Write the memory to files, when all of it is decided. Long, and under no lock."""
        self._shard.wait_committed(flush.memory, _COMMITTED_S)
        for id_ in flush.memory.groups:
            file = self._write_memory(flush.table, flush.memory, id_)
            if file is not None:
                flush.files[id_] = file

    def adopt_flush(self, flush: Flush) -> list[TabletState]:
        """Put the files in the memory's place, in all tablets that have it; what these were before."""
        with self._shard.lock:
            users = self.users_of(flush.memory)
            for state in users:
                self._need_log(state.tablet, flush.memory.log_from)
            self._install([flushed_to(state, flush.memory, flush.files) for state in users])
            return users

    def give_up_flush(self, flush: Flush) -> None:
        """Release the memory and its files; called on success and on failure."""
        with self._shard.lock:
            self._flushing.discard(id(flush.memory))
            self._writing -= {file.name for file in flush.files.values()}

    def users_of(self, memory: Memory) -> list[TabletState]:
        """The tablets that have this memory: after a split both sides do."""
        own = self._shard.map.states.get(memory.tablet)
        if own is not None and own.rows == memory.rows:
            return [own] if memory in own.memories else []  # no other tablet has any of its rows
        return [state for state in self._shard.tablets().values() if memory in state.memories]

    def _write_memory(self, table: TableId, memory: Memory, id_: GroupId) -> FragmentFile | None:
        source, schema = memory.groups[id_], memory.schema
        if source.is_empty:
            return None
        group = schema.group(id_)
        is_complete = isinstance(source, MemoryOfColumns) and source.is_complete
        ref = Ref(source, memory.rows, whole(schema, group))
        return self._write(table, schema, group, [ref], Shape(is_complete, source.erases), Keeping())

    def _write(
        self,
        table: TableId,
        schema: TableSchema,
        group: Group,
        refs: Sequence[Ref],
        shape: Shape,
        keeping: Keeping,
        progress: Callable[[int], None] | None = None,
    ) -> FragmentFile | None:
        shard = self._shard
        name = file_name(table, shard.clock.tick(), shard.rng.token(6).hex())
        with shard.lock:
            self._writing.add(name)
        try:
            rows = refs[0].rows
            for ref in refs[1:]:
                stop = None if rows.stop is None or ref.rows.stop is None else max(rows.stop, ref.rows.stop)
                rows = replace(rows, start=min(rows.start, ref.rows.start), stop=stop)
            slabs = merged_records(refs, shard.fragments, rows, everything(schema, group), keeping)
            spec = fragment_spec(table, schema, group, shape)
            file = write_fragment(shard.blobs, name, spec, group, slabs, shard.fragments.reading, progress)
        except BaseException:
            with shard.lock:
                self._writing.discard(name)
            raise
        if file is None:
            self._writing.discard(name)
        return file

    # -- compaction

    def pick_compaction(
        self,
        tablet: TabletId,
        *,
        whole_group: bool = False,
        must_drop: bool = False,
        without: Collection[GroupId] = (),
    ) -> tuple[GroupId, Pick] | None:
        """The most urgent of the tablet's groups, or if everything is wanted the first that gains by it (see
        `pick_all`)."""
        shard = self._shard
        choose = (
            partial(pick_all, must_drop=must_drop) if whole_group else partial(pick, settings=shard.settings.picker)
        )
        return shard.look(shard.state(tablet), lambda state, _: self._pick_among(state, choose, without))

    def _pick_among(
        self, state: TabletState, choose: Callable[..., Pick | None], without: Collection[GroupId]
    ) -> tuple[GroupId, Pick] | None:
        shard = self._shard
        with shard.lock:
            busy = frozenset(self._busy)
        best: tuple[GroupId, Pick] | None = None
        for group in (group for group in state.schema.groups if group.id not in without):
            files = [ref for ref in state.refs(group.id) if ref.file is not None]
            infos = describe(state, group, self._judged_at(state, files), shard.fragments)
            found = choose(infos, busy=busy, has_prepared=bool(state.prepared))
            if found is not None and (best is None or found.score > best[1].score):
                best = (group.id, found)
        return best

    def compact(
        self, tablet: TabletId, group: GroupId, chosen: Pick, progress: Callable[[int], None] | None = None
    ) -> FragmentFile | None:
        """Merge files into one and put it in their place. None if nothing was left of them, or if the tablet changed
        so much meanwhile that the work is of no use."""
        merge = self.reserve(tablet, group, chosen)
        if merge is None:
            return None
        begun_s = self._monotonic_s()
        file: FragmentFile | None = None
        try:
            schema = merge.state.schema
            of = schema.group(group)
            shape = shape_of(merge.refs, of, self._shard.fragments)
            file = self._write(merge.state.table, schema, of, merge.refs, shape, merge.keeping, progress)
            is_adopted = self.adopt(merge, file)
        finally:
            self.give_up(merge)
            with self._shard.lock:
                if file is not None:
                    self._writing.discard(file.name)
        if not is_adopted:
            return None
        self.tell(merge.told(file, self._monotonic_s() - begun_s))
        return file

    def is_busy(self, tablet: TabletId) -> bool:
        """Whether any of its files is being merged."""
        with self._shard.lock:
            return not self._busy.isdisjoint(self._shard.state(tablet).files())

    def reserve(self, tablet: TabletId, group: GroupId, chosen: Pick) -> Merge | None:
        """What was picked, for one who merges it: nobody else does meanwhile. None if it is not there as it was."""
        shard = self._shard
        with shard.lock:
            state = shard.state(tablet)
            files = frozenset(chosen.files)
            refs = tuple(ref for ref in state.refs(group) if ref.file is not None and ref.file.name in files)
            if {ref.file.name for ref in refs if ref.file} != files or files & self._busy or shard.is_changing:
                return None
            if state.commits.changing:
                return None
            self._busy |= files
            return Merge(state, group, refs, files, self._keeping(state, group, refs, chosen))

    def adopt(self, merge: Merge, file: FragmentFile | None) -> bool:
        """Put a file in the place of what it was merged of (None: nothing is left of that), unless the tablet changed
        so much that it does not fit any more."""
        with self._shard.lock:
            current = self._shard.tablets().get(merge.state.tablet)
            if current is None:
                return False
            try:
                below = merge.keeping.purges_below
                self._install([replaced(current, merge.group, merge.refs, [file] if file else [], below)])
            except InvalidArgument:
                return False
            return True

    def give_up(self, merge: Merge) -> None:
        """Release the files this merge reserved; called on success and on failure."""
        with self._shard.lock:
            self._busy -= merge.files

    def _keeping(self, state: TabletState, group: GroupId, refs: Sequence[Ref], chosen: Pick) -> Keeping:
        """What is dropped is judged at the horizon, or just before the first txn of the group that is not among what
        is merged, if that comes earlier: its erasures might have changed the judgement."""
        outside = [
            ref.file.txn_min
            for ref in state.refs(group)
            if ref.file is not None and not any(ref is each for each in refs)
        ]
        horizon = Txn(min([self._judged_at(state, refs), *(txn - 1 for txn in outside)]))
        floor = state.floor_at(self._shard.horizon(state.table))
        policy = state.schema.group(group).purging_at(horizon)
        # Left-over puts of keys alone need the erasures of whole rows of whichever group keeps such puts, now or later.
        is_rooted = chosen.rooted and not state.prepared and not state.refs(LEFT_OVER)
        return Keeping(horizon, floor, is_rooted, policy)

    def _judged_at(self, state: TabletState, refs: Sequence[Ref]) -> Txn:
        """The horizon, or where what is still in memory of the same rows begins."""
        over = [m for m in state.memories if any(m.rows.overlaps(ref.rows) for ref in refs)]
        return Txn(min([self._shard.horizon(state.table), *(memory.txn_min - 1 for memory in over)]))

    def drop_hidden(self, tablet: TabletId) -> None:
        """Let go of files whose every record is below a floor that no snapshot can be older than."""
        shard = self._shard
        with shard.lock:
            state = shard.state(tablet)
            floor = state.floor_at(shard.horizon(state.table))
            kept = tuple(
                (id_, tuple(ref for ref in refs if ref.file is None or ref.file.txn_max >= floor))
                for id_, refs in state.groups
            )
            if kept != state.groups:
                left = replace(state, groups=tuple((id_, refs) for id_, refs in kept if refs))
                self._install([purged(left, floor)])

    # -- ranges

    def split(self, tablet: TabletId, at: Row, left: TabletId, right: TabletId) -> tuple[TabletState, TabletState]:
        with self._shard.lock:
            state = self._shard.state(tablet)
            both = split(state, at, left, right, state.resize + 1)
            self._hand_over([state], both)
        self.tell(TabletSplit(state.table, tablet, left, right))
        return both

    def join(self, left: TabletId, right: TabletId, tablet: TabletId) -> TabletState:
        with self._shard.lock:
            states = [self._shard.state(left), self._shard.state(right)]
            one = joined(states[0], states[1], tablet, max(state.resize for state in states) + 1)
            self._hand_over(states, [one])
        self.tell(TabletsJoined(one.table, left, right, tablet))
        return one

    def _hand_over(self, old: Sequence[TabletState], new: Sequence[TabletState]) -> None:
        """Put states in the place of others. The log is needed until the configs of all that took over are saved."""
        ids = {state.tablet for state in new}
        firsts = [self._unsaved_from.pop(state.tablet) for state in old if state.tablet in self._unsaved_from]
        for id_ in ids if firsts else ():
            self._unsaved_from[id_] = min(firsts)
        self._install(new, [state.tablet for state in old if state.tablet not in ids])

    def commit(self, table: TableId, change: TableChange, txn: Txn | None = None) -> Commit:
        """As `Shard.commit`; the configs that follow from it are to be saved before the log can go."""
        with self._shard.lock:
            begin = self._shard.wal.end
            commit = self._shard.commit(table, change, txn)
            for state in self._shard.tablets().values():
                if state.table == table:
                    self._dirty.add(state.tablet)
                    self._need_log(state.tablet, begin)
            return commit

    def change(self, tablet: TabletId, next_state: Callable[[TabletState], TabletState]) -> TabletState:
        """Any other change of a state that its config must follow."""
        with self._shard.lock:
            state = next_state(self._shard.state(tablet))
            self._install([state])
            return state
