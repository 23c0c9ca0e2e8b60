"""A shard comes up: configs become states, the log is replayed into their memories.

Configs may overlap after a crash in the middle of a split or join: the greater resize number counts, and of the others
what is left of their range. A block of the log goes to every tablet of its table that holds rows of it and has not
flushed that far, whatever the tablet was called when it was written; it is carried through every schema since its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from stelae.format.block import Block as WrittenBlock
from stelae.format.block import decode_block
from stelae.format.log import LogKind, LogRecord
from stelae.model.errors import Corruption, StelaeError
from stelae.model.hybrid import HybridClock
from stelae.model.ids import SchemaVersion, TableId, Txn
from stelae.model.limits import Limits
from stelae.model.ranges import RangeSet
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.rng import Rng
from stelae.storage.config import TabletConfig, narrowed, state_of
from stelae.storage.parts import carry
from stelae.storage.shard import ConfigStore, Shard, ShardSettings
from stelae.storage.state import TabletState, altered
from stelae.storage.wal_replay import ReplayedLog, replay
from stelae.storage.write import carried, insert_unflushed

_ANY_SIZE = Limits(block_bytes_max=2**31)
"""What was let in is read back, whatever the limit is now."""

SchemaAt = Callable[[TableId, SchemaVersion], TableSchema]
"""The schema a table had at a version. All versions from those in use to the newest must be known."""


def open_shard(
    files: LogFiles,
    blobs: BlobStore,
    clock: HybridClock,
    rng: Rng,
    configs: ConfigStore,
    settings: ShardSettings,
    saved: Iterable[TabletConfig],
    schema_at: SchemaAt,
    newest: Callable[[TableId], SchemaVersion],
    name: str = "",
    reading: Executor | None = None,
) -> Shard:
    """With every tablet that the configs name, as it was when the last acknowledged block was."""
    states = [loaded(config, schema_at, newest) for config in settled(list(saved))]
    log = replay(files)
    with _uncollected():
        last = _replayed(log, states, schema_at)
    for state in states:
        last = max((last, *state.floors, *(file.txn_max for file in state.files().values())))
        last = max((last, *(txn for _, txn in state.flushed)))
    last = max(last, log.last_txn)
    clock.resume(last)
    shard = Shard(files, blobs, clock, rng, configs, settings, log, name, reading)
    with shard.lock:
        shard.install(states)
    shard.freed()
    shard.publish(last)
    return shard


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


def loaded(config: TabletConfig, schema_at: SchemaAt, newest: Callable[[TableId], SchemaVersion]) -> TabletState:
    """The state a config describes, under the newest schema."""
    state = state_of(config, schema_at(config.table, config.schema_version))
    for version in range(config.schema_version + 1, newest(config.table) + 1):
        state = altered(state, schema_at(config.table, SchemaVersion(version)))
    return state


def settled(configs: Sequence[TabletConfig]) -> list[TabletConfig]:
    """Configs whose ranges do not overlap."""
    kept: list[TabletConfig] = []
    taken: dict[TableId, RangeSet] = {}
    for config in sorted(configs, key=lambda c: (-c.resize, c.tablet)):
        free = RangeSet.of([config.rows]).subtract(taken.get(config.table, RangeSet()))
        kept += [config if rows == config.rows else narrowed(config, rows) for rows in free]
        taken[config.table] = taken.get(config.table, RangeSet()).union(RangeSet.of([config.rows]))
    return kept


def _replayed(log: ReplayedLog, states: Sequence[TabletState], schema_at: SchemaAt) -> Txn:
    """Every block that counts, into the memories of the states. The greatest txn in the log."""
    tables: dict[TableId, list[TabletState]] = {}
    for state in states:
        tables.setdefault(state.table, []).append(state)
    last = Txn(0)
    for record in log:
        last = max(last, record.txn)
        wanting = [state for state in tables.get(record.table, ()) if _wants(state, record)]
        if record.kind is LogKind.BLOCK and wanting:
            block = _block(record, wanting[0].schema, schema_at)
            for state in wanting:
                insert_unflushed(state.active, block, record.txn, state.flushed, len(record.payload))
    return last


def _wants(state: TabletState, record: LogRecord) -> bool:
    return any(record.txn > txn for _, txn in state.flushed)


def _block(record: LogRecord, schema: TableSchema, schema_at: SchemaAt) -> WrittenBlock:
    try:
        block = decode_block(record.payload, _ANY_SIZE)
    except StelaeError as error:
        raise Corruption(f"the block of txn {record.txn} cannot be read: {error}", "log") from None
    for version in range(block.schema_version, schema.version):
        old = schema_at(record.table, SchemaVersion(version))
        block = carried(block, carry(old, schema_at(record.table, SchemaVersion(version + 1))), schema.codec)
    return block
