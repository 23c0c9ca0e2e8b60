"""How shards are asked to lead tablets, and which of these nobody leads because the shard that should says that it
cannot: its log knows a greater epoch than the metastore, which was restored from an older copy perhaps, or its replica
is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from stelae.master.replication.asking import ask_within, find_silent
from stelae.master.replication.choosing import lead_of, zone_of
from stelae.master.servers import Servers
from stelae.model.events import LeadRefused, Listener
from stelae.model.ids import TabletId
from stelae.ports.clock import Clock
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import Lead, LeadTablets, TabletReport
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline

LEAD_S = 8.0
"""So long is waited for shards that are to lead tablets: longer than they wait for the other members."""
STAYS_S = 5.0
"""A refusal that stays so long is told: a shard that was just started again refuses until it is elected anew."""


class Leads:
    """For the tasks of one event loop, while one guard is led with."""

    def __init__(self, catalog: CatalogService, servers: Servers, clock: Clock, tell: Listener) -> None:
        self._catalog = catalog
        self._servers = servers
        self._clock = clock
        self._tell = tell
        self._refused: dict[TabletId, _Refusal] = {}

    async def lead(self, records: Sequence[TabletRecord], deadline: Deadline | None) -> set[TabletId]:
        """Ask leaders to lead what their records say. Which tablets are open then."""
        wanted = {record.tablet: record for record in records}
        return {
            each.tablet
            for answer in await self._ask(records, deadline)
            for each in answer.replicas
            if each.is_open and each.tablet in wanted and each.led == wanted[each.tablet].epoch
        }

    async def lead_soon(self, records: Sequence[TabletRecord]) -> list[TabletReport]:
        """The same, and who does not answer in a while is not waited for. What those say that answer."""
        return await self._ask(records, Deadline(self._clock, LEAD_S), LEAD_S)

    def refused(self, running: Collection[TabletId]) -> Sequence[LeadRefused]:
        """What nobody leads of these tablets because the shard that should cannot."""
        self._refused = {tablet: each for tablet, each in self._refused.items() if tablet in running}
        return [each.what for each in self._refused.values() if each.is_told]

    async def _ask(
        self, records: Sequence[TabletRecord], deadline: Deadline | None, seconds: float | None = None
    ) -> list[TabletReport]:
        by_leader: dict[str, list[Lead]] = {}
        for record in records:
            zone = zone_of(self._catalog.latest, record.table)
            least = 1 if zone is None else zone.min_replicas
            by_leader.setdefault(record.server, []).append(lead_of(record, least))
        asked = (
            ask_within(seconds, self._servers.link(server).ask(LeadTablets(tuple(mine)), deadline))
            for server, mine in by_leader.items()
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        find_silent(by_leader, answers)
        reports = [answer for answer in answers if isinstance(answer, TabletReport)]
        said = {tablet: LeadRefused(each.server, tablet, why) for each in reports for tablet, why in each.refused}
        self.note(records, said)
        return reports

    def note(self, asked: Iterable[TabletRecord], said: Mapping[TabletId, LeadRefused]) -> None:
        """Which of these tablets nobody leads because nobody can. Each refusal that stays is told once."""
        now_s = self._clock.monotonic_s()
        for record in asked:
            before, what = self._refused.pop(record.tablet, None), said.get(record.tablet)
            if what is None:
                continue
            refusal = _Refusal(what, now_s) if before is None else msgspec.structs.replace(before, what=what)
            if not refusal.is_told and now_s - refusal.since_s >= STAYS_S:
                refusal.is_told = True
                self._tell(what)
            self._refused[record.tablet] = refusal


class _Refusal(msgspec.Struct):
    what: LeadRefused
    since_s: float
    is_told: bool = False
