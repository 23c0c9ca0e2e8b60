"""A shard comes up: configs become states, the log is replayed into their memories.

Configs may overlap after a crash in the middle of a split or join: the greater resize number counts, and of the others
what is left of their range. A block of the log goes to every tablet of its table that holds rows of it and has not
flushed that far, whatever the tablet was called when it was written; it is carried through every schema since its own.
Where tablets came to this shard and left it, `log/stays` says first what counts for which of them.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from operator import attrgetter

from stelae.format.block import Block as WrittenBlock
from stelae.format.block import decode_block, decode_single
from stelae.format.log.positions import POSITION_MAX, Position
from stelae.format.log.records import NO_INDEX, LogKind, LogRecord
from stelae.model.errors import Corruption, StelaeError, Unavailable
from stelae.model.hybrid import TXN_MAX, HybridClock
from stelae.model.ids import Index, SchemaVersion, TableId, TabletId, Txn
from stelae.model.limits import Limits
from stelae.model.ranges import RangeSet
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.rng import Rng
from stelae.storage.log.done import count_places
from stelae.storage.log.replay import LogRun, ReplayedLog, replay
from stelae.storage.log.stays import Stays
from stelae.storage.memory.insertion import carried, insert, insert_put, insert_unflushed
from stelae.storage.replicas.reading import take_replicas
from stelae.storage.replicas.replica import Replica
from stelae.storage.shard import Shard, ShardSettings
from stelae.storage.tablet.changes import changed, decode_change
from stelae.storage.tablet.config import ConfigStore, TabletConfig, narrowed, state_of
from stelae.storage.tablet.parts import carry
from stelae.storage.tablet.state import TabletState, altered

_ANY_SIZE = Limits(block_bytes_max=2**31)
_table_of = attrgetter("table")
"""What was let in is read back, whatever the limit is now."""

TAKEN_BACK = (
    "the metastore was lost in part or an older one put in its place. Bring it back; the data was left as it is"
)

SchemasOf = Callable[[TableId], Sequence[TableSchema]]
"""The schemas a table has had, oldest first, at least from the first that a config or the log still speaks of."""


SavedInStages = Callable[[Sequence[TabletState]], Sequence[TabletConfig]]
"""Configs that are rows of tables of the same shard: asked with the states of all tablets that are open so far, until
it has no more. All tablets of a table come in one answer."""


def any_table(_: TableId) -> None:
    """The log may hold records of any table."""


def open_shard(
    files: LogFiles,
    blobs: BlobStore,
    clock: HybridClock,
    rng: Rng,
    configs: ConfigStore,
    settings: ShardSettings,
    saved: Iterable[TabletConfig] | SavedInStages,
    schemas_of: SchemasOf,
    name: str = "",
    reading: Executor | None = None,
    check_table: Callable[[TableId], None] = any_table,
) -> Shard:
    """With every tablet that the configs name, as it was when the last acknowledged block was. `check_table` raises if
    there cannot be records of a table in the log."""
    log = replay(files)
    with _uncollected():
        logged = _by_table(log, check_table)
        replicas: dict[TabletId, Replica] = {}
        for table, runs in list(logged.items()):
            if not all(run.is_plain for run in runs):
                found, logged[table] = take_replicas(runs)
                replicas |= found
        states: list[TabletState] = []
        stages = saved if callable(saved) else _at_once(list(saved))
        while configs_found := stages(states):
            opened = [loaded(config, schemas_of(config.table)) for config in settled(configs_found)]
            _replay(logged, opened, schemas_of)
            states += opened
    last = log.last_txn
    for state in states:
        last = max((last, *state.floors, *(file.txn_max for file in state.files().values())))
        last = max((last, state.purged_below, *(txn for _, txn in state.flushed)))
    clock.resume(last)
    shard = Shard(files, blobs, clock, rng, configs, settings, log, name, reading, replicas)
    with shard.lock:
        shard.install(states)
    shard.recount_memory()
    shard.publish(last)
    return shard


def _at_once(configs: list[TabletConfig]) -> SavedInStages:
    return lambda states: () if states else configs


def _by_table(log: ReplayedLog, check_table: Callable[[TableId], None]) -> dict[TableId, list[LogRun]]:
    """The log is read once, and its records kept until their tablets are known."""
    tables: dict[TableId, list[LogRun]] = {}
    for begin, records, is_plain, indexes in log:
        found: dict[TableId, list[LogRecord]] = {}
        for table, of_table in groupby(records, _table_of):
            found.setdefault(table, []).extend(of_table)
        for table, run in found.items():
            tables.setdefault(table, []).append(LogRun(begin, tuple(run), is_plain, indexes))
    for table in tables:
        check_table(table)
    return tables


@contextmanager
def _uncollected() -> Iterator[None]:
    """Replay makes millions of objects and no garbage: looking for cycles among them would cost a quarter of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def loaded(config: TabletConfig, schemas: Sequence[TableSchema]) -> TabletState:
    """The state a config describes, under the newest schema."""
    first, *later = _recorded_since(schemas, config.schema_version, f"the config of tablet {config.tablet}")
    state = state_of(config, first)
    for schema in later:
        state = altered(state, schema)
    return state


