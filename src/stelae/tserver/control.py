"""A server's tablets: made, altered, split, joined, unloaded, loaded and deleted as the master asks.

Each tablet goes through the states of `lives`; requests of clients are let in or refused by them. What the master asks
is carried out by one thread at a time; readers and writers go on beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import RLock

from stelae.model.errors import TabletAway
from stelae.model.ids import TableId, TabletId
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
from stelae.storage.shard import Shard
from stelae.storage.tablet.opening import SchemasOf, loaded, since
from stelae.storage.tablet.state import TabletState, altered, new_tablet
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.configs import MetaConfigs
from stelae.tserver.flushing import Flushing
from stelae.tserver.lives import Life, RequestKind, TabletEvent, Treatment, step, treatment

_LOADING = (
    TabletEvent.LOAD_ASKED,
    TabletEvent.CONFIG_READ,
    TabletEvent.LOG_REPLAYED,
    TabletEvent.CONFIG_SAVED,
    TabletEvent.FRAGMENTS_OPENED,
)


class TabletControl:
    """Safe for threads."""

    def __init__(
        self, shard: Shard, upkeep: Upkeep, flushing: Flushing, configs: MetaConfigs, schemas_of: SchemasOf
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = flushing
        self._schemas_of = schemas_of
        self._configs = configs
        self._control = RLock()
        self._lives: dict[TabletId, Life] = {}
        self._unloaded: dict[TableId, list[TabletId]] = {}
        for tablet in shard.tablets():
            # Opening the shard has read the config and replayed the log, and the saved config names this log.
            self._go(tablet, _LOADING)

    @property
    def name(self) -> str:
        return self._shard.name

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
            self._upkeep.save()
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
                with self._shard.lock:
                    if left in self._lives and right in self._lives:
                        return self._reported([self._shard.state(left), self._shard.state(right)])
                    return self._succeeded([tablet], self._upkeep.split(tablet, at, left, right))
            case JoinTablets(left, right, into):
                with self._shard.lock:
                    if into in self._lives:
                        return self._reported([self._shard.state(into)])
                    return self._succeeded([left, right], [self._upkeep.join(left, right, into)])

    def report(self) -> TabletReport:
        """All but the META tables' own tablets, which no master has made."""
        states = [state for state in self._shard.tablets().values() if parent_of(state.table) == META1]
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
        with self._shard.lock:
            states = [new_tablet(each.tablet, each.table, each.rows, schemas[each.table]) for each in fresh]
            self._shard.install(states)
        ids = [each.tablet for each in fresh]
        for tablet in ids:
            self._go(tablet, _LOADING[:3])
        self._upkeep.touch(ids)
        try:
            self._upkeep.save()
        except BaseException:
            for tablet in ids:
                self._go(tablet, (TabletEvent.FAILED,))
            self._upkeep.forget(ids)
            raise
        for tablet in ids:
            self._go(tablet, _LOADING[3:])
        return self._reported([self._shard.state(each.tablet) for each in asked])

    def _alter(self, table: TableId) -> TabletReport:
        """All tablets of the table at one moment, so that a block is of the schema of all of them or of none."""
        schemas = self._schemas_of(table)
        with self._shard.lock:
            for state in self._shard.of_table(table):
                for schema in since(schemas, state.schema.version, f"tablet {state.tablet}")[1:]:
                    self._upkeep.change(state.tablet, partial(altered, schema=schema))
        return self._reported(self._shard.of_table(table))

    def _unload(self, table: TableId) -> TabletReport:
        """Writes are refused from here on, so memory comes to an end."""
        ids = [state.tablet for state in self._shard.of_table(table)]
        for tablet in ids:
            self._go(tablet, (TabletEvent.UNLOAD_ASKED,))

        def remove() -> bool:
            memories = [memory for state in self._shard.of_table(table) for memory in state.memories]
            is_empty = all(memory.is_empty for memory in memories)
            if is_empty:
                self._unloaded.setdefault(table, []).extend(ids)
                self._shard.install([], ids)
            return is_empty

        self._flushing.flush_until(table, remove)
        for tablet in ids:
            self._go(tablet, (TabletEvent.MEMORY_FLUSHED, TabletEvent.LAST_CONFIG_SAVED))
        return self._reported(())

    def _load(self, table: TableId) -> TabletReport:
        if any(self.life(state.tablet) is Life.FLUSHING for state in self._shard.of_table(table)):
            self._unload(table)  # it was asked for before, and did not come to its end
        ids = self._unloaded.get(table, [])
        schemas = self._schemas_of(table)
        states = [loaded(self._configs.saved(tablet), schemas) for tablet in ids]
        with self._shard.lock:
            self._shard.install(states)
            for tablet in ids:
                self._go(tablet, _LOADING)
        self._unloaded.pop(table, None)
        self._upkeep.touch(ids)
        return self._reported(self._shard.of_table(table))

    def _delete(self, ids: Sequence[TabletId]) -> TabletReport:
        gone = set(ids)
        for tablet in gone:
            self._lives.pop(tablet, None)
        kept = {table: [each for each in ids if each not in gone] for table, ids in self._unloaded.items()}
        self._unloaded = {table: ids for table, ids in kept.items() if ids}
        self._upkeep.forget(gone)
        return self._reported(())

    def _succeeded(self, old: Sequence[TabletId], new: Sequence[TabletState]) -> TabletReport:
        """Under the shard's lock: nobody finds a tablet whose life is not known. Saved by whoever asked."""
        for state in new:
            self._lives[state.tablet] = Life.ACTIVE
        for tablet in old:
            self._lives.pop(tablet, None)
        return self._reported(new)
