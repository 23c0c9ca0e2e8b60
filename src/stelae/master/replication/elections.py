"""Which replica leads a tablet next: when its leader is over for good, and when it gives the tablet up.

A leader is over when it was started again, or when its lease has stood still for so long that it relies on it no more,
and it was fenced. Whoever follows begins above the bound of that lease. A leader that resigns says itself above which
txn another begins, and leads in that epoch no more, whoever asks it late: if its answer is lost it is asked again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from stelae.master.records import Records
from stelae.master.replication.asking import ask_within
from stelae.master.replication.choosing import choose_leader, find_doubt, is_there, zone_of
from stelae.master.servers import Servers
from stelae.model.errors import Closed, Deposed, Retryable, StelaeError, UnknownOutcome
from stelae.model.events import LeaderElected, LeadingFailed, LeadRefused, Listener
from stelae.model.ids import TabletId, Txn
from stelae.ports.clock import Clock
from stelae.ports.metastore import Entry
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import ReportedReplica, ResignTablets, TabletReport
from stelae.registry.decoding import number_of
from stelae.registry.incarnations import ShardLife, fence_key
from stelae.registry.leases.fencing import fence_shard
from stelae.registry.leases.shard import lease_key, read_lease, shard_lease_of
from stelae.registry.leases.sight import ShardSight
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.replication.members import server_of
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline

ANSWER_S = 3.0
"""So long is waited for what the members of a tablet say of their replicas."""
RESIGN_S = 8.0
"""So long for a leader to give tablets up."""
REACHED_S = 3.0
OTHERS_S = 10.0
"""So long is waited for more members where fewer answer than a write needs: a shard that begins takes some seconds."""
_TOGETHER_MAX = 64
"""So many tablets are handed over at once: they are not served meanwhile."""

Lives = Mapping[str, ShardLife]


class Vacant(msgspec.Struct, frozen=True):
    """A tablet that nobody leads any more, and above which txn its next leader begins."""

    record: TabletRecord
    above: Txn


class Elections:
    """For the tasks of one event loop, while one guard is led with. `lead` has leaders lead what their records say;
    `is_off`: whether a server's clock is known to be wrong; `note_refused`: hears of which of these records nobody may
    lead, and why."""

    def __init__(
        self,
        store: GuardedStore,
        catalog: CatalogService,
        records: Records,
        servers: Servers,
        clock: Clock,
        tell: Listener,
        lead: Callable[[Sequence[TabletRecord]], Awaitable[object]],
        is_off: Callable[[str], bool],
        note_refused: Callable[[Iterable[TabletRecord], Mapping[TabletId, LeadRefused]], None],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._records = records
        self._servers = servers
        self._clock = clock
        self._tell = tell
        self._lead = lead
        self._is_off = is_off
        self._note_refused = note_refused
        self.changing = asyncio.Lock()
        """Held by whoever writes a record, since it was last looked at: nobody is asked anything meanwhile."""
        self._sight = ShardSight()
        self._reached: dict[tuple[TabletId, int], float] = {}
        """Since when a member is reached from here that the tablet's leader, in that epoch, does not reach."""
        self._vacant: dict[tuple[TabletId, int], float] = {}
        """Since when a tablet is known to be led by nobody after that epoch."""
        self._failing: dict[str, type[StelaeError]] = {}
        """What did not go well when it was tried last, and of what kind the error was that was told."""

    async def look(self) -> Sequence[Entry]:
        """See which shards renew their leases. All keys of shards."""
        return await self._sight.look(self._store, self._clock)

    # -- leaders that are over

    async def find_vacant(self, running: Iterable[TabletRecord], lives: Lives) -> list[Vacant]:
        by_leader: dict[tuple[str, int], list[TabletRecord]] = {}
        for record in running:
            by_leader.setdefault((record.server, record.incarnation), []).append(record)
        found: list[Vacant] = []
        for (server, incarnation), records in sorted(by_leader.items()):
            life = lives.get(server)
            if life is None or not await self._is_over(life, incarnation):
                continue
            entry = await read_lease(self._store, life.node, life.number)
            bound = Txn(0) if entry is None else Txn(shard_lease_of(entry).bound)
            found += [Vacant(record, max(record.above, bound)) for record in records]
        return found

    async def _is_over(self, life: ShardLife, incarnation: int) -> bool:
        """Whether a life of a shard is over for good: it changes and acknowledges nothing any more."""
        entry = await self._store.get(fence_key(life.node, life.number))
        if entry is not None and number_of(entry) > incarnation:
            return True
        key = lease_key(life.node, life.number)
        if not self._sight.is_silent(key, self._clock.monotonic_s()):
            return False
        revision = self._sight.seen[key].revision
        return revision is not None and await fence_shard(self._store, life.node, life.number, revision)

    # -- leaders that resign

    async def hand_over(self, records: Sequence[TabletRecord], lives: Lives, drained: Collection[str]) -> None:
        """Have others lead what is led by drained shards. Asked to resign is only who has another member that answers
        now. What is under way there is waited for; where that takes too long the leader stays, and it is tried
        again."""
        for at in range(0, len(records), _TOGETHER_MAX):
            counted = await self._count_others(records[at : at + _TOGETHER_MAX], lives, drained)
            able = [record for record, others in counted if others]
            await self._resign(able, lives, drained, is_forced=False)

    async def _count_others(
        self, records: Sequence[TabletRecord], lives: Lives, drained: Collection[str] = ()
    ) -> list[tuple[TabletRecord, int]]:
        """Each with how many other members there are that answer now, have it, and are not drained."""
        others = [
            [each for each in record.replicas if server_of(each) not in {record.server, *drained}] for record in records
        ]
        asked = sorted({name for names in others for name in names if self._may_lead(name, lives)})
        answers = await self._ask_members(asked)
        return [
            (record, sum(record.tablet in answers.get(name, {}) for name in names))
            for record, names in zip(records, others, strict=True)
        ]

    async def give_up(self, records: Sequence[TabletRecord], lives: Lives, drained: Collection[str]) -> None:
        """Have others lead what their leaders cannot lead, because they do not reach the other members. A master must
        have reached so many of these for a while that they can take writes without the leader: else nobody could lead,
        and not even reads would be answered. One that has just come back is soon reached by its leader, too. Writes
        under way may count or not."""
        counted = await self._count_others(records, lives)
        able = [record for record, others in counted if others >= self._least(record)]
        now_s, before = self._clock.monotonic_s(), self._reached
        self._reached = {(each.tablet, each.epoch): before.get((each.tablet, each.epoch), now_s) for each in able}
        able = [each for each in able if now_s - self._reached[each.tablet, each.epoch] >= REACHED_S]
        await self._resign(able, lives, drained, is_forced=True)

    def _least(self, record: TabletRecord) -> int:
        """How many members a write of the tablet needs."""
        zone = zone_of(self._catalog.latest, record.table)
        return 1 if zone is None else min(zone.min_replicas, len(record.replicas))

    def _may_lead(self, replica: str, lives: Lives) -> bool:
        """Whether it is there, and its shard is not known to be away."""
        life = lives.get(server_of(replica))
        if life is None or not is_there(replica, lives):
            return False
        return not self._sight.is_silent(lease_key(life.node, life.number), self._clock.monotonic_s())

    async def _resign(
        self, records: Sequence[TabletRecord], lives: Lives, drained: Collection[str], *, is_forced: bool
    ) -> None:
        by_leader: dict[str, list[TabletRecord]] = {}
        for record in records:
            if record.server in lives and lives[record.server].incarnation == record.incarnation:
                by_leader.setdefault(record.server, []).append(record)
        for server, mine in sorted(by_leader.items()):
            for at in range(0, len(mine), _TOGETHER_MAX):
                some = mine[at : at + _TOGETHER_MAX]
                request = ResignTablets(tuple((record.tablet, record.epoch) for record in some), is_forced)
                with self.going_on(f"handing over from {server}"):  # perhaps it did: that is seen when it is asked next
                    asked = self._servers.link(server).ask(request, Deadline(self._clock, RESIGN_S))
                    report = await ask_within(RESIGN_S, asked)
                    await self.elect(find_resigned(some, [report]), lives, drained)

    # -- others

    async def elect(self, vacant: Sequence[Vacant], lives: Lives, drained: Collection[str] = ()) -> None:
        """Have one of its members lead each tablet, as far as any answers."""
        if not vacant:
            return
        members = sorted({name for each in vacant for name in each.record.replicas if self._may_lead(name, lives)})
        answers = await self._ask_members(members)
        wrong = {name for name in map(server_of, answers) if self._is_off(name)}
        leading = Counter(record.server for record in self._records.maps.all() if record.replicas)
        elected: dict[TabletId, TabletRecord] = {}
        refused: dict[TabletId, LeadRefused] = {}
        for each in vacant:
            record = each.record
            zone = zone_of(self._catalog.latest, record.table)
            said = {name: found[record.tablet] for name, found in answers.items() if record.tablet in found}
            least = 1 if zone is None else zone.min_replicas
            gone = [name for name in record.replicas if not is_there(name, lives)]
            if doubt := find_doubt(record, said, least, gone, is_late=self._is_waited_for(record)):
                asked = server_of(next(name for name in record.replicas if name in said))
                refused[record.tablet] = LeadRefused(asked, record.tablet, doubt)
                continue
            chosen = choose_leader(record, said, least, drained, leading, wrong)
            if chosen is None:
                continue
            leader, left = chosen
            leading[server_of(leader)] += 1
            elected[record.tablet] = msgspec.structs.replace(
                record,
                server=server_of(leader),
                incarnation=lives[server_of(leader)].incarnation,
                replicas=left,
                epoch=record.epoch + 1,
                version=record.version + 1,
                above=each.above,
            )
        self._note_refused([each.record for each in vacant if each.record.tablet not in elected], refused)
        async with self.changing:
            now = {record.tablet: record for record in self._records.maps.all()}
            epochs = {(record.tablet, record.epoch) for record in now.values()}
            self._vacant = {key: since_s for key, since_s in self._vacant.items() if key in epochs}
            chosen_for = [each.record for each in vacant if each.record.tablet in elected]
            leading_next = [elected[each.tablet] for each in chosen_for if now.get(each.tablet) == each]
            await self._records.write(leading_next)  # of the others something has changed since the members were asked
        for record in leading_next:
            self._tell(LeaderElected(record.table, record.tablet, record.server, record.epoch, record.replicas))
        await self._lead(leading_next)

    def _is_waited_for(self, record: TabletRecord) -> bool:
        """Whether it was vacant for so long that whoever could answer has had the time to."""
        now_s = self._clock.monotonic_s()
        since_s = self._vacant.setdefault((record.tablet, record.epoch), now_s)
        return now_s - since_s >= OTHERS_S

    async def _ask_members(self, members: Iterable[str]) -> dict[str, Mapping[TabletId, ReportedReplica]]:
        """What each of these members that answers has replicas of, by the ids of the members. A server that has another
        log by now says nothing of those that it had."""
        names = list(members)
        reports = await asyncio.gather(*(self._ask_report(server_of(name)) for name in names))
        return {
            name: {each.tablet: each for each in report.replicas}
            for name, report in zip(names, reports, strict=True)
            if report is not None and report.replica == name
        }

    async def ask_replicas(self, servers: Sequence[str]) -> dict[str, Mapping[TabletId, ReportedReplica]]:
        """What each of them that answers has replicas of."""
        reports = await asyncio.gather(*(self._ask_report(server) for server in servers))
        return {report.server: {each.tablet: each for each in report.replicas} for report in reports if report}

    async def _ask_report(self, server: str) -> TabletReport | None:
        """None: it does not answer, or cannot say it."""
        reports: list[TabletReport] = []
        with self.going_on(f"reports of {server}"):
            asked = self._servers.link(server).report(None, Deadline(self._clock, ANSWER_S))
            reports.append(await ask_within(ANSWER_S, asked))
        return reports[0] if reports else None

    @contextmanager
    def going_on(self, part: str) -> Iterator[None]:
        """Ask one shard. If it does not answer, or cannot do it, the others are asked all the same. What waiting does
        not mend, as damage or another token, is told once, until this part goes well. Raised is only what says that
        this master leads no more, or closes."""
        try:
            yield
        except (Deposed, Closed):
            raise
        except (Retryable, UnknownOutcome):
            return
        except StelaeError as error:
            if self._failing.get(part) is not type(error):
                self._failing[part] = type(error)
                self._tell(LeadingFailed(part, f"{type(error).__name__}: {error}"))
            return
        self._failing.pop(part, None)


def find_resigned(records: Iterable[TabletRecord], reports: Iterable[TabletReport]) -> list[Vacant]:
    """Those that their leaders have given up, in the epoch that is recorded. They have answered nothing about them
    since, so their clocks lie above all that they gave out and answered."""
    wanted = {(record.server, record.tablet): record for record in records}
    found: list[Vacant] = []
    for report in reports:
        for each in report.replicas:
            record = wanted.get((report.server, each.tablet))
            if record is not None and each.resigned == record.epoch:
                found.append(Vacant(record, max(record.above, report.clock)))
    return found
