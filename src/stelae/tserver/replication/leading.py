"""The tablets that a shard leads: taken over, kept in step with their other replicas, given up.

Taking over, for a leader of a greater epoch than the replica has followed:
1. The replica follows the epoch: whatever an older leader sends from now on is refused. That is written down.
2. The state is made of the replica's config and records. The clock goes on above what the leader before may have given
   out and answered.
3. A config is logged: the first record of the epoch. When every member has it, all of them have all that came before,
   and nothing else.
4. Then the tablet takes reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec
from msgspec.structs import replace

from stelae.model.errors import NotFound, Retryable, StelaeError, Unavailable, UnknownOutcome
from stelae.model.events import Listener, ReplicaNotMade, tell_nobody
from stelae.model.ids import Epoch, Index, TableId, TabletId, Txn
from stelae.registry.control import Lead, ReportedReplica
from stelae.registry.replication.members import MembersNow
from stelae.storage.log.commits import Quorum, TabletCommits
from stelae.storage.log.futures import wait_for
from stelae.storage.replicas.replica import Replica
from stelae.storage.shard import Shard
from stelae.storage.tablet.opening import SchemasOf, replayed, since
from stelae.storage.tablet.state import TabletState, altered
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.lives import Happened, TabletEffect, TabletEvent, TabletLives
from stelae.tserver.replication.led import Led, Member

OPEN_WAIT_S = 5.0
"""So long is waited for the other members of a tablet that was taken over; after that it opens when they have come."""

_FIRST = 1
"""The epoch of a tablet that nobody led before."""

RESIGN_WAIT_S = 3.0
"""So long is waited for writes under way in a tablet that is to be led elsewhere; after that it is led on."""

_LEAVING = "tablet {tablet} is about to be led by another shard"

ZoneOf = Callable[[TableId], tuple[int, int] | None]
"""How many replicas a table's zone says now, and how many a write needs; None: the table is not known here."""


