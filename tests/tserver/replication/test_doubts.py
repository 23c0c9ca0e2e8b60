"""Replicas whose logs have lost their ends: what they say of themselves, what their leader goes on counting, and how
they become whole again, without anything new to be written."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from stelae.format.log.chain import read_log
from stelae.format.log.copies import ReplicaKept, encode_kept
from stelae.format.log.marks import EpochBegun, encode_mark
from stelae.format.log.records import LogKind
from stelae.model.errors import DiskFailed, DiskFull, InternalFault, StelaeError, Unavailable
from stelae.model.events import Event, ReplicaNotMade
from stelae.model.ids import Epoch, Index, TabletId, Txn
from stelae.registry.control import Lead
from stelae.registry.replication.appending import AppendAnswer
from stelae.storage.replicas.reading import take_record
from stelae.storage.replicas.replica import NOWHERE, Replica
from stelae.tserver.replication import leading as leading_module
from stelae.tserver.replication import streams as streams_module
from stelae.tserver.replication.led import Led
from stelae.tserver.replication.streams import Streams
from tests.storage import engine as world
from tests.storage.replicas.records import TABLE, TABLET, block, config_bytes, position
from tests.tserver.replication.test_following import Follower
from tests.tserver.replication.test_leading import Leader
from tests.tserver.replication.test_streams import FollowerPeer


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(leading_module, "OPEN_WAIT_S", 0.0)
    monkeypatch.setattr(streams_module, "_PAUSE_S", 0.0)
    return Leader()


@pytest.fixture
def follower() -> Follower:
    made = Follower()
    made.host()
    return made


def tear(follower: Follower) -> None:
    """Its machine loses power, and the last group of its log is damaged."""
    assert follower.engine.disk.flip_bit()
    follower.crash()
    assert follower.engine.shard.has_lost_end
    follower.engine.shard.note_lost_end()


def write(leader: Leader, led: Led, *indexes: int) -> list[Future[Txn]]:
    """Records are let in, and durable at the leader."""
    shard = leader.engine.shard
    written = []
    with shard.lock:
        for index in indexes:
            record = block(led.lead.epoch, index)
            written.append(shard.wal.enqueue(record, (led.state.commits,)))
            led.state.commits.index = Index(index)
            led.replica.take(record, shard.wal.end)
    shard.drain()
    return written


class Nobody:
    """A master that does not answer."""

    connections = 0
    is_connected = False

    async def ask(self, *_: object) -> None:
        raise Unavailable("there is no master")

    async def close(self) -> None:
        return None


class Stream:
    """From a leader to the one other member of its tablet."""

    def __init__(self, leader: Leader, peer: FollowerPeer) -> None:
        self.leader = leader
        self.peer = peer
        nobody: Any = Nobody()
        opened: Any = lambda _: peer  # noqa: E731
        self.streams = Streams(leader.engine.shard, leader.engine.clock, opened, nobody)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            self.streams.step(self.leader.leading)
            while self.streams._under_way and not self.streams._answers:
                await asyncio.sleep(0)

    async def rest(self) -> int:
        """Until nothing is sent any more; how many requests that were."""
        before = count = len(self.peer.asked)
        for _ in range(100):
            await self.steps(3)
            if len(self.peer.asked) == count:
                return count - before
            count = len(self.peer.asked)
        raise AssertionError("it does not come to rest")


# -- an idle tablet


def test_who_is_started_again_is_asked_what_it_has_though_nothing_is_written(leader: Leader) -> None:
    """It has lost a record that was acknowledged, and is in doubt: if its leader went away nobody could lead."""
    peer = FollowerPeer()
    peer.follower.host()
    leader.lead(2)

    async def story() -> None:
        stream = Stream(leader, peer)
        await stream.streams.start()
        await stream.rest()
        led = leader.leading.led[TABLET]
        assert led.is_open
        (written,) = write(leader, led, 2)
        await stream.rest()
        assert written.done()
        tear(peer.follower)
        assert peer.follower.replica.last.index < 2
        assert await stream.rest() == 0, "nobody has noticed"
        peer.is_connected = False
        assert await stream.rest() <= 4
        assert peer.follower.replica.tail == led.replica.tail
        assert not peer.follower.is_in_doubt()
        assert await stream.rest() == 0, "it goes on asking"
        peer.follower.crash()
        assert not peer.follower.is_in_doubt(), "that it is whole again was not written down"
        await stream.streams.close()

    asyncio.run(story())


def test_who_is_connected_again_and_does_not_answer_is_asked_until_it_does(leader: Leader) -> None:
    peer = FollowerPeer()
    peer.follower.host()
    leader.lead(2)

    async def story() -> None:
        stream = Stream(leader, peer)
        await stream.streams.start()
        await stream.rest()
        peer.follower.engine.shard.note_lost_end()
        peer.connections, peer.is_silent = 2, True
        await stream.steps(3)
        assert peer.follower.is_in_doubt()
        peer.is_silent = False
        await stream.rest()
        assert not peer.follower.is_in_doubt()
        await stream.streams.close()

    asyncio.run(story())


def test_torn_garbage_alone_is_no_doubt_for_long(leader: Leader) -> None:
    """What was torn was never acknowledged: the replica lacks nothing, and its leader says so."""
    peer = FollowerPeer()
    peer.follower.host()
    leader.lead(2)

    async def story() -> None:
        stream = Stream(leader, peer)
        await stream.streams.start()
        await stream.rest()
        peer.follower.engine.shard.note_lost_end()
        peer.is_connected = False
        await stream.rest()
        assert not peer.follower.is_in_doubt()
        await stream.streams.close()

    asyncio.run(story())


# -- what a member has said it lacks


def test_what_a_member_has_lost_is_not_counted_until_it_has_it_again(leader: Leader) -> None:
    """B has acknowledged four records and lost two of them; C comes to four. Two replicas have them, not three."""
    leader.leading.lead([Lead(TABLET, TABLE, 2, 1, ("me", "b", "c"), 2, Txn(0))])
    shard, led = leader.engine.shard, leader.leading.led[TABLET]

    def send(name: str, answer: AppendAnswer) -> Index | None:
        sent = led.next_part(name, 2**20)
        assert sent is not None
        with shard.lock:
            matched = led.take_answer(name, sent[0], answer, 5.0)
        if matched is not None:
            shard.acknowledge(TABLET, led.quorum, name, matched)
        return matched

    for name in ("b", "c"):
        send(name, AppendAnswer(1))
    first, second, third = write(leader, led, 2, 3, 4)
    send("b", AppendAnswer(4))
    send("c", AppendAnswer(2))
    assert (first.done(), second.done(), led.quorum.committed) == (True, False, 2)
    led.doubt("b")
    send("b", AppendAnswer(last=(2, 1)))
    assert led.quorum.committed == 2, "what all had is decided"
    assert led.others["b"].since_s == 5.0
    send("c", AppendAnswer(4))
    assert not second.done(), "told to be durable on three, and one of them has lost it"
    sent = led.next_part("b", 2**20)
    assert sent is not None
    assert [record.index for record in sent[1]] == [2, 3, 4]
    assert sent[0].committed == 2
    send("b", AppendAnswer(3))
    assert (second.done(), third.done()) == (True, False)
    led.note_behind(60.0)
    assert led.others["b"].since_s == 5.0, "it has moved on, as far as it had been before"
    send("b", AppendAnswer(4))
    assert third.done()
    assert led.others["b"].since_s is None


def test_a_member_counts_for_nothing_new_while_it_is_brought_up_to_date_and_may_have_lost_it(leader: Leader) -> None:
    leader.lead(2)
    leader.answer()
    led = leader.leading.led[TABLET]
    leader.leading.add([(TABLET, 2, "new/0@log")])
    led.others["new/0@log"].matched = led.quorum.here
    led.doubt("new/0@log")
    leader.leading.look(0.0, 3.0, 9.0)
    assert "new/0@log" not in led.quorum.others
    sent = led.next_part("new/0@log", 1_000)
    assert sent is not None
    led.take_answer("new/0@log", sent[0], AppendAnswer(led.quorum.here), 0.0)
    leader.leading.look(0.5, 3.0, 9.0)
    assert "new/0@log" in led.quorum.others


# -- what the log says


def in_doubt(follower: Follower) -> Follower:
    follower.append(1, (0, 0), block(1, 1), block(1, 2))
    follower.append(1, (1, 2), block(1, 3))
    tear(follower)
    return follower


def test_a_log_that_ends_anywhere_behind_a_doubt_tells_of_it(follower: Follower) -> None:
    """Records are written in groups, and the last may be missing after a crash: no record takes a doubt back that the
    next one brings again."""
    shard = in_doubt(follower).engine.shard
    with shard.lock:
        shard.keep_replica(follower.replica)
    shard.drain()
    follower.append(3, (1, 2))
    follower.append(4, (1, 1), block(4, 2))
    assert follower.is_in_doubt()
    found: dict[TabletId, Replica] = {}
    doubts: list[bool] = []
    for content in read_log(follower.engine.disk):
        for record in content.records:
            take_record(found, record, position(1))
            doubts.append(TABLET in found and found[TABLET].may_lack)
    assert len(doubts) - doubts.index(True) >= 5
    assert all(doubts[doubts.index(True) :])


def test_a_doubt_as_logs_had_it_before_is_read(follower: Follower) -> None:
    """A record of its own, behind the one that it is about."""
    engine, old = follower.engine, (EpochBegun(((Epoch(2), Index(1)),), Index(0)), EpochBegun((), Index(0)))
    assert encode_mark(old[0]) == b"\x92\x91\x92\x02\x01\x00", "as it always was"
    for count, is_doubtful in ((2, True), (1, False)):
        with engine.shard.lock:
            for each in old[:count]:
                engine.shard.log_mark(follower.replica, LogKind.EPOCH, encode_mark(each))
        engine.shard.drain()
        follower.crash()
        assert follower.is_in_doubt() is is_doubtful
        assert follower.replica.promised == 2


def test_what_is_sent_of_a_replica_says_nothing_of_doubts(follower: Follower) -> None:
    """Another process may be of an older release; and doubts are of one log alone."""
    in_doubt(follower)
    assert not follower.replica.begun().may_lack
    assert encode_kept(follower.replica.begun())[0] == 0x95


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_a_doubt_that_the_disk_refuses_is_an_error(follower: Follower, error: type[DiskFull | DiskFailed]) -> None:
    in_doubt(follower)
    follower.engine.disk.fail("sync", error)
    with pytest.raises(Unavailable, match="the disk refuses the note"):
        follower.engine.shard.note_lost_end()


# -- while something is made durable


class Meanwhile:
    """What is done while an append waits for the disk."""

    def __init__(self, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Any] = []
        shard = follower.engine.shard
        drain = shard.drain

        def drain_later(*arguments: Any) -> None:
            if self.jobs:
                self.jobs.pop()()
            drain(*arguments)

        monkeypatch.setattr(shard, "drain", drain_later)


def test_an_answer_that_is_late_clears_no_doubt_of_another_replica(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader has put a whole replica in its place meanwhile, which is in doubt as it was."""
    in_doubt(follower)
    follower.append(2, (1, 1), block(1, 2), block(2, 3))
    meanwhile = Meanwhile(follower, monkeypatch)
    whole = ReplicaKept(NOWHERE.epoch, (Epoch(2), Index(50)), Index(50), config_bytes(stable=50), ())
    meanwhile.jobs.append(lambda: follower.following.host(world.TABLE, TABLET, 2, whole))
    assert follower.append(2, (2, 3), block(2, 4), committed=3) == AppendAnswer()
    assert follower.replica.begin == (2, 50)
    assert follower.is_in_doubt()
    follower.crash()
    assert follower.replica.begin == (2, 50)
    assert follower.is_in_doubt()


