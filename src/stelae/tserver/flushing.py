"""Memories into files: of a table, of whatever is due, or down to a size. One flush at a time.

What a flush wrote is said in META rows, which are in memory again until they are flushed themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.storage.memory.memory import Memory
from stelae.storage.shard import Shard
from stelae.storage.turns import Turn
from stelae.storage.upkeep.serializer import MemoryInfo, oldest_first
from stelae.storage.upkeep.upkeep import Upkeep

_META_LEVELS = 4
"""What is flushed is said in rows of meta1, their flush in rows of meta0, theirs in the metastore."""


class RowsFlushed(NamedTuple):
    table: TableId
    rows: RowRange


class Flushing:
    """Writes memories to files, one at a time. Safe for threads."""

    def __init__(self, shard: Shard, upkeep: Upkeep) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = Turn()

    def flush(self, table: TableId) -> None:
        """All of a table that is in memory now is in files, and its configs say so, when this returns."""
        with self._flushing:
            self._flush(table)
        self._upkeep.save()

    def _flush(self, table: TableId) -> None:
        with self._shard.lock:
            for state in self._shard.of_table(table):
                if not state.active.is_empty:
                    self._upkeep.seal(state.tablet)
            memories = [m for state in self._shard.of_table(table) for m in state.memories if not m.is_empty]
        for memory in sorted({id(m): m for m in memories}.values(), key=lambda m: m.txn_min):
            self._upkeep.flush(memory)

    def flush_down_to(self, left_bytes: int) -> None:
        """The largest memories into files, until no more than that is left to be replayed. Saved once, at the end."""
        for _ in range(_META_LEVELS):
            with self._flushing:
                while (tablet := self._largest(left_bytes)) is not None:
                    self._upkeep.flush(self._seal_oldest(tablet))
            self._upkeep.save()
            if self._largest(left_bytes) is None:
                return

    def _seal_oldest(self, tablet: TabletId) -> Memory:
        """What of a tablet must be flushed first: memories that it shares may lie over older ones of others."""
        with self._shard.lock:
            states = self._shard.of_table(self._shard.state(tablet).table)
            memories = list({id(m): m for state in states for m in state.memories if not m.is_empty}.values())
            infos = [MemoryInfo(m.size_bytes, m.txn_min, m.rows, is_sealed=True) for m in memories]
            own = next(at for at, m in enumerate(memories) if any(m is o for o in self._shard.state(tablet).memories))
            oldest = memories[oldest_first(infos, own)]
            for state in states:
                if state.active is oldest:
                    self._upkeep.seal(state.tablet)
            return oldest

    def _largest(self, left_bytes: int) -> TabletId | None:
        """The tablet with the most in memory; None if all together have so little."""
        if sum(memory.size_bytes for memory in self._shard.memories()) <= left_bytes:
            return None
        held = {
            state.tablet: sum(m.size_bytes for m in state.memories)
            for state in self._shard.tablets().values()
            if any(not m.is_empty for m in state.memories)
        }
        return max(held, key=lambda tablet: held[tablet], default=None)

    def flush_due(self) -> RowsFlushed | None:
        """Flush the memory that the serializer chooses; None if there is no need."""
        with self._flushing:
            memory = self._upkeep.pick_flush()
            if memory is None:
                return None
            users = self._upkeep.users_of(memory)
            self._upkeep.flush(memory)
            return RowsFlushed(users[0].table, memory.rows) if users else None
