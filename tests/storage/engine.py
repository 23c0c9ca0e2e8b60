"""An engine in a simulated world, with one table, and every way to read it, in the words of the plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stelae.format import layout
from stelae.format.block import Block as WrittenBlock
from stelae.format.block import SmallBlock
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.format.fragment.footer import FragmentFile, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of, values_of
from stelae.model.errors import SnapshotTooOld, Unavailable
from stelae.model.hybrid import HybridClock, micros_of
from stelae.model.ids import ColumnId, GroupId, Row, SchemaVersion, TableId, TabletId, Txn
from stelae.model.keys.vector import decode_array
from stelae.model.mutation import Erase, Mutation, Put, PutCell, WholeRow
from stelae.model.predicate.expr import Expr, Not
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ALL_TIME, TimeRange, plan
from stelae.model.predicate.selectors import ALL_COLUMNS, NO_COLUMNS, ColumnSelector, Selectors, union_selectors
from stelae.model.ranges import ALL_ROWS, EVERYTHING, RangeSet, RowRange
from stelae.model.schema import Column, ColumnsGroup, Group, TableSchema
from stelae.model.types import Binary, String
from stelae.model.values import Value
from stelae.service.scans import bind
from stelae.sim.blobs import SimBlobStore
from stelae.sim.clock import SimClock
from stelae.sim.disk import SimDisk
from stelae.sim.effects import Effect, Effects, Faults
from stelae.sim.rng import SimRng
from stelae.storage.checks.blocks import check_block
from stelae.storage.files.names import file_name
from stelae.storage.log.wal import WalSettings
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import reader_for
from stelae.storage.read.scans.rows import RowBatch, ScanRequest
from stelae.storage.read.scans.shapes import OTHERS
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.shard import Commit, Shard, ShardSettings
from stelae.storage.tablet.changes import TableChange
from stelae.storage.tablet.config import TabletConfig, decode_config, encode_config
from stelae.storage.tablet.opening import open_shard
from stelae.storage.tablet.state import TabletState, altered, check_state, new_tablet, with_prepared, without_prepared
from stelae.storage.upkeep.picker import PickerSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.storage.upkeep.upkeep import Upkeep
from tests.effort import tries
from tests.storage.plain import PlainRow, PlainTable, Version
from tests.storage.workloads import QUALIFIERS, TIMES, VALUES, Choose, choose_several, families_of

TABLE = TableId(7)
SMALL = ShardSettings(
    log=WalSettings(segment_bytes_max=2_000, group_bytes_max=1_000),
    serializer=SerializerSettings(seal_bytes=4_000, memory_bytes=20_000, log_bytes=20_000),
    picker=PickerSettings(fan_in=2, fan_in_max=4, read_amplification_max=4),
    cache_bytes=200_000,
)
HISTORY = 3
LARGE_BYTES = 1_500
MOMENTS = tuple(time for time in TIMES if time is not None)


class SimConfigs:
    """Configs that survive; saving each, and removing each, is an effect at which a crash may come."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.saved: dict[TabletId, bytes] = {}
        self._fails_after: int | None = None

    def fail(self, after: int = 0) -> None:
        """The next save raises after so many of its effects, and nobody is told which."""
        self._fails_after = after

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        for config in configs:
            self._happen("save", config.tablet)
            self.saved[config.tablet] = encode_config(config)
        for tablet in removed:
            self._happen("remove", tablet)
            self.saved.pop(tablet, None)
        if self._fails_after is not None:
            self._raise()

    def _happen(self, kind: str, tablet: TabletId) -> None:
        if self._fails_after == 0:
            self._raise()
        if self._fails_after is not None:
            self._fails_after -= 1
        self._effects.happen(kind, str(tablet))

    def heal(self) -> None:
        self._fails_after = None

    def _raise(self) -> None:
        self.heal()
        raise Unavailable("the configs cannot be saved")

    def load(self) -> list[TabletConfig]:
        return [decode_config(data, f"config of {tablet}") for tablet, data in sorted(self.saved.items())]


