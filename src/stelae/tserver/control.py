"""A server's tablets: made, altered, split, joined, unloaded, loaded and deleted as the master asks.

Each tablet goes through the states of `lives`: a request is an event, and what follows from it is carried out here, for
all tablets of the request at once. One thread at a time has the turn; readers and writers go on beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from stelae.model.errors import Corruption, InvalidArgument, NotFound
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.registry.control import (
    AddReplicas,
    AlterTable,
    ControlRequest,
    CreateTablets,
    DeleteTablets,
    HostReplicas,
    HostTablets,
    JoinTablets,
    LeadTablets,
    LoadTable,
    NewTablet,
    ProveTable,
    ReportedTablet,
    ResignTablets,
    SplitTablet,
    TabletReport,
    UnloadTable,
)
from stelae.registry.meta import META0, META1, parent_of
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.opening import SchemasOf, loaded, since
from stelae.storage.tablet.state import TabletState, altered, frozen, new_tablet
from stelae.storage.turns import Turn
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.configs import MetaConfigs
from stelae.tserver.flushing import Flushing
from stelae.tserver.lives import Happened, Life, TabletEffect, TabletEvent, TabletLives
from stelae.tserver.replication.hosting import Hosting

META0_TABLET = TabletId(1)
META1_TABLET = TabletId(2)

_DELETED_MAX = 10_000
"""Requests are late by seconds, not by so many deletions."""


class _Work(msgspec.Struct):
    """What one request is about, and what was made for it so far: tablets that are not in the shard yet. `is_new`: they
    have no data, so nothing is lost if they go again."""

    is_new: bool = False
    made: dict[TabletId, TabletState] = msgspec.field(default_factory=dict)
    resize: SplitTablet | JoinTablets | None = None


class TabletControl:
    """Safe for threads. `away`: tablets of which there is a config and nothing else here."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        flushing: Flushing,
        configs: MetaConfigs,
        schemas_of: SchemasOf,
        lives: TabletLives,
        away: Iterable[TabletConfig] = (),
        hosting: Hosting | None = None,
    ) -> None:
        """`hosting`: of a server whose tablets may have several replicas."""
        self._hosting = hosting
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = flushing
        self._schemas_of = schemas_of
        self._configs = configs
        self._lives = lives
        self._away = {config.tablet: config for config in away}
        self._control = Turn()
        self._deleted: dict[TabletId, None] = {}
        """What this process was asked to delete: a request to create it that comes late makes nothing."""
        self.life = lives.life

    def make_meta_tables(self) -> None:
        """Those of a new store; also if it ended between the two."""
        for tablet, table in ((META0_TABLET, META0), (META1_TABLET, META1)):
            if not self._shard.of_table(table):
                self._create([NewTablet(tablet, table, ALL_ROWS)])

    def prepared_loads(self, table: TableId | None = None) -> set[str]:
        """The loads that are prepared in some tablet, of one table or of any: here or away, or in a replica that may
        lead it."""
        with self._shard.lock:
            states = self._shard.tablets().values() if table is None else self._shard.of_table(table)
            here = {load.load for state in states for load in state.prepared}
            replicas = [each for each in self._shard.replicas.values() if table in (None, each.table)]
            configs = [config for replica in replicas for config in replica.configs()]
        configs += [each for each in self._away.values() if table in (None, each.table)]
        return here | {load for config in configs for load, _ in config.prepared}

    # -- what the master asks

    def ask(self, request: ControlRequest, check: Callable[[], None] | None = None) -> TabletReport:
        """`check` raises if nothing may be done any more when its turn comes."""
        with self._control:
            if check is not None:
                check()
            report = self._answer(request)
            self._upkeep.save()
            return report

    def _answer(self, request: ControlRequest) -> TabletReport:
        match request:
            case CreateTablets(tablets):
                return self._create(tablets)
            case AlterTable(table):
                return self._alter(table)
            case UnloadTable(table):
                return self._unload(table)
            case LoadTable(table):
                return self._load(table)
            case ProveTable(table):
                return self._prove(table)
            case DeleteTablets(ids, seen) if seen:
                if self._hosting is not None:
                    self._hosting.drop_unchanged(dict(zip(ids, seen, strict=True)))
                return self._report_on(())
            case DeleteTablets(ids):
                self._note_deleted(ids)
                copied = [tablet for tablet in ids if tablet in self._shard.replicas]
                if self._hosting is not None:
                    self._hosting.drop(copied)
                self._run(_Work(), [tablet for tablet in ids if tablet not in copied], TabletEvent.DELETE_ASKED)
                return self._report_on(())
            case HostTablets(asked) if any(each.tablet in self._deleted for each in asked):
                return self._answer(HostTablets(tuple(each for each in asked if each.tablet not in self._deleted)))
            case HostTablets() | HostReplicas() | LeadTablets() | AddReplicas() | ResignTablets():
                if self._hosting is None:
                    raise InvalidArgument("this server is alone: its tablets have one replica")
                refused = self._hosting.ask(request)
                return msgspec.structs.replace(self._full_report(None), refused=tuple(refused.items()))
            case SplitTablet(tablet, _, left, right):
                return self._resize(request, [tablet], [left, right], TabletEvent.SPLIT_ASKED)
            case JoinTablets(left, right, into):
                return self._resize(request, [left, right], [into], TabletEvent.JOIN_ASKED)

    def _note_deleted(self, tablets: Iterable[TabletId]) -> None:
        self._deleted |= dict.fromkeys(tablets)
        while len(self._deleted) > _DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def report(self, table: TableId | None = None) -> TabletReport:
        """All of a table, or of all tables but META, whose tablets no master has made."""
        with self._control:
            return self._full_report(table)

    def _full_report(self, table: TableId | None) -> TabletReport:
        shard = self._shard
        states = shard.tablets().values() if table is None else shard.of_table(table)
        here = self._report_on([state for state in states if parent_of(state.table) == META1]).tablets
        away = tuple(_away_report(each) for each in self._away.values() if table in (None, each.table))
        if self._hosting is None:
            return TabletReport(shard.name, here + away, table is None, clock=shard.clock.last)
        replicas, me = self._hosting.reports(table), self._hosting.leading.me
        return TabletReport(shard.name, here + away, table is None, replicas, shard.clock.last, replica=me)

    def replicas(self, tablet: TabletId) -> tuple[tuple[str, int], ...]:
        """The servers of a led tablet's other replicas, and how many records each lacks."""
        return () if self._hosting is None else self._hosting.behind(tablet)

    def glance(self) -> dict[TabletId, ReportedTablet]:
        """What `report` says, without waiting for anybody: of what is being changed now it has either."""
        found = {state.tablet: state for state in self._shard.tablets().values() if parent_of(state.table) == META1}
        here = {each.tablet: each for each in self._report_on(found.values()).tablets}
        away = {config.tablet: _away_report(config) for config in list(self._away.values())}
        return {**away, **here}

    def _report_on(self, states: Iterable[TabletState]) -> TabletReport:
        tablets = tuple(
            ReportedTablet(state.tablet, state.table, state.rows, int(self.life(state.tablet)), state.schema.version)
            for state in states
        )
        return TabletReport(self._shard.name, tablets)

    def _create(self, asked: Sequence[NewTablet]) -> TabletReport:
        """Tablets that are here already, or away, are left as they are; those that were deleted are not made."""
        known = {*self._away, *self._deleted}
        fresh = [each for each in asked if self.life(each.tablet) is Life.UNKNOWN and each.tablet not in known]
        schemas = {table: self._schemas_of(table)[-1] for table in {each.table for each in asked}}
        made = {e.tablet: new_tablet(e.tablet, e.table, e.rows, schemas[e.table]) for e in fresh}
        self._run(_Work(is_new=True, made=made), list(made), TabletEvent.CREATE_ASKED)
        states = self._shard.tablets()
        return self._report_on([states[each.tablet] for each in asked if each.tablet in states])

    def _alter(self, table: TableId) -> TabletReport:
        """All tablets of the table at one moment, so that a block is of the schema of all of them or of none."""
        schemas = self._schemas_of(table)
        with self._shard.lock:
            for state in self._shard.of_table(table):
                for schema in since(schemas, state.schema.version, f"tablet {state.tablet}")[1:]:
                    self._upkeep.change(state.tablet, partial(altered, schema=schema))
        return self._report_on(self._shard.of_table(table))

    def _unload(self, table: TableId) -> TabletReport:
        copied = [state.tablet for state in self._shard.of_table(table) if state.tablet in self._shard.replicas]
        if copied and self._hosting is not None:
            self._flushing.flush(table)
            self._hosting.rest(table)
        ids = [state.tablet for state in self._shard.of_table(table)]
        self._run(_Work(), ids, TabletEvent.UNLOAD_ASKED)
        return self._report_on(())

    def away(self) -> tuple[TabletConfig, ...]:
        """The configs of tablets that were unloaded: of tables that were dropped and can be recalled."""
        return tuple(self._away.values())

    def _prove(self, table: TableId) -> TabletReport:
        for name in sorted({name for each in self._away.values() if each.table == table for name in each.files()}):
            try:
                self._shard.blobs.open(name).close()
            except NotFound:
                raise Corruption(
                    "is missing, and the dropped table needs it: bring it back, perhaps from trash/ or a backup, and "
                    "recall the table then",
                    name,
                ) from None
        return self._report_on(())

    def _load(self, table: TableId) -> TabletReport:
        leaving = (Life.FLUSHING, Life.SAVING_LAST)
        if any(self.life(state.tablet) in leaving for state in self._shard.of_table(table)):
            self._unload(table)  # it was asked for before, and did not come to its end
        ids = [config.tablet for config in self._away.values() if config.table == table]
        self._run(_Work(), ids, TabletEvent.LOAD_ASKED)
        return self._report_on(self._shard.of_table(table))

    def _resize(
        self,
        request: SplitTablet | JoinTablets,
        old: Sequence[TabletId],
        new: Sequence[TabletId],
        event: TabletEvent,
    ) -> TabletReport:
        if self._hosting is not None and any(self._hosting.has(tablet) for tablet in old):
            return TabletReport(self._shard.name, (), made=self._hosting.resize(request, self._flushing))
        if any(self.life(tablet) is Life.UNKNOWN for tablet in new):  # else it was done when it was asked for before
            self._run(_Work(resize=request), old, event)
        return self._report_on([self._shard.state(tablet) for tablet in new])

    # -- what follows from it

    def _run(self, work: _Work, tablets: Sequence[TabletId], event: TabletEvent) -> None:
        if tablets:
            self._lives.advance(tablets, event, partial(self._carry_out, work))

    def _carry_out(self, work: _Work, effect: TabletEffect, tablets: Sequence[TabletId]) -> list[Happened]:
        match effect:
            case TabletEffect.READ_CONFIG:
                self._away |= {tablet: self._configs.saved(tablet) for tablet in tablets}
                return [(tablets, TabletEvent.CONFIG_READ)]
            case TabletEffect.REPLAY_LOG:
                # Nothing of a tablet that was unloaded is in any log.
                work.made |= {tablet: self._make(tablet) for tablet in tablets}
                return [(tablets, TabletEvent.LOG_REPLAYED)]
            case TabletEffect.SAVE_CONFIG:
                self._upkeep.save_first([work.made[tablet] for tablet in tablets if tablet in work.made])
                self._upkeep.save()
                return [(tablets, TabletEvent.CONFIG_SAVED)]
            case TabletEffect.OPEN_FRAGMENTS:
                self._open([work.made.get(tablet) or self._make(tablet) for tablet in tablets])
                return [(tablets, TabletEvent.FRAGMENTS_OPENED)]
            case TabletEffect.SPLIT | TabletEffect.JOIN:
                return [(tablets, TabletEvent.SUCCEEDED), (self._cut(work), TabletEvent.TOOK_OVER)]
            case TabletEffect.REFUSE_WRITES:
                for tablet in tablets:
                    self._shard.change(tablet, frozen)
                return []
            case TabletEffect.FLUSH_MEMORY:
                for table in dict.fromkeys(self._shard.state(tablet).table for tablet in tablets):
                    self._flushing.flush(table)
                return [(tablets, TabletEvent.MEMORY_FLUSHED)]
            case TabletEffect.SAVE_LAST_CONFIG:
                self._upkeep.touch(tablets)
                self._upkeep.save()
                return [(tablets, TabletEvent.LAST_CONFIG_SAVED)]
            case TabletEffect.DROP:
                self._drop(work, tablets)
                return []
            case TabletEffect.FORGET:
                self._forget(tablets)
                return []
            case TabletEffect.SERVE | TabletEffect.STOP_SERVING:
                raise TypeError(f"{effect.value!r} is for whoever leads tablets with replicas")

    def _make(self, tablet: TabletId) -> TabletState:
        config = self._configs.saved(tablet)
        return loaded(config, self._schemas_of(config.table))

    def _open(self, states: Sequence[TabletState]) -> None:
        """Requests find them from now on. Their files are opened when somebody reads them."""
        with self._shard.lock:
            self._shard.install(states)
        for state in states:
            self._away.pop(state.tablet, None)

    def _forget(self, tablets: Sequence[TabletId]) -> None:
        for tablet in tablets:
            self._away.pop(tablet, None)
        self._upkeep.forget(tablets)
        self._upkeep.save()

    def _cut(self, work: _Work) -> list[TabletId]:
        match work.resize:
            case SplitTablet(tablet, at, left, right):
                return [state.tablet for state in self._upkeep.split(tablet, at, left, right)]
            case JoinTablets(left, right, into):
                return [self._upkeep.join(left, right, into).tablet]
            case None:
                raise TypeError("a request that is no split or join asks for one")

    def _drop(self, work: _Work, tablets: Sequence[TabletId]) -> None:
        """Out of the shard. What has data stays known by its config."""
        if work.is_new:
            self._upkeep.forget(tablets)
            return
        with self._shard.lock:
            known = self._shard.tablets()
            here = [tablet for tablet in tablets if tablet in known]
            self._shard.install([], here)
        self._away |= {tablet: self._configs.saved(tablet) for tablet in here}


def _away_report(config: TabletConfig) -> ReportedTablet:
    return ReportedTablet(config.tablet, config.table, config.rows, int(Life.UNKNOWN), config.schema_version)
