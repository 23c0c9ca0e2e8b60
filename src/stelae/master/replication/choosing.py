"""Where replicas of tablets are put, and which of them leads next: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from stelae.catalog.objects import Zone
from stelae.catalog.value import Catalog
from stelae.master.replication.racks import ANYWHERE, Racks
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TableId
from stelae.registry.control import Lead, ReportedReplica
from stelae.registry.incarnations import ShardLife
from stelae.registry.replication.members import MembersWanted, log_of, server_of
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.spaces import AlterZoneAsk, SpacesAsk


def is_there(replica: str, lives: Mapping[str, ShardLife]) -> bool:
    """Whether the replica's server has the log still that it lies in."""
    life = lives.get(server_of(replica))
    return life is not None and life.log == log_of(replica)


def place_replicas(
    count: int,
    replicas: int,
    servers: Sequence[str],
    records: Iterable[TabletRecord],
    without: Iterable[str] = (),
    racks: Racks = ANYWHERE,
) -> list[tuple[str, ...]]:
    """The servers of each of so many new tablets, the leader's first, each on another node, and on racks as `racks`
    says. In sum each server has about as many replicas as the others, and leads about as many tablets."""
    silent = set(without)
    usable = [server for server in servers if server not in silent]
    if racks.room_for(replicas, usable) < replicas:
        usable = list(servers)
    racks.check(replicas, usable)
    load: Counter[str] = Counter()
    leading: Counter[str] = Counter()
    for record in records:
        if record.phase is not TabletPhase.REPLACED:
            load.update(record.servers)
            leading[record.server] += 1
    placed: list[tuple[str, ...]] = []
    for _ in range(count):
        chosen: list[str] = []
        for _ in range(replicas):
            by_load = leading if not chosen else load
            free = racks.free(replicas, usable, chosen)
            best = min(free, key=lambda server: (by_load[server], load[server], server))
            chosen.append(best)
            load[best] += 1
        leading[chosen[0]] += 1
        placed.append(tuple(chosen))
    return placed


def zone_of(catalog: Catalog, table: TableId) -> Zone | None:
    """None: the table is not there."""
    found = catalog.tables.get(table)
    return None if found is None else catalog.zones[found.zone]


def lead_of(record: TabletRecord, min_replicas: int) -> Lead:
    return Lead(
        record.tablet,
        record.table,
        record.epoch,
        record.version,
        record.replicas,
        min(min_replicas, len(record.replicas)),
        record.above,
    )


def choose_leader(
    record: TabletRecord,
    answers: Mapping[str, ReportedReplica],
    min_replicas: int,
    drained: Collection[str] = (),
    leading: Mapping[str, int] = {},
    wrong: Collection[str] = (),
) -> tuple[str, tuple[str, ...]] | None:
    """Which replica leads a tablet next, and which members it has then; None: none can. `answers`: what those members
    have said that answered. Those that did not are left out, if enough remain. The greatest place leads, whatever else
    speaks against it: another may have lost the end of its log, which was acknowledged. If several have that place,
    none leads whose server's clock is `wrong`, if there is another, because the others refuse what it sends; then none
    on a server that is `drained`; then the one whose server leads least (`leading`).

    If the leader has resigned it has said up to where all members have its records, and that was all that was ever
    acknowledged: so any other that has as much may lead, though the one that resigned has more: first one whose clock
    is right."""
    found = {each: answers[each] for each in record.replicas if each in answers}
    if not found:
        return None
    resigned = {each: said for each, said in found.items() if said.resigned == record.epoch}
    least = max((said.committed for said in resigned.values()), default=0)
    others = {
        each: said
        for each, said in found.items()
        if resigned and each not in resigned and server_of(each) not in drained and said.last[1] >= least
    }

    def rank(each: str) -> tuple[bool, tuple[int, int], bool, bool, bool, int, str]:
        server, last = server_of(each), found[each].last
        is_right, is_staying = server not in wrong, server not in drained
        is_first = is_right and bool(others)
        return is_first, last, is_right, is_staying, server == record.server, -leading.get(server, 0), each

    leader = max(others or found, key=rank)
    left = tuple(each for each in record.replicas if each in found)
    return leader, left if len(left) >= min_replicas else record.replicas


def find_doubt(
    record: TabletRecord,
    answers: Mapping[str, ReportedReplica],
    min_replicas: int,
    gone: Collection[str] = (),
    *,
    is_late: bool = False,
) -> str:
    """Why nobody may lead though some members answer, in words; empty: somebody may. `gone`: members whose logs are
    lost for good. `is_late`: the others were waited for.

    What was acknowledged is on the disk of every member, and disks lie: a log may have lost its end. Whoever is elected
    by itself, and lacks something, has the others forget it. So one at least must answer whose log has not lost its
    end: it has all that was acknowledged, and so has the greatest place. Where there is none, all must answer that may
    come back. Not every loss is seen: so where fewer answer than a write needs, which could not open the tablet by
    themselves, the others get the time to come, too."""
    found = [answers[each] for each in record.replicas if each in answers]
    silent = [server_of(each) for each in record.replicas if each not in answers and each not in gone]
    if not found or not silent:
        return ""
    if all(each.may_lack for each in found):
        why = "the log of every replica that answers has lost its end, and perhaps rows that were acknowledged"
    elif not is_late and len(found) < min(min_replicas, len(found) + len(silent)):
        why = "fewer of its replicas answer than a write needs"
    else:
        return ""
    missing, is_ = ", ".join(silent), "is" if len(silent) == 1 else "are"
    return f"{why}: {missing} {is_} waited for. If that is in vain, take the node out of the cluster for good"


def check_zone(ask: SpacesAsk, catalog: Catalog) -> None:
    """A zone whose tables have one replica keeps it so while it has tables: their configs lie elsewhere."""
    if not isinstance(ask, AlterZoneAsk) or ask.replicas is None:
        return
    zone = catalog.zone(ask.name)
    has_tables = any(table.zone == zone.id for table in catalog.tables.values())
    if has_tables and (zone.replicas > 1) != (ask.replicas > 1):
        raise InvalidArgument(
            f"zone {ask.name!r} has tables with {zone.replicas} replica{'s' if zone.replicas > 1 else ''} of each "
            f"tablet: make another zone with {ask.replicas}, and tables in it"
        )


def may_become(record: TabletRecord, wanted: MembersWanted, zone: Zone) -> bool:
    """Whether a tablet may have the members that its leader wishes for: enough, itself among them, each once."""
    least, members = min(zone.min_replicas, len(record.replicas)), set(wanted.members)
    is_among = wanted.leader in record.replicas and wanted.leader in members
    return is_among and len(members) == len(wanted.members) and len(members) >= least
