"""From a metastore, a log and files to a running master and server.

1. The catalog is read, and the schemas each table has had.
2. The root config names meta0; its rows name meta1's tablets; theirs name everybody else's. Each is opened with what
   the log has for it before the next is read. A store without a root is new: it gets empty META tables.
3. The master brings its records, the catalog and the tablets in line, and ends what was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from stelae.catalog.value import Catalog
from stelae.format.log import read_log
from stelae.master.master import Master, MasterSettings
from stelae.model.errors import Corruption, UnsupportedFormat
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TableId, TabletId, Txn
from stelae.model.ranges import ALL_ROWS, RangeSet, RowRange
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.metastore import DeleteKey, IsAbsent, Metastore, PutKey
from stelae.ports.rng import Rng
from stelae.registry.catalog_service import CatalogService, CatalogSettings
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.meta import META0, META1, META_SCHEMA, ROOT_CONFIG_KEY
from stelae.registry.tablet_records import TabletPhase, TabletRecord, read_tablets
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.writing import fragment_names
from stelae.storage.log.replay import SegmentInfo
from stelae.storage.shard import Shard, ShardSettings
from stelae.storage.tablet.config import TabletConfig, decode_config, encode_config
from stelae.storage.tablet.opening import open_shard
from stelae.storage.tablet.state import TabletState, new_tablet
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.configs import MetaConfigs, read_configs
from stelae.tserver.keeper import Keeper, TableRules
from stelae.tserver.server import TabletServer

STORE_KEY = "store"
LOG_KEY = "log/closed"
HORIZON_PREFIX = "horizon/"
STORE_FORMAT = 1
META0_TABLET = TabletId(1)
META1_TABLET = TabletId(2)
EMBEDDED = "embedded"
_META_CACHE_BYTES = 64 * 2**20
_CHANGES_MAX = 100

T = TypeVar("T")


def _nothing() -> None:
    return


class StoreMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store is, written once. `fragments`: the URL that they lie under, if that is not the directory."""

    format: int
    token: str
    fragments: str = ""


class LogMark(msgspec.Struct, frozen=True):
    """Where the log ended when the store was closed in order."""

    segment: str
    size_bytes: int


class Loop(Protocol):
    """Where the master lives: an event loop in another thread."""

    def run(self, job: Awaitable[T]) -> T:
        """Wait for it. Never called on the loop itself."""
        ...


class Aside(Protocol):
    """Carries out what blocks while the loop goes on."""

    def __call__(self, job: Callable[..., TabletReport], /, *args: object) -> Awaitable[TabletReport]: ...


@dataclass(frozen=True, slots=True)
class World:
    """What the store is made of. Scans work ahead on `reading`; what the master asks of its server is done `aside`."""

    logs: LogFiles
    blobs: BlobStore
    metastore: Metastore
    clock: Clock
    rng: Rng
    loop: Loop
    reading: Executor | None
    aside: Aside = asyncio.to_thread


@dataclass(frozen=True, slots=True)
class StoreSettings:
    shard: ShardSettings = field(default_factory=ShardSettings)
    master: MasterSettings = field(default_factory=MasterSettings)
    author: str = ""
    overload_wait_s: float = 30.0
    pins_wait_s: float = 5.0
    """After an owner was killed, history is kept for so long: whoever holds a snapshot of it comes and says so."""


@dataclass(frozen=True, slots=True)
class Running:
    """A store that is open."""

    world: World
    catalog: CatalogService
    master: Master
    server: TabletServer
    keeper: Keeper
    mark: StoreMark


class LocalLink:
    """A master and its server in one process: requests are carried out by a thread."""

    def __init__(self, server: TabletServer, aside: Aside = asyncio.to_thread) -> None:
        self._server = server
        self._aside = aside

    @property
    def server(self) -> str:
        return self._server.name

    async def ask(self, request: ControlRequest) -> TabletReport:
        return await self._aside(self._server.ask, request)

    async def report(self) -> TabletReport:
        return await self._aside(self._server.report)


