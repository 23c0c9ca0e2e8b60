"""A cluster at a glance, as one of its masters sees it: who leads, who serves, what is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from stelae.model.events import LeadRefused
from stelae.model.words import counted
from stelae.registry.incarnations import ShardLife
from stelae.registry.masters.heartbeats import CLOCK_OFF_MS_MAX, SILENT_S
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import NothingMessage
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress

Numbers: TypeAlias = dict[str, int | float]
"""What a process tells in `metrics`."""

_CATALOG, _LEASE = "catalog_version", "lease_is_valid"


class MasterSeen(msgspec.Struct, frozen=True):
    """`leads`: by its own word. `trouble`: why it does not answer; empty: it does."""

    name: str
    address: str
    release: str
    leads: bool
    trouble: str = ""


class Heard(msgspec.Struct, frozen=True):
    """What a shard's heartbeats have told the master that leads. `ago_s`: so long ago was the last. `clock_off_ms`: how
    far its clock is ahead of the master's."""

    ago_s: float
    clock_off_ms: int


class ShardSeen(msgspec.Struct, frozen=True):
    """`tablets`: how many run there, as is recorded. `trouble`, `numbers`: why it does not answer, or what it tells.
    `heard`: None if the master that was asked does not lead, or has not heard of it since it does. `is_drained`: it is
    about to be stopped, and leads nothing. `rack`: where it stands, if that was said."""

    name: str
    node: str
    number: int
    address: str
    incarnation: int
    tablets: int
    trouble: str
    numbers: Numbers
    heard: Heard | None = None
    is_drained: bool = False
    rack: str = ""


class Late(msgspec.Struct, frozen=True):
    """`what`: a process, or who is to do it."""

    what: str
    words: str


class ClusterOverview(msgspec.Struct, frozen=True):
    """`asked`: the master that answers. `leader`, `guard`: who leads, or led last, and how many times a master has
    begun to; empty and 0 if none has. `lease_ms`: so long does nobody take the leader's place when it is silent."""

    asked: str
    leader: str
    guard: int
    lease_ms: int
    catalog_version: int
    tables: int
    masters: tuple[MasterSeen, ...]
    shards: tuple[ShardSeen, ...]
    late: tuple[Late, ...]


def see_shards(
    lives: Iterable[ShardLife],
    records: Iterable[TabletRecord],
    told: Mapping[str, tuple[Numbers, str]],
    heard: Mapping[str, Heard],
    drained: Collection[str] = (),
) -> tuple[ShardSeen, ...]:
    """`told`: by the shard's name, its numbers, and why it gave none. `drained`: the names of those that are. In the
    order of nodes' names and numbers."""
    running = Counter(record.server for record in records if record.phase is TabletPhase.RUNNING)
    found = []
    for life in sorted(lives, key=lambda each: (each.node_name, each.number)):
        numbers, trouble = told[life.name]
        found.append(
            ShardSeen(
                life.name,
                life.node_name,
                life.number,
                life.address,
                life.incarnation,
                running[life.name],
                trouble,
                numbers,
                heard.get(life.name),
                life.name in drained,
                life.rack,
            )
        )
    return tuple(found)


def find_late(
    masters: Iterable[MasterSeen],
    shards: Iterable[ShardSeen],
    records: Iterable[TabletRecord],
    catalog_version: int,
    now_ms: int,
) -> tuple[Late, ...]:
    """Who does not answer, or is not heard of; who has not followed the catalog; tablets that are still to be made."""
    masters, shards = tuple(masters), tuple(shards)
    troubles = [(each.name, each.trouble) for each in masters] + [(each.name, each.trouble) for each in shards]
    found = [Late(name, f"does not answer: {trouble}") for name, trouble in troubles if trouble]
    if not any(each.leads for each in masters):
        found.append(Late("masters", "none of them leads now"))
    for shard in shards:
        found += _late_beats(shard.name, shard.heard)
        if not shard.numbers.get(_LEASE, 1):
            found.append(Late(shard.name, "could not renew its lease, and does not answer about rows"))
        knows = int(shard.numbers.get(_CATALOG, catalog_version))
        if knows < catalog_version:
            found.append(Late(shard.name, f"knows version {knows} of the catalog; the newest is {catalog_version}"))
    return (*found, *_late_tablets({shard.name for shard in shards}, records, now_ms))


def collection_put_off(words: str, for_s: float) -> Late:
    """Of the master that leads: why files that nobody needs stay."""
    return Late("collection of files", f"has been put off for {for_s:.0f} s, so no file is removed: {words}")


def led_by_nobody(refused: LeadRefused) -> Late:
    return Late(
        f"tablet {refused.tablet}", f"is led by nobody: {refused.server} was asked to, and cannot: {refused.why}"
    )


def with_late(found: ClusterOverview, *late: Late) -> ClusterOverview:
    return msgspec.structs.replace(found, late=(*found.late, *late))


def _late_beats(shard: str, heard: Heard | None) -> list[Late]:
    found = []
    if heard is not None and heard.ago_s > SILENT_S:
        found.append(Late(shard, f"was last heard of {heard.ago_s:.0f} s ago, and gets no new tablets"))
    if heard is not None and abs(heard.clock_off_ms) > CLOCK_OFF_MS_MAX:
        where = "ahead of" if heard.clock_off_ms > 0 else "behind"
        off_s = abs(heard.clock_off_ms) / 1_000
        found.append(Late(shard, f"its clock is {off_s:.0f} s {where} the master's, and it gets no new tablets"))
    return found


def _late_tablets(shards: set[str], records: Iterable[TabletRecord], now_ms: int) -> list[Late]:
    waiting: dict[str, list[TabletRecord]] = {}
    lost: Counter[str] = Counter()
    for record in records:
        if record.phase in (TabletPhase.PREPARING, TabletPhase.CREATING):
            waiting.setdefault(record.server or "the master", []).append(record)
        elif record.phase is TabletPhase.RUNNING and record.server not in shards:
            lost[record.server] += 1
    found = []
    for server, some in sorted(waiting.items()):
        since_s = max(0, now_ms - min(record.since_ms for record in some)) / 1_000
        found.append(Late(server, f"{counted(len(some), 'tablet')} still to be made, for {since_s:.0f} s"))
    words = "and is no shard of the cluster: it was never started, or was taken out"
    found += [Late(server, f"has {counted(lost[server], 'tablet')}, {words}") for server in sorted(lost)]
    return found


def _ask_overview() -> Asked:
    return NothingMessage(), b""


def _carry_out_overview(master: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> ClusterOverview:
    return master.overview(deadline=until)


OVERVIEW: Operation[[], ClusterOverview] = Operation(
    "overview",
    NothingMessage,
    _ask_overview,
    _carry_out_overview,
    codec_of("a cluster at a glance", ClusterOverview),
)
