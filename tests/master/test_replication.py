"""Where replicas are put, who leads next, and what a leader may wish for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.catalog.commands.spaces import AlterZone
from stelae.master.descriptors import Descriptors
from stelae.master.records import Records
from stelae.master.replication.choosing import choose_leader, find_doubt, place_replicas
from stelae.master.replication.elections import Vacant, find_resigned
from stelae.master.replication.leftovers import LEFT_S, Leftovers, find_leftovers
from stelae.master.replication.racks import Racks, node_of
from stelae.master.replication.replication import Replication
from stelae.master.servers import OneServer
from stelae.model.errors import Unavailable
from stelae.model.events import tell_nobody
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.ranges import ALL_ROWS
from stelae.registry.control import ReportedReplica, TabletReport
from stelae.registry.replication.members import MembersNow, MembersWanted, server_of
from stelae.registry.tablet_records import TabletPhase, TabletRecord, holds_alone, read_tablets
from tests.master.servers import Office

A, B, C, D = "n1/0@a", "n2/0@b", "n3/0@c", "n4/0@d"
TABLE = TableId(1)


def record_of(*replicas: str, tablet: int = 20, table: TableId = TABLE, server: str = "", **more: Any) -> TabletRecord:
    leader = server or server_of(replicas[0])
    values = {"epoch": 4, "version": 7, "incarnation": 2, **more}
    return TabletRecord(TabletId(tablet), table, ALL_ROWS, TabletPhase.RUNNING, leader, replicas=replicas, **values)


# -- placing


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 40),
    st.data(),
)
def test_replicas_of_a_tablet_are_on_different_nodes_and_spread_evenly(
    nodes: int, shards: int, count: int, data: st.DataObject
) -> None:
    servers = [f"n{node}/{shard}" for node in range(nodes) for shard in range(shards)]
    replicas = data.draw(st.integers(1, nodes))
    placed = place_replicas(count, replicas, servers, ())
    assert len(placed) == count
    for members in placed:
        assert len({node_of(server) for server in members}) == len(members) == replicas
        assert set(members) <= set(servers)
    leading = Counter(members[0] for members in placed)
    assert max(leading[each] for each in servers) - min(leading[each] for each in servers) <= 1
    load = Counter(server for members in placed for server in members)
    by_node = Counter(node_of(server) for members in placed for server in members)
    assert max(load.values(), default=0) - min(load[each] for each in servers) <= replicas
    assert max(by_node.values(), default=0) <= count


def test_those_that_have_little_get_more() -> None:
    old = [record_of(A, B, tablet=tablet) for tablet in (20, 21, 22)]
    servers = ["n1/0", "n2/0", "n3/0", "n4/0"]
    assert {frozenset(members) for members in place_replicas(2, 2, servers, old)} == {frozenset(("n3/0", "n4/0"))}
    replaced = [msgspec.structs.replace(record, phase=TabletPhase.REPLACED) for record in old]
    assert place_replicas(4, 2, servers, replaced) == place_replicas(4, 2, servers, ())


def test_those_that_do_not_answer_are_left_out_if_there_are_enough_others() -> None:
    servers = ["n1/0", "n2/0", "n3/0"]
    for members in place_replicas(6, 2, servers, (), ["n2/0"]):
        assert set(members) == {"n1/0", "n3/0"}
    assert set(place_replicas(1, 3, servers, (), ["n2/0"])[0]) == set(servers)


def test_too_few_nodes_are_named() -> None:
    with pytest.raises(Unavailable, match="3 replicas, each on another node, and there are 2 nodes"):
        place_replicas(1, 3, ["n1/0", "n1/1", "n2/0", "n2/1"], ())


# -- racks


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4, unique=True),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_replicas_are_on_the_racks_of_their_zone_as_evenly_as_it_goes(
    standing: list[str], wanted: list[str], replicas: int, count: int
) -> None:
    """`standing`: the rack of each node."""
    servers = [f"n{node}/{shard}" for node in range(len(standing)) for shard in range(2)]
    known = {server: rack for server in servers if (rack := standing[int(node_of(server)[1:])])}
    racks = Racks(tuple(wanted), known)
    nodes_on = Counter(standing)
    most = -(-replicas // len(wanted)) if wanted else replicas
    room = sum(min(most, nodes_on[rack]) for rack in wanted) if wanted else len(standing)
    if room < replicas:
        with pytest.raises(Unavailable, match="on the racks" if wanted else "each on another node"):
            place_replicas(count, replicas, servers, (), racks=racks)
        return
    for members in place_replicas(count, replicas, servers, (), racks=racks):
        assert len({node_of(server) for server in members}) == len(members) == replicas
        on = Counter(known.get(server, "") for server in members)
        if wanted:
            assert set(on) <= set(wanted)
            assert max(on.values()) <= most
        elif "" not in standing:
            assert len(on) == min(replicas, len(nodes_on)), "other racks first"


def test_what_lacks_is_said_with_what_to_do() -> None:
    racks = Racks(("a", "b", "c"), {"n1/0": "a", "n2/0": "a", "n3/0": "b"})
    with pytest.raises(Unavailable, match=r"2 nodes on 'a', 1 node on 'b', 0 nodes on 'c'.*stelae node --rack c"):
        place_replicas(1, 3, ["n1/0", "n2/0", "n3/0"], (), racks=racks)
    with pytest.raises(Unavailable, match="1 replica on the racks c"):
        Racks(("c",), {"n1/0": "a"}).check(1, ["n1/0"])


def test_a_replica_that_lacks_comes_to_the_rack_that_has_none() -> None:
    racks = Racks(("a", "b", "c"), {"n1/0": "a", "n2/0": "b", "n3/0": "c", "n4/0": "a", "n5/0": "z"})
    assert racks.free(3, ["n1/0", "n2/0", "n3/0", "n4/0", "n5/0"], ["n1/0", "n2/0"]) == ["n3/0"]
    assert racks.free(3, ["n1/0", "n2/0", "n4/0", "n5/0"], ["n1/0", "n2/0"]) == []


# -- electing


def said(*last: int) -> ReportedReplica:
    epoch, index = last
    return ReportedReplica(TabletId(20), TABLE, epoch, (epoch, index))


def test_the_greatest_place_leads() -> None:
    record = record_of(A, B, C)
    assert choose_leader(record, {A: said(3, 9), B: said(4, 2), C: said(4, 1)}, 2) == (B, (A, B, C))
    assert choose_leader(record, {A: said(4, 2), B: said(4, 1), C: said(4, 3)}, 2) == (C, (A, B, C))


def test_of_equal_places_a_server_whose_clock_is_wrong_leads_only_if_no_other_can() -> None:
    record, answers = record_of(A, B, C, server="n1/0"), {A: said(4, 3), B: said(4, 3), C: said(4, 3)}
    assert choose_leader(record, answers, 2, wrong={"n1/0", "n2/0"}) == (C, (A, B, C))
    assert choose_leader(record, {A: said(4, 3)}, 2, wrong={"n1/0"}) == (A, (A, B, C))


def test_a_greater_place_leads_though_its_clock_is_wrong() -> None:
    """The others may have lost the end of their logs, and it was acknowledged."""
    record, answers = record_of(A, B, C, server="n1/0"), {A: said(4, 3), B: said(4, 2), C: said(4, 2)}
    assert choose_leader(record, answers, 2, wrong={"n1/0"}) == (A, (A, B, C))


def test_after_a_leader_resigned_one_with_a_right_clock_leads() -> None:
    record = record_of(A, B, C, server="n1/0", epoch=4)
    resigned = msgspec.structs.replace(said(4, 5), resigned=4, committed=2)
    answers = {A: resigned, B: said(4, 3), C: said(4, 2)}
    assert choose_leader(record, answers, 2, wrong={"n2/0"}) == (C, (A, B, C))
    assert choose_leader(record, answers, 2) == (B, (A, B, C))
    behind = {A: resigned, B: said(4, 3), C: said(4, 1)}
    assert choose_leader(record, behind, 2, wrong={"n2/0"}) == (B, (A, B, C)), "C lacks what was acknowledged"


def test_of_equal_places_the_leader_before_stays() -> None:
    answers = {A: said(4, 2), B: said(4, 2), C: said(4, 2)}
    for server in ("n1/0", "n2/0", "n3/0"):
        chosen = choose_leader(record_of(A, B, C, server=server), answers, 2)
        assert chosen is not None
        assert server_of(chosen[0]) == server


def test_those_that_did_not_answer_are_left_out_if_enough_remain() -> None:
    record = record_of(A, B, C)
    assert choose_leader(record, {B: said(4, 2), C: said(4, 1)}, 2) == (B, (B, C))
    assert choose_leader(record, {C: said(4, 1)}, 2) == (C, (A, B, C))
    assert choose_leader(record, {C: said(4, 1)}, 1) == (C, (C,))


def test_nobody_leads_where_no_member_answers() -> None:
    assert choose_leader(record_of(A, B), {}, 1) is None
    assert choose_leader(record_of(A, B), {D: said(9, 9)}, 1) is None


def torn(*last: int) -> ReportedReplica:
    return msgspec.structs.replace(said(*last), may_lack=True)


def test_whose_log_has_lost_its_end_leads_only_when_others_have_said_what_they_have() -> None:
    record = record_of(A, B, C)
    for least in (1, 2, 3):
        assert "n1/0, n3/0 are waited for" in find_doubt(record, {B: torn(4, 2)}, least, is_late=True)
        assert "n3/0 is waited for" in find_doubt(record, {A: torn(4, 2), B: torn(4, 2)}, least, is_late=True)
        assert not find_doubt(record, {A: torn(4, 2), B: said(4, 3)}, least, is_late=True)
        assert not find_doubt(record, {A: torn(4, 2), B: torn(4, 2), C: torn(4, 2)}, least)
        assert not find_doubt(record, {A: torn(4, 2), B: torn(4, 2)}, least, [C]), "nobody knows more than these"
        assert not find_doubt(record, {}, least), "nobody answers"


def test_fewer_than_a_write_needs_wait_for_others_and_not_for_ever() -> None:
    record = record_of(A, B, C)
    assert "n2/0, n3/0 are waited for" in find_doubt(record, {A: said(4, 2)}, 2)
    assert not find_doubt(record, {A: said(4, 2)}, 2, is_late=True)
    assert not find_doubt(record, {A: said(4, 2)}, 1)
    assert not find_doubt(record, {A: said(4, 2), B: said(4, 2)}, 2)
    assert not find_doubt(record, {A: said(4, 2)}, 2, [B, C]), "whoever has lost its log brings nothing back"


def test_a_stranger_is_not_elected() -> None:
    assert choose_leader(record_of(A, B), {A: said(1, 1), D: said(9, 9)}, 1) == (A, (A,))


def test_a_drained_server_leads_only_if_it_has_more_than_the_others() -> None:
    record = record_of(A, B, C)
    equal = {A: said(4, 2), B: said(4, 2), C: said(4, 2)}
    assert choose_leader(record, equal, 2, {"n1/0"}, {"n2/0": 3, "n3/0": 1}) == (C, (A, B, C))
    assert choose_leader(record, equal, 2, {"n1/0", "n2/0", "n3/0"}) == (A, (A, B, C))
    assert choose_leader(record, {A: said(4, 3), B: said(4, 2)}, 2, {"n1/0"}) == (A, (A, B))


def test_who_has_resigned_is_followed_by_any_that_has_what_was_acknowledged() -> None:
    record = record_of(A, B, C)
    gone = msgspec.structs.replace(said(4, 9), resigned=4, committed=6)
    assert choose_leader(record, {A: gone, B: said(4, 7), C: said(4, 6)}, 2) == (B, (A, B, C))
    assert choose_leader(record, {A: gone, B: said(4, 7), C: said(4, 6)}, 2, {"n2/0"}) == (C, (A, B, C))
    assert choose_leader(record, {A: gone, B: said(4, 5), C: said(4, 4)}, 2) == (A, (A, B, C)), "they lack something"
    before = msgspec.structs.replace(gone, resigned=3)
    assert choose_leader(record, {A: before, B: said(4, 7)}, 2) == (A, (A, B)), "it led in another epoch then"


def test_a_follower_begins_above_the_clock_of_who_resigned() -> None:
    record = record_of(A, B, above=Txn(50))
    gone = msgspec.structs.replace(said(4, 9), resigned=4)
    assert find_resigned([record], [TabletReport("n1/0", (), replicas=(gone,), clock=Txn(70))]) == [
        Vacant(record, Txn(70))
    ]
    assert find_resigned([record], [TabletReport("n1/0", (), replicas=(gone,), clock=Txn(7))]) == [
        Vacant(record, Txn(50))
    ]
    assert not find_resigned([record], [TabletReport("n2/0", (), replicas=(gone,))]), "not who leads it"
    assert not find_resigned([record], [TabletReport("n1/0", (), replicas=(said(4, 9),))])


# -- what leaders wish


class Wishes:
    """A table in a zone of three replicas, two at least, with one tablet; and what the master says to leaders."""

    def __init__(self, office: Office) -> None:
        self.office = office
        table = office.create("t")
        office.run(office.catalog.execute(AlterZone("default", replicas=3, min_replicas=2)))
        self.records = Records(office.store)
        self.record = record_of(A, B, C, table=table)
        office.run(self.records.write([self.record]))
        store: Any = office.store  # unguarded: nobody else is a master here
        servers = OneServer(office.server)
        self.replication = Replication(
            store, office.catalog, self.records, servers, Descriptors(), office.clock, tell_nobody
        )

    def ask(self, *members: str, leader: str = A, epoch: int = 4, version: int = 7, tablet: int = 20) -> MembersNow:
        wanted = MembersWanted(TabletId(tablet), leader, epoch, version, members)
        (now,) = self.office.run(self.replication.change_members([wanted]))
        return now

    def stored(self) -> TabletRecord:
        found = self.office.run(read_tablets(self.office.store, self.record.table))
        return next(each for each in found if each.tablet == 20)


@pytest.fixture
def wishes() -> Iterator[Wishes]:
    office = Office().start()
    try:
        yield Wishes(office)
    finally:
        office.close()


@pytest.mark.parametrize("members", [(A, C), (A, B, C, D), (A, D, C)], ids=["fewer", "more", "another"])
def test_members_are_changed_at_the_wish_of_the_leader(wishes: Wishes, members: tuple[str, ...]) -> None:
    assert wishes.ask(*members) == MembersNow(TabletId(20), 8, members)
    assert wishes.stored() == msgspec.structs.replace(wishes.record, replicas=members, version=8)


def test_a_wish_that_is_asked_again_is_answered_as_before(wishes: Wishes) -> None:
    first = wishes.ask(A, C)
    assert wishes.ask(A, C) == first
    assert wishes.ask(C, A) == first
    assert wishes.stored().version == 8
    assert wishes.ask(A, C, D, version=8).version == 9
    assert "at version 9" in wishes.ask(A, C).refusal


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "an old version": ((A, B), {"version": 6}, "at version 7"),
    "a version that is not there yet": ((A, B), {"version": 8}, "at version 7"),
    "an old epoch": ((A, B), {"epoch": 3}, "n1/0 leads it, in epoch 4"),
    "another leader": ((A, B), {"leader": B}, "n1/0 leads it, in epoch 4"),
    "too few": ((A,), {}, "at least 2 members"),
    "none": ((), {}, "at least 2 members"),
    "without the leader": ((B, C), {}, "at least 2 members"),
    "one twice": ((A, A), {}, "at least 2 members"),
    "no such tablet": ((A, B), {"tablet": 99}, "99"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_breaks_the_rules_is_refused_and_changes_nothing(wishes: Wishes, which: str) -> None:
    members, asked, why = REFUSED[which]
    now = wishes.ask(*members, **asked)
    assert why in now.refusal
    assert now.members == ()
    assert wishes.stored() == wishes.record


@pytest.mark.parametrize("phase", [TabletPhase.CREATING, TabletPhase.REPLACED])
def test_the_record_of_a_tablet_that_is_being_made_or_replaced_is_left_to_who_does_that(
    wishes: Wishes, phase: TabletPhase
) -> None:
    """Otherwise a tablet that another has replaced would be recorded as one that is still being made."""
    wishes.record = msgspec.structs.replace(wishes.record, phase=phase)
    wishes.office.run(wishes.records.write([wishes.record]))
    assert "not recorded as running" in wishes.ask(A, B).refusal
    assert wishes.stored() == wishes.record


def test_each_of_several_wishes_is_answered(wishes: Wishes) -> None:
    wanted = [
        MembersWanted(TabletId(99), A, 4, 7, (A, B)),
        MembersWanted(TabletId(20), A, 4, 7, (A, B)),
        MembersWanted(TabletId(20), A, 4, 7, (A, C)),
    ]
    answers = wishes.office.run(wishes.replication.change_members(wanted))
    assert [bool(each.refusal) for each in answers] == [True, False, True]
    assert wishes.stored().replicas == (A, B)


# -- who may lose its disk


def test_a_server_that_has_the_last_replica_has_it_alone() -> None:
    assert holds_alone([record_of(A)], "n1/0")


def test_a_server_whose_tablets_others_have_too_has_nothing_alone() -> None:
    alone = msgspec.structs.replace(record_of(A), replicas=())
    assert not holds_alone([record_of(A, B)], "n1/0")
    assert not holds_alone([record_of(A, B)], "n2/0")
    assert holds_alone([record_of(A, B), alone], "n1/0")
    assert not holds_alone([alone], "n2/0")


# -- leftovers


def test_a_replica_that_no_record_names_is_left_over_if_its_id_was_given_out(wishes: Wishes) -> None:
    catalog, record = wishes.office.catalog.latest, wishes.record
    reported = [msgspec.structs.replace(said(1, 1), tablet=TabletId(tablet)) for tablet in (19, 20, 21)]

    def find(
        replica: str,
        busy: tuple[int, ...] = (),
        records: tuple[TabletRecord, ...] = (record,),
        gone: tuple[str, ...] = (),
        besides: tuple[ReportedReplica, ...] = (),
    ) -> set[int]:
        known, making = {each.tablet: each for each in records}, {TabletId(each) for each in busy}
        said_all = [*reported, *besides]
        return set(find_leftovers(replica, said_all, known, TabletId(25), catalog, making, gone))

    assert find(A) == {19, 21}
    assert find(D, gone=(B,)) == {19, 21}, "it may have to take the place of one that is gone"
    later = msgspec.structs.replace(said(1, 1), tablet=TabletId(30))
    assert find(A, besides=(later,)) == set(), "30 was never given out: the metastore is of an earlier time"
    unknown = msgspec.structs.replace(said(1, 1), tablet=TabletId(22), table=TableId(9_999))
    assert find(A, besides=(unknown,)) == set(), "so it is if there never was such a table"
    assert find(A, busy=(21,)) == {19}
    assert find(D) == {19, 20, 21}, "all its replicas are elsewhere"
    fewer = msgspec.structs.replace(record, replicas=(A, B))
    assert find(D, records=(fewer,)) == {19, 21}, "it lacks one, and this may become it"
    led = [msgspec.structs.replace(each, led=4) for each in reported]
    assert not find_leftovers(A, led, {}, TabletId(25), catalog)
    assert not find_leftovers(A, reported, {}, None, catalog)


def test_what_is_left_over_goes_after_a_while_and_not_before() -> None:
    left, tablets = Leftovers(), {TabletId(19), TabletId(21)}
    assert left.is_due(0.0)
    assert left.note({"n1/0": tablets, "n2/0": set()}, 0.0) == {}
    assert not left.is_due(1.0)
    assert left.note({"n2/0": set()}, 30.0) == {}, "n1 did not answer: nothing new is known of it"
    assert left.note({"n1/0": {TabletId(19)}, "n2/0": {TabletId(19)}}, LEFT_S) == {"n1/0": {TabletId(19)}}
    assert left.note({"n1/0": tablets}, LEFT_S + 1.0) == {"n1/0": {TabletId(19)}}, "the other was gone meanwhile"
