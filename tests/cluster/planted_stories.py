"""Bugs that are planted in replication and that a story finds (`replica_stories`), each with its name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec

from stelae.catalog.objects import Zone
from stelae.master.replication import choosing, elections, leads, replication
from stelae.master.replication.elections import Elections, Vacant
from stelae.model.ids import Epoch, Index, Txn
from stelae.registry.leases.held import Standstill
from stelae.registry.replication.appending import AppendAnswer
from stelae.registry.replication.members import MembersNow
from stelae.storage.replicas.replica import Place, Replica
from stelae.tserver.cluster import ClusterShard
from stelae.tserver.lease.leasing import Leasing
from stelae.tserver.lease.pulse import LogPulse
from stelae.tserver.replication import streams
from stelae.tserver.replication.following import Following
from stelae.tserver.replication.leading import Leading
from stelae.tserver.replication.led import Led
from stelae.tserver.replication.streams import Streams
from tests.cluster import planted_replicas as by_seed
from tests.cluster.planted import PlantedInStory


def _a_drop_without_an_answer_has_happened() -> AbstractContextManager[Any]:
    right = Streams._take

    def take(self: Streams, leading: Leading, name: str, asked: Any, answer: Any) -> None:
        if asked is None and answer is None:
            wanted = [led.wanted for led in leading.led.values() if led.wanted is not None and not led.wanted.resigns]
            answer = tuple(MembersNow(each.tablet, each.version + 1, each.members) for each in wanted)
        right(self, leading, name, asked, answer)

    return mock.patch.object(Streams, "_take", take)


def _what_was_sent_has_arrived() -> AbstractContextManager[Any]:
    """A leader that has lost its connection to a member goes on behind what it has sent."""
    right = Streams._take

    def take(self: Streams, leading: Leading, name: str, asked: Any, answer: Any) -> None:
        if answer is None and isinstance(asked, streams._Appended):
            ends = [records[-1].index if records else part.prev[1] for _, part, records in asked.parts]
            answer = tuple(AppendAnswer(matched=int(end)) for end in ends)
        right(self, leading, name, asked, answer)

    return mock.patch.object(Streams, "_take", take)


def _older_leaders_are_followed() -> AbstractContextManager[Any]:
    right = Replica.judge

    def judge(self: Replica, epoch: Epoch, prev: Place, records: Sequence[Any]) -> Any:
        return right(self, max(epoch, self.promised), prev, records)

    return mock.patch.object(Replica, "judge", judge)


def _the_place_before_is_not_looked_at() -> AbstractContextManager[Any]:
    right = Replica.judge

    def judge(self: Replica, epoch: Epoch, prev: Place, records: Sequence[Any]) -> Any:
        here = self.place_at(prev.index)
        return right(self, epoch, prev if here is None else here, records)

    return mock.patch.object(Replica, "judge", judge)


def _cut_by_what_is_known_to_be_on_all() -> AbstractContextManager[Any]:
    """A replica that hears of a new leader forgets all that it does not know to be on all others."""
    right = Following._take

    def take(self: Following, replica: Replica, part: Any, records: Any, pending: Any) -> Any:
        if part.epoch > replica.promised and replica.committed < replica.last.index:
            self._promise(replica, Epoch(part.epoch), replica.committed, pending)
        return right(self, replica, part, records, pending)

    return mock.patch.object(Following, "_take", take)


def _sent_before_it_is_durable() -> AbstractContextManager[Any]:
    """A leader sends what its own disk may still refuse."""
    right = Led.next_part

    def next_part(self: Led, name: str, bytes_max: int) -> Any:
        here, self.quorum.here = self.quorum.here, Index(max(self.quorum.here, self.replica.last.index))
        try:
            return right(self, name, bytes_max)
        finally:
            self.quorum.here = here

    return mock.patch.object(Led, "next_part", next_part)


def _begun_where_the_log_ends() -> AbstractContextManager[Any]:
    """A new leader's txns begin where its log ends, whatever the leader before has answered."""
    right = Leading._open

    def open_(self: Leading, lead: Any, replica: Any) -> Any:
        return right(self, msgspec.structs.replace(lead, above=Txn(0)), replica)

    return mock.patch.object(Leading, "_open", open_)


@contextmanager
def _whoever_resigns_says_no_time() -> Any:
    """Whoever follows a leader that has resigned begins where its own log ends."""

    right = elections.find_resigned

    def find(records: Any, reports: Any) -> list[Vacant]:
        return [Vacant(each.record, each.record.above) for each in right(records, reports)]

    with ExitStack() as patched:
        for module in (replication, elections):
            patched.enter_context(mock.patch.object(module, "find_resigned", find))
        yield


def _the_bound_of_the_lease_is_forgotten() -> AbstractContextManager[Any]:
    right = Elections.find_vacant

    async def find(self: Elections, *args: Any) -> list[Vacant]:
        return [Vacant(each.record, each.record.above) for each in await right(self, *args)]

    return mock.patch.object(Elections, "find_vacant", find)


def _read_without_a_lease() -> AbstractContextManager[Any]:
    return mock.patch.object(Leasing, "reading", lambda _, call: call)


def _renewed_while_the_disk_hangs() -> AbstractContextManager[Any]:
    return mock.patch.object(LogPulse, "is_stuck", return_value=False)


def _a_new_master_waits_for_nobody() -> AbstractContextManager[Any]:
    """Whoever was not seen to renew its lease is taken for silent."""
    right = Standstill.note

    def note(self: Standstill, revision: Any, now_s: float, duration_s: float) -> None:
        is_first = self.revision is None
        right(self, revision, now_s, duration_s)
        if is_first:
            self._since_s = float("-inf")

    return mock.patch.object(Standstill, "note", note)