class Leading:
    """Safe for threads: what is known of led tablets is changed under the shard's lock. `me`: what this server's
    replicas are known by. `wake` is called, from any thread, when there is something to send; `expect_pins`, before a
    table is read here of which others led tablets, whose snapshots may be held."""

    def __init__(
        self,
        me: str,
        shard: Shard,
        upkeep: Upkeep,
        lives: TabletLives,
        schemas_of: SchemasOf,
        wake: Callable[[], None],
        expect_pins: Callable[[TableId], None],
    ) -> None:
        self.me = me
        self._shard = shard
        self._upkeep = upkeep
        self._lives = lives
        self._schemas_of = schemas_of
        self._wake = wake
        self._expect_pins = expect_pins
        self.led: dict[TabletId, Led] = {}
        self._begun: dict[TabletId, int] = {}
        """The last epoch of each tablet that this process began to lead in: nobody else ever leads in that."""
        self.zone_of: ZoneOf = _know_no_zone
        self.tell: Listener = tell_nobody
        """Hears, without the lock, why a new replica cannot be made."""
        self._resigned: dict[TabletId, int] = {}
        """In which epoch a tablet was led here and given up: it is not led in that one again, whoever asks late."""

    # -- taking over

    def lead(self, asked: Sequence[Lead]) -> Mapping[TabletId, str]:
        """Take tablets over, and wait a while until they are open. One that is led already, in that epoch, is told who
        its members are. Which cannot be led here, and why: that is no matter of the others."""
        opening: dict[TabletId, Future[Txn]] = {}
        refused: dict[TabletId, str] = {}
        for lead in asked:
            try:
                future = self._begin(lead)
            except StelaeError as error:
                refused[lead.tablet] = str(error)
                continue
            if future is not None:
                opening[lead.tablet] = future
        if opening:
            self._shard.drain()
            self._wake()
            wait_for(list(opening.values()), OPEN_WAIT_S)
            for tablet, begun in opening.items():
                if begun.done() and isinstance(failed := begun.exception(), StelaeError):
                    if not isinstance(failed, Retryable | UnknownOutcome):  # after those it is asked again
                        refused[tablet] = str(failed)
                elif begun.done():
                    begun.result()
        return refused

    def _begin(self, lead: Lead) -> Future[Txn] | None:
        shard = self._shard
        with shard.lock:
            known = self.led.get(lead.tablet)
            if known is not None and known.lead.epoch >= lead.epoch:
                if known.lead.epoch == lead.epoch and lead.version > known.lead.version:
                    self._set_members(known, lead.version, lead.members)
                return None
            if lead.epoch <= self._resigned.get(lead.tablet, 0):
                return None
            replica = shard.replicas.get(lead.tablet)
            if replica is None:
                raise NotFound(f"{shard.name} has no replica of tablet {lead.tablet}")
            if lead.epoch < replica.promised or (lead.epoch == replica.promised != self._begun.get(lead.tablet)):
                raise Unavailable(
                    f"tablet {lead.tablet}: {shard.name} follows epoch {replica.promised} already, and is to lead in "
                    f"epoch {lead.epoch}: was the metastore restored from an older copy?"
                )
        if known is not None:
            self.step_down(lead.tablet, "it leads in another epoch now")
        with shard.lock:
            self._begun[lead.tablet] = lead.epoch
            replica.promise(Epoch(lead.epoch))
            replica.may_lack = False
            promised = shard.follow(replica, Epoch(lead.epoch), replica.last.index)
        shard.drain()
        promised.result()
        return self._open(lead, replica)

    def _open(self, lead: Lead, replica: Replica) -> Future[Txn]:
        shard = self._shard
        state = replayed(replica, self._schemas_of(lead.table))
        last = max((record.txn for record in replica.tail), default=Txn(0))
        last = max((last, state.purged_below, *state.floors, *(file.txn_max for file in state.files().values())))
        shard.clock.resume(max(last, lead.above))
        others = {name: Member(replica.last.index) for name in lead.members if name != self.me}
        with shard.lock:
            shard.commits.has_quorums = True
            quorum = Quorum(replica.last.index, dict.fromkeys(others, Index(0)), self._wake)
            commits = TabletCommits(replica.last.index, max(last, state.commits.visible), quorum, state.commits.done)
            state = replace(state, epoch=Epoch(lead.epoch), commits=commits)
            led = Led(lead, self.me, replica, quorum, state, others)
            self.led[lead.tablet] = led
            self._resigned.pop(lead.tablet, None)
            try:
                config = shard.config(state)
                future = shard.log_config(config, commits, state.epoch)
            except BaseException:
                del self.led[lead.tablet]
                raise
        opened: Future[Txn] = Future()
        future.add_done_callback(partial(self._note_logged, led, opened))
        return opened

    def _note_logged(self, led: Led, opened: Future[Txn], logged: Future[Txn]) -> None:
        """Every member has the first record of the epoch, or it has failed. A tablet that does not open is given up, so
        that whoever is asked to lead it next, in this epoch, begins anew."""
        error = logged.exception()
        if error is None:
            try:
                self._let_in(led)
            except Exception as raised:  # noqa: BLE001 - told to whoever waits: nobody hears what a callback raises
                error = raised
        if error is None:
            opened.set_result(Txn(0))
            return
        try:
            self.step_down(led.tablet, f"it did not open: {error}", led)
        finally:
            opened.set_exception(error)

    def _let_in(self, led: Led) -> None:
        """The tablet takes reads and writes."""
        shard = self._shard
        with shard.lock:
            if self.led.get(led.tablet) is led and not led.is_over:
                self._make_room(led)
                led.is_open = True  # before what may fail: closing takes it back
                self._lives.advance([led.tablet], TabletEvent.LEAD_TAKEN, partial(self._carry_out, led))
        shard.recount_memory()

    def _carry_out(self, led: Led, effect: TabletEffect, _: Sequence[TabletId]) -> Sequence[Happened]:
        """Under the lock. After neither of the two does anything else happen to the tablet by itself."""
        shard = self._shard
        match effect:
            case TabletEffect.SERVE:
                if led.lead.epoch > _FIRST:
                    self._expect_pins(led.table)
                shard.install([self._newest(led)])
                self._upkeep.adopt_config(shard.config(led.state))
            case TabletEffect.STOP_SERVING:
                if led.tablet in shard.tablets():
                    shard.install([], [led.tablet])
                self._upkeep.abandon_config(led.tablet)
            case _:
                raise TypeError(f"leading a tablet has nothing to do with {effect.value!r}")
        return ()

    def _newest(self, led: Led) -> TabletState:
        """Under the newest schema: while the other members were waited for the table may have been altered, and whoever
        altered it has been told that all is done here. Its config follows."""
        state = led.state
        for schema in since(self._schemas_of(led.table), state.schema.version, f"tablet {led.tablet}")[1:]:
            state = altered(state, schema)
        if state is not led.state:
            self._upkeep.touch([led.tablet])
        return state

    def _make_room(self, led: Led) -> None:
        """What the records say is so: a tablet that others came out of is led here no more. Under the lock."""
        for state in self._shard.of_table(led.table):
            if state.tablet != led.tablet and state.rows.overlaps(led.state.rows) and state.tablet in self.led:
                self.step_down(state.tablet, "others came out of it")

    # -- giving up

    def resign(self, asked: Sequence[tuple[TabletId, int]], *, is_forced: bool) -> None:
        """Lead tablets, by id and epoch, no more, and never again in that epoch. No write is let in; those under way
        are waited for, and where they take too long the tablet is led on. If `is_forced`, they may count or not:
        whoever leads next decides."""
        with self._shard.lock:
            leaving = [
                led
                for tablet, epoch in asked
                if (led := self.led.get(tablet)) is not None and led.lead.epoch == epoch and (led.is_open or is_forced)
            ]
            for led in leaving:
                led.is_leaving = True
                led.quorum.refusal = _LEAVING.format(tablet=led.tablet)
        if not is_forced:
            self._wait_decided({led.tablet for led in leaving})
        for led in leaving:
            with self._shard.lock:
                if not (is_forced or led.quorum.committed >= led.state.commits.index):
                    led.is_leaving, led.quorum.refusal = False, ""
                    continue
                self._resigned[led.tablet] = led.lead.epoch
            self.step_down(led.tablet, "another shard is to lead its tablet")

    def _wait_decided(self, tablets: Collection[TabletId]) -> None:
        self._shard.drain()
        self._wake()
        with self._shard.lock:
            undecided = [*self._shard.wal.undecided(), *self._shard.commits.waiting()]
            pending = [entry.future for entry in undecided if entry.tablets and entry.record.tablet in tablets]
        wait_for(pending, RESIGN_WAIT_S)

    def step_down(self, tablet: TabletId, why: str, which: Led | None = None) -> None:
        """Lead a tablet no more; its replica stays. `which`: only if it is led as this."""
        led = self.led.get(tablet)
        if led is None or (which is not None and which is not led):
            return
        self._close(led)
        with self._shard.lock:
            if self.led.get(tablet) is led:
                del self.led[tablet]
        self._shard.give_up_quorum(led.quorum, why)
        self._shard.recount_memory()

    def _close(self, led: Led) -> None:
        """Nobody finds the tablet any more."""
        with self._shard.lock:
            led.is_over = True
            if led.is_open:
                self._lives.advance([led.tablet], TabletEvent.LEAD_GIVEN_UP, partial(self._carry_out, led))
            else:
                self._upkeep.abandon_config(led.tablet)
            led.is_open = False

    # -- members

    def add(self, asked: Sequence[tuple[TabletId, int, str]]) -> None:
        """Bring others' replicas up to date, and have them counted then: also while a tablet is not open because
        members are lost that it cannot be without. Those that come may take their place."""
        with self._shard.lock:
            for tablet, epoch, server in asked:
                led = self.led.get(tablet)
                if led is None or led.lead.epoch != epoch or server in led.others:
                    continue
                if led.wanted is not None or any(member.is_pending for member in led.others.values()):
                    continue  # one at a time
                led.others[server] = Member(led.quorum.here, is_pending=True)
        self._wake()

    def take_members(self, now: MembersNow) -> None:
        """What the master has answered to a wish for other members."""
        with self._shard.lock:
            led = self.led.get(now.tablet)
            if led is None or led.wanted is None:
                return
            if now.refusal:
                led.wanted = None
                return
            if now.version > led.lead.version:
                led.wanted = None
                self._set_members(led, now.version, now.members)
        self._shard.note_quorum(now.tablet, led.quorum)

    def _set_members(self, led: Led, version: int, members: Sequence[str]) -> None:
        """Make the members those that the master has recorded. The caller has the shard's lock."""
        led.lead = msgspec.structs.replace(led.lead, version=version, members=tuple(members))
        for name in [name for name, member in led.others.items() if name not in members and not member.is_pending]:
            del led.others[name]
            led.quorum.others.pop(name, None)
        for name in members:
            if name != self.me and name not in led.others:
                led.others[name] = Member(led.quorum.here)
                led.quorum.others[name] = Index(0)

    def look(self, now_s: float, behind_s: float, stuck_s: float) -> list[Led]:
        """See who is behind. Those tablets whose members should be others."""
        changing: list[Led] = []
        told: list[ReplicaNotMade] = []
        with self._shard.lock:
            for led in self.led.values():
                self._note_zone(led)
                led.count_ready()
                led.note_behind(now_s)
                late = led.late(now_s, behind_s)
                if not led.is_leaving:
                    led.quorum.refusal = led.refusal(late)
                if led.wanted is None:
                    led.wanted = led.choose_change(now_s, behind_s) or led.wish_to_resign(now_s, stuck_s)
                if led.wanted is not None:
                    changing.append(led)
                told += led.give_up_pending(now_s, 4 * behind_s)
        for event in told:
            self.tell(event)
        return changing

    def _note_zone(self, led: Led) -> None:
        """What the zone says now, which may have been altered since the tablet was taken over."""
        zone = self.zone_of(led.table)
        if zone is not None:
            led.replicas_max, least = zone
            if least != led.lead.min_replicas:
                led.lead = msgspec.structs.replace(led.lead, min_replicas=least)

    # -- what is reported

    def reports(self) -> tuple[ReportedReplica, ...]:
        with self._shard.lock:
            return tuple(self._report_on(replica) for replica in self._shard.replicas.values())

    def _report_on(self, replica: Replica) -> ReportedReplica:
        led, last = self.led.get(replica.tablet), replica.last
        here = ReportedReplica(
            replica.tablet,
            replica.table,
            replica.promised,
            (last.epoch, last.index),
            committed=replica.committed,
            resigned=self._resigned.get(replica.tablet, 0),
            may_lack=replica.may_lack,
        )
        if led is None:
            return here
        lead, behind = led.lead, self.behind(replica.tablet)
        return msgspec.structs.replace(here, led=lead.epoch, version=lead.version, is_open=led.is_open, behind=behind)

    def behind(self, tablet: TabletId) -> tuple[tuple[str, int], ...]:
        """The other replicas of a tablet that is led here, and how many records each lacks: one at least, until it is
        recorded as a member, and may lead. So whoever waits until none is behind may take the next node away."""
        with self._shard.lock:
            led = self.led.get(tablet)
            if led is None:
                return ()
            here, members = led.quorum.here, led.lead.members
            return tuple(
                (name, max(0 if name in members else 1, here - each.matched))
                for name, each in sorted(led.others.items())
            )


def _know_no_zone(_: TableId) -> None:
    """What `zone_of` is where nobody follows the catalog: what the master says when it asks to lead counts."""


def tell_deposed(leading: Leading, tablet: TabletId, epoch: int) -> None:
    """Somebody follows a leader of a greater epoch."""
    led = leading.led.get(tablet)
    if led is not None and led.lead.epoch < epoch:
        leading.step_down(tablet, f"a shard leads it in epoch {epoch}")
