"""Who leads next, while shards that are asked do not answer, or only say that they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stelae.master.descriptors import Descriptors
from stelae.master.replication.asking import ask_within
from stelae.master.replication.elections import ANSWER_S, OTHERS_S, RESIGN_S, Vacant
from stelae.master.replication.replication import Replication
from stelae.master.terms import Term
from stelae.model.errors import (
    Closed,
    Corruption,
    Deposed,
    InternalFault,
    PermissionDenied,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.events import Event, LeadingFailed, tell_nobody
from stelae.model.ids import TableId, TabletId, Txn
from stelae.ports.metastore import PutKey
from stelae.registry.control import ControlRequest, HostTablets, ReportedReplica, ResignTablets, TabletReport
from stelae.registry.incarnations import ShardLife, life_key
from stelae.registry.replication.members import MembersWanted, log_of, server_of
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline
from tests.master.servers import Office
from tests.master.test_replication import Wishes

A, B, C = "n1/0@a", "n2/0@b", "n3/0@c"
LIVES = {server_of(each): ShardLife(each[:2], each[:2], 0, 2, log_of(each), "") for each in (A, B, C)}

Answer = Callable[[ControlRequest | None], Awaitable[TabletReport]]


class Shards:
    """`Servers`: what each shard is asked, and answers. A report is asked for as None."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ControlRequest | None]] = []
        self.answers: dict[str, Answer] = {}

    def link(self, server: str) -> Any:
        return Link(self, server)


class Link:
    def __init__(self, shards: Shards, server: str) -> None:
        self._shards = shards
        self._server = server

    async def ask(self, request: ControlRequest, _: Deadline | None = None) -> TabletReport:
        self._shards.asked.append((self._server, request))
        return await self._shards.answers[self._server](request)

    async def report(self, _: TableId | None = None, __: Deadline | None = None) -> TabletReport:
        self._shards.asked.append((self._server, None))
        return await self._shards.answers[self._server](None)


def having(replica: str, **said: Any) -> Answer:
    """A shard that has a replica of the tablet, and answers at once."""

    async def answer(_: ControlRequest | None) -> TabletReport:
        here = ReportedReplica(TabletId(20), TableId(1), 4, (4, 9), **said)
        return TabletReport(server_of(replica), (), True, (here,), Txn(70), replica=replica)

    return answer


async def go_on(_: ControlRequest | None) -> TabletReport:
    """A shard that is at work, and does not come to an end."""
    await asyncio.Event().wait()
    raise AssertionError


class Masters(Wishes):
    """A master whose shards are scripted."""

    def __init__(self, office: Office) -> None:
        super().__init__(office)
        self.shards = Shards()
        store: Any = office.store
        servers: Any = self.shards
        self.replication = Replication(
            store, office.catalog, self.records, servers, Descriptors(), office.clock, tell_nobody
        )
        self.elections = self.replication._elections

    def elect(self, *records: TabletRecord) -> Awaitable[None]:
        return self.elections.elect([Vacant(each, Txn(50)) for each in records or [self.record]], LIVES)


@pytest.fixture
def master() -> Iterator[Masters]:
    office = Office().start()
    try:
        yield Masters(office)
    finally:
        office.close()


def test_who_only_says_that_it_goes_on_is_not_waited_for(master: Masters) -> None:
    begun_s = master.office.clock.monotonic_s()
    with pytest.raises(UnknownOutcome, match="not answered within 3 s"):
        master.office.run(ask_within(3.0, go_on(None)))
    assert master.office.clock.monotonic_s() - begun_s == pytest.approx(3.0)


def test_an_election_goes_on_without_a_member_that_does_not_come_to_an_end(master: Masters) -> None:
    master.shards.answers = {"n1/0": go_on, "n2/0": having(B), "n3/0": having(C)}
    master.office.run(master.elect())
    stored = master.stored()
    assert stored.server in ("n2/0", "n3/0")
    assert (stored.epoch, stored.above) == (5, Txn(50))
    assert set(stored.replicas) == {B, C}