def _whoever_answers_may_lead() -> AbstractContextManager[Any]:
    return mock.patch.object(elections, "find_doubt", return_value="")


@contextmanager
def _no_fewest() -> Any:
    """A leader may be left alone."""

    def alone(*args: Any) -> Zone | None:
        zone = right(*args)
        return None if zone is None else Zone(zone.id, zone.name, zone.replicas, 1)

    right = choosing.zone_of
    with ExitStack() as patched:
        for module in (replication, elections, leads):
            patched.enter_context(mock.patch.object(module, "zone_of", alone))
        patched.enter_context(mock.patch.object(ClusterShard, "_zone_of", return_value=(3, 1)))
        yield


def _an_epoch_is_led_in_again() -> AbstractContextManager[Any]:
    """A leader of an epoch that its replica has followed already is no reason for doubt."""
    right = Leading._begin

    def begin(self: Leading, lead: Any) -> Any:
        self._begun[lead.tablet] = lead.epoch
        return right(self, lead)

    return mock.patch.object(Leading, "_begin", begin)


_ONLY_ALL, _OLD_READ = "t1_only_all_is_enough", "t1_an_old_value_is_not_read"
_SOON = "t4_nobody_leads_before_the_lease_is_over"
_BELOW = "t19_nothing_is_written_below_what_was_read"

PLANTED_IN_STORIES = [
    PlantedInStory(
        "leader-alone",
        "a write is acknowledged when the leader has it",
        _ONLY_ALL,
        by_seed._acknowledged_by_the_leader_alone,
    ),
    PlantedInStory(
        "most-have-it", "a write is acknowledged when most replicas have it", _ONLY_ALL, by_seed._acknowledged_by_most
    ),
    PlantedInStory(
        "own-drop",
        "a leader drops a late member without asking",
        _ONLY_ALL,
        by_seed._the_late_are_dropped_by_the_leader_alone,
    ),
    PlantedInStory(
        "unanswered-drop",
        "a drop that nobody has answered counts as done",
        "t2_a_drop_that_nobody_has_answered",
        _a_drop_without_an_answer_has_happened,
    ),
    PlantedInStory(
        "sent-is-had",
        "what was sent to a member counts as arrived when the connection is lost",
        "t2_a_drop_that_nobody_has_answered",
        _what_was_sent_has_arrived,
    ),
    PlantedInStory("no-lease", "reads are answered without a lease", _OLD_READ, _read_without_a_lease),
    PlantedInStory(
        "no-fence", "a silent leader is followed before its lease is over", _SOON, by_seed._silence_is_not_fenced
    ),
    PlantedInStory(
        "hanging-disk",
        "a lease is renewed while the disk hangs",
        "t7_a_disk_that_hangs_is_no_leader",
        _renewed_while_the_disk_hangs,
    ),
    PlantedInStory(
        "same-epoch",
        "a leader keeps its epoch when it is started again",
        "t8_another_life_is_another_epoch",
        by_seed._restarted_leaders_keep_their_epoch,
    ),
    PlantedInStory(
        "no-place-before",
        "a replica does not look at the place before",
        "t9_what_is_void_stays_void",
        _the_place_before_is_not_looked_at,
    ),
    PlantedInStory(
        "early-send",
        "a leader sends what its own disk may refuse",
        "t10_what_the_leaders_disk_refuses_is_nowhere",
        _sent_before_it_is_durable,
    ),
    PlantedInStory(
        "older-leader",
        "a replica follows an older leader",
        "t12_what_an_older_leader_sends_late_changes_nothing",
        _older_leaders_are_followed,
    ),
    PlantedInStory(
        "early-member",
        "a member counts before it has everything",
        "t14_who_is_out_is_not_elected",
        by_seed._new_members_count_before_they_have_all,
    ),
    PlantedInStory(
        "torn-leads",
        "whoever has lost the end of its log leads alone",
        "t16_a_torn_end_is_not_led_alone",
        _whoever_answers_may_lead,
    ),
    PlantedInStory(
        "cut-by-committed",
        "a replica that hears of a new leader forgets what it does not know to be on all others",
        "t16_what_was_acknowledged_stays_until_a_leader_has_sent_its_own",
        _cut_by_what_is_known_to_be_on_all,
    ),
    PlantedInStory("below-min", "a leader may be left alone", "t18_the_last_one_acknowledges_nothing", _no_fewest),
    PlantedInStory("no-bound", "txns of a new leader begin where its log ends", _BELOW, _begun_where_the_log_ends),
    PlantedInStory(
        "no-lease-bound", "the bound of the lease before is forgotten", _BELOW, _the_bound_of_the_lease_is_forgotten
    ),
    PlantedInStory(
        "no-time-of-the-resigned",
        "whoever follows a leader that has resigned does not hear how far it came",
        "t20_whoever_hands_over_says_how_far_it_came",
        _whoever_resigns_says_no_time,
    ),
    PlantedInStory(
        "hasty-master",
        "a new master takes those for silent whom it has not seen yet",
        "t20_a_new_master_takes_nothing_from_those_that_serve",
        _a_new_master_waits_for_nobody,
    ),
    PlantedInStory(
        "epoch-again",
        "a tablet is led again in an epoch of another leader",
        "t58_an_older_metastore_is_not_followed",
        _an_epoch_is_led_in_again,
    ),
]
