"""A server's tablets: made, altered, split, joined, unloaded, loaded and deleted as the master asks.

Each tablet goes through the states of `lives`; requests of clients are let in or refused by them. What the master asks
is carried out by one thread at a time; readers and writers go on beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock, RLock
from typing import NamedTuple

from stelae.model.errors import TabletAway
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.registry.control import (
    AlterTable,
    ControlRequest,
    CreateTablets,
    DeleteTablets,
    JoinTablets,
    LoadTable,
    NewTablet,
    ReportedTablet,
    SplitTablet,
    TabletReport,
    UnloadTable,
)
from stelae.registry.meta import META1, parent_of
from stelae.storage.memory.memory import Memory
from stelae.storage.shard import Shard
from stelae.storage.tablet.opening import SchemasOf, loaded, since
from stelae.storage.tablet.state import TabletState, altered, new_tablet
from stelae.storage.upkeep.serializer import MemoryInfo, oldest_first
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.configs import MetaConfigs
from stelae.tserver.lives import Life, RequestKind, TabletEvent, Treatment, step, treatment

_LOADING = (
    TabletEvent.LOAD_ASKED,
    TabletEvent.CONFIG_READ,
    TabletEvent.LOG_REPLAYED,
    TabletEvent.CONFIG_SAVED,
    TabletEvent.FRAGMENTS_OPENED,
)


_META_LEVELS = 4
"""What is flushed is said in META rows, which are in memory again: those of meta1 in meta0, those in the metastore."""


class RowsFlushed(NamedTuple):
    table: TableId
    rows: RowRange


class TabletServer:
    """Safe for threads."""

    def __init__(self, shard: Shard, upkeep: Upkeep, configs: MetaConfigs, schemas_of: SchemasOf) -> None:
        self.shard = shard
        self.upkeep = upkeep
        self._schemas_of = schemas_of
        self._configs = configs
        self._control = RLock()
        self._flushing = Lock()
        self._lives: dict[TabletId, Life] = {}
        self._unloaded: dict[TableId, list[TabletId]] = {}
        for tablet in shard.tablets():
            # Opening the shard has read the config and replayed the log, and the saved config names this log.
            self._go(tablet, _LOADING)

    @property
    def name(self) -> str:
        return self.shard.name

    def life(self, tablet: TabletId) -> Life:
        return self._lives.get(tablet, Life.UNKNOWN)

    def _go(self, tablet: TabletId, events: Iterable[TabletEvent]) -> None:
        for event in events:
            self._lives[tablet] = step(self.life(tablet), event).life
        if self._lives[tablet] is Life.UNKNOWN:
            del self._lives[tablet]

    def check_writable(self, tablet: TabletId) -> None:
        life = self._lives.get(tablet, Life.UNKNOWN)
        if life is not Life.ACTIVE and treatment(life, RequestKind.WRITE) is not Treatment.SERVED:
            raise TabletAway(f"tablet {tablet} takes no writes: it is in state {life.value} {life.name}")

    # -- what the master asks

    def ask(self, request: ControlRequest) -> TabletReport:
        with self._control:
            report = self._carried_out(request)
            self.upkeep.save()
            return report

    def _carried_out(self, request: ControlRequest) -> TabletReport:
        match request:
            case CreateTablets(tablets):
                return self._create(tablets)
            case AlterTable(table):
                return self._alter(table)
            case UnloadTable(table):
                return self._unload(table)
            case LoadTable(table):
                return self._load(table)
            case DeleteTablets(ids):
                return self._delete(ids)
            case SplitTablet(tablet, at, left, right):
                with self.shard.lock:
                    if left in self._lives and right in self._lives:
                        return self._reported([self.shard.state(left), self.shard.state(right)])
                    return self._succeeded([tablet], self.upkeep.split(tablet, at, left, right))
            case JoinTablets(left, right, into):
                with self.shard.lock:
                    if into in self._lives:
                        return self._reported([self.shard.state(into)])
                    return self._succeeded([left, right], [self.upkeep.join(left, right, into)])

    def report(self) -> TabletReport:
        """All but the META tables' own tablets, which no master has made."""
        states = [state for state in self.shard.tablets().values() if parent_of(state.table) == META1]
        return self._reported(states, is_full=True)

    def _reported(self, states: Iterable[TabletState], *, is_full: bool = False) -> TabletReport:
        tablets = tuple(
            ReportedTablet(state.tablet, state.table, state.rows, int(self.life(state.tablet)), state.schema.version)
            for state in states
        )
        return TabletReport(self.name, tablets, is_full)

    def _create(self, asked: Sequence[NewTablet]) -> TabletReport:
        fresh = [each for each in asked if each.tablet not in self._lives]
        schemas = {table: self._schemas_of(table)[-1] for table in {each.table for each in asked}}
        with self.shard.lock:
            states = [new_tablet(each.tablet, each.table, each.rows, schemas[each.table]) for each in fresh]
            self.shard.install(states)
        ids = [each.tablet for each in fresh]
        for tablet in ids:
            self._go(tablet, _LOADING[:3])
        self.upkeep.touch(ids)
        try:
            self.upkeep.save()
        except BaseException:
            for tablet in ids:
                self._go(tablet, (TabletEvent.FAILED,))
            self.upkeep.forget(ids)
            raise
        for tablet in ids:
            self._go(tablet, _LOADING[3:])
        return self._reported([self.shard.state(each.tablet) for each in asked])

    def _alter(self, table: TableId) -> TabletReport:
        """All tablets of the table at one moment, so that a block is of the schema of all of them or of none."""
        schemas = self._schemas_of(table)
        with self.shard.lock:
            for state in self.shard.of_table(table):
                for schema in since(schemas, state.schema.version, f"tablet {state.tablet}")[1:]:
                    self.upkeep.change(state.tablet, partial(altered, schema=schema))
        return self._reported(self.shard.of_table(table))

    def _unload(self, table: TableId) -> TabletReport:
        """Writes are refused from here on, so memory comes to an end."""
        ids = [state.tablet for state in self.shard.of_table(table)]
        for tablet in ids:
            self._go(tablet, (TabletEvent.UNLOAD_ASKED,))
        is_empty = False
        while not is_empty:
            with self._flushing:
                self._flush(table)
                self.upkeep.save()
                with self.shard.lock:
                    memories = [memory for state in self.shard.of_table(table) for memory in state.memories]
                    is_empty = all(memory.is_empty for memory in memories)
                    if is_empty:
                        self._unloaded.setdefault(table, []).extend(ids)
                        self.shard.install([], ids)
        for tablet in ids:
            self._go(tablet, (TabletEvent.MEMORY_FLUSHED, TabletEvent.LAST_CONFIG_SAVED))
        return self._reported(())

    def _load(self, table: TableId) -> TabletReport:
        if any(self.life(state.tablet) is Life.FLUSHING for state in self.shard.of_table(table)):
            self._unload(table)  # it was asked for before, and did not come to its end
        ids = self._unloaded.get(table, [])
        schemas = self._schemas_of(table)
        states = [loaded(self._configs.saved(tablet), schemas) for tablet in ids]
        with self.shard.lock:
            self.shard.install(states)
            for tablet in ids:
                self._go(tablet, _LOADING)
        self._unloaded.pop(table, None)
        self.upkeep.touch(ids)
        return self._reported(self.shard.of_table(table))

    def _delete(self, ids: Sequence[TabletId]) -> TabletReport:
        gone = set(ids)
        for tablet in gone:
            self._lives.pop(tablet, None)
        kept = {table: [each for each in ids if each not in gone] for table, ids in self._unloaded.items()}
        self._unloaded = {table: ids for table, ids in kept.items() if ids}
        self.upkeep.forget(gone)
        return self._reported(())

    def _succeeded(self, old: Sequence[TabletId], new: Sequence[TabletState]) -> TabletReport:
        """Under the shard's lock: nobody finds a tablet whose life is not known. Saved by whoever asked."""
        for state in new:
            self._lives[state.tablet] = Life.ACTIVE
        for tablet in old:
            self._lives.pop(tablet, None)
        return self._reported(new)

    # -- flushing

    def flush(self, table: TableId) -> None:
        """All of a table that is in memory now is in files, and its configs say so, when this returns."""
        with self._flushing:
            self._flush(table)
        self.upkeep.save()

    def _flush(self, table: TableId) -> None:
        with self.shard.lock:
            for state in self.shard.of_table(table):
                if not state.active.is_empty:
                    self.upkeep.seal(state.tablet)
            memories = [m for state in self.shard.of_table(table) for m in state.memories if not m.is_empty]
        for memory in sorted({id(m): m for m in memories}.values(), key=lambda m: m.txn_min):
            self.upkeep.flush(memory)

    def flush_down_to(self, left_bytes: int) -> None:
        """The largest memories into files, until no more than that is left to be replayed. Saved once, at the end."""
        for _ in range(_META_LEVELS):
            with self._flushing:
                while (tablet := self._largest(left_bytes)) is not None:
                    self.upkeep.flush(self._sealed_oldest(tablet))
            self.upkeep.save()
            if self._largest(left_bytes) is None:
                return

    def _sealed_oldest(self, tablet: TabletId) -> Memory:
        """What of a tablet must be flushed first: memories that it shares may lie over older ones of others."""
        with self.shard.lock:
            states = self.shard.of_table(self.shard.state(tablet).table)
            memories = list({id(m): m for state in states for m in state.memories if not m.is_empty}.values())
            infos = [MemoryInfo(m.size_bytes, m.txn_min, m.rows, is_sealed=True) for m in memories]
            own = next(at for at, m in enumerate(memories) if any(m is o for o in self.shard.state(tablet).memories))
            oldest = memories[oldest_first(infos, own)]
            for state in states:
                if state.active is oldest:
                    self.upkeep.seal(state.tablet)
            return oldest

    def _largest(self, left_bytes: int) -> TabletId | None:
        """The tablet with the most in memory; None if all together have so little."""
        if sum(memory.size_bytes for memory in self.shard.memories()) <= left_bytes:
            return None
        held = {
            state.tablet: sum(m.size_bytes for m in state.memories)
            for state in self.shard.tablets().values()
            if any(not m.is_empty for m in state.memories)
        }
        return max(held, key=lambda tablet: held[tablet], default=None)

    def flush_due(self) -> RowsFlushed | None:
        """The memory that the serializer chooses; None if there is no need."""
        with self._flushing:
            memory = self.upkeep.pick_flush()
            if memory is None:
                return None
            users = [state for state in self.shard.tablets().values() if any(m is memory for m in state.memories)]
            self.upkeep.flush(memory)
            return RowsFlushed(users[0].table, memory.rows) if users else None
