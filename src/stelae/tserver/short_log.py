"""A short log: what is done to a shard before it is closed, so that opening it again takes no time, and while nobody
writes, so that it takes no room."""

from __future__ import annotations

from collections.abc import Callable

from stelae.model.ids import TableId
from stelae.registry.shard_records import LogMark
from stelae.storage.shard import Shard
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.flushing import Flushing

_SEGMENTS_MAX = 8

_LOG_LEFT_BYTES = 4 * 2**20
"""So little in memory is replayed in less time than it takes to write it to files."""
_LOG_LONG_BYTES = 4 * _LOG_LEFT_BYTES
"""But not if a few rows hold so much of the log with what is long in files."""


def shorten_log(
    shard: Shard, upkeep: Upkeep, flushing: Flushing, forget_schemas: Callable[[], None] | None = None
) -> None:
    """Leave so little in the log that opening the store again takes no time; nothing, if it was all large.

    `forget_schemas`, if given, is called once nothing in the log was written for a schema that is not the newest:
    whoever knows the older ones need not keep them for this server."""
    if forget_schemas is not None:
        for table in _with_older_schemas(shard):
            flushing.flush(table)
    flushing.flush_down_to(0 if is_log_long(shard) or _is_log_in_pieces(shard) else _LOG_LEFT_BYTES)
    collect_all_log(shard, upkeep)
    if forget_schemas is not None and not _with_older_schemas(shard):
        forget_schemas()


def is_log_long(shard: Shard) -> bool:
    """Whether it is worth a few small files to be rid of it."""
    return sum(info.size_bytes for info in shard.segments()) > _LOG_LONG_BYTES


def collect_all_log(shard: Shard, upkeep: Upkeep) -> None:
    """The log goes on with a segment that begins behind everything: what is before it can go, if nobody needs it."""
    upkeep.collect_log()
    shard.drain()
    upkeep.collect_log()


def end_of_log(shard: Shard) -> LogMark:
    """Where the log ends: what is missing of it at the next start was cut off."""
    segments = shard.segments()
    return LogMark(segments[-1].name, segments[-1].size_bytes) if segments else LogMark("", 0)


def _is_log_in_pieces(shard: Shard) -> bool:
    """Whether many short segments are worth the files it takes to be rid of them."""
    memories = sum(not memory.is_empty for memory in shard.memories())
    return len(shard.segments()) > max(_SEGMENTS_MAX, memories // 4)


def _with_older_schemas(shard: Shard) -> set[TableId]:
    """Tables of which something in the log was written for a schema that is not the newest: the catalog must be able to
    name it."""
    return {
        state.table
        for state in shard.tablets().values()
        if any(memory.schema is not state.schema and not memory.is_empty for memory in state.memories)
    }
