"""An engine in a simulated world, with one table, and every way to read it, in the words of the plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from stelae.format.block import Block as WrittenBlock
from stelae.format.block import SmallBlock
from stelae.model.arrow_values import values_of
from stelae.model.hybrid import HybridClock, micros_of
from stelae.model.ids import GroupId, Micros, Row, SchemaVersion, TableId, TabletId, Txn
from stelae.model.mutation import Mutation
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import ALL_COLUMNS, ColumnSelector, Selectors, union_selectors
from stelae.model.ranges import ALL_ROWS, EVERYTHING, RangeSet
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.model.values import Value
from stelae.sim.blobs import SimBlobStore
from stelae.sim.clock import SimClock
from stelae.sim.disk import SimDisk
from stelae.sim.effects import Effects
from stelae.sim.rng import SimRng
from stelae.storage.asking import Asking
from stelae.storage.compaction.picker import PickerSettings
from stelae.storage.config import TabletConfig, decode_config, encode_config
from stelae.storage.opening import open_shard
from stelae.storage.points import reader_for
from stelae.storage.rowscan import OTHERS, ScanRequest
from stelae.storage.scanner import TableScan
from stelae.storage.serializer import SerializerSettings
from stelae.storage.shard import Commit, Shard, ShardSettings
from stelae.storage.state import altered, new_tablet
from stelae.storage.upkeep import Upkeep
from stelae.storage.wal import WalSettings
from tests.storage.plain import PlainRow, PlainTable, Version

TABLE = TableId(7)
SMALL = ShardSettings(
    log=WalSettings(segment_bytes_max=2_000, group_bytes_max=1_000),
    serializer=SerializerSettings(seal_bytes=4_000, memory_bytes=20_000, log_bytes=20_000),
    picker=PickerSettings(fan_in=2, fan_in_max=4, read_amplification_max=4),
    cache_bytes=200_000,
)


class SimConfigs:
    """Configs that survive; saving each, and removing each, is an effect at which a crash may come."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.saved: dict[TabletId, bytes] = {}
        self.fails: type[Exception] | None = None

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        if self.fails is not None:
            raise self.fails("the configs cannot be saved")
        for config in configs:
            self._effects.happen("save", str(config.tablet))
            self.saved[config.tablet] = encode_config(config)
        for tablet in removed:
            self._effects.happen("remove", str(tablet))
            self.saved.pop(tablet, None)

    def load(self) -> list[TabletConfig]:
        return [decode_config(data, f"config of {tablet}") for tablet, data in sorted(self.saved.items())]