class Engine:
    """`crash_at`: the number of the effect in the midst of which the process dies. `watch` is told of every effect."""

    def __init__(
        self,
        schema: TableSchema,
        seed: int = 0,
        *,
        crash_at: int | None = None,
        settings: ShardSettings = SMALL,
        page_bytes: int = 64,
    ) -> None:
        self.effects = Effects(crash_at=crash_at, on_effect=self._on_effect)
        self.settings = settings
        self.rng = SimRng(seed)
        self.chance = SimRng(seed + 1)
        self.clock = SimClock()
        self.disk = SimDisk(self.chance, page_bytes=page_bytes, effects=self.effects)
        self.blobs = SimBlobStore(self.chance, effects=self.effects)
        self.configs = SimConfigs(self.effects)
        self.watch: Callable[[Effect], None] = lambda _: None
        self.schemas: dict[SchemaVersion, TableSchema] = {schema.version: schema}
        self.newest = schema.version
        self.next_tablet = 2
        self.horizon = Txn(0)
        self._meanwhile: Callable[[], None] | None = None
        first = new_tablet(TabletId(1), TABLE, ALL_ROWS, schema)
        self.open()
        with self.shard.lock:
            self.shard.install([first])
        self.upkeep.touch([first.tablet])
        self.upkeep.save()

    # -- life

    def open(self) -> None:
        saved = self.configs.load()
        self.shard: Shard = open_shard(
            self.disk,
            self.blobs,
            HybridClock(self.clock.wall_ms),
            self.rng,
            self.configs,
            self.settings,
            saved,
            lambda _: list(self.schemas.values()),
        )
        self.upkeep = Upkeep(self.shard, saved)
        self.shard.advance_horizon(TABLE, self.horizon)

    def restart(self, how: str) -> None:
        """The horizon is kept elsewhere, and outlives the process."""
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
        self.open()

    def fork(self, seed: int) -> Engine:
        """A world of its own, as this one is now, for a process that begins with `restart`. The seed says what this one
        leaves behind of all that is not durable; no faults come with it."""
        other = copy(self)
        other.chance = SimRng(seed)
        other.effects = Effects(on_effect=other._on_effect)
        others: dict[int, Any] = {id(self.effects): other.effects, id(self.chance): other.chance}
        world = (self.disk, self.blobs, self.configs, self.clock, self.rng)
        other.disk, other.blobs, other.configs, other.clock, other.rng = deepcopy(world, others)
        other.disk._faults, other.blobs._faults = Faults(), Faults()
        other.schemas = dict(self.schemas)
        other.watch = lambda _: None
        return other

    def _on_effect(self, effect: Effect) -> None:
        self.watch(effect)
        if effect.kind == "commit" and self._meanwhile is not None:
            act, self._meanwhile = self._meanwhile, None
            act()

    @contextmanager
    def meanwhile(self, act: Callable[[], None]) -> Iterator[None]:
        """Inside, when the first file is on the point of being there, something else happens first."""
        self._meanwhile = act
        try:
            yield
        finally:
            self._meanwhile = None

    @property
    def schema(self) -> TableSchema:
        return self.schemas[self.newest]

    @property
    def visible(self) -> Txn:
        return self.shard.visible

    def tablets(self) -> list[TabletState]:
        """In the order of their rows."""
        return sorted(self.shard.tablets().values(), key=lambda state: state.rows.start)

    # -- writing

    def tablets_of(self, mutations: Iterable[Mutation]) -> dict[TabletId, list[Mutation]]:
        parts: dict[TabletId, list[Mutation]] = {}
        for mutation in mutations:
            parts.setdefault(self.shard.state_at(TABLE, mutation.row).tablet, []).append(mutation)
        return parts

    def apply(
        self, tablet: TabletId, mutations: Sequence[Mutation], max_txn: Txn | None = None, *, urgent: bool = False
    ) -> Commit:
        block = SmallBlock(self.schema.version, tuple(mutations))
        return self.apply_block(tablet, block, max_txn, urgent=urgent)

    def apply_block(
        self, tablet: TabletId, block: WrittenBlock, max_txn: Txn | None = None, *, urgent: bool = False
    ) -> Commit:
        check_block(self.schema, block)
        return self.shard.apply(tablet, block, max_txn=max_txn, urgent=urgent)

    def queue(
        self, mutations: Sequence[Mutation], nulls_written: bool | None = None
    ) -> list[tuple[Commit, list[Mutation]]]:
        """One block per tablet, accepted and not yet durable; columnar ones if `nulls_written` is said."""
        found = []
        for tablet, part in self.tablets_of(mutations).items():
            if nulls_written is None:
                found.append((self.apply(tablet, part), part))
            else:
                found.append((self.apply_block(tablet, columnar(self.schema, part, nulls_written)), part))
        return found

    def write(
        self, mutations: Sequence[Mutation], nulls_written: bool | None = None
    ) -> list[tuple[Txn, list[Mutation]]]:
        """The same, all durable."""
        queued = self.queue(mutations, nulls_written)
        self.shard.drain()
        return [(commit.durable.result(timeout=0), part) for commit, part in queued]

    # -- upkeep

    def flush(self, tablet: TabletId) -> None:
        """All that was written so far, and whatever older of the same rows other tablets share with it; less, if
        another flush is at one of them."""
        self.upkeep.seal(tablet)
        wanted = self.shard.state(tablet).memories[:-1]
        for memory in sorted(self.shard.memories(), key=lambda memory: memory.txn_min, reverse=True):
            if any(memory.txn_min < each.txn_min and memory.rows.overlaps(each.rows) for each in wanted):
                wanted = (*wanted, memory)
        for memory in sorted(wanted, key=lambda memory: memory.txn_min):
            self.upkeep.flush(memory)
            if any(memory is each for each in self.shard.memories()):
                return

    def flush_picked(self) -> bool:
        memory = self.upkeep.pick_flush()
        if memory is None:
            return False
        self.upkeep.flush(memory)
        return True

    def compact(self, tablet: TabletId, *, whole_group: bool = False) -> bool:
        found = self.upkeep.pick_compaction(tablet, whole_group=whole_group)
        if found is None:
            return False
        self.upkeep.compact(tablet, *found)
        return True

    def compact_all(self, tablet: TabletId) -> None:
        """Every group of it, once; a split or join may come between."""
        for _ in range(len(self.schema.groups)):
            if tablet in self.shard.tablets():
                self.compact(tablet, whole_group=True)

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

    def change(self, change: TableChange) -> Txn:
        """Durable."""
        commit = self.upkeep.commit(TABLE, change)
        self.shard.drain()
        return commit.durable.result(timeout=0)

    def advance_horizon(self, to: Txn) -> None:
        self.horizon = self.shard.advance_horizon(TABLE, to)

    def collect_log(self) -> None:
        """All that can go: the first collection asks for a new segment, which comes with the next drain."""
        self.upkeep.collect_log()
        self.shard.drain()
        self.upkeep.collect_log()

    def tidy(self) -> None:
        self.upkeep.save()
        self.collect_log()
        self.upkeep.collect_files()

    # -- bulk loads

    def prepare_load(self, load: str, mutations: Sequence[Mutation]) -> None:
        """Complete puts of one group's columns, and puts of cells; all with a time, or all without."""
        files = {group.id: [self._load_file(group, some)] for group, some in _by_group(self.schema, mutations)}
        rows = RowRange(min(m.row for m in mutations), Row(max(m.row for m in mutations) + b"\0"))
        for state in self.tablets():
            if state.rows.overlaps(rows):
                self.upkeep.change(state.tablet, lambda old: with_prepared(old, load, files))
        self.upkeep.save()

    def _load_file(self, group: Group, mutations: Sequence[Mutation]) -> FragmentFile:
        block = columnar(self.schema, mutations, nulls_written=True)
        has_ts = layout.TS in block.batch.schema.names
        spec = spec_of(TABLE, self.schema, group, nulls="written", has_ts=has_ts, has_txn=False, has_kind=False)
        name = file_name(TABLE, self.shard.clock.tick(), self.rng.token(6).hex())
        sink = self.blobs.create(name)
        writer = FragmentWriter(sink, spec, group.options)
        writer.write(block.batch.select(spec.arrow_schema().names).cast(spec.arrow_schema()))
        footer, seal = writer.close()
        sink.commit()
        return FragmentFile(name, seal, footer.stats)

    def abandon_load(self, load: str) -> None:
        for tablet in self.shard.tablets():
            self.upkeep.change(tablet, lambda state: without_prepared(state, load))

    # -- reading

    def asking(self, at: Txn, time: TimeRange = ALL_TIME) -> Callable[[Txn], Asking]:
        return lambda floor: Asking(at, floor, micros_of(at), time)

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
            asking = self.asking(at, time)(state.floor_at(at))
            versions = reader_for(state, self.shard.fragments, columns).history(row, asking, limit)
            if versions is not None:
                found[row] = PlainRow({name: tuple(Version(*v) for v in some) for name, some in versions.items()})
        return found

    def newest_values(
        self, rows: Iterable[Row], at: Txn, columns: Selectors = ALL_COLUMNS, time: TimeRange = ALL_TIME
    ) -> dict[Row, dict[str, Value]]:
        self.shard.check_snapshot(TABLE, at)
        found = {}
        for row in rows:
            state = self.shard.state_at(TABLE, row)
            asking = self.asking(at, time)(state.floor_at(at))
            values = reader_for(state, self.shard.fragments, columns).newest(row, asking)
            if values is not None:
                found[row] = values
        return found

    def table_scan(
        self,
        at: Txn,
        columns: Selectors = ALL_COLUMNS,
        rows: RangeSet = EVERYTHING,
        time: TimeRange = ALL_TIME,
        *,
        reverse: bool = False,
        plainly: bool = False,
        limit: int | None = None,
        where: Expr | None = None,
        having: bool = False,
    ) -> TableScan:
        asking = self.asking(at, time)(Txn(0))
        request = ScanRequest(rows, columns, asking, where, reverse, plainly, limit, having)
        return TableScan(self.shard, TABLE, self.schema, request)

    def scan(
        self,
        at: Txn,
        columns: Selectors = ALL_COLUMNS,
        rows: RangeSet = EVERYTHING,
        time: TimeRange = ALL_TIME,
        *,
        reverse: bool = False,
        plainly: bool = False,
        limit: int | None = None,
        where: Expr | None = None,
        having: bool = False,
    ) -> dict[Row, dict[str, Value]]:
        """Newest values, cells flattened, by a scan; rows in the order they came."""
        found: dict[Row, dict[str, Value]] = {}
        for batch in self.table_scan(
            at, columns, rows, time, reverse=reverse, plainly=plainly, limit=limit, where=where, having=having
        ):
            for row, record in self.records_of(batch):
                assert row not in found, f"a scan gave {row!r} twice"
                found[row] = record
        return found

    def records_of(self, batch: RowBatch) -> list[tuple[Row, dict[str, Value]]]:
        return list(zip(map(Row, batch.rows.to_pylist()), flat(self.schema, batch.batch), strict=True))


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


