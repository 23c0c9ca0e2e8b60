"""What is done to a store before it is closed, so that opening it again takes no time."""

from __future__ import annotations

from stelae.assembly.opening import Running
from stelae.model.ids import TableId
from stelae.storage.shard import Shard

_CATALOG_VERSIONS_MAX = 1_000
"""So many versions of the catalog are read again at every opening, before they are put together."""

_SEGMENTS_MAX = 8

_LOG_LEFT_BYTES = 4 * 2**20
"""A log so short is replayed in less time than it takes to write its rows to files."""


def put_in_order(running: Running) -> None:
    """So little is left in the log that opening the store again takes no time; none of it, if it was all large."""
    server, catalog = running.server, running.catalog
    shard, upkeep = server.shard, server.upkeep
    is_long = catalog.latest.version - catalog.earliest.version >= _CATALOG_VERSIONS_MAX
    if is_long:
        for table in _with_older_schemas(shard):
            server.flush(table)
    server.flush_down_to(0 if _is_log_in_pieces(shard) else _LOG_LEFT_BYTES)
    # The log goes on with a segment that begins behind everything: what is before it can go, if nobody needs it.
    upkeep.collect_log()
    shard.drain()
    upkeep.collect_log()
    if is_long and not _with_older_schemas(shard):
        running.world.loop.run(catalog.compact())


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