class Engine:
    def __init__(self, schema: TableSchema, seed: int = 0, effects: Effects | None = None) -> None:
        self.effects = effects or Effects()
        self.rng = SimRng(seed)
        self.clock = SimClock()
        self.disk = SimDisk(SimRng(seed + 1), page_bytes=64, effects=self.effects)
        self.blobs = SimBlobStore(SimRng(seed + 2), effects=self.effects)
        self.configs = SimConfigs(self.effects)
        self.schemas: dict[SchemaVersion, TableSchema] = {schema.version: schema}
        self.newest = schema.version
        self.next_tablet = 2
        first = new_tablet(TabletId(1), TABLE, ALL_ROWS, schema)
        self.open([])
        with self.shard.lock:
            self.shard.install([first])
        self.upkeep.touch([first.tablet])
        self.upkeep.save()

    # -- life

    def open(self, saved: list[TabletConfig]) -> None:
        hybrid = HybridClock(self.clock.wall_ms)
        self.shard: Shard = open_shard(
            self.disk,
            self.blobs,
            hybrid,
            self.rng,
            self.configs,
            SMALL,
            saved,
            lambda _, version: self.schemas[version],
            lambda _: self.newest,
        )
        self.upkeep = Upkeep(self.shard, saved)

    def restart(self, how: str) -> None:
        match how:
            case "close":
                self.shard.close()
            case "kill":
                self.disk.kill()
                self.blobs.crash()
            case _:
                self.disk.crash()
                self.blobs.crash()
        self.effects.restart()
        horizon = self.shard.horizon(TABLE)
        self.open(self.configs.load())
        self.shard.advance_horizon(TABLE, horizon)

    @property
    def schema(self) -> TableSchema:
        return self.schemas[self.newest]

    # -- writing

    def tablets_of(self, mutations: Iterable[Mutation]) -> dict[TabletId, list[Mutation]]:
        parts: dict[TabletId, list[Mutation]] = {}
        for mutation in mutations:
            parts.setdefault(self.shard.state_at(TABLE, mutation.row).tablet, []).append(mutation)
        return parts

    def apply(self, tablet: TabletId, mutations: Sequence[Mutation], max_txn: Txn | None = None) -> Commit:
        return self.apply_block(tablet, SmallBlock(self.schema.version, tuple(mutations)), max_txn)

    def apply_block(self, tablet: TabletId, block: WrittenBlock, max_txn: Txn | None = None) -> Commit:
        return self.shard.apply(tablet, block, max_txn=max_txn)

    def write(self, mutations: Sequence[Mutation]) -> list[tuple[Txn, list[Mutation]]]:
        """One block per tablet, all durable."""
        done = []
        for tablet, part in self.tablets_of(mutations).items():
            commit = self.apply(tablet, part)
            self.shard.drain()
            commit.durable.result(timeout=0)
            done.append((commit.txn, part))
        return done

    # -- upkeep

    def flush(self, tablet: TabletId) -> None:
        self.upkeep.seal(tablet)
        for memory in self.shard.state(tablet).memories[:-1]:
            self.upkeep.flush(memory)

    def compact(self, tablet: TabletId, *, whole_group: bool) -> bool:
        found = self.upkeep.pick_compaction(tablet, whole_group=whole_group)
        if found is None:
            return False
        self.upkeep.compact(tablet, *found)
        return True

    def split(self, tablet: TabletId, at: Row) -> None:
        left, right = TabletId(self.next_tablet), TabletId(self.next_tablet + 1)
        self.next_tablet += 2
        self.upkeep.split(tablet, at, left, right)

    def join(self, left: TabletId, right: TabletId) -> None:
        tablet = TabletId(self.next_tablet)
        self.next_tablet += 1
        self.upkeep.join(left, right, tablet)

    def alter(self, schema: TableSchema) -> None:
        self.schemas[schema.version] = schema
        self.newest = schema.version
        for tablet in self.shard.tablets():
            self.upkeep.change(tablet, lambda state: altered(state, schema))

    def truncate(self) -> Txn:
        floor = self.shard.clock.tick()
        for tablet in self.shard.tablets():
            self.upkeep.truncate(tablet, floor)
        return floor

    def tidy(self) -> None:
        self.upkeep.save()
        self.upkeep.collect_log()
        self.upkeep.collect_files()

    # -- reading

    def asking(self, at: Txn, read_us: Micros | None = None, time: TimeRange = ALL_TIME) -> Callable[[Txn], Asking]:
        now = micros_of(at) if read_us is None else read_us
        return lambda floor: Asking(at, floor, now, time)

    def wait_for(self, at: Txn) -> None:
        waiting = self.shard.ready(at)
        if waiting is not None:
            self.shard.drain()
            waiting.result(timeout=0)

    def history(
        self, rows: Iterable[Row], at: Txn, columns: Selectors = ALL_COLUMNS, time: TimeRange = ALL_TIME, limit: int = 1
    ) -> dict[Row, PlainRow]:
        """By point reads."""
        self.shard.check_snapshot(TABLE, at)
        found = {}
        for row in rows:
            state = self.shard.state_at(TABLE, row)
            asking = self.asking(at, time=time)(state.floor_at(at))
            versions = reader_for(state, self.shard.fragments, columns).history(row, asking, limit)
            if versions is not None:
                found[row] = PlainRow({name: tuple(Version(*v) for v in some) for name, some in versions.items()})
        return found

    def newest_values(
        self, rows: Iterable[Row], at: Txn, columns: Selectors = ALL_COLUMNS
    ) -> dict[Row, dict[str, Value]]:
        found = {}
        for row in rows:
            state = self.shard.state_at(TABLE, row)
            values = reader_for(state, self.shard.fragments, columns).newest(row, self.asking(at)(state.floor_at(at)))
            if values is not None:
                found[row] = values
        return found

    def scan(
        self,
        at: Txn,
        columns: Selectors = ALL_COLUMNS,
        rows: RangeSet = EVERYTHING,
        time: TimeRange = ALL_TIME,
        *,
        reverse: bool = False,
        plainly: bool = False,
    ) -> dict[Row, dict[str, Value]]:
        """Newest values, cells flattened, by a scan; rows in the order they came."""
        request = ScanRequest(rows, columns, self.asking(at, time=time)(Txn(0)), reverse=reverse, plainly=plainly)
        found: dict[Row, dict[str, Value]] = {}
        for batch in TableScan(self.shard, TABLE, request):
            for row, record in zip(batch.rows.to_pylist(), flat(self.schema, batch.batch), strict=True):
                found[Row(row)] = record
        return found


def flat(schema: TableSchema, batch: pa.RecordBatch) -> list[dict[str, Value]]:
    types = {c.name: c.type for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns}
    keys = set(schema.codec.names)
    records: list[dict[str, Value]] = [{} for _ in range(batch.num_rows)]
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name in keys:
            continue
        if name in types:
            for record, value in zip(records, values_of(types[name], array), strict=True):
                record[name] = value
        else:
            for record, cells in zip(records, array.to_pylist(), strict=True):
                for qualifier, value in cells:
                    record[qualifier if name == OTHERS else f"{name}:{qualifier}"] = value
    return records


def expected(
    model: PlainTable, at: Txn, columns: list[str] | None = None, **options: object
) -> dict[Row, dict[str, Value]]:
    """The model's newest values with defaults, as a scan gives them."""
    chosen = {
        c.name: c.default
        for g in model.schema.groups
        if isinstance(g, ColumnsGroup)
        for c in g.columns
        if columns is None or c.name in columns
    }
    read = model.read(at, columns=columns, **options)  # type: ignore[arg-type]
    return {
        row: {**chosen, **{name: versions[0].value for name, versions in found.versions.items()}}
        for row, found in sorted(read.items())
    }


def selectors(columns: Iterable[str] | None) -> Selectors:
    if columns is None:
        return ALL_COLUMNS
    return union_selectors([ColumnSelector(name, is_prefix=name.endswith(":")) for name in columns])


def group_ids(schema: TableSchema) -> list[GroupId]:
    return [group.id for group in schema.groups]