def test_what_was_dropped_meanwhile_is_not_answered_as_kept(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile = Meanwhile(follower, monkeypatch)
    meanwhile.jobs.append(lambda: follower.following.drop([TABLET]))
    assert follower.append(1, (0, 0), block(1, 1)) == AppendAnswer()


# -- what cannot be made, and why


def refusing(leader: Leader, error: StelaeError) -> FollowerPeer:
    peer = FollowerPeer()
    peer.refuses_whole, peer.refusal = 1_000, error
    return peer


def run_steps(leader: Leader, peer: FollowerPeer, count: int) -> None:
    async def story() -> None:
        stream = Stream(leader, peer)
        await stream.streams.start()
        await stream.steps(count)
        await stream.streams.close()

    asyncio.run(story())


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_a_member_whose_full_disk_refuses_a_whole_replica_is_no_reason_to_resign(
    leader: Leader, error: type[DiskFull | DiskFailed]
) -> None:
    """It is reached: as the leader it would not be better off, and would have lost what it lacks."""
    leader.lead(2)
    led = leader.leading.led[TABLET]
    led.others["other"].needs_all = True
    led.note_behind(leader.engine.clock.monotonic_s() - 20.0)
    run_steps(leader, refusing(leader, error("no space left")), 3)
    now_s = leader.engine.clock.monotonic_s()
    assert led.late(now_s, 9.0) == ["other"]
    assert led.wish_to_resign(now_s, 9.0) is None
    assert "no space left" in led.refusal(led.late(now_s, 3.0))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DiskFull("no space left"), "no space left"),
        (InternalFault("nobody expects this"), "nobody expects this"),
        (Unavailable("it is busy"), "it does not answer"),
    ],
)
def test_why_a_new_replica_is_not_made_is_told_once(leader: Leader, error: StelaeError, why: str) -> None:
    told: list[Event] = []
    leader.leading.tell = told.append
    leader.lead(2)
    leader.answer()
    led, new = leader.leading.led[TABLET], "new/0@log"
    led.others["other"].matched = led.quorum.here
    for begun_s in (0.0, 100.0, 200.0):
        leader.leading.add([(TABLET, 2, new)])
        led.others[new].needs_all = True
        leader.leading.look(begun_s, 3.0, 9.0)
        run_steps(leader, refusing(leader, error), 3)
        leader.leading.look(begun_s + 13.0, 3.0, 9.0)
        assert new not in led.others
    (event,) = told
    assert isinstance(event, ReplicaNotMade)
    assert (event.server, event.table, event.tablet) == ("new/0", TABLE, TABLET)
    assert why in event.why
    leader.leading.add([(TABLET, 2, new)])
    led.others[new].matched = led.quorum.here
    leader.leading.look(300.0, 3.0, 9.0)
    assert new not in led.given_up, "it has gone well"