def since(schemas: Sequence[TableSchema], version: SchemaVersion, who: str) -> Sequence[TableSchema]:
    """The schema of a version, and all that came after it."""
    at = bisect_right([schema.version for schema in schemas], version) - 1
    if at < 0:
        raise Unavailable(f"{who} is of schema version {version}, of which nothing is known any more")
    return schemas[at:]


def _recorded_since(schemas: Sequence[TableSchema], version: SchemaVersion, who: str) -> Sequence[TableSchema]:
    """As `since`, of what was found when a shard opens: the catalog knew every schema that anything was written for."""
    if version > schemas[-1].version:
        raise Corruption(
            f"{who} is of schema version {version}, and the newest known is {schemas[-1].version}: {TAKEN_BACK}",
            "the catalog",
        )
    try:
        return since(schemas, version, who)
    except Unavailable as error:
        raise Corruption(str(error), "the catalog") from None


def settled(configs: Sequence[TabletConfig]) -> list[TabletConfig]:
    """Configs whose ranges do not overlap."""
    kept: list[TabletConfig] = []
    taken: dict[TableId, RangeSet] = {}
    for config in sorted(configs, key=lambda c: (-c.resize, c.tablet)):
        free = RangeSet.of([config.rows]).subtract(taken.get(config.table, RangeSet()))
        kept += [config if rows == config.rows else narrowed(config, rows) for rows in free]
        taken[config.table] = taken.get(config.table, RangeSet()).union(RangeSet.of([config.rows]))
    return kept


def _replay(logged: dict[TableId, list[LogRun]], states: list[TabletState], schemas_of: SchemasOf) -> None:
    """Bring every record that counts into the states: blocks into their memories, changes in their place. What was
    brought in is taken out of `logged`."""
    tablets: dict[TableId, list[_Opening]] = {}
    for at, state in enumerate(states):
        tablets.setdefault(state.table, []).append(_Opening(at, state))
    for id_, mine in tablets.items():
        runs = logged.pop(id_, [])
        if all(run.is_plain for run in runs):
            _replay_plain(runs, _TableOpening(mine, schemas_of(id_)))
        else:
            _replay_stays(runs, mine, schemas_of(id_))
        for tablet in mine:
            states[tablet.at] = tablet.finish()


def _replay_plain(runs: Iterable[LogRun], table: _TableOpening) -> None:
    """Every record counts, for whichever tablet holds its rows."""
    for begin, records, _, indexes in runs:
        for record in records:
            if record.kind is LogKind.BLOCK:
                if record.txn > table.flushed_min:
                    table.take(record)
            elif record.kind is LogKind.CHANGE:
                table.change(record)
        for tablet in table.tablets:
            tablet.note_run(begin, indexes.get(tablet.state.tablet, NO_INDEX))


def _replay_stays(runs: Iterable[LogRun], tablets: Sequence[_Opening], schemas: Sequence[TableSchema]) -> None:
    """Tablets came and left: each has records of its own."""
    stays = Stays()
    for run in runs:
        stays.take(run.begin, run.records)
    counting = stays.counting_for([tablet.state.tablet for tablet in tablets])
    for tablet in tablets:
        id_ = tablet.state.tablet
        alone = _TableOpening([tablet], schemas)
        for _, begin, record in counting[id_]:
            if record.kind is LogKind.BLOCK:
                alone.take(record)
            else:
                alone.change(record)
            tablet.note_run(begin, NO_INDEX)
        tablet.note_run(POSITION_MAX, stays.last_index(id_))


def replayed(replica: Replica, schemas: Sequence[TableSchema]) -> TabletState:
    """The state of a replica's tablet, with all its records: whoever takes over goes on from there. The last config
    among them says what no other record does: which files were merged, and which changes are prepared."""
    tablet = _Opening(0, loaded(replica.configs()[-1], schemas))
    alone = _TableOpening([tablet], schemas)
    for record in replica.tail:
        if record.kind is LogKind.BLOCK:
            alone.take(record)
        elif record.kind is LogKind.CHANGE:
            alone.change(record)
    tablet.note_run(replica.log_from, replica.last.index)
    return tablet.finish()