def test_who_answers_alone_leads_when_the_others_have_had_the_time_to(master: Masters) -> None:
    """A write needs two. The others may have been about to answer, and have more."""
    master.shards.answers = {"n1/0": having(A), "n2/0": go_on, "n3/0": go_on}
    begun_s = master.office.clock.monotonic_s()
    while master.stored() == master.record:
        assert master.office.clock.monotonic_s() - begun_s < OTHERS_S + 2 * ANSWER_S
        master.office.run(master.elect())
    assert master.office.clock.monotonic_s() - begun_s >= OTHERS_S
    assert (master.stored().server, master.stored().replicas) == ("n1/0", (A, B, C))


def test_who_has_lost_the_end_of_its_log_waits_for_the_others_and_it_is_said_why(master: Masters) -> None:
    master.shards.answers = {"n1/0": having(A, may_lack=True), "n2/0": go_on, "n3/0": go_on}
    for _ in range(8):
        master.office.run(master.elect())
    assert master.stored() == master.record
    (refused,) = master.replication.refused
    assert (refused.server, refused.tablet) == ("n1/0", 20)
    assert "n2/0, n3/0 are waited for" in refused.why
    master.shards.answers["n2/0"] = having(B)
    master.office.run(master.elect())
    assert master.stored().epoch == 5
    assert not master.replication.refused


def test_members_are_changed_while_an_election_waits(master: Masters) -> None:
    """A shard may be unable to answer until the master has dropped a member that is gone."""
    master.shards.answers = {"n1/0": go_on, "n2/0": having(B), "n3/0": having(C)}

    async def story() -> float:
        electing = asyncio.ensure_future(master.elect())
        while not master.shards.asked:
            await asyncio.sleep(0)
        begun_s = master.office.clock.monotonic_s()
        (now,) = await master.replication.change_members([MembersWanted(TabletId(20), A, 4, 7, (A, B))])
        waited_s = master.office.clock.monotonic_s() - begun_s
        assert now.members == (A, B)
        await electing
        return waited_s

    assert master.office.run(story()) < ANSWER_S
    assert master.stored() == msgspec.structs.replace(master.record, replicas=(A, B), version=8), (
        "who was elected by what the record said before is not recorded"
    )


def test_a_leader_that_nobody_else_could_follow_is_not_asked_to_resign(master: Masters) -> None:
    master.shards.answers = {"n1/0": having(A), "n2/0": go_on, "n3/0": having(C)}
    master.office.run(master.elections.hand_over([master.record], LIVES, {"n1/0", "n3/0"}))
    assert not [each for _, each in master.shards.asked if each is not None]
    assert master.stored() == master.record


def test_a_drained_leader_is_followed_by_a_member_that_answers(master: Masters) -> None:
    master.shards.answers = {"n1/0": having(A, resigned=4), "n2/0": go_on, "n3/0": having(C)}
    master.office.run(master.elections.hand_over([master.record], LIVES, {"n1/0"}))
    assert ("n1/0", ResignTablets(((TabletId(20), 4),), False)) in master.shards.asked
    assert (master.stored().server, master.stored().above) == ("n3/0", Txn(70))


