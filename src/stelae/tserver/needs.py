"""Which schemas a shard's log, replicas and configs name, and its word about the oldest (`registry/catalog/needed`).

The word is raised when the catalog has become long: what is in memory is written to files, the log shortened, and what
is left of it read. Before that the shard *promises*, in memory, to take in nothing older, so that nothing slips in
behind the reading; a leader elsewhere that sends something older makes it break the promise, and lower its word if that
is higher already, before the record is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.ids import SchemaVersion, TableId
from stelae.model.schema import TableSchema
from stelae.ports.clock import Clock
from stelae.ports.logfiles import LogFiles
from stelae.ports.loop import Loop
from stelae.registry.catalog.needed import NeededVersion, newest_schemas
from stelae.registry.catalog.settings import HistoryKept
from stelae.registry.schema_versions import SchemaVersions
from stelae.storage.replicas.naming import NamedSchema, schemas_logged
from stelae.storage.shard import Shard
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.flushing import Flushing
from stelae.tserver.short_log import collect_all_log


class SchemaNeeds:
    """Safe for threads. `latest`: the newest catalog that is known here; `schemas`: of tables, all that are known."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        flushing: Flushing,
        files: LogFiles,
        latest: Callable[[], Catalog],
        schemas: Callable[[], SchemaVersions],
        word: NeededVersion,
        clock: Clock,
        loop: Loop,
        kept: HistoryKept,
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = flushing
        self._files = files
        self._latest = latest
        self._schemas = schemas
        self._word = word
        self._now_s = clock.monotonic_s
        self._run = loop.run
        self._kept = kept
        self._promised = CatalogVersion(0)
        self._candidate: Catalog | None = None
        self._due_s = self._now_s()

    def begin(self) -> None:
        """Read what was said before, by another process perhaps; before anything is taken in."""
        self._run(self._word.read())
        self._promised = self._word.version

    # -- raising

    def tend(self) -> None:
        """Raise the word, if the catalog has become long. Blocking, for the thread that compacts."""
        if self._latest().version - self._word.version < self._kept.versions_max or self._now_s() < self._due_s:
            return
        candidate, self._candidate = self._candidate, None
        if candidate is None or candidate.version <= self._word.version:
            # Leaders elsewhere may not have followed the newest versions yet: they are given a while.
            self._candidate, self._due_s = self._latest(), self._now_s() + self._kept.settle_s
            return
        self._due_s = self._now_s() + self._kept.look_s
        self._raise_towards(candidate)

    def _raise_towards(self, candidate: Catalog) -> None:
        with self._shard.lock:
            self._promised = max(self._promised, candidate.version)
        try:
            self._flushing.flush_down_to(0)
            self._upkeep.save()
            collect_all_log(self._shard, self._upkeep)
            self._upkeep.keep_replicas(1)  # what they were is of older schemas, perhaps
            collect_all_log(self._shard, self._upkeep)
            found = self._find_oldest(newest_schemas(candidate), candidate.version)
            self._run(self._word.raise_to(lambda: min(found, self._promised)))
        finally:
            with self._shard.lock:
                self._promised = min(self._promised, self._word.version)

    def _find_oldest(self, newest: Mapping[TableId, SchemaVersion], upto: CatalogVersion) -> CatalogVersion:
        """The oldest version that something here needs. What comes in after the lock was taken is as new as the tablets
        are that were seen under it, or was promised to be; what came in before is in the log when that is read."""
        shard = self._shard
        with shard.lock:
            states = list(shard.tablets().values())
            named = {(state.table, memory.schema.version) for state in states for memory in state.memories}
            named |= {(state.table, state.schema.version) for state in states}
            named |= {(config.table, config.schema_version) for config in self._upkeep.configs()}
        shard.drain_all()
        logged = schemas_logged(self._files, [segment.name for segment in shard.segments()])
        older = (version for table, version in chain(named, logged) if version < newest.get(table, 0))
        return CatalogVersion(min(older, default=upto))

    # -- lowering

    def find_older(self, named: Iterable[NamedSchema]) -> CatalogVersion | None:
        """What the word must be lowered to before this is taken in; None: it need not be. The caller has the shard's
        lock."""
        older = [version for table, version in named if self._is_older(table, version)]
        return CatalogVersion(min(older)) if older else None

    def may_be_older(self, table: TableId) -> bool:
        """Whether there is any schema of the table that would be older than was promised."""
        known = self._known(table)
        return len(known) > 1 and known[1].version <= self._upto

    def _is_older(self, table: TableId, version: SchemaVersion) -> bool:
        return any(version < schema.version <= self._upto for schema in self._known(table))

    @property
    def _upto(self) -> CatalogVersion:
        """What was promised, or said: a promise is broken at once, and a word only when that is written down."""
        return max(self._promised, self._word.version)

    def _known(self, table: TableId) -> Sequence[TableSchema]:
        schemas = self._schemas()
        return schemas.of(table) if table in schemas else ()

    def lower(self, version: CatalogVersion) -> None:
        """Written down when this returns; Unavailable if it cannot be now. Blocking, without a lock."""
        with self._shard.lock:
            self._promised = min(self._promised, version)
        self._run(self._word.lower_to(version))