class _Opening:
    """A tablet while the log is read, and between which txns its files end."""

    __slots__ = ("active", "at", "flushed_max", "flushed_min", "state")

    def __init__(self, at: int, state: TabletState) -> None:
        self.at = at
        self.become(state)

    def become(self, state: TabletState) -> None:
        self.state = state
        self.active = state.active
        self.flushed_min = min((txn for _, txn in state.flushed), default=TXN_MAX)
        self.flushed_max = max((txn for _, txn in state.flushed), default=TXN_MAX)

    def note_run(self, begin: Position, last_index: Index) -> None:
        """All records came in that lie at or behind `begin`, and before the next that is noted."""
        if self.active.log_is_unknown:
            self.active.note_log(begin)
        if last_index > self.state.commits.index:
            self.state.commits.index = last_index

    def finish(self) -> TabletState:
        """All came in. Those of tablets that became this one, in the order of the log, may be out of that of txns."""
        self.active.txns.sort()
        if not self.active.is_empty:
            self.active.last_index = self.state.commits.index
        return self.state

    def note_done(self, record: LogRecord, places: int) -> None:
        """A numbered write was done: that is true wherever its rows lie."""
        self.state.commits.done.note(record.client, record.sequence, places, record.txn)

    def insert(self, block: WrittenBlock, txn: Txn, payload_bytes: int) -> None:
        if txn > self.flushed_max:
            insert(self.active, block, txn, payload_bytes)
        else:
            insert_unflushed(self.active, block, txn, self.state.flushed, payload_bytes)


class _TableOpening:
    """The tablets of a table while the log is read."""

    __slots__ = ("_newest", "_schemas", "_starts", "flushed_min", "tablets")

    def __init__(self, tablets: Sequence[_Opening], schemas: Sequence[TableSchema]) -> None:
        self.tablets = sorted(tablets, key=lambda tablet: tablet.state.rows.start)
        self._starts = [tablet.state.rows.start for tablet in self.tablets]
        self._schemas = schemas
        self._newest = schemas[-1].version
        self.flushed_min = min(tablet.flushed_min for tablet in tablets)
        """Changes of a table leave it as it is."""

    def take(self, record: LogRecord) -> None:
        """A single put of the newest schema goes the short way: it is of no other tablet than one. A row that lies
        before all tablets is of none, and the last one does not take it either."""
        payload, txn = record.payload, record.txn
        put = decode_single(payload)
        if put is not None and put[0] == self._newest:
            _, row, columns, values, ts = put
            tablet = self.tablets[bisect_right(self._starts, row) - 1]
            if txn > tablet.flushed_max:
                if insert_put(tablet.active, row, dict(zip(columns, values)), ts, txn, len(payload)):  # noqa: B905
                    if record.client:
                        tablet.note_done(record, 1)
                    return
            elif txn <= tablet.flushed_min:
                return
        self._take_block(record)

    def _take_block(self, record: LogRecord) -> None:
        wanting = [tablet for tablet in self.tablets if record.txn > tablet.flushed_min]
        if wanting:
            logged = _logged_block(record, self._schemas)
            block = brought_up(logged, self._schemas, f"the block of txn {record.txn}")
            for tablet in wanting:
                tablet.insert(block, record.txn, len(record.payload))
                if record.client:
                    tablet.note_done(record, count_places(logged))

    def change(self, record: LogRecord) -> None:
        change = decode_change(record.payload, record.txn)
        for tablet in self.tablets:
            tablet.become(changed(tablet.state, change, record.txn))


def _logged_block(record: LogRecord, schemas: Sequence[TableSchema]) -> WrittenBlock:
    """As it was written, for a schema that is known."""
    try:
        block = decode_block(record.payload, _ANY_SIZE)
    except StelaeError as error:
        raise Corruption(f"the block of txn {record.txn} cannot be read: {error}", "log") from None
    _recorded_since(schemas, block.schema_version, f"the block of txn {record.txn}")
    return block


def brought_up(block: WrittenBlock, schemas: Sequence[TableSchema], who: str) -> WrittenBlock:
    """The block as it is under the newest schema: what was written to columns that are gone is left out."""
    if block.schema_version < schemas[-1].version:
        for old, new in pairwise(since(schemas, block.schema_version, who)):
            block = carried(block, carry(old, new), new.codec)
    return block