def test_an_election_does_not_wait_for_a_drain(master: Masters) -> None:
    """The drained shard takes all the time it has; another tablet's leader is dead meanwhile."""
    other = msgspec.structs.replace(master.record, tablet=TabletId(21), server="n2/0")
    master.office.run(master.records.write([other]))

    async def resign_slowly(request: ControlRequest | None) -> TabletReport:
        return await (go_on(request) if request is not None else have_both(A))

    async def have_both(replica: str, last: tuple[int, int] = (4, 9)) -> TabletReport:
        here = [ReportedReplica(TabletId(each), TableId(1), 4, last) for each in (20, 21)]
        return TabletReport(server_of(replica), (), True, tuple(here), Txn(70), replica=replica)

    master.shards.answers = {"n1/0": resign_slowly, "n2/0": go_on, "n3/0": lambda _: have_both(C, (4, 10))}

    async def story() -> float:
        begun_s = master.office.clock.monotonic_s()
        draining = asyncio.ensure_future(master.elections.hand_over([master.record], LIVES, {"n1/0"}))
        while not any(isinstance(each, ResignTablets) for _, each in master.shards.asked):
            await asyncio.sleep(0.1)
        await master.elect(other)
        elected_s = master.office.clock.monotonic_s() - begun_s
        assert not draining.done()
        await draining
        return elected_s

    assert master.office.run(story()) < RESIGN_S
    assert master.records.maps.tablet(TabletId(21)).server == "n3/0"
    assert master.stored() == master.record, "it has not said that it has resigned"


def test_a_tablet_that_is_being_made_on_a_log_that_is_lost_is_not_asked_for(master: Masters) -> None:
    """It would be waited for in vain: whoever has lost its log is another member by now."""
    for each in LIVES.values():
        put = PutKey(life_key(each.node, each.number), msgspec.json.encode(each))
        master.office.run(master.office.store.txn([], [put]))
    master.shards.answers = dict.fromkeys(LIVES, having(A, led=4, is_open=True))
    lost = msgspec.structs.replace(master.record, tablet=TabletId(21), replicas=(A, B, "n3/0@before"))
    assert master.office.run(master.replication.create([master.record, lost], None)) == ({TabletId(20)}, set())
    hosted = [each for _, each in master.shards.asked if isinstance(each, HostTablets)]
    assert [[tablet.tablet for tablet in each.tablets] for each in hosted] == [[20]] * 3
    assert master.office.run(master.replication.create([lost], None)) == (set(), set())


def test_a_term_that_is_over_ends_though_its_connections_are_closed_meanwhile(master: Masters) -> None:
    closing = asyncio.Event()
    told: list[Event] = []

    class Asking:
        has_leaving = False

        async def tend(self) -> None:
            await closing.wait()
            raise Closed("shard n1/0: the connection was closed")

    async def rest(_: object) -> None:
        return None

    async def close() -> None:
        closing.set()

    parts: Any = SimpleNamespace(knows_tablets=True, replication=Asking(), look_undisturbed=rest)
    servers: Any = SimpleNamespace(end=lambda: None, close=close)
    nothing: Any = None

    async def story(*, is_over: bool) -> None:
        closing.clear()
        term = Term(nothing, parts, servers, nothing, nothing, nothing, told.append)
        leading = asyncio.ensure_future(term.lead_replicas())
        await asyncio.sleep(0.1)
        await (term.end() if is_over else close())
        await asyncio.wait([leading], timeout=10)
        assert leading.done() == is_over
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    master.office.run(story(is_over=True))
    assert not told
    master.office.run(story(is_over=False))
    assert told == [LeadingFailed("replicas", "Closed: shard n1/0: the connection was closed")]


def test_what_waiting_does_not_mend_is_told_once_and_nothing_else_stops(master: Masters) -> None:
    """A shard whose certificate has expired, say: the others are led meanwhile."""
    tended: list[str] = []
    told: list[Event] = []
    refusals = ["", "expired", "expired", "", "", "another token"]

    class Refused:
        has_leaving = False

        async def tend(self) -> None:
            tended.append("")
            if refusals and (words := refusals.pop(0)):
                raise PermissionDenied(words)

    parts: Any = SimpleNamespace(knows_tablets=True, replication=Refused())
    nothing: Any = None

    async def story() -> None:
        term = Term(nothing, parts, nothing, nothing, nothing, nothing, told.append)
        leading = asyncio.ensure_future(term.lead_replicas())
        while len(tended) < 10:
            await asyncio.sleep(0.1)
            assert not leading.done()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    master.office.run(story())
    assert told == [LeadingFailed("replicas", f"PermissionDenied: {why}") for why in ("expired", "another token")]


