"""Tablets that have several replicas: which shards have them, and which of these leads.

A leader is followed by another when its process is over for good, or when it gives the tablet up (`elections`). Of the
members that answer, the one with the greatest place in the tablet's log leads next, in a greater epoch, above all that
the leader before may have given out and answered. Any member has every write that was acknowledged.

Within an epoch the members are changed at the wish of the leader alone (`registry/replication/members`). A tablet that
has fewer than its zone says gets another: its leader is asked to bring a shard's replica up to date.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from stelae.catalog.objects import Zone, ZoneId
from stelae.master.descriptors import Descriptors
from stelae.master.records import Records
from stelae.master.replication.asking import ask_within, find_silent
from stelae.master.replication.choosing import is_there, may_become, place_replicas, zone_of
from stelae.master.replication.elections import ANSWER_S, Elections, find_resigned
from stelae.master.replication.leads import Leads
from stelae.master.replication.leftovers import Leftovers, look_for_leftovers
from stelae.master.replication.racks import racks_of
from stelae.master.servers import Servers
from stelae.model.errors import NotFound, Unavailable
from stelae.model.events import LeadRefused, Listener
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.ports.clock import Clock
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import (
    SERVING,
    AddReplicas,
    DeleteTablets,
    HostReplicas,
    HostTablets,
    JoinTablets,
    NewTablet,
    SplitTablet,
)
from stelae.registry.incarnations import SHARDS_PREFIX, ShardLife, lives_among, read_lives
from stelae.registry.masters.draining import drained_among, read_drained
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.replication.members import MembersNow, MembersWanted, replica_id, server_of
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.deadlines import Deadline

WISHED_S = 2.0
"""So long does a wish count that is not repeated."""


class Replication:
    """For the tasks of one event loop, while one guard is led with."""

    def __init__(
        self,
        store: GuardedStore,
        catalog: CatalogService,
        records: Records,
        servers: Servers,
        descriptors: Descriptors,
        clock: Clock,
        tell: Listener,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._records = records
        self._servers = servers
        self._descriptors = descriptors
        self._clock = clock
        self._leads = Leads(catalog, servers, clock, tell)
        ask_to_lead, is_off, note = self._leads.lead_soon, descriptors.is_off, self._leads.note
        self._elections = Elections(store, catalog, records, servers, clock, tell, ask_to_lead, is_off, note)
        self._changing = self._elections.changing
        self._handing_over = asyncio.Lock()
        self.has_leaving = False  # whether there is anything to hand over
        self._stuck: dict[TabletId, tuple[int, float]] = {}
        """Tablets whose leaders wish that others lead them: in which epoch they lead, and when they last said so."""
        self._resizing: set[TabletId] = set()
        """Tablets that are becoming others: nobody is asked to lead them meanwhile."""
        self._making: set[TabletId] = set()
        """What they become: there is no record of it yet."""
        self._leftovers = Leftovers()

    def is_replicated(self, table: TableId) -> bool:
        zone = zone_of(self._catalog.latest, table)
        return zone is not None and zone.replicas > 1

    # -- creating

    async def check_room(self, zone: ZoneId) -> None:
        """Before a table is made in a zone: Unavailable, in words, if its replicas have no place."""
        found = self._catalog.latest.zones[zone]
        if found.replicas > 1 or found.racks:
            lives = {life.name: life for life in await read_lives(self._store)}
            racks_of(found, lives).check(found.replicas, await self._usable(found, lives))

    async def _usable(self, zone: Zone | None, lives: Mapping[str, ShardLife]) -> Sequence[str]:
        """Shards for new tablets: those that are drained only if there are too few others."""
        usable = await self._servers.placeable()
        if zone is None or racks_of(zone, lives).room_for(zone.replicas, usable) >= zone.replicas:
            return usable
        now_s, drained = self._clock.monotonic_s(), await read_drained(self._store)
        return (*usable, *(name for name in sorted(drained) if name not in usable and self._is_heard(name, now_s)))

    async def on_racks(self, table: TableId, servers: Sequence[str]) -> Sequence[str]:
        """Those of the servers that a tablet with one replica may be on; Unavailable, in words, if none is."""
        zone = zone_of(self._catalog.latest, table)
        if zone is None or not zone.racks:
            return servers
        racks = racks_of(zone, {life.name: life for life in await read_lives(self._store)})
        racks.check(1, servers)
        return [server for server in servers if racks.allows(server)]

    async def place(self, records: Sequence[TabletRecord], silent: Iterable[str]) -> list[TabletRecord]:
        """Each with its members, and the one that leads; those that were placed before stay where they are."""
        lives = {life.name: life for life in await read_lives(self._store)}
        placed: list[TabletRecord] = [record for record in records if record.replicas]
        by_table: dict[TableId, list[TabletRecord]] = {}
        for record in sorted(records, key=lambda each: (each.table, each.rows.start)):
            if not record.replicas:
                by_table.setdefault(record.table, []).append(record)
        for table, mine in by_table.items():
            zone = zone_of(self._catalog.latest, table)
            count = 1 if zone is None else zone.replicas
            usable = await self._usable(zone, lives)
            known = (*self._records.maps.all(), *placed)
            chosen = place_replicas(len(mine), count, usable, known, silent, racks_of(zone, lives))
            for record, members in zip(mine, chosen, strict=True):
                life = lives[members[0]]
                placed.append(
                    msgspec.structs.replace(
                        record,
                        server=members[0],
                        replicas=tuple(replica_id(each, lives[each].log) for each in members),
                        incarnation=life.incarnation,
                        epoch=1,
                        version=1,
                    )
                )
        return placed

    async def create(
        self, records: Sequence[TabletRecord], deadline: Deadline | None
    ) -> tuple[set[TabletId], set[str]]:
        """Have every member host its replicas, and the leaders lead. Which tablets run then, and who did not answer.
        One that was placed on a log that is lost by now cannot run."""
        lives = {life.name: life for life in await read_lives(self._store)}
        records = [record for record in records if all(is_there(name, lives) for name in record.replicas)]
        hosted: dict[str, list[NewTablet]] = {}
        for record in records:
            for server in record.servers:
                hosted.setdefault(server, []).append(NewTablet(record.tablet, record.table, record.rows))
        asked = (self._servers.link(server).ask(HostTablets(tuple(mine)), deadline) for server, mine in hosted.items())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        silent = find_silent(hosted, answers)
        ready = [record for record in records if silent.isdisjoint(record.servers)]
        return await self._leads.lead(ready, deadline), silent

    async def resize(
        self,
        request: SplitTablet | JoinTablets,
        old: Sequence[TabletRecord],
        rows: Sequence[RowRange],
        is_asked: bool,
        deadline: Deadline | None,
    ) -> None:
        """Tablets become others: their leader puts all they have in files and says what the others consist of; every
        member hosts that; then it is recorded, and from then on it is so. If anything fails before, the old ones are
        led again."""
        ids, made = {record.tablet for record in old}, _made_by(request)
        self._resizing |= ids
        self._making |= made
        try:
            first = old[0]
            report = await self._servers.link(first.server).ask(request, deadline)
            hosting = HostReplicas(report.made)
            others = [server for server in first.servers if server != first.server]
            asked = (self._servers.link(server).ask(hosting, deadline) for server in others)
            silent = find_silent(others, await asyncio.gather(*asked, return_exceptions=True))
            if silent:
                raise Unavailable(f"not all members of tablet {first.tablet} answer: {', '.join(sorted(silent))}")
            async with self._changing:
                now = [self._records.maps.tablet(record.tablet) for record in old]
                if now != list(old):
                    raise Unavailable(f"tablet {first.tablet} is led by another shard, or has other members, by now")
                new = [
                    msgspec.structs.replace(
                        first, tablet=made.tablet, rows=part, is_asked=is_asked, since_ms=self._clock.wall_ms()
                    )
                    for made, part in zip(report.made, rows, strict=True)
                ]
                await self._records.write(new, old)
        finally:
            self._resizing -= ids
            self._making -= made
        await self._leads.lead(new, deadline)
        gone = DeleteTablets(tuple(record.tablet for record in old))
        asked = (self._servers.link(server).ask(gone, deadline) for server in first.servers)
        find_silent(first.servers, await asyncio.gather(*asked, return_exceptions=True))

    @property
    def refused(self) -> Sequence[LeadRefused]:
        """The tablets that nobody leads because the shard that should cannot."""
        return self._leads.refused({record.tablet for record in self._running()})

    async def lead_again(self, table: TableId, deadline: Deadline | None) -> None:
        """Those of a table that was dropped and is back."""
        mine = [record for record in self._records.maps.of_table(table) if record.replicas]
        await self._leads.lead(mine, deadline)

    # -- what time makes due

    async def watch(self) -> None:
        """See which shards renew their leases."""
        await self._elections.look()

    async def tend(self) -> None:
        """Elect leaders where there are none, have those lead that do not yet, and bring replicas back."""
        await self._records.settle()
        if not any(record.replicas for record in self._records.maps.all()):
            return
        lives, drained = await self._read_shards()
        await self._elections.elect(await self._elections.find_vacant(self._running(), lives), lives, drained)
        await self._remind(lives, drained)
        await self._heal(lives, drained)
        self.has_leaving = bool(self._unreached()) or any(record.server in drained for record in self._running())
        if self._leftovers.is_due(self._clock.monotonic_s()):
            await self._delete_leftovers(lives)

    async def hand_over(self) -> None:
        """Have others lead what is led by shards that are drained, or that do not reach the other members. That waits
        for writes under way, and elections do not wait for it."""
        async with self._handing_over:
            lives, drained = await self._read_shards()
            leaving = [record for record in self._running() if record.server in drained]
            await self._elections.hand_over(leaving, lives, drained)
            await self._elections.give_up(self._unreached(), lives, drained)

    async def _read_shards(self) -> tuple[Mapping[str, ShardLife], Collection[str]]:
        """Shards as they are now, with the logs that they have; and those that are drained."""
        entries = (await self._store.range(SHARDS_PREFIX)).entries
        return {life.name: life for life in lives_among(entries)}, drained_among(entries)

    async def _delete_leftovers(self, lives: Mapping[str, ShardLife]) -> None:
        """What shards have replicas of and need not have. Only those are asked that are heard of."""
        now_s = self._clock.monotonic_s()
        heard = [server for server in sorted(lives) if self._is_heard(server, now_s)]
        answers = await self._elections.ask_replicas(heard)
        catalog = self._catalog.latest
        found = await look_for_leftovers(self._store, catalog, answers, lives, self._making)
        old = self._leftovers.note(found, now_s)
        if not old:
            return
        async with self._changing:
            still = await look_for_leftovers(self._store, catalog, answers, lives, self._making)
            for server, tablets in sorted(old.items()):
                left = sorted(tablets & still.get(server, set()))
                if not left:
                    continue
                gone = DeleteTablets(tuple(left), tuple(answers[server][tablet].seen for tablet in left))
                with self._elections.going_on(f"leftovers of {server}"):  # tried again when shards are asked next
                    asked = self._servers.link(server).ask(gone, Deadline(self._clock, ANSWER_S))
                    await ask_within(ANSWER_S, asked)

    async def wait_settled(self) -> None:
        """Until whoever was chosen to lead was asked to, and has answered or not."""
        async with self._handing_over:
            return

    def _unreached(self) -> list[TabletRecord]:
        """What is led by shards that have just said that they do not reach the other members."""
        now_s = self._clock.monotonic_s()
        self._stuck = {tablet: each for tablet, each in self._stuck.items() if now_s - each[1] < WISHED_S}
        return [record for record in self._running() if self._stuck.get(record.tablet, (0, 0))[0] == record.epoch]

    def _running(self) -> list[TabletRecord]:
        tables = self._catalog.latest.tables
        return [
            record
            for record in self._records.maps.all()
            if record.replicas
            and record.phase is TabletPhase.RUNNING
            and record.table in tables
            and record.tablet not in self._resizing
            and not self._records.is_in_doubt(record.table)
        ]

    async def _remind(self, lives: Mapping[str, ShardLife], drained: Collection[str]) -> None:
        """Those that are to lead and do not, as far as they are heard of. One that has resigned, and whose answer was
        lost, says so now: then another leads."""
        late: list[TabletRecord] = []
        now_s = self._clock.monotonic_s()
        for record in self._running():
            heard, life = self._descriptors.of(record.server), lives.get(record.server)
            if heard is None or not heard.is_known or life is None or life.incarnation != record.incarnation:
                continue
            if heard.is_silent(now_s):
                continue
            known = heard.tablets.get(record.tablet)
            if heard.incarnation == record.incarnation and (known is None or known.life != SERVING):
                late.append(record)
        reports = await self._leads.lead_soon(late)
        await self._elections.elect(find_resigned(late, reports), lives, drained)

    async def _heal(self, lives: Mapping[str, ShardLife], drained: Collection[str]) -> None:
        """Tablets with fewer replicas than their zone says get another, on a node that has none of them."""
        now_s, load = self._clock.monotonic_s(), Counter[str]()
        for record in self._records.maps.all():
            load.update(record.servers)
        wanted: dict[str, list[tuple[TabletId, int, str]]] = {}
        for record in self._running():
            zone = zone_of(self._catalog.latest, record.table)
            alive = [name for name in record.replicas if is_there(name, lives)]
            if zone is None or len(alive) >= zone.replicas:
                continue
            taken = [server_of(name) for name in alive]
            usable = [server for server in lives if server not in drained and self._is_heard(server, now_s)]
            free = racks_of(zone, lives).free(zone.replicas, usable, taken)
            if free:
                best = min(free, key=lambda server: (load[server], server))
                load[best] += 1
                added = replica_id(best, lives[best].log)
                wanted.setdefault(record.server, []).append((record.tablet, record.epoch, added))
        until = Deadline(self._clock, ANSWER_S)
        asked = (
            ask_within(ANSWER_S, self._servers.link(server).ask(AddReplicas(tuple(mine)), until))
            for server, mine in wanted.items()
        )
        find_silent(wanted, await asyncio.gather(*asked, return_exceptions=True))

    def _is_heard(self, server: str, now_s: float) -> bool:
        heard = self._descriptors.of(server)
        return heard is not None and not heard.is_silent(now_s) and not heard.is_off

    # -- what leaders wish

    async def change_members(self, wanted: Sequence[MembersWanted]) -> tuple[MembersNow, ...]:
        async with self._changing:
            return tuple([await self._change(each) for each in wanted])

    async def _change(self, wanted: MembersWanted) -> MembersNow:
        try:
            record = self._records.maps.tablet(wanted.tablet)
        except NotFound as error:
            return MembersNow(wanted.tablet, refusal=str(error))
        zone = zone_of(self._catalog.latest, record.table)
        if (record.server, record.epoch) != (server_of(wanted.leader), wanted.epoch) or zone is None:
            return MembersNow(wanted.tablet, refusal=f"{record.server} leads it, in epoch {record.epoch}")
        if record.phase is not TabletPhase.RUNNING:  # whoever creates it, or replaces it, writes its record
            return MembersNow(wanted.tablet, refusal="it is not recorded as running yet, or others are in its place")
        if wanted.resigns:
            self._stuck[record.tablet] = (record.epoch, self._clock.monotonic_s())
            return MembersNow(wanted.tablet, refusal="another member is to lead it, if one can be reached")
        if record.version == wanted.version + 1 and set(record.replicas) == set(wanted.members):
            return MembersNow(wanted.tablet, record.version, record.replicas)
        if record.version != wanted.version:
            return MembersNow(wanted.tablet, refusal=f"its members are at version {record.version}")
        if not may_become(record, wanted, zone):
            words = f"at least {zone.min_replicas} members are to be left, the leader among them, each named once"
            return MembersNow(wanted.tablet, refusal=words)
        changed = msgspec.structs.replace(record, replicas=wanted.members, version=record.version + 1)
        await self._records.write([changed])
        return MembersNow(wanted.tablet, changed.version, changed.replicas)


def _made_by(request: SplitTablet | JoinTablets) -> set[TabletId]:
    return {request.left, request.right} if isinstance(request, SplitTablet) else {request.into}