class _ByMaster:
    """What the keeper asks the master for."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.master: Master | None = None

    def split(self, tablet: TabletId, at: Row) -> None:
        if self.master is not None:
            self._loop.run(self.master.split(tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        if self.master is not None:
            self._loop.run(self.master.join(left, right))


def open_store(world: World, settings: StoreSettings, proved: Callable[[], None] = _nothing) -> Running:
    """Blocking: for a thread that is not the loop's. `proved` is called when all that was found has proved good, before
    anything is changed."""
    clock = HybridClock(world.clock.wall_ms)
    run = world.loop.run
    mark = run(mark_store(world.metastore, world.rng))
    catalog = run(_catalog(world, clock, settings))
    try:
        root = run(_root(world.metastore))
        configs = MetaConfigs(lambda config: run(_save_root(world.metastore, config)), EMBEDDED)
        schemas_of = _schemas(catalog)
        if root is None:
            _check_new(world)
        stages = _Stages(root, world.blobs, catalog.latest)
        try:
            shard = open_shard(
                world.logs,
                world.blobs,
                clock,
                world.rng,
                configs,
                settings.shard,
                stages,
                schemas_of,
                name=EMBEDDED,
                reading=world.reading,
            )
        finally:
            stages.close()
        try:
            _check_whole(shard, catalog.latest, run(read_tablets(world.metastore)))
            closed = run(_closed_log(world.metastore))
            _check_end(shard, closed)
            proved()
            run(_log_grows(world.metastore))
            configs.attach(shard, stages.saved)
            for table, horizon in run(_horizons(world.metastore, catalog.latest)):
                shard.advance_horizon(table, horizon)
            upkeep = Upkeep(shard, stages.saved)
            _make_meta(shard, upkeep)
            server = TabletServer(shard, upkeep, configs, schemas_of)
            resizing = _ByMaster(world.loop)
            keeper = Keeper(
                server,
                lambda table: _rules(catalog.latest, table),
                lambda table, txn: run(_save_horizon(world.metastore, table, txn)),
                resizing,
                _patience(world.clock, 0.0 if closed is not None or root is None else settings.pins_wait_s),
            )
            master = Master(world.metastore, catalog, LocalLink(server, world.aside), world.clock, settings.master)
            resizing.master = master
            run(master.start())
        except BaseException:
            shard.abandon()
            raise
    except BaseException:
        run(catalog.close())
        raise
    return Running(world, catalog, master, server, keeper, mark)


def _patience(clock: Clock, wait_s: float) -> Callable[[], bool]:
    """Whether so much time has passed."""
    over_s = clock.monotonic_s() + wait_s
    return lambda: clock.monotonic_s() >= over_s


def _check_new(world: World) -> None:
    """A metastore that knows of nothing belongs to a new store: one without data."""
    if fragment_names(world.blobs):
        found = "fragments"
    elif any(segment.records for segment in read_log(world.logs)):
        found = "a log"
    else:
        return
    raise Corruption(
        f"it knows of no table, but there is {found} beside it: it was lost or replaced. Bring it back; the data was "
        "left as it is",
        "the metastore",
    )


def _check_whole(shard: Shard, catalog: Catalog, records: Sequence[TabletRecord]) -> None:
    """What is recorded as running has a config: if not, META rows were lost, with the log or with their files."""
    here: dict[TableId, list[RowRange]] = {}
    for state in shard.tablets().values():
        here.setdefault(state.table, []).append(state.rows)
    for record in records:
        table = catalog.tables.get(record.table)
        if table is None or record.phase is not TabletPhase.RUNNING:
            continue
        lost = RangeSet.of([record.rows]).subtract(RangeSet.of(here.get(record.table, ())))
        if not lost.is_empty:
            raise Corruption(
                f"tablet {record.tablet} of table {catalog.qualified_name(table)!r} is recorded and has no config: was "
                "the log removed? Bring it back; the data was left as it is",
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


class _Stages:
    """Configs as `open_shard` asks for them."""

    def __init__(self, root: TabletConfig | None, blobs: BlobStore, catalog: Catalog) -> None:
        self._waiting: list[TableId | None] = [META1, META0, None]
        self._root = root
        self._fragments = Fragments(blobs, BlockCache(_META_CACHE_BYTES))
        self._tables = {*catalog.tables, *catalog.dropped, META0, META1}
        self.saved: list[TabletConfig] = []
        """All that were found, also those of tables that are gone."""

    def __call__(self, states: Sequence[TabletState]) -> Sequence[TabletConfig]:
        if not self._waiting:
            return ()
        table = self._waiting.pop()
        if table is None:
            found = [] if self._root is None else [self._root]
        else:
            found = read_configs([state for state in states if state.table == table], self._fragments)
        self.saved += found
        return [config for config in found if config.table in self._tables]

    def close(self) -> None:
        self._fragments.close()


async def mark_store(store: Metastore, rng: Rng, fragments: str = "") -> StoreMark:
    """Write what a new store is; return what it is, old or new."""
    mark = StoreMark(STORE_FORMAT, rng.token(16).hex(), fragments)
    await store.txn([IsAbsent(STORE_KEY)], [PutKey(STORE_KEY, msgspec.json.encode(mark))])
    return await read_mark(store)


async def read_mark(store: Metastore) -> StoreMark:
    """Without a token, if the store is still to be made."""
    entry = await store.get(STORE_KEY)
    if entry is None:
        return StoreMark(STORE_FORMAT, "")
    fields = msgspec.json.decode(entry.value, type=dict[str, object])
    if fields.get("format") != STORE_FORMAT:
        raise UnsupportedFormat(
            f"the store is of format {fields.get('format')}; this release reads and writes format {STORE_FORMAT}. "
            "Open it with the release that wrote it, or a newer one"
        )
    return msgspec.json.decode(entry.value, type=StoreMark)


async def _catalog(world: World, time: HybridClock, settings: StoreSettings) -> CatalogService:
    # Older schemas are needed as long as blocks of them are in the log: the store compacts the catalog when it closes.
    catalog_settings = CatalogSettings(author=settings.author, snapshot_every=2**62)
    service = CatalogService(world.metastore, world.clock, time, world.rng, catalog_settings)
    await service.start()
    return service


def _schemas(catalog: CatalogService) -> Callable[[TableId], Sequence[TableSchema]]:
    meta = (META_SCHEMA,)
    return lambda table: meta if table in (META0, META1) else catalog.schemas.of(table)


async def _closed_log(store: Metastore) -> LogMark | None:
    entry = await store.get(LOG_KEY)
    return None if entry is None else msgspec.json.decode(entry.value, type=LogMark)


async def _log_grows(store: Metastore) -> None:
    await store.txn([], [DeleteKey(LOG_KEY)])


async def note_closed_log(store: Metastore, segments: Sequence[SegmentInfo]) -> None:
    """The log ends here, until somebody opens the store again."""
    mark = LogMark(segments[-1].name, segments[-1].size_bytes) if segments else LogMark("", 0)
    await store.txn([], [PutKey(LOG_KEY, msgspec.json.encode(mark))])


async def _root(store: Metastore) -> TabletConfig | None:
    entry = await store.get(ROOT_CONFIG_KEY)
    return None if entry is None else decode_config(entry.value, f"metastore key {ROOT_CONFIG_KEY}")


async def _save_root(store: Metastore, config: TabletConfig) -> None:
    await store.txn([], [PutKey(ROOT_CONFIG_KEY, encode_config(config))])


async def _horizons(store: Metastore, catalog: Catalog) -> list[tuple[TableId, Txn]]:
    """Of the tables that are there; those of others go."""
    read = await store.range(HORIZON_PREFIX)
    found = [(TableId(int(e.key[len(HORIZON_PREFIX) :], 16)), Txn(int(e.value))) for e in read.entries]
    gone = [table for table, _ in found if table not in catalog.tables and table not in catalog.dropped]
    for at in range(0, len(gone), _CHANGES_MAX):
        await store.txn([], [DeleteKey(_horizon_key(table)) for table in gone[at : at + _CHANGES_MAX]])
    return [(table, txn) for table, txn in found if table not in gone]


def _horizon_key(table: TableId) -> str:
    return f"{HORIZON_PREFIX}{table:016x}"


async def _save_horizon(store: Metastore, table: TableId, txn: Txn) -> None:
    await store.txn([], [PutKey(_horizon_key(table), str(txn).encode())])


def _make_meta(shard: Shard, upkeep: Upkeep) -> None:
    """The META tables of a new store; also if it ended between the two."""
    for tablet, table in ((META0_TABLET, META0), (META1_TABLET, META1)):
        if not shard.of_table(table):
            with shard.lock:
                shard.install([new_tablet(tablet, table, ALL_ROWS, META_SCHEMA)])
            upkeep.touch([tablet])
            upkeep.save()


def _rules(catalog: Catalog, table: TableId) -> TableRules | None:
    found = catalog.tables.get(table)
    if found is None:
        return None
    return TableRules(found.properties.retention_us, catalog.zones[found.zone].tablet_bytes)