# -- blocks of columns


def columnar(schema: TableSchema, mutations: Sequence[Mutation], nulls_written: bool) -> ColumnarBlock:
    """Puts, puts of cells, or erasures of whole rows, in the order of their rows. If nulls are written all puts name
    the same columns, else none puts NULL. All have a time, or none has."""
    rows = pa.array([mutation.row for mutation in mutations], pa.binary())
    fields, arrays = _key_columns(schema, rows)
    match mutations[0]:
        case Put():
            op = ColumnarOp.PUT
            for column, values in _value_columns(schema, mutations):
                fields.append(layout.user_field(column.name, to_arrow(column.type), column.id, nullable=True))
                arrays.append(array_of(column.type, values))
        case PutCell():
            op = ColumnarOp.PUT_CELLS
            cells = [(m.family, m.qualifier, m.value) for m in mutations if isinstance(m, PutCell)]
            names = (layout.FAMILY, layout.QUALIFIER, layout.VALUE)
            for name, some in zip(names, zip(*cells, strict=True), strict=True):
                fields.append(layout.system_field(name))
                arrays.append(pa.array(some, layout.system_field(name).type))
        case _:
            op = ColumnarOp.ERASE_ROWS
    times = [mutation.until if op is ColumnarOp.ERASE_ROWS else mutation.ts for mutation in mutations]  # type: ignore[union-attr]
    if times[0] is not None:
        fields.append(layout.system_field(layout.TS))
        arrays.append(pa.array(times, pa.int64()).view(layout.system_field(layout.TS).type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return ColumnarBlock(schema.version, op, nulls_written, batch)


def _key_columns(schema: TableSchema, rows: pa.Array) -> tuple[list[pa.Field], list[pa.Array]]:
    fields = [layout.user_field(key.name, to_arrow(key.type), key.id, nullable=False) for key in schema.key]
    arrays = list(decode_array(schema.codec, rows))
    if layout.row_is_stored(schema.codec):
        fields.append(layout.system_field(layout.ROW))
        arrays.append(rows)
    return fields, arrays


def _value_columns(schema: TableSchema, mutations: Sequence[Mutation]) -> Iterator[tuple[Column, list[Value]]]:
    puts = [dict(mutation.values) for mutation in mutations if isinstance(mutation, Put)]
    for id_ in sorted({id_ for values in puts for id_ in values}):
        yield schema.column_by_id(ColumnId(id_))[1], [values.get(id_) for values in puts]


def _by_group(schema: TableSchema, mutations: Sequence[Mutation]) -> Iterator[tuple[Group, list[Mutation]]]:
    """Each mutation is of one group alone."""

    def home(mutation: Mutation) -> GroupId | None:
        match mutation:
            case Put(_, values):
                return schema.column_by_id(values[0][0])[0].id
            case PutCell(_, family):
                return schema.family_group(family).id
            case _:
                return None

    for group in schema.groups:
        mine = [mutation for mutation in mutations if home(mutation) == group.id]
        if mine:
            yield group, mine


def choose_columnar(choose: Choose, schema: TableSchema, rows: Sequence[Row]) -> tuple[tuple[Mutation, ...], bool]:
    """Many mutations of one shape, and whether their nulls are written."""
    here = [column for group in schema.groups if isinstance(group, ColumnsGroup) for column in group.columns]
    families = sorted(families_of(schema))
    shapes = [*(["put", "some", "put", "some"] if here else []), *(["cells"] * 3 if families else []), "keys", "erase"]
    chosen = choose_several(choose, rows, 1, len(rows))
    timed = choose((False, True))

    def when() -> Any:
        return choose(MOMENTS) if timed else None

    match choose(shapes):
        case "put":
            columns = choose_several(choose, here, 1, len(here))
            return tuple(Put(row, _values(choose, columns, nulls=True), when()) for row in chosen), True
        case "some":
            columns = choose_several(choose, here, 1, len(here))
            some = [choose_several(choose, columns, 0, len(columns)) for _ in chosen]
            return tuple(
                Put(r, _values(choose, c, nulls=False), when()) for r, c in zip(chosen, some, strict=True)
            ), False
        case "cells":
            cells = [(family, qualifier) for family in families for qualifier in sorted(QUALIFIERS)]
            return tuple(
                PutCell(row, family, qualifier, choose((b"x", b"", b"\x00\xff")), when())
                for row in chosen
                for family, qualifier in choose_several(choose, cells, 1, 3)
            ), True
        case "keys":
            return tuple(Put(row, (), when()) for row in chosen), True
        case _:
            return tuple(Erase(row, WholeRow(), when()) for row in chosen), True


def _values(choose: Choose, columns: Sequence[Column], *, nulls: bool) -> tuple[tuple[ColumnId, Any], ...]:
    return tuple(
        (column.id, choose((*VALUES[column.type], None) if nulls and column.nullable else VALUES[column.type]))
        for column in columns
    )


def choose_load(choose: Choose, schema: TableSchema, rows: Sequence[Row]) -> tuple[Mutation, ...]:
    """Whole puts of some groups."""
    timed = choose((False, True))
    found: list[Mutation] = []
    for group in choose_several(choose, schema.groups, 1, len(schema.groups)):
        chosen = choose_several(choose, rows, 1, len(rows))
        if isinstance(group, ColumnsGroup):
            times = [choose(MOMENTS) if timed else None for _ in chosen]
            found += [
                Put(row, _values(choose, group.columns, nulls=True), ts) for row, ts in zip(chosen, times, strict=True)
            ]
        else:
            names = [f for f in sorted(families_of(schema)) if schema.family_group(f) is group]
            cells = [(family, qualifier) for family in names for qualifier in sorted(QUALIFIERS)]
            found += [
                PutCell(row, family, qualifier, choose((b"x", b"")), choose(MOMENTS) if timed else None)
                for row in chosen
                for family, qualifier in choose_several(choose, cells, 1, 2)
            ]
    return tuple(found)


def large_block(schema: TableSchema, rows: Sequence[Row], letter: str) -> tuple[Mutation, ...]:
    """So much that files have several blocks; nothing, if the table has no place for it."""
    here = [column for group in schema.groups if isinstance(group, ColumnsGroup) for column in group.columns]
    text = letter * LARGE_BYTES
    for column in here:
        if column.type in (String(), Binary()):
            value = text if column.type == String() else text.encode()
            return tuple(Put(row, ((column.id, value),)) for row in rows)
    for family in families_of(schema):
        return tuple(PutCell(row, family, "q", text.encode()) for row in rows)
    return ()


# -- what is to be read


def expected(
    model: PlainTable,
    at: Txn,
    columns: Sequence[str] | None = None,
    time: TimeRange = ALL_TIME,
    *,
    having: bool = False,
) -> dict[Row, dict[str, Value]]:
    """The model's newest values with defaults, as a scan gives them."""
    return _with_defaults(model, model.read(at, columns=columns, time=time, having=having), columns)


def _with_defaults(
    model: PlainTable, read: dict[Row, PlainRow], columns: Sequence[str] | None
) -> dict[Row, dict[str, Value]]:
    chosen = {
        c.name: c.default
        for g in model.schema.groups
        if isinstance(g, ColumnsGroup)
        for c in g.columns
        if columns is None or c.name in columns
    }
    return {
        row: {**chosen, **{name: versions[0].value for name, versions in found.versions.items()}}
        for row, found in sorted(read.items())
    }


def selectors(columns: Iterable[str] | None) -> Selectors:
    if columns is None:
        return ALL_COLUMNS
    return union_selectors([ColumnSelector(name, is_prefix=name.endswith(":")) for name in columns])


def names_of(schema: TableSchema) -> list[str]:
    """Of all columns and families."""
    columns = [c.name for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    return [*columns, *(f"{family}:" for family in families_of(schema))]


def choose_columns(rng: Random, schema: TableSchema) -> list[str]:
    """Some columns, families and cells."""
    cells = [f"{family}:{qualifier}" for family in families_of(schema) for qualifier in QUALIFIERS if qualifier]
    return choose_several(rng.choice, [*names_of(schema), *cells], 1, 3)


def choose_time(rng: Random) -> TimeRange:
    """Bounds that are met by times of puts."""
    start, stop = sorted(rng.choices(MOMENTS, k=2))
    return TimeRange(start, stop + rng.choice((0, 1)))


WAYS_MAX = tries(3)
"""Of the other ways to scan so many are taken at each check, drawn anew: thousands of checks take all of them."""


def check_reads(engine: Engine, model: PlainTable, rows: Sequence[Row], at: Txn, rng: Random) -> None:
    """Every way to read gives what the model has."""
    history = model.read(at, history=HISTORY)
    newest = _with_defaults(model, history, None)
    _same("scan", engine.scan(at), newest)
    _same("newest", engine.newest_values(rows, at), newest)
    _same("history", engine.history(rows, at, limit=HISTORY), history)
    ways = [*_other_ways(engine, model, rows, at, rng, newest)]
    for way in rng.sample(ways, min(WAYS_MAX, len(ways))):
        way()


def _other_ways(
    engine: Engine,
    model: PlainTable,
    rows: Sequence[Row],
    at: Txn,
    rng: Random,
    newest: Mapping[Row, Mapping[str, Value]],
) -> Iterator[Callable[[], None]]:
    """Each checks itself when it is called."""
    columns, time = choose_columns(rng, model.schema), choose_time(rng)
    chosen, reverse, limit = selectors(columns), rng.choice((False, True)), rng.randint(0, 4)

    def scan_backwards() -> None:
        backwards = engine.scan(at, reverse=True)
        _same("reverse scan", backwards, newest)
        assert list(backwards) == sorted(newest, reverse=True), "a reverse scan is out of order"

    def scan_some_in_time() -> None:
        some = expected(model, at, columns, time)
        _same(f"scan of {columns} in {time}", engine.scan(at, chosen, time=time, reverse=reverse), some)
        _same(f"newest {columns} in {time}", engine.newest_values(rows, at, chosen, time), some)

    def scan_having() -> None:
        having = expected(model, at, columns, having=True)
        _same(f"scan having {columns}", engine.scan(at, chosen, reverse=reverse, having=True), having)

    def scan_having_in_time() -> None:
        some = expected(model, at, columns, time)
        wanted = {row: some[row] for row in model.read(at, columns=columns, time=time, having=True)}
        _same(f"scan having {columns} in {time}", engine.scan(at, chosen, time=time, having=True), wanted)

    def scan_first() -> None:
        first = dict(sorted(newest.items(), reverse=reverse)[:limit])
        _same(f"scan of {limit} rows", engine.scan(at, reverse=reverse, limit=limit), first)

    yield scan_backwards
    yield scan_some_in_time
    yield scan_having
    yield scan_having_in_time
    yield scan_first
    yield lambda: _same("plain scan", engine.scan(at, plainly=True), newest)
    yield lambda: _same(f"scan of {columns}", engine.scan(at, chosen, reverse=reverse), expected(model, at, columns))
    yield lambda: _same("keys alone", engine.scan(at, NO_COLUMNS, reverse=reverse), {row: {} for row in newest})
    yield from _conditions(engine, model, at, rng, columns, newest)


def _conditions(
    engine: Engine,
    model: PlainTable,
    at: Txn,
    rng: Random,
    columns: Sequence[str],
    newest: Mapping[Row, Mapping[str, Value]],
) -> Iterator[Callable[[], None]]:
    """Conditions on a column or cell that may or may not be among those that are shown."""
    named = [name for name in names_of(model.schema) if not name.endswith(":")]
    asked = rng.choice([*named, *(f"{family}:q" for family in families_of(model.schema))])
    is_null = bind(plan(parse(f"`{asked}` is null")), model.schema)[1].condition

    def scan_where(where: Expr | None, is_wanted: bool, having: bool) -> None:
        rows = [row for row, values in newest.items() if (values.get(asked) is None) is is_wanted]
        wanted = expected(model, at, columns, having=having)
        kept = {row: wanted[row] for row in rows if row in wanted}
        told = f"{asked} is {'' if is_wanted else 'not '}null, of {columns}{', having' if having else ''}"
        _same(told, engine.scan(at, selectors(columns), where=where, having=having), kept)

    for having in (False, True):
        yield partial(scan_where, is_null, True, having)
        yield partial(scan_where, None if is_null is None else Not(is_null), False, having)


def _same(what: str, got: Mapping[Row, object], wanted: Mapping[Row, object]) -> None:
    if got != wanted:
        both = {row: (got.get(row), wanted.get(row)) for row in sorted({*got, *wanted})}
        wrong = {row: pair for row, pair in both.items() if pair[0] != pair[1]}
        raise AssertionError(f"{what}: (got, wanted) of each row: {wrong}")


def check_engine(engine: Engine, rows: Sequence[Row]) -> None:
    """What holds at every moment, whatever was written."""
    shard = engine.shard
    states = shard.tablets().values()
    for state in states:
        check_state(state)
        for row in rows:
            if row in state.rows:
                sources = [source for memory in state.memories for source in memory.groups.values()]
                txns = {version.txn for source in sources for version in source.versions_of(row)}
                flushed = next((txn for rows, txn in state.flushed if row in rows), Txn(0))
                assert all(txn > flushed for txn in txns), f"{row!r} is in memory and in files"
    if all(memory.is_empty for memory in shard.memories()):
        assert shard.unflushed_bytes() == shard.wal.queued_bytes
    horizon = shard.horizon(TABLE)
    if horizon:
        too_old = Txn(horizon - 1)
        with pytest.raises(SnapshotTooOld):
            engine.scan(too_old)
        with pytest.raises(SnapshotTooOld):
            engine.newest_values(rows[:1], too_old)
