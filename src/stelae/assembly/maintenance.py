"""What users may ask to be done to a table's files and tablets by hand, and what there is to know about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from stelae.assembly.opening import Running
from stelae.model.errors import InvalidArgument, NotFound, TabletAway
from stelae.model.ids import GroupId, Row, TableId, TabletId
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo, TableStats, TabletInfo
from stelae.storage.tablet.splitting import choose_split_row, size_of
from stelae.storage.tablet.state import TabletState
from stelae.tserver.lives import Life

_NAP_S = 0.1


class Maintenance:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._loop = running.world.loop
        self._server = running.server
        self._shard = running.server.shard
        self._maps = running.master.maps
        self._waiting = Event()

    def flush(self, info: TableInfo) -> None:
        self._server.flush(info.id)
        self._server.upkeep.collect_log()
        self._running.keeper.grew(state.tablet for state in self._shard.of_table(info.id))

    def move_horizon(self, info: TableInfo, to_now: bool, check_open: Callable[[], None]) -> None:
        """As far as the table's retention allows, or to now, and never past a snapshot that somebody holds."""
        keeper = self._running.keeper
        rules = keeper.rules(info.id)
        if rules is None:
            raise NotFound(f"table {info.name!r} was dropped")
        while to_now and not keeper.forgets:
            check_open()
            self._waiting.wait(_NAP_S)
        keeper.advance_horizon(info.id, rules, to_now=to_now)

    def compact(
        self, info: TableInfo, erase_now: bool, progress: Progress | None, check_open: Callable[[], None]
    ) -> None:
        table, upkeep = info.id, self._server.upkeep
        self._server.flush(table)
        self.move_horizon(info, erase_now, check_open)
        states = self._shard.of_table(table)
        total = sum(ref.file.stats.records for s in states for _, refs in s.groups for ref in refs if ref.file)
        done = 0

        def count(records: int) -> None:
            nonlocal done
            done += records
            if progress is not None:
                progress(min(done, total), total)

        for state in states:
            self._compact_tablet(state.tablet, count, check_open)
        upkeep.save()
        upkeep.collect_files()
        if erase_now:
            # What was erased is in the log, too, as long as anything in it is needed.
            self._server.flush_down_to(0)
        upkeep.collect_log()
        self._shard.drain()
        upkeep.collect_log()
        if progress is not None:
            progress(total, total)

    def _compact_tablet(self, tablet: TabletId, count: Callable[[int], None], check_open: Callable[[], None]) -> None:
        upkeep = self._server.upkeep
        try:
            upkeep.drop_hidden(tablet)
            done: set[GroupId] = set()
            # Once for each group: what is kept for the history's sake would be worth it again and again.
            while (found := upkeep.pick_compaction(tablet, whole_group=True, without=done)) is not None:
                check_open()
                done.add(found[0])
                upkeep.compact(tablet, *found, progress=count)
                upkeep.save()
        except TabletAway:
            return  # it was split, joined or dropped meanwhile: its followers are looked at by the keeper

    def split(self, info: TableInfo, at: Row | None, tablet: int | None) -> None:
        state = self._to_split(info.id, at, tablet)
        row = choose_split_row(state, self._shard.fragments) if at is None else at
        if row is None:
            raise InvalidArgument(f"table {info.name!r}: tablet {state.tablet} has no two rows to part")
        self._loop.run(self._running.master.split(state.tablet, row, is_asked=True))

    def _to_split(self, table: TableId, at: Row | None, tablet: int | None) -> TabletState:
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
        return max(states, key=lambda state: size_of(state, self._shard.fragments))

    def join(self, info: TableInfo, at: Row) -> None:
        tablets = self._maps.of_table(info.id)
        pair = [each.tablet for each in tablets if at and at in (each.rows.start, each.rows.stop)]
        if len(pair) < 2:
            raise InvalidArgument(f"table {info.name!r}: no tablet begins at row {at!r}")
        self._loop.run(self._running.master.join(pair[0], pair[1], is_asked=True))

    def tablets(self, table: TableId) -> tuple[TabletInfo, ...]:
        return tuple(self._tablet_info(state) for state in self._shard.of_table(table))

    def _tablet_info(self, state: TabletState) -> TabletInfo:
        try:
            record = self._maps.tablet(state.tablet)
            phase, server = record.phase.name.lower(), record.server
        except NotFound:
            phase, server = "unknown", ""
        life: Life = self._server.life(state.tablet)
        return TabletInfo(
            tablet=state.tablet,
            table=state.table,
            start=state.rows.start,
            stop=state.rows.stop,
            phase=phase,
            life=life.name,
            server=server,
            size_bytes=size_of(state, self._shard.fragments),
            memory_bytes=sum(memory.size_bytes for memory in state.memories),
            files=len(state.files()),
            schema_version=state.schema.version,
            epoch=state.epoch,
            resize=state.resize,
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
            horizon=self._shard.horizon(table),
        )

    def metrics(self) -> Mapping[str, Any]:
        cache = self._shard.cache.stats()
        states = self._shard.tablets()
        segments = self._shard.segments()
        return {
            "tables": len(self._running.catalog.latest.tables),
            "tablets": len(states),
            "catalog_version": self._running.catalog.latest.version,
            "visible_txn": self._shard.visible,
            "unflushed_bytes": self._shard.unflushed_bytes(),
            "log_segments": len(segments),
            "log_bytes": sum(segment.size_bytes for segment in segments),
            "fragments": len({name for state in states.values() for name in state.files()}),
            "cache_bytes": cache.size_bytes,
            "cache_capacity_bytes": cache.capacity_bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
        }
