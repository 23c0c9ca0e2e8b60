"""Bugs that are planted in replication: in what is acknowledged, who leads, and what a replica takes and forgets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

from stelae.master.replication import elections
from stelae.master.replication.elections import Elections
from stelae.model.ids import Index
from stelae.registry.control import ReportedReplica
from stelae.registry.leases.shard import lease_key
from stelae.registry.tablet_records import TabletRecord
from stelae.storage.log.commits import Quorum
from stelae.tserver.replication.led import Led
from tests.cluster.planted import Planted


def _acknowledged_by_the_leader_alone() -> AbstractContextManager[Any]:
    return mock.patch.object(Quorum, "committed", property(lambda quorum: quorum.here))


def _acknowledged_by_most() -> AbstractContextManager[Any]:
    def most(quorum: Quorum) -> Index:
        return sorted((quorum.here, *quorum.others.values()))[-2] if quorum.others else quorum.here

    return mock.patch.object(Quorum, "committed", property(most))


def _the_shortest_leads() -> AbstractContextManager[Any]:
    def choose(
        record: TabletRecord, answers: Mapping[str, ReportedReplica], least: int, *_: object
    ) -> tuple[str, tuple[str, ...]] | None:
        found = {each: answers[each] for each in record.replicas if each in answers}
        if not found:
            return None
        left = tuple(found)
        return min(found, key=lambda each: found[each].last), left if len(left) >= least else record.replicas

    return mock.patch.object(elections, "choose_leader", choose)


def _silence_is_not_fenced() -> AbstractContextManager[Any]:
    """Whoever was not heard of for a moment is followed at once."""

    async def is_over(self: Elections, life: Any, incarnation: int) -> bool:
        seen = self._sight.seen.get(lease_key(life.node, life.number))
        if life.incarnation > incarnation or seen is None:
            return life.incarnation > incarnation
        return seen.standstill.is_over(self._clock.monotonic_s(), 0.3 * seen.duration_s)

    return mock.patch.object(Elections, "_is_over", is_over)


def _the_late_are_dropped_by_the_leader_alone() -> AbstractContextManager[Any]:
    """A leader does not wait for a member that is late, though the record still has it."""
    right = Led.note_behind

    def note(self: Led, now_s: float) -> None:
        right(self, now_s)
        for name in self.late(now_s, 0.3):
            self.quorum.others.pop(name, None)

    return mock.patch.object(Led, "note_behind", note)


def _new_members_count_before_they_have_all() -> AbstractContextManager[Any]:
    right = Led.choose_change

    def choose(self: Led, now_s: float, behind_s: float) -> Any:
        for member in self.others.values():
            member.is_pending = False
        return right(self, now_s, behind_s)

    return mock.patch.object(Led, "choose_change", choose)


def _restarted_leaders_keep_their_epoch() -> AbstractContextManager[Any]:
    """A leader that was started again goes on in the epoch that it led in before."""
    right = Elections.elect

    async def elect(self: Elections, vacant: Any, lives: Any, drained: Any = ()) -> None:
        same = [each for each in vacant if lives[each.record.server].incarnation != each.record.incarnation]
        for each in same:
            record = msgspec.structs.replace(each.record, incarnation=lives[each.record.server].incarnation)
            await self._records.write([record])
        await right(self, [each for each in vacant if each not in same], lives, drained)

    return mock.patch.object(Elections, "elect", elect)


PLANTED_IN_REPLICAS = [
    Planted(
        "leader-alone", "a write is acknowledged when the leader has it", 5, 100, _acknowledged_by_the_leader_alone
    ),
    Planted("most-have-it", "a write is acknowledged when most replicas have it", 7, 200, _acknowledged_by_most),
    Planted("shortest-leads", "the replica with the fewest records leads next", 0, 300, _the_shortest_leads),
    Planted("no-fence", "a silent leader is followed before its lease is over", 22, 300, _silence_is_not_fenced),
    Planted(
        "own-drop", "a leader drops a late member without asking", 8, 150, _the_late_are_dropped_by_the_leader_alone
    ),
    Planted(
        "early-member", "a member counts before it has everything", 0, 300, _new_members_count_before_they_have_all
    ),
    Planted(
        "same-epoch", "a leader keeps its epoch when it is started again", 0, 200, _restarted_leaders_keep_their_epoch
    ),
]
