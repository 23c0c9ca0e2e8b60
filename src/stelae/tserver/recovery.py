"""From a metastore, a log and files to a shard that is whole.

1. The root config names meta0; its rows name meta1's tablets; theirs name everybody else's. Each is opened with what
   the log has for it before the next is read. A tablet whose config names no log was unloaded: it stays away.
2. What was found is checked against what was recorded: tablets, and where the log ended. Nothing was changed so far.
3. The tablets are open: each has gone through the states of `lives`, as all of them were read, replayed and opened.

A store without a root is new; its META tables are made by `TabletControl.make_meta_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from stelae.format.log.chain import read_log
from stelae.model.errors import Corruption, InvalidArgument
from stelae.model.events import Listener, Recovered
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RangeSet, RowRange
from stelae.ports.blobs import BlobStore
from stelae.ports.logfiles import LogFileInfo, LogFiles
from stelae.registry.meta import META0, META1
from stelae.registry.shard_records import (
    LogMark,
    forget_lost_end,
    is_end_lost,
    note_lost_end,
    read_horizons,
    read_log_mark,
    read_root,
    remove_log_mark,
    write_root,
)
from stelae.registry.tablet_records import TabletPhase, TabletRecord, read_next_tablet, read_tablets
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.names import fragment_names
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.opening import TAKEN_BACK, open_shard
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.configs import MetaConfigs, read_configs
from stelae.tserver.lives import Happened, TabletEffect, TabletEvent, TabletLives
from stelae.tserver.surroundings import ServerPorts, ServerSettings, Tables

_META_CACHE_BYTES = 64 * 2**20


class RecoveredShard(msgspec.Struct, frozen=True):
    """`away`: the configs of tablets that were unloaded. `was_closed`: whoever had the shard last has closed it in
    order, or it is new."""

    shard: Shard
    upkeep: Upkeep
    configs: MetaConfigs
    lives: TabletLives
    away: tuple[TabletConfig, ...]
    was_closed: bool


def recover_shard(
    ports: ServerPorts, tables: Tables, settings: ServerSettings, tell: Listener, proved: Callable[[], None]
) -> RecoveredShard:
    """Blocking: for a thread that is not the loop's. `proved` is called when all that was found has proved good, before
    anything is changed but for the note that the log has lost its end."""
    if not settings.name:
        raise InvalidArgument("a server has a name, by which configs know whose log holds a tablet's rows")
    run, store, begun_s = ports.loop.run, ports.metastore, ports.clock.monotonic_s()
    root = run(read_root(store))
    configs = MetaConfigs(lambda config: run(write_root(store, config)), settings.name)
    lost = ports.logs.lost()
    if lost is not None:
        raise Corruption("is missing, and was needed: bring it back; the data was left as it is", lost)
    if root is None:
        _check_new(ports.logs, ports.blobs, settings.is_alone)
    lives = TabletLives()
    known = _Known(tables, run(read_next_tablet(ports.records)))
    stages = _Stages(root, ports.blobs, tables.kept(), lives, known)
    try:
        shard = open_shard(
            ports.logs,
            ports.blobs,
            ports.time,
            ports.rng,
            configs,
            settings.shard,
            stages,
            tables.schemas_of,
            name=settings.name,
            reading=ports.reading,
            check_table=known.check_logged,
        )
    finally:
        stages.close()
    try:
        recorded = run(read_tablets(ports.records))
        mine = [record for record in recorded if settings.is_alone or record.server == settings.name]
        _check_whole(shard, stages.away, tables, mine)
        closed = run(read_log_mark(store))
        _check_end(shard, closed)
        _check_synced(shard, ports.logs.synced())
        is_lost = bool(shard.replicas) and (shard.has_lost_end or run(is_end_lost(store)))
        if is_lost:
            run(note_lost_end(store))  # `proved` has the rest of it cut off: only this would say so after a crash
        proved()
        if is_lost:
            shard.note_lost_end()
            run(forget_lost_end(store))
        run(remove_log_mark(store))
        configs.attach(shard, stages.saved)
        for table, horizon in run(read_horizons(store, tables.kept())):
            shard.advance_horizon(table, horizon)
        away = [config.tablet for config in stages.away]
        upkeep = Upkeep(shard, stages.saved, away, tell, ports.clock.monotonic_s)
        upkeep.is_known = tables.is_known
        upkeep.removes_files = settings.is_alone
        stages.open(shard, upkeep)
    except BaseException:
        shard.abandon()
        raise
    was_closed = closed is not None or root is None
    segments = shard.segments()
    tell(
        Recovered(
            server=settings.name,
            tablets=len(shard.tablets()),
            segments=len(segments),
            log_bytes=sum(segment.size_bytes for segment in segments),
            memory_bytes=shard.unflushed_bytes(),
            was_closed=was_closed,
            seconds=ports.clock.monotonic_s() - begun_s,
        )
    )
    return RecoveredShard(shard, upkeep, configs, lives, tuple(stages.away), was_closed)


def _check_new(logs: LogFiles, blobs: BlobStore, is_alone: bool) -> None:
    """A metastore that knows of nothing belongs to a new store: one without data. Of several servers one may be new."""
    if is_alone and fragment_names(blobs):
        found = "fragments"
    elif any(segment.records for segment in read_log(logs)):
        found = "a log"
    else:
        return
    raise Corruption(
        f"it knows of no table, but there is {found} beside it: it was lost or replaced. Bring it back; the data was "
        "left as it is",
        "the metastore",
    )


def _check_whole(shard: Shard, away: Sequence[TabletConfig], tables: Tables, records: Sequence[TabletRecord]) -> None:
    """What is recorded as running has a config: if not, META rows were lost, with the log or with their files."""
    here: dict[TableId, list[RowRange]] = {}
    for state in shard.tablets().values():
        here.setdefault(state.table, []).append(state.rows)
    for config in away:
        here.setdefault(config.table, []).append(config.rows)
    for record in records:
        if record.table not in tables.ids() or record.phase is not TabletPhase.RUNNING or record.replicas:
            continue
        lost = RangeSet.of([record.rows]).subtract(RangeSet.of(here.get(record.table, ())))
        if not lost.is_empty:
            raise Corruption(
                f"tablet {record.tablet} of table {tables.info(record.table).name!r} is recorded and has no config: "
                "was the log removed? Bring it back; the data was left as it is",
                "the META tables",
            )


def _check_end(shard: Shard, closed: LogMark | None) -> None:
    """A log that was closed in order ends where it was closed: what is missing was cut off since."""
    if closed is None or not closed.segment:
        return
    found = {info.name: info.size_bytes for info in shard.segments()}.get(closed.segment)
    if found is None or found < closed.size_bytes:
        raise Corruption(
            f"was closed at byte {closed.size_bytes} and "
            + ("is missing" if found is None else f"is whole up to byte {found} only")
            + ": bring it back; the data was left as it is",
            closed.segment,
        )


def _check_synced(shard: Shard, synced: LogFileInfo | None) -> None:
    """A log does not end before the last place that is known to have been synced: a damaged end is no torn one then."""
    segments = shard.segments()
    end = (segments[-1].name, segments[-1].size_bytes) if segments else ("", 0)
    if synced is not None and end < (synced.name, synced.size_bytes):
        raise Corruption(
            f"was synced up to byte {synced.size_bytes} and "
            + (f"is whole up to byte {end[1]} only" if end[0] == synced.name else "is missing or has lost its header")
            + ": rows that were acknowledged are lost. Bring it back; the data was left as it is",
            synced.name,
        )


class _Known(msgspec.Struct, frozen=True):
    """What the catalog and the master had given out when the store was opened. META and the log cannot know of more:
    if they do, it is the metastore that has lost something."""

    tables: Tables
    next_tablet: TabletId | None

    def check_logged(self, table: TableId) -> None:
        if not self.tables.is_known(table):
            raise Corruption(
                f"the log has rows of table {table}, of which it knows nothing: {TAKEN_BACK}", "the catalog"
            )

    def check_configs(self, configs: Sequence[TabletConfig]) -> None:
        for config in configs:
            if not self.tables.is_known(config.table):
                told = f"META has tablet {config.tablet} of table {config.table}, of which it knows nothing"
                raise Corruption(f"{told}: {TAKEN_BACK}", "the catalog")
            if self.next_tablet is not None and config.tablet >= self.next_tablet:
                told = f"META has tablet {config.tablet}, and the next to be made is {self.next_tablet}"
                raise Corruption(f"{told}: {TAKEN_BACK}", "the metastore")


class _Stages:
    """Configs as `open_shard` asks for them, and the lives of their tablets, which are loaded stage by stage."""

    def __init__(
        self,
        root: TabletConfig | None,
        blobs: BlobStore,
        tables: Collection[TableId],
        lives: TabletLives,
        known: _Known,
    ) -> None:
        self._known = known
        self._waiting: list[TableId | None] = [META1, META0, None]
        self._root = root
        self._fragments = Fragments(blobs, BlockCache(_META_CACHE_BYTES))
        self._tables = {*tables, META0, META1}
        self._lives = lives
        self._replaying: list[TabletId] = []
        self.saved: list[TabletConfig] = []
        """All that were found, also those of tables that are gone."""
        self.away: list[TabletConfig] = []

    def __call__(self, states: Sequence[TabletState]) -> Sequence[TabletConfig]:
        self._note_replayed({state.tablet for state in states})
        if not self._waiting:
            return ()
        table = self._waiting.pop()
        if table is None:
            found = [] if self._root is None else [self._root]
        else:
            found = read_configs([state for state in states if state.table == table], self._fragments)
        self._known.check_configs(found)
        self.saved += found
        kept = [config for config in found if config.table in self._tables]
        self.away += [config for config in kept if not config.log]
        here = [config for config in kept if config.log]
        self._replaying = list(dict.fromkeys(config.tablet for config in here))
        self._lives.advance(self._replaying, TabletEvent.LOAD_ASKED, self._carry_out)
        return here

    def _note_replayed(self, opened: Collection[TabletId]) -> None:
        """Whoever is not among those that were opened has no rows left: after a crash in the midst of a split or join,
        others have them."""
        replayed, self._replaying = self._replaying, []
        self._lives.advance([each for each in replayed if each in opened], TabletEvent.LOG_REPLAYED, self._carry_out)
        self._lives.advance([each for each in replayed if each not in opened], TabletEvent.SUCCEEDED, self._carry_out)

    def open(self, shard: Shard, upkeep: Upkeep) -> None:
        """The shard is up, with every tablet in it. What was saved names this server's log, or is saved now."""
        tablets = list(shard.tablets())
        self._note_replayed(tablets)
        if any(config.log not in ("", shard.name) for config in self.saved if config.tablet in shard.tablets()):
            upkeep.save()
        self._lives.advance(tablets, TabletEvent.CONFIG_SAVED, self._carry_out)

    def _carry_out(self, effect: TabletEffect, tablets: Sequence[TabletId]) -> list[Happened]:
        """What `open_shard` does for all tablets of a stage at once."""
        match effect:
            case TabletEffect.READ_CONFIG:
                return [(tablets, TabletEvent.CONFIG_READ)]  # with the rows of its META table
            case TabletEffect.REPLAY_LOG | TabletEffect.SAVE_CONFIG:
                return []  # under way: told when it is done
            case TabletEffect.OPEN_FRAGMENTS:
                return [(tablets, TabletEvent.FRAGMENTS_OPENED)]
            case _:
                raise TypeError(f"a tablet that is being recovered has no need to {effect.value}")

    def close(self) -> None:
        self._fragments.close()
