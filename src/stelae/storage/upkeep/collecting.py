"""The removal of what nobody needs: segments of the log, and files.

What was removed by mistake cannot be written again, so files are not trusted to one witness. A file of a table that the
catalog has never made says that the catalog has lost something: then no file is touched at all. And a file that goes is
put aside first (`files.trash`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from stelae.model.errors import Corruption, NotFound
from stelae.model.events import Collected, Listener, LogCollected, UnknownFilesFound, tell_nobody
from stelae.model.hybrid import millis_of
from stelae.model.ids import TableId, TabletId
from stelae.storage.files.names import fragment_sizes, table_of_name
from stelae.storage.files.trash import Trash
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.upkeep.saving import ConfigSaving

_SEGMENTS_KEPT = 3
_TRASH_BYTES_MIN = 256 * 2**20
_ANY_BYTES = 2**63
_MS_PER_S = 1_000


class Collecting(ConfigSaving):
    """Collects for a store that has one owner."""

    def __init__(
        self,
        shard: Shard,
        saved: Iterable[TabletConfig] = (),
        away: Collection[TabletId] = (),
        tell: Listener = tell_nobody,
    ) -> None:
        super().__init__(shard, saved, away)
        self.tell = tell
        self._writing: set[str] = set()
        self._busy: set[str] = set()
        self._trash = Trash(shard.blobs, lambda: millis_of(shard.clock.tick()), int(shard.settings.trash_s * _MS_PER_S))
        self._has_told_of_unknown = False
        self.keeps: Callable[[str], bool] = _kept_by_nobody
        """Whether a file that no tablet needs is needed by somebody else all the same."""
        self.is_known: Callable[[TableId], bool] = _any_table
        """Whether there ever was such a table."""
        self.removes_files = True
        """Not if the store has other servers, whose files lie beside these: then the master removes them."""

    def collect_log(self) -> tuple[str, ...]:
        """Delete the segments that no tablet would need after a crash now."""
        shard = self._shard
        self.keep_replicas(_SEGMENTS_KEPT)
        with shard.lock:
            firsts = [
                memory.log_from
                for memory in shard.memories()
                if not memory.is_empty and memory.tablet not in shard.replicas
            ]
            firsts += (*self._unsaved_from.values(), *self._pending_from.values())
            firsts += (replica.log_from for replica in shard.replicas.values())
            # What is written after this moment lies behind the end of the log.
            needed = min(firsts, default=shard.wal.end)
            if not firsts:
                shard.wal.roll()
            sizes = {info.name: info.size_bytes for info in shard.segments()}
        gone = shard.wal.collect(needed)
        if gone:
            self.tell(LogCollected(len(gone), sum(sizes.get(name, 0) for name in gone)))
        return gone

    def keep_replicas(self, segments_max: int) -> None:
        """Write replicas down anew of which nothing was written in the last segments, so many of them: they would hold
        the log of everybody."""
        shard = self._shard
        with shard.lock:
            segments = shard.segments()
            if not shard.replicas or len(segments) <= segments_max:
                return
            begin = segments[-segments_max].begin
            for replica in shard.replicas.values():
                if replica.log_from < begin:
                    shard.keep_replica(replica)
        shard.drain()

    def needed_files(self) -> frozenset[str]:
        with self._shard.lock:
            states = self._shard.tablets().values()
            named = {name for state in states for name in state.files()}
            saved = {name for config in self.configs() for name in config.files()}
            copied = {name for replica in self._shard.replicas.values() for name in replica.files()}
            return frozenset(named | saved | copied | self._writing | self._busy)

    def unknown_files(self, names: Iterable[str]) -> list[str]:
        """Those of tables that there never were."""
        return [name for name in names if not self.is_known(table_of_name(name))]

    def collect_files(self, *, for_good: bool = False) -> tuple[str, ...]:
        """Put aside the fragments that nothing here, and nobody else, needs, and delete what was put aside long ago.
        `for_good`: delete all of them now. Nothing is touched while there are files of tables that there never were;
        whoever wants something gone for good is told so by Corruption."""
        if not self.removes_files:
            return ()
        shard = self._shard
        sizes = fragment_sizes(shard.blobs)
        unknown = self.unknown_files(sizes)
        if unknown:
            self._tell_of_unknown(unknown)
            if for_good:
                raise Corruption("is of a table that the catalog does not know: no file is removed", unknown[0])
            return ()
        needed = self.needed_files()
        gone = [name for name in sizes if name not in needed and not self.keeps(name)]
        taken_bytes = taken = 0
        for name in gone:
            try:
                if for_good:
                    shard.blobs.delete(name)
                else:
                    self._trash.put(name, sizes[name])
            except NotFound:
                continue
            shard.cache.drop_file(name)
            taken, taken_bytes = taken + 1, taken_bytes + sizes[name]
        shard.fragments.forget(gone)
        if taken:
            self.tell(Collected(taken, taken_bytes))
        if for_good:
            self._trash.empty()
        else:
            self._trash.tidy(max(_TRASH_BYTES_MIN, sum(sizes.values()) - taken_bytes))
        return tuple(gone)

    def tidy_trash(self) -> None:
        """Delete what was put aside long ago."""
        if self.removes_files:
            self._trash.tidy(_ANY_BYTES)

    def empty_trash(self) -> int:
        """Delete all that was put aside, for the room it takes; how many bytes that were."""
        return self._trash.empty() if self.removes_files else 0

    def _tell_of_unknown(self, unknown: list[str]) -> None:
        if not self._has_told_of_unknown:
            self._has_told_of_unknown = True
            self.tell(UnknownFilesFound(len(unknown), unknown[0]))


def _kept_by_nobody(_: str) -> bool:
    return False


def _any_table(_: TableId) -> bool:
    return True
