"""Replicas that shards have and no record names: of a split that failed half-way, of a table that was forgotten while
their shard was away, of a tablet that has all its replicas elsewhere by now. They are deleted where they lie, or they
would keep their files for ever.

That nobody knows a tablet is no reason to delete it: the metastore may be an older one than the shard has seen. So it
must be an id that was given out, as far as the metastore says; no change that could record it may be under way; and it
must have been so for a while, read anew each time by a master that leads: what another one still has in flight fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stelae.catalog.value import Catalog
from stelae.master.replication.choosing import is_there, zone_of
from stelae.model.ids import TabletId
from stelae.ports.metastore import Metastore
from stelae.registry.control import ReportedReplica
from stelae.registry.incarnations import ShardLife
from stelae.registry.replication.members import replica_id
from stelae.registry.tablet_records import TabletPhase, TabletRecord, read_next_tablet, read_tablets

LOOK_S = 20.0
"""So often shards are asked what they have."""
LEFT_S = 60.0
"""What was a leftover for so long is deleted: longer than any change takes that could still record it."""


def find_leftovers(
    replica: str,
    reported: Iterable[ReportedReplica],
    records: Mapping[TabletId, TabletRecord],
    next_tablet: TabletId | None,
    catalog: Catalog,
    busy: Collection[TabletId] = (),
    gone: Collection[str] = (),
) -> set[TabletId]:
    """Of the tablets that a shard reports replicas of, those that it need not have. `replica`: what its replicas are
    known by. `next_tablet`: the least id that was never given out. `busy`: tablets that are being made or changed.
    `gone`: replicas that records name and nobody has any more. If the shard has an id that was never given out, or of a
    table that was never made, the metastore is an older one than the shard has seen: then nothing is left over."""
    found: set[TabletId] = set()
    reported = list(reported)
    if any(next_tablet is None or each.tablet >= next_tablet or each.table >= catalog.next_id for each in reported):
        return found
    for each in reported:
        if each.led or each.tablet in busy:
            continue
        record = records.get(each.tablet)
        if record is None:
            found.add(each.tablet)
            continue
        zone = zone_of(catalog, record.table)
        there = [name for name in record.replicas if name not in gone]
        is_whole = zone is not None and len(there) >= zone.replicas
        if record.phase is TabletPhase.RUNNING and is_whole and replica not in record.replicas:
            found.add(each.tablet)
    return found


async def look_for_leftovers(
    store: Metastore,
    catalog: Catalog,
    answers: Mapping[str, Mapping[TabletId, ReportedReplica]],
    lives: Mapping[str, ShardLife],
    busy: Collection[TabletId],
) -> dict[str, set[TabletId]]:
    """Of the shards that have answered what they have, by the records as they are now on the metastore, not as the
    master knows them."""
    records = {record.tablet: record for record in await read_tablets(store)}
    known = await read_next_tablet(store)
    named = {name for record in records.values() for name in record.replicas}
    gone = {name for name in named if not is_there(name, lives)}
    return {
        server: find_leftovers(
            replica_id(server, lives[server].log), found.values(), records, known, catalog, busy, gone
        )
        for server, found in answers.items()
    }


class Leftovers:
    """Since when each was seen, by one master."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, TabletId], float] = {}
        self._looked_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        return now_s - self._looked_s >= LOOK_S

    def note(self, seen: Mapping[str, Collection[TabletId]], now_s: float) -> dict[str, set[TabletId]]:
        """What each shard that answered has left over now. What was so for long enough, by shard."""
        self._looked_s = now_s
        here = {(server, tablet) for server, tablets in seen.items() for tablet in tablets}
        kept = {key: since_s for key, since_s in self._since_s.items() if key in here or key[0] not in seen}
        self._since_s = {**dict.fromkeys(here, now_s), **kept}
        old: dict[str, set[TabletId]] = {}
        for server, tablet in here:
            if now_s - self._since_s[server, tablet] >= LEFT_S:
                old.setdefault(server, set()).add(tablet)
        return old
