"""A tablet that was taken over opens as everybody was told that it is, however long its other members were waited
for."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from stelae.format.log.copies import ReplicaKept
from stelae.model.errors import DiskFull
from stelae.model.ids import Index, SchemaVersion, TableId, Txn
from stelae.model.schema import TableSchema
from stelae.registry.control import Lead
from stelae.registry.replication.appending import AppendAnswer
from stelae.registry.replication.members import MembersNow, MembersWanted
from stelae.storage.replicas.replica import NOWHERE
from stelae.storage.tablet.state import with_prepared
from stelae.tserver.lives import TabletLives
from stelae.tserver.replication import leading as module
from stelae.tserver.replication.following import Following
from stelae.tserver.replication.leading import Leading
from tests.storage import engine as world
from tests.storage.replicas.records import SCHEMA, TABLE, TABLET, config_bytes
from tests.storage.workloads import choose_alteration


class Leader:
    """A shard that is to lead a tablet whose other member, `other`, answers when it is told to."""

    def __init__(self) -> None:
        self.engine = world.Engine(SCHEMA)
        self.schemas: list[TableSchema] = [SCHEMA]
        self.expected: list[TableId] = []
        kept = ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config_bytes(), ())
        Following(self.engine.shard).host(TABLE, TABLET, 0, kept)
        shard, upkeep = self.engine.shard, self.engine.upkeep
        with shard.lock:
            shard.install([], list(shard.tablets()))  # it would have the same rows
        self.leading = Leading(
            "me", shard, upkeep, TabletLives(), lambda _: self.schemas, lambda: None, self.expected.append
        )

    def lead(self, epoch: int) -> None:
        self.leading.lead([Lead(TABLET, TABLE, epoch, 1, ("me", "other"), 2, Txn(0))])

    def answer(self) -> None:
        led = self.leading.led[TABLET]
        self.engine.shard.acknowledge(TABLET, led.quorum, "other", Index(led.quorum.here))


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(module, "OPEN_WAIT_S", 0.0)
    return Leader()


def version_of(leader: Leader) -> SchemaVersion:
    return leader.engine.shard.state(TABLET).schema.version


def test_it_opens_under_the_schema_of_now(leader: Leader) -> None:
    """T39: the table was altered while the tablet waited for its other member, and all servers were asked to follow."""
    leader.lead(2)
    assert TABLET not in leader.engine.shard.tablets()
    _, schema = choose_alteration(lambda some: some[0], SCHEMA, ["add column"])
    assert schema.version > SCHEMA.version
    leader.schemas.append(schema)
    leader.answer()
    assert version_of(leader) == schema.version
    leader.engine.upkeep.save()
    assert leader.engine.shard.replicas[TABLET].tail[-1].index == 2


def test_whoever_takes_over_goes_on_from_the_last_config_among_its_records(leader: Leader) -> None:
    """T34: a change is prepared, and all members have the config that says so; but nobody was told that they have. Its
    files, and what it needs to happen later, are in no other record."""
    leader.lead(2)
    leader.answer()
    engine = leader.engine
    engine.upkeep.change(TABLET, partial(with_prepared, load="load-a", files={}))
    engine.upkeep.save()
    replica = engine.shard.replicas[TABLET]
    assert replica.config.prepared == ()
    assert [load for config in replica.configs() for load, _ in config.prepared] == ["load-a"]
    leader.lead(3)
    leader.answer()
    assert [each.load for each in engine.shard.state(TABLET).prepared] == ["load-a"]


def test_whoever_led_before_may_have_had_readers(leader: Leader) -> None:
    leader.lead(2)
    leader.answer()
    assert leader.expected == [TABLE]


def test_a_new_tablet_has_had_no_readers(leader: Leader) -> None:
    leader.lead(1)
    leader.answer()
    assert version_of(leader) == SCHEMA.version
    assert leader.expected == []


def test_what_a_leader_that_is_alone_has_on_its_disk_is_committed(leader: Leader) -> None:
    """Nobody else has to say that it has it."""
    leader.leading.lead([Lead(TABLET, TABLE, 2, 1, ("me",), 1, Txn(0))])
    shard, led = leader.engine.shard, leader.leading.led[TABLET]
    replica = shard.replicas[TABLET]
    for _ in range(3):
        shard.log_config(shard.config(shard.state(TABLET)), led.state.commits, led.state.epoch)
        shard.drain()
        assert replica.committed == replica.last.index
        assert replica.config_indexes == (replica.last.index,)


# -- what does not open


def test_a_tablet_whose_first_record_the_disk_refuses_opens_when_it_is_asked_for_again(leader: Leader) -> None:
    leader.engine.disk.fail("sync", DiskFull, 2)  # the promise is written down, the record behind it is not
    leader.lead(2)
    assert TABLET not in leader.leading.led
    assert leader.engine.shard.replicas[TABLET].promised == 2
    leader.lead(2)
    leader.answer()
    assert version_of(leader) == SCHEMA.version


def test_a_tablet_that_fails_to_open_says_why_and_opens_when_it_is_asked_for_again(leader: Leader) -> None:
    reasons = [ArithmeticError("nobody expects this")]

    def fail_once(_: TableId) -> None:
        if reasons:
            raise reasons.pop()

    leader.leading._expect_pins = fail_once
    others = Lead(TABLET, TABLE, 2, 1, ("me",), 1, Txn(0))
    with pytest.raises(ArithmeticError, match="nobody expects this"):
        leader.leading.lead([others])
    assert TABLET not in leader.leading.led
    assert TABLET not in leader.engine.shard.tablets()
    leader.leading.lead([others])
    assert leader.leading.led[TABLET].is_open
    assert version_of(leader) == SCHEMA.version


def test_a_tablet_opens_with_a_new_member_in_the_place_of_one_that_is_gone_for_good(leader: Leader) -> None:
    """The other member has lost its disk before it said anything in this epoch, and none may be dropped."""
    leader.lead(2)
    leader.leading.add([(TABLET, 2, "new/0@log")])
    led = leader.leading.led[TABLET]
    with leader.engine.shard.lock:
        led.others["new/0@log"].matched = Index(led.quorum.here)
    (changing,) = leader.leading.look(0.0, 3.0, 9.0)
    assert changing.wanted == MembersWanted(TABLET, "me", 2, 1, ("me", "other", "new/0@log"))
    leader.leading.take_members(MembersNow(TABLET, 2, ("me", "other", "new/0@log")))
    assert TABLET not in leader.engine.shard.tablets(), "one that counts has not answered"
    (changing,) = leader.leading.look(4.0, 3.0, 9.0)
    assert changing.wanted == MembersWanted(TABLET, "me", 2, 2, ("me", "new/0@log"))
    leader.leading.take_members(MembersNow(TABLET, 3, ("me", "new/0@log")))
    assert led.is_open
    assert version_of(leader) == SCHEMA.version


def test_a_replica_that_is_no_member_yet_is_behind_though_it_lacks_nothing(leader: Leader) -> None:
    """Whoever takes nodes away one after the other waits until none is behind."""
    leader.lead(2)
    leader.answer()
    leader.leading.add([(TABLET, 2, "new/0@log")])
    led = leader.leading.led[TABLET]
    with leader.engine.shard.lock:
        for member in led.others.values():
            member.matched = Index(led.quorum.here)
    assert leader.leading.behind(TABLET) == (("new/0@log", 1), ("other", 0))
    leader.leading.look(0.0, 3.0, 9.0)
    assert leader.leading.behind(TABLET) == (("new/0@log", 1), ("other", 0)), "it is waited for, and not recorded"
    leader.leading.take_members(MembersNow(TABLET, 2, ("me", "other", "new/0@log")))
    assert leader.leading.behind(TABLET) == (("new/0@log", 0), ("other", 0))


def test_a_replica_that_two_masters_ask_for_is_brought_up_to_date_once(leader: Leader) -> None:
    """T60: a new master repeats what the one before it has begun, and would have chosen another one."""
    leader.lead(2)
    leader.answer()
    leader.leading.add([(TABLET, 2, "new/0@log")])
    led = leader.leading.led[TABLET]
    led.others["new/0@log"].sent = Index(0)
    sent = led.next_part("new/0@log", 1_000)
    assert sent is not None
    led.take_answer("new/0@log", sent[0], AppendAnswer(matched=1), 0.0)
    leader.leading.add([(TABLET, 2, "new/0@log"), (TABLET, 2, "newer/0@log")])
    assert led.others["new/0@log"].matched == 1
    assert set(led.others) == {"other", "new/0@log"}


def test_what_a_member_refuses_is_sent_again_only_when_members_are_looked_at_and_its_words_are_told(
    leader: Leader,
) -> None:
    leader.lead(2)
    led = leader.leading.led[TABLET]
    sent = led.next_part("other", 1_000)
    assert sent is not None
    led.take_answer("other", sent[0], AppendAnswer(refused="it was acknowledged"), 0.0)
    assert led.next_part("other", 1_000) is None
    leader.leading.look(0.5, 3.0, 9.0)
    assert led.next_part("other", 1_000) is not None
    leader.leading.look(4.0, 3.0, 9.0)
    assert "says: it was acknowledged" in led.quorum.refusal


def test_a_member_that_counts_and_has_lost_what_the_leader_has_in_files_is_filled_anew(leader: Leader) -> None:
    """It may be that none may be dropped: then nobody could write until it was."""
    leader.lead(2)
    leader.answer()
    shard, led = leader.engine.shard, leader.leading.led[TABLET]
    stable = msgspec.structs.replace(shard.config(shard.state(TABLET)), stable=Index(1))
    shard.log_config(stable, led.state.commits, led.state.epoch)
    shard.drain()
    leader.answer()
    assert led.replica.begin.index == 1
    led.others["other"].sent = Index(0)
    assert led.next_part("other", 1_000) is None
    assert led.others["other"].needs_all


def test_a_member_that_has_nothing_is_asked_again_only_when_members_are_looked_at(leader: Leader) -> None:
    """It answers at once, and would be asked without a pause."""
    leader.lead(2)
    led = leader.leading.led[TABLET]
    sent = led.next_part("other", 1_000)
    assert sent is not None
    led.take_answer("other", sent[0], AppendAnswer(), 0.0)
    assert led.next_part("other", 1_000) is None
    leader.leading.look(0.5, 3.0, 9.0)
    assert led.next_part("other", 1_000) is not None