def test_a_term_tends_its_replicas_while_leaders_hand_over(master: Masters) -> None:
    tended: list[float] = []
    handed: list[str] = []

    class Slow:
        has_leaving = True

        async def tend(self) -> None:
            tended.append(master.office.clock.monotonic_s())

        async def hand_over(self) -> None:
            handed.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                handed.append("ended")

    parts: Any = SimpleNamespace(knows_tablets=True, replication=Slow())
    nothing: Any = None

    async def story() -> None:
        term = Term(nothing, parts, nothing, nothing, nothing, nothing, tell_nobody)
        leading = asyncio.ensure_future(term.lead_replicas())
        while len(tended) < 5:
            await asyncio.sleep(0.1)
        assert handed == ["begun"], "one at a time"
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    master.office.run(story())
    assert handed == ["begun", "ended"]


@pytest.mark.parametrize("error", [InternalFault("nobody expects this"), Corruption("is damaged", "a config")])
def test_a_shard_that_cannot_say_what_it_has_holds_up_no_election(master: Masters, error: StelaeError) -> None:
    """Nor is its tablet's vacancy the end of those of others; and it is said, once until it goes well."""

    async def fail(_: ControlRequest | None) -> TabletReport:
        raise error

    told: list[Event] = []
    master.elections._tell = told.append
    master.shards.answers = {"n1/0": fail, "n2/0": having(B), "n3/0": having(C)}
    master.office.run(master.elect())
    assert master.stored().epoch == 5
    assert set(master.stored().replicas) == {B, C}
    for _ in range(2):
        master.office.run(master.elections.ask_replicas(["n1/0"]))
    failed = LeadingFailed("reports of n1/0", f"{type(error).__name__}: {error}")
    assert [each for each in told if isinstance(each, LeadingFailed)] == [failed]
    master.shards.answers["n1/0"] = having(A)
    master.office.run(master.elections.ask_replicas(["n1/0"]))
    master.shards.answers["n1/0"] = fail
    master.office.run(master.elections.ask_replicas(["n1/0"]))
    assert [each for each in told if isinstance(each, LeadingFailed)] == [failed, failed]


def test_a_drained_shard_that_lets_nobody_in_holds_up_no_other(master: Masters) -> None:
    """Its certificate has expired, say. What another drained shard leads is handed over."""

    async def refuse(request: ControlRequest | None) -> TabletReport:
        if request is not None:
            raise PermissionDenied("expired")
        return await have_both(A)

    async def have_both(replica: str, **said: Any) -> TabletReport:
        here = [ReportedReplica(TabletId(each), TableId(1), 4, (4, 9), **said) for each in (20, 21)]
        return TabletReport(server_of(replica), (), True, tuple(here), Txn(70), replica=replica)

    told: list[Event] = []
    master.elections._tell = told.append
    other = msgspec.structs.replace(master.record, tablet=TabletId(21), server="n2/0")
    master.office.run(master.records.write([other]))
    master.shards.answers = {
        "n1/0": refuse,
        "n2/0": lambda _: have_both(B, resigned=4),
        "n3/0": lambda _: have_both(C),
    }
    master.office.run(master.elections.hand_over([master.record, other], LIVES, {"n1/0", "n2/0"}))
    assert master.records.maps.tablet(TabletId(21)).server == "n3/0"
    assert master.stored() == master.record
    assert LeadingFailed("handing over from n1/0", "PermissionDenied: expired") in told


def test_a_master_that_leads_no_more_stops_an_election(master: Masters) -> None:
    async def depose(_: ControlRequest | None) -> TabletReport:
        raise Deposed("another master leads")

    master.shards.answers = {"n1/0": depose, "n2/0": having(B), "n3/0": having(C)}
    with pytest.raises(Deposed):
        master.office.run(master.elect())
    with pytest.raises(Deposed):
        master.office.run(master.elections._resign([master.record], LIVES, set(), is_forced=True))
    assert master.stored() == master.record
