"""The oldest version of the catalog that each shard needs: what its log, its replicas and its configs name.

    local/{node id}/{number}/schemas    a version of the catalog; absent: the shard has said nothing so far

A shard needs the schemas that it will meet when it is started again, today or in a year. So its word has no lease: one
that is away keeps the last it gave, and one that never gave any keeps every version. It goes with the shard, when that
is taken out of the cluster.

*W* as the word of a shard says: whatever it names of a table is as new as the table's schema in version W, or newer. A
shard raises its word by itself, when what it had of older schemas is in files. Before it takes in something older than
its word, which another shard still has, it lowers it, as a process takes hold of a version (`version_pins`): either the
compaction sees that, or it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.errors import SnapshotTooOld, Unavailable, UnknownOutcome
from stelae.model.ids import SchemaVersion, TableId
from stelae.ports.metastore import Compare, IsAbsent, Metastore, ModRevisionIs, PutKey
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog.version_pins import take_hold
from stelae.registry.changes.sessions import read_sessions
from stelae.registry.decoding import number_of
from stelae.registry.incarnations import read_lives
from stelae.registry.views.prefixed import local_prefix

_NOTHING = CatalogVersion(0)
_ATTEMPTS_MAX = 20
_PAUSE_S = 0.05


def needed_key(node: str, number: int) -> str:
    return f"{local_prefix(node, number)}schemas"


def newest_schemas(catalog: Catalog) -> Mapping[TableId, SchemaVersion]:
    """The schema version of each table that is there, or can be recalled."""
    there = {id_: table.schema.version for id_, table in catalog.tables.items()}
    return there | {id_: dropped.table.schema.version for id_, dropped in catalog.dropped.items()}


async def read_needed(store: Metastore, catalog: Catalog) -> CatalogVersion:
    """How far the catalog may be compacted, at most up to this version of it, for what shards have said and for loads
    under way, whose files were written for a schema."""
    versions = [catalog.version]
    for life in await read_lives(store):
        entry = await store.get(needed_key(life.node, life.number))
        versions.append(_NOTHING if entry is None else CatalogVersion(number_of(entry)))
    newest = newest_schemas(catalog)
    for held in await read_sessions(store):
        written_for = held.session.schema_version
        if 0 < written_for < newest.get(held.session.table, 0):
            versions.append(CatalogVersion(written_for))
    return min(versions)


class NeededVersion:
    """The word of one shard, as far as its process can know it. For the tasks of one event loop. `store`: as the shard
    writes to it, so that nothing is said by a process that another one has followed."""

    def __init__(self, store: Metastore, key: str) -> None:
        self._store = store
        self._key = key
        self._changing = asyncio.Lock()
        self.version = _NOTHING
        """At or above what the metastore has: an answer may have been lost."""

    async def read(self) -> None:
        """Before anything else: what the process before this one has said."""
        entry = await self._store.get(self._key)
        self.version = _NOTHING if entry is None else CatalogVersion(number_of(entry))

    async def raise_to(self, upto: Callable[[], CatalogVersion]) -> None:
        """Nothing before this version is needed any more. `upto` is asked when it is this call's turn."""
        async with self._changing:
            # Compared: one that arrives late must not raise what was lowered meanwhile.
            entry = await self._store.get(self._key)
            unchanged: Compare = IsAbsent(self._key) if entry is None else ModRevisionIs(self._key, entry.mod_revision)
            version = upto()
            if version > (_NOTHING if entry is None else number_of(entry)):
                self.version = max(self.version, version)
                await self._store.txn([unchanged], [PutKey(self._key, log.number_value(version))])

    async def lower_to(self, version: CatalogVersion) -> None:
        """Written down when this returns. Unavailable if it cannot be now: a compaction may be about to pass it."""
        async with self._changing:
            for _ in range(_ATTEMPTS_MAX):
                if self.version <= version:
                    return
                try:
                    if await take_hold(self._store, version, PutKey(self._key, log.number_value(version))):
                        self.version = version
                        return
                except SnapshotTooOld as error:
                    raise Unavailable(f"the schema that it names may be forgotten just now: {error}") from error
                except UnknownOutcome as error:
                    raise Unavailable(f"whether it was written that an older schema is needed: {error}") from error
                await asyncio.sleep(_PAUSE_S)
        raise Unavailable(f"catalog version {version} could not be held: the metastore kept changing")
