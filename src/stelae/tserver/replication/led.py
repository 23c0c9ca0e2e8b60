"""A tablet that a shard leads: who its other members are, what each has, and what is sent to whom next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stelae.format.log.records import NO_INDEX, LogRecord
from stelae.model.ids import Index, TableId, TabletId
from stelae.registry.control import Lead
from stelae.registry.replication.appending import AppendAnswer, AppendPart
from stelae.registry.replication.members import MembersWanted, server_of
from stelae.storage.log.commits import Quorum
from stelae.storage.replicas.replica import Replica
from stelae.storage.tablet.state import TabletState

_TOO_FEW = (
    "tablet {tablet} has {alive} of {members} replicas within reach, and a write needs all of them: {late} {is_} "
    "behind, and no fewer than {least} may be left"
)
_TOO_FEW_MEMBERS = (
    "tablet {tablet} has {members} replicas, and its zone wants {least} for a write: wait until another is up to date, "
    "or start more nodes"
)


class Member(msgspec.Struct):
    """Another replica, as the leader knows it. `sent`: what follows this index is sent next. `matched`: up to which
    index it is known to have the leader's records, in this epoch. `since_s`: since when it has not moved on though it
    is behind; None: it is not. `is_pending`: it is being brought up to date, and does not count yet. `needs_all`: it
    lacks what the leader has no records of any more. `is_paused`: nothing is sent until members are looked at next,
    because it would be answered as before; `words`: what it says then. `told`: what it was last told to be committed.
    `refused_s`: when it last said that its disk takes nothing."""

    sent: Index
    matched: Index = NO_INDEX
    since_s: float | None = None
    is_pending: bool = False
    needs_all: bool = False
    is_paused: bool = False
    words: str = ""
    told: Index = NO_INDEX
    refused_s: float = float("-inf")


class Led(msgspec.Struct):
    """`state`: as it was made when this began; in the shard's map once `is_open`."""

    lead: Lead
    me: str
    replica: Replica
    quorum: Quorum
    state: TabletState
    others: dict[str, Member]
    is_open: bool = False
    is_over: bool = False
    wanted: MembersWanted | None = None
    """A change of the members that was asked for and not answered yet."""
    is_leaving: bool = False
    """No write is let in: it is about to be led elsewhere."""
    replicas_max: int | None = None
    """How many members its zone says; None: that is not known."""

    @property
    def tablet(self) -> TabletId:
        return self.lead.tablet

    @property
    def table(self) -> TableId:
        return self.lead.table

    def next_part(self, name: str, bytes_max: int) -> tuple[AppendPart, list[LogRecord]] | None:
        """What is to be sent to a member now; None: nothing. What is sent is on this disk."""
        member = self.others.get(name)
        if member is None or member.needs_all or member.is_paused:
            return None
        replica, here, committed = self.replica, self.quorum.here, self.quorum.committed
        prev = replica.place_at(min(member.sent, here))
        if prev is None:
            member.needs_all = True  # also of one that counts: its log has lost what it had
            return None
        records = [record for record in replica.after(prev.index, bytes_max) if record.index <= here]
        if not records and member.matched >= here and member.told >= self._told_at(committed):
            return None
        lead = self.lead
        return AppendPart(lead.tablet, lead.table, lead.epoch, prev, committed), records

    def _told_at(self, committed: Index) -> Index:
        """A member is told of commits with the next records; without any, only of configs, which let it forget."""
        configs = self.replica.config_indexes
        return max((index for index in configs if index <= committed), default=NO_INDEX)

    def take_answer(self, name: str, part: AppendPart, answer: AppendAnswer, now_s: float) -> Index | None:
        """What a member has answered. Up to which index it has the leader's records now, if that is more than was
        known."""
        member = self.others.get(name)
        if member is None:
            return None
        if answer.matched is not None:
            member.told, member.words = Index(part.committed), ""
            member.sent = Index(answer.matched)
            if answer.matched > member.matched:
                member.matched = Index(answer.matched)
                member.since_s = now_s if member.matched < self.quorum.here else None
                return member.matched
            return None
        if answer.refused:
            member.is_paused, member.words = True, answer.refused
        elif answer.last is not None:
            member.sent = Index(min(answer.last[1], max(part.prev[1] - 1, 0)))
        elif not answer.promised:
            # Whoever counts and has nothing has lost its disk: it is brought up to date only as somebody new.
            member.needs_all, member.is_paused = member.is_pending, not member.is_pending
        return None

    def pause(self, name: str) -> None:
        """Send a member that has not answered nothing more for now, so that the others are served."""
        if name in self.others:
            self.others[name].is_paused = True

    def note_refused(self, name: str, now_s: float) -> None:
        """Remember when a member said that its disk takes nothing."""
        if name in self.others:
            self.others[name].refused_s = now_s

    def note_behind(self, now_s: float) -> None:
        """Remember since when members have not moved on."""
        for member in self.others.values():
            member.is_paused = False
            if member.matched >= self.quorum.here:
                member.since_s = None
            elif member.since_s is None:
                member.since_s = now_s

    def late(self, now_s: float, behind_s: float) -> list[str]:
        """Members that have not moved on for so long, and hold up everybody."""
        return [
            name
            for name, member in self.others.items()
            if not member.is_pending and member.since_s is not None and now_s - member.since_s > behind_s
        ]

    def choose_change(self, now_s: float, behind_s: float) -> MembersWanted | None:
        """Which members the tablet should have instead, if others: without those that are late, as long as enough are
        left, and with those that are up to date by now. Of a server that has lost its disk the replica of before goes
        when the new one is up to date: it is never late while nothing is written."""
        late = self.late(now_s, behind_s)
        ready = [
            name
            for name, member in self.others.items()
            if not member.is_pending and name not in self.lead.members and name not in late
        ]
        anew = {server_of(name) for name in ready}
        members = [name for name in self.lead.members if name not in late and server_of(name) not in anew]
        if not (late or ready):
            members = self._without_surplus(members)
            if len(members) == len(self.lead.members):
                return None
        if len(members) + len(ready) < self.lead.min_replicas:
            return None
        lead = self.lead
        return MembersWanted(lead.tablet, self.me, lead.epoch, lead.version, (*members, *ready))

    def _without_surplus(self, members: list[str]) -> list[str]:
        """As many as the zone says by now: those go first that lack most."""
        if self.replicas_max is None or len(members) <= self.replicas_max:
            return members
        others = sorted((name for name in members if name != self.me), key=lambda name: -self._matched(name))
        kept = {self.me, *others[: max(self.replicas_max, self.lead.min_replicas, 1) - 1]}
        return [name for name in members if name in kept]

    def _matched(self, name: str) -> Index:
        member = self.others.get(name)
        return NO_INDEX if member is None else member.matched

    def refusal(self, late: Sequence[str]) -> str:
        """Why no write is let in; empty if enough members are within reach."""
        members, least = len(self.lead.members), self.lead.min_replicas
        if members - len(late) >= least:
            return ""
        if not late:
            return _TOO_FEW_MEMBERS.format(tablet=self.tablet, members=members, least=least)
        said = [f". {server_of(name)} says: {words}" for name in late if (words := self.others[name].words)]
        behind = _TOO_FEW.format(
            tablet=self.tablet,
            alive=members - len(late),
            members=members,
            late=", ".join(server_of(name) for name in late),
            is_="is" if len(late) == 1 else "are",
            least=least,
        )
        return behind + "".join(said)

    def wish_to_resign(self, now_s: float, stuck_s: float) -> MembersWanted | None:
        """If so many members cannot be reached for so long that none may be dropped: that another of them leads. One
        whose disk takes nothing is reached: it would not be better off as the leader."""
        lead = self.lead
        lost = [name for name in self.late(now_s, stuck_s) if now_s - self.others[name].refused_s > stuck_s]
        if not lost or len(lead.members) - len(lost) >= lead.min_replicas:
            return None
        return MembersWanted(lead.tablet, self.me, lead.epoch, lead.version, lead.members, resigns=True)
