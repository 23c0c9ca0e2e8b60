"""What users may ask to be done to a table's files by hand, and what there is to know about its tablets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import Any

from stelae.model.errors import InvalidArgument, NotFound, TabletAway
from stelae.model.ids import GroupId, Row, TableId, TabletId, Txn
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo, TableStats, TabletInfo
from stelae.storage.files.fragments import Fragments
from stelae.storage.shard import Shard
from stelae.storage.tablet.changes import Emptied
from stelae.storage.tablet.splitting import choose_split_row, size_of
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.control import TabletControl
from stelae.tserver.flushing import Flushing
from stelae.tserver.keeper import Keeper
from stelae.tserver.short_log import collect_all_log
from stelae.tserver.surroundings import MasterLink
from stelae.tserver.writing import wait_durable

_NAP_S = 0.1


class TableUpkeep:
    """Safe for threads. `check_open` raises when the store is closed: long work asks it now and then."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        flushing: Flushing,
        keeper: Keeper,
        control: TabletControl,
        master: MasterLink,
        check_open: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self.flushing = flushing
        self._keeper = keeper
        self.control = control
        self._master = master
        self._check_open = check_open
        self._waiting = Event()

    def flush(self, table: TableId) -> None:
        self.flushing.flush(table)
        self._upkeep.collect_log()
        self._keeper.note_growth(state.tablet for state in self._shard.of_table(table))

    def truncate(self, table: TableId, deadline: Deadline | None) -> Txn:
        """Empty a table of which this server has all tablets."""
        commit = self._upkeep.commit(table, Emptied())
        self._shard.drain(deadline)
        txn = wait_durable(commit.durable, deadline)
        self._upkeep.save()
        self._keeper.note_growth(state.tablet for state in self._shard.of_table(table))
        return txn

    def move_horizon(self, info: TableInfo, to_now: bool, deadline: Deadline | None) -> None:
        """As far as the table's retention allows, or to now, and never past a snapshot that somebody holds. After a
        crash others have a while to say which snapshots those are: `to_now` waits for them."""
        keeper = self._keeper
        rules = keeper.rules(info.id)
        if rules is None:
            raise NotFound(f"table {info.name!r} was dropped")
        while to_now and not keeper.forgets(info.id):
            self._check_open()
            nap_s = _NAP_S
            if deadline is not None:
                nap_s = min(nap_s, deadline.check(f"table {info.name!r}: others may hold snapshots of its history"))
            self._waiting.wait(nap_s)
        keeper.advance_horizon(info.id, rules, to_now=to_now)

    def compact(self, info: TableInfo, erase_now: bool, progress: Progress | None, deadline: Deadline | None) -> None:
        table, upkeep = info.id, self._upkeep
        self.flushing.flush(table)
        self.move_horizon(info, erase_now, deadline)
        states = self._shard.of_table(table)
        total = sum(ref.file.stats.records for s in states for _, refs in s.groups for ref in refs if ref.file)
        done = 0

        def count(records: int) -> None:
            nonlocal done
            done += records
            if progress is not None:
                progress(min(done, total), total)

        if erase_now:
            self._rewrite_all(table, count, deadline)
        else:
            for state in states:
                self._compact_tablet(state.tablet, count)
        # What is to be gone is gone when the configs that other replicas have name it no more.
        copied = [state.tablet for state in self._shard.of_table(table) if state.tablet in self._shard.replicas]
        upkeep.save(copied if erase_now else ())
        upkeep.collect_files(for_good=erase_now)
        if erase_now:
            self.empty_log()
        upkeep.collect_log()
        if progress is not None:
            progress(total, total)

    def empty_log(self) -> None:
        """What was erased is in the log, too, as long as anything in it is needed."""
        self.flushing.flush_down_to(0)
        collect_all_log(self._shard, self._upkeep)

    def _rewrite_all(self, table: TableId, count: Callable[[int], None], deadline: Deadline | None) -> None:
        """Every group of every tablet that may hold what is to go. What others are merging is waited for, and what is
        split or joined meanwhile is looked at again."""
        done: set[tuple[TabletId, GroupId]] = set()
        while True:
            left = [state.tablet for state in self._shard.of_table(table)]
            is_over = True
            for tablet in left:
                try:
                    is_over &= self._rewrite_tablet(tablet, done, count)
                except TabletAway:
                    is_over = False
            if is_over:
                return
            self._check_open()
            nap_s = _NAP_S
            if deadline is not None:
                nap_s = min(nap_s, deadline.check("files of the table are being merged, or its tablets move"))
            self._waiting.wait(nap_s)

    def _rewrite_tablet(
        self, tablet: TabletId, done: set[tuple[TabletId, GroupId]], count: Callable[[int], None]
    ) -> bool:
        """Rewrite each group of the tablet once. False if some of it could not be done yet."""
        upkeep = self._upkeep
        upkeep.drop_hidden(tablet)
        while True:
            self._check_open()
            groups = {group for each, group in done if each == tablet}
            found = upkeep.pick_compaction(tablet, whole_group=True, must_drop=True, without=groups)
            if found is None:
                return not upkeep.is_busy(tablet)
            upkeep.compact(tablet, *found, progress=count)
            if any(ref.file.name in found[1].files for ref in self._shard.state(tablet).refs(found[0]) if ref.file):
                return False
            done.add((tablet, found[0]))
            upkeep.save()

    def _compact_tablet(self, tablet: TabletId, count: Callable[[int], None]) -> None:
        upkeep = self._upkeep
        try:
            upkeep.drop_hidden(tablet)
            done: set[GroupId] = set()
            # Once for each group: what is kept for the history's sake would be worth it again and again.
            while (found := upkeep.pick_compaction(tablet, whole_group=True, without=done)) is not None:
                self._check_open()
                done.add(found[0])
                upkeep.compact(tablet, *found, progress=count)
                upkeep.save()
        except TabletAway:
            return  # it was split, joined or dropped meanwhile: its followers are looked at by the keeper

    def choose_split(self, info: TableInfo, at: Row | None, tablet: int | None) -> tuple[TabletId, Row]:
        """Which tablet to split and where: the one that holds the row; or this one, or the largest, at the row that
        halves it."""
        state = self._find_tablet(info.id, at, tablet)
        row = self._shard.look(state, choose_split_row) if at is None else at
        if row is None:
            raise InvalidArgument(f"table {info.name!r}: tablet {state.tablet} has no two rows to part")
        return state.tablet, row

    def _find_tablet(self, table: TableId, at: Row | None, tablet: int | None) -> TabletState:
        if tablet is not None:
            state = self._shard.state(TabletId(tablet))
            if state.table != table:
                raise InvalidArgument(f"tablet {tablet} is not one of table {table}")
            return state
        if at is not None:
            return self._shard.state_at(table, at)
        states = self._shard.of_table(table)
        if not states:
            raise TabletAway(f"no tablet of table {table} is here")
        return max(states, key=lambda state: self._shard.look(state, size_of))

    def tablets(self, table: TableId) -> tuple[TabletInfo, ...]:
        records = self._master.records(table)
        shard = self._shard
        return tuple(
            shard.look(state, partial(self._tablet_info, record=records.get(state.tablet)))
            for state in shard.of_table(table)
        )

    def _tablet_info(self, state: TabletState, fragments: Fragments, record: TabletRecord | None) -> TabletInfo:
        return TabletInfo(
            tablet=state.tablet,
            table=state.table,
            start=state.rows.start,
            stop=state.rows.stop,
            phase="unknown" if record is None else record.phase.name.lower(),
            life=self.control.life(state.tablet).name,
            server="" if record is None else record.server,
            size_bytes=size_of(state, fragments),
            memory_bytes=sum(memory.size_bytes for memory in state.memories),
            files=len(state.files()),
            schema_version=state.schema.version,
            epoch=state.epoch,
            resize=state.resize,
            replicas=self.control.replicas(state.tablet),
        )

    def stats(self, table: TableId) -> TableStats:
        states = self._shard.of_table(table)
        files = {file.name: file for state in states for file in state.files().values()}
        memories = {id(memory): memory for state in states for memory in state.memories}
        return TableStats(
            tablets=len(states),
            files=len(files),
            records=sum(file.stats.records for file in files.values()),
            erasures=sum(file.stats.erasures for file in files.values()),
            file_bytes=sum(file.seal.size_bytes for file in files.values()),
            memory_bytes=sum(memory.size_bytes for memory in memories.values()),
            horizon=max([self._shard.horizon(table), *(state.purged_below for state in states)]),
        )

    def metrics(self) -> Mapping[str, Any]:
        cache = self._shard.cache.stats()
        states = self._shard.tablets()
        segments = self._shard.segments()
        files = {name: file for state in states.values() for name, file in state.files().items()}
        return {
            "tablets": len(states),
            "visible_txn": self._shard.visible,
            "unflushed_bytes": self._shard.unflushed_bytes(),
            "log_segments": len(segments),
            "log_bytes": sum(segment.size_bytes for segment in segments),
            "fragments": len(files),
            "fragment_bytes": sum(file.seal.size_bytes for file in files.values()),
            "cache_bytes": cache.size_bytes,
            "cache_capacity_bytes": cache.capacity_bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
        }
