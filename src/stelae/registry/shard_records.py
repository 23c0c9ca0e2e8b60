"""What a server keeps in the metastore about its shard, apart from the META tables:

meta/root              the config of the first META tablet (`registry.meta`)
log/closed             where the log ended when it was closed in order; absent while somebody writes to it
log/lost-end           there while the log says nothing yet of an end that it had lost, and that was cut off
horizon/{table id}     up to where a table's history may have been dropped
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import DeleteKey, Metastore, PutKey
from stelae.registry.decoding import id_in_key, json_of, number_of
from stelae.registry.meta import ROOT_CONFIG_KEY
from stelae.registry.views.own import OwnStore
from stelae.storage.tablet.config import TabletConfig, decode_config, encode_config

LOG_KEY = "log/closed"
LOST_END_KEY = "log/lost-end"
HORIZON_PREFIX = "horizon/"
_CHANGES_MAX = 100


class LogMark(msgspec.Struct, frozen=True):
    """Where the log ended when the store was closed in order."""

    segment: str
    size_bytes: int


async def read_root(store: Metastore) -> TabletConfig | None:
    """None: the store is new."""
    entry = await store.get(ROOT_CONFIG_KEY)
    return None if entry is None else decode_config(entry.value, f"metastore key {ROOT_CONFIG_KEY}")


async def write_root(store: OwnStore, config: TabletConfig) -> None:
    await store.txn([], [PutKey(ROOT_CONFIG_KEY, encode_config(config))])


async def read_log_mark(store: Metastore) -> LogMark | None:
    """None: the log was not closed in order, or somebody writes to it."""
    entry = await store.get(LOG_KEY)
    return None if entry is None else json_of(entry, LogMark, "where the log ended")


async def write_log_mark(store: OwnStore, mark: LogMark) -> None:
    await store.txn([], [PutKey(LOG_KEY, msgspec.json.encode(mark))])


async def remove_log_mark(store: OwnStore) -> None:
    """Before anything is written to the log."""
    await store.txn([], [DeleteKey(LOG_KEY)])


async def is_end_lost(store: Metastore) -> bool:
    """Whether a process before this one found that the log had lost its end, and did not come so far that the log says
    so itself."""
    return await store.get(LOST_END_KEY) is not None


async def note_lost_end(store: OwnStore) -> None:
    """Before the rest of the lost end is cut off: nobody could see then that there was one."""
    await store.txn([], [PutKey(LOST_END_KEY, b"1")])


async def forget_lost_end(store: OwnStore) -> None:
    """The log says it itself."""
    await store.txn([], [DeleteKey(LOST_END_KEY)])


async def read_horizons(store: OwnStore, tables: Collection[TableId]) -> list[tuple[TableId, Txn]]:
    """Of these tables; the horizons of others are removed."""
    read = await store.range(HORIZON_PREFIX)
    found = [(TableId(id_in_key(entry, HORIZON_PREFIX)), Txn(number_of(entry))) for entry in read.entries]
    gone = [table for table, _ in found if table not in tables]
    for at in range(0, len(gone), _CHANGES_MAX):
        await store.txn([], [DeleteKey(_horizon_key(table)) for table in gone[at : at + _CHANGES_MAX]])
    return [(table, txn) for table, txn in found if table in tables]


async def write_horizon(store: OwnStore, table: TableId, txn: Txn) -> None:
    await store.txn([], [PutKey(_horizon_key(table), str(txn).encode())])


def _horizon_key(table: TableId) -> str:
    return f"{HORIZON_PREFIX}{table:016x}"
