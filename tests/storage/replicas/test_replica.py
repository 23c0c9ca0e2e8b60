"""What a replica does with what leaders send it: it takes what follows what it has, cuts what its leader has not, never
what all replicas had, and lets go what files hold once all replicas know it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index
from stelae.storage.replicas.replica import Gap, Place, Replica, Stale, Taking, replica_from
from tests.effort import examples
from tests.storage.replicas.records import (
    TABLE,
    TABLET,
    block,
    config,
    config_bytes,
    image,
    place,
    position,
    replica_of,
)

# -- transcripts


def test_a_new_replica_takes_what_follows_nothing() -> None:
    replica = replica_of()
    assert replica.last == place(0, 0)
    assert replica.judge(Epoch(1), place(0, 0), [block(1, 1), block(1, 2)]) == Taking(
        None, [block(1, 1), block(1, 2)], Index(2)
    )


def test_a_gap_names_the_last_that_is_here() -> None:
    replica = replica_of(block(1, 1), block(1, 2))
    assert replica.judge(Epoch(1), place(1, 4), [block(1, 5)]) == Gap(place(1, 2))


def test_a_gap_passes_over_what_the_leader_cannot_have() -> None:
    """What is of a greater epoch than the leader's record before is not the leader's."""
    replica = replica_of(block(1, 1), block(3, 2), block(3, 3))
    assert replica.judge(Epoch(4), place(2, 3), [block(4, 4)]) == Gap(place(1, 1))
    assert replica.judge(Epoch(4), place(1, 1), [block(2, 2)]) == Taking(Index(1), [block(2, 2)], Index(2))


def test_a_gap_where_nothing_fits_names_what_the_files_hold() -> None:
    replica = replica_of(block(5, 4), begin=place(1, 3))
    assert replica.judge(Epoch(6), place(2, 5), []) == Gap(place(1, 3))


def test_a_leader_of_a_smaller_epoch_is_not_followed() -> None:
    replica = replica_of(block(1, 1), promised=3)
    assert replica.judge(Epoch(2), place(1, 1), [block(2, 2)]) == Stale(Epoch(3))
    assert isinstance(replica.judge(Epoch(3), place(1, 1), [block(3, 2)]), Taking)


def test_a_promise_is_not_taken_back() -> None:
    replica = replica_of(promised=3)
    replica.promise(Epoch(2))
    assert replica.promised == 3


def test_an_end_that_differs_is_cut() -> None:
    replica = replica_of(block(1, 1), block(1, 2), block(1, 3))
    taking = replica.judge(Epoch(2), place(1, 1), [block(2, 2), block(2, 3)])
    assert taking == Taking(Index(1), [block(2, 2), block(2, 3)], Index(3))
    assert replica.cut(Index(1)) == [block(1, 2), block(1, 3)]
    assert replica.tail == [block(1, 1)]
    assert replica.last == place(1, 1)


def test_an_end_that_is_longer_stays_until_something_else_comes() -> None:
    """The leader may have it, and an old message have been late."""
    replica = replica_of(block(1, 1), block(1, 2))
    assert replica.judge(Epoch(1), place(0, 0), [block(1, 1)]) == Taking(None, [], Index(1))


def test_what_is_there_already_is_not_taken_again() -> None:
    replica = replica_of(block(1, 1), block(1, 2))
    sent = [block(1, 1), block(1, 2), block(1, 3)]
    assert replica.judge(Epoch(1), place(0, 0), sent) == Taking(None, sent[2:], Index(3))


def test_what_files_hold_is_not_taken_again() -> None:
    replica = replica_of(begin=place(2, 3), promised=2)
    sent = [block(1, 2), block(2, 3), block(2, 4)]
    assert replica.judge(Epoch(2), place(1, 1), sent) == Taking(None, sent[2:], Index(4))
    assert replica.judge(Epoch(2), place(0, 0), [block(1, 1), block(1, 2)]) == Taking(None, (), Index(2))
    assert replica.judge(Epoch(2), place(1, 1), []) == Taking(None, (), Index(1))


@pytest.mark.parametrize(
    ("prev", "records"),
    [
        ((1, 1), [block(1, 3)]),
        ((1, 1), [block(1, 2), block(1, 4)]),
        ((1, 1), [block(1, 1)]),
        ((2, 1), [block(1, 2)]),
        ((1, 1), [block(4, 2)]),
    ],
    ids=["a hole", "a hole inside", "twice", "an older epoch behind a newer", "newer than the leader"],
)
def test_records_out_of_their_places_are_corruption(prev: tuple[int, int], records: list[LogRecord]) -> None:
    replica = replica_of(block(1, 1))
    with pytest.raises(Corruption, match="out of its place"):
        replica.judge(Epoch(3), place(*prev), records)
    assert image(replica) == image(replica_of(block(1, 1)))


def test_only_what_follows_is_taken() -> None:
    replica = replica_of(block(1, 1))
    with pytest.raises(Corruption, match="record 3 follows record 1"):
        replica.take(block(1, 3), position(2))
    with pytest.raises(Corruption, match="record 1 follows record 1"):
        replica.take(block(1, 1), position(2))


def test_what_all_have_is_not_cut() -> None:
    replica = replica_of(block(1, 1), block(1, 2), block(1, 3))
    replica.commit(Index(2))
    with pytest.raises(Corruption, match="up to 2 were acknowledged"):
        replica.cut(Index(1))
    assert replica.cut(Index(2)) == [block(1, 3)]


def test_nothing_is_committed_that_is_not_here() -> None:
    replica = replica_of(block(1, 1))
    assert not replica.commit(Index(5))
    assert replica.committed == 1
    replica.take(block(1, 2), position(2))
    assert replica.cut(Index(1)) == [block(1, 2)]


def test_a_config_takes_over_when_all_have_it() -> None:
    replica = replica_of(block(1, 1), block(1, 2), config(1, 3, stable=1), block(1, 4))
    assert replica.config.stable == 0
    assert not replica.commit(Index(2))
    assert replica.commit(Index(3))
    assert replica.config.stable == 1
    assert replica.begin == place(1, 1)
    assert replica.tail == [block(1, 2), config(1, 3, stable=1), block(1, 4)]
    assert replica.place_at(Index(1)) == place(1, 1)
    assert replica.place_at(Index(0)) is None
    assert not replica.commit(Index(4))


def test_of_configs_that_take_over_at_once_the_last_counts() -> None:
    replica = replica_of(block(1, 1), config(1, 2, stable=1), block(1, 3), config(1, 4, stable=3))
    assert replica.commit(Index(4))
    assert replica.encoded == config(1, 4, stable=3).payload
    assert replica.begin == place(1, 3)
    assert replica.tail == [config(1, 4, stable=3)]


def test_files_of_later_configs_are_named_until_they_are_cut() -> None:
    replica = replica_of(block(1, 1), config(1, 2, stable=1), config(1, 3, stable=1))
    assert list(replica.config_indexes) == [0, 2, 3]
    replica.cut(Index(2))
    assert list(replica.config_indexes) == [0, 2]
    replica.commit(Index(2))
    assert list(replica.config_indexes) == [2]


def test_records_are_given_out_as_many_as_fit_and_one_at_least() -> None:
    sent = [block(1, index, bytes(10)) for index in (1, 2, 3)]
    replica = replica_of(*sent)
    assert replica.after(Index(0), 0) == sent[:1]
    assert replica.after(Index(0), 20) == sent[:2]
    assert replica.after(Index(1), 1_000) == sent[1:]
    assert replica.after(Index(3), 1_000) == []


# -- three replicas, and leaders that follow each other

Sent = tuple[int, Epoch, Place, list[LogRecord], Index]
"""To whom, the leader's epoch, and what it says: the place before, records, and what it knows to be committed."""


@dataclass
class Leader:
    """As the product's: it waits for all others, and sends each what follows what that has said it has."""

    epoch: Epoch
    sent: dict[int, Index]
    matched: dict[int, Index]


@dataclass
class World:
    """Three replicas, who leads (or believes so), what is on its way, and what was ever said to be committed."""

    replicas: list[Replica] = field(default_factory=lambda: [replica_of() for _ in range(3)])
    leaders: dict[int, Leader] = field(default_factory=dict)
    requests: list[Sent] = field(default_factory=list)
    answers: list[tuple[int, Epoch, int, Taking | Gap]] = field(default_factory=list)
    committed: dict[int, LogRecord] = field(default_factory=dict)
    written: dict[Place, tuple[LogRecord, Place]] = field(default_factory=dict)
    """By place the record and the place before it."""
    positions: list[dict[Place, int]] = field(default_factory=lambda: [{} for _ in range(3)])
    epoch: int = 0
    clock: int = 0

    def elect(self, among: set[int]) -> None:
        at = max(among, key=lambda each: self.replicas[each].last)
        self.epoch += 1
        epoch = Epoch(self.epoch)
        replica = self.replicas[at]
        assert replica.promised < epoch
        for index, record in self.committed.items():
            if index > replica.begin.index:
                assert replica.tail[index - replica.begin.index - 1] == record
        assert replica.last.index >= max(self.committed, default=0)
        replica.promise(epoch)
        others = [each for each in range(3) if each != at]
        self.leaders[at] = Leader(
            epoch, dict.fromkeys(others, replica.last.index), dict.fromkeys(others, replica.begin.index)
        )

    def write(self, at: int, stable: int | None) -> None:
        """A block, or a config whose files hold the first so many of what is committed."""
        leader, replica = self.leaders[at], self.replicas[at]
        index = replica.last.index + 1
        if stable is None:
            record = block(leader.epoch, index)
        else:
            before = [replica.config.stable, *(_stable(each) for each in replica.tail if each.kind is LogKind.CONFIG)]
            record = config(leader.epoch, index, min(max(stable, *before), max(replica.committed, *before)))
        place_ = Place(record.epoch, record.index)
        assert self.written.setdefault(place_, (record, replica.last)) == (record, replica.last)
        self._take(at, record)

    def _take(self, at: int, record: LogRecord) -> None:
        self.clock += 1
        self.positions[at][Place(record.epoch, record.index)] = self.clock
        self.replicas[at].take(record, position(self.clock))

    def send(self, at: int, to: int, room: int) -> None:
        leader, replica = self.leaders[at], self.replicas[at]
        prev = replica.place_at(leader.sent[to])
        assert prev is not None, "a replica that has all that was committed is never sent as a whole"
        self.requests.append((to, leader.epoch, prev, replica.after(prev.index, room), replica.committed))

    def deliver(self, sent: Sent) -> None:
        to, epoch, prev, records, committed = sent
        replica = self.replicas[to]
        judged = replica.judge(epoch, prev, records)
        assert isinstance(judged, Stale) == (epoch < replica.promised)
        if isinstance(judged, Stale):
            assert judged.epoch == replica.promised
            return
        if epoch > replica.promised:
            self.leaders.pop(to, None)
        replica.promise(epoch)
        if isinstance(judged, Taking):
            if judged.cut is not None:
                replica.cut(judged.cut)
            for record in judged.records:
                self._take(to, record)
            replica.commit(Index(min(committed, judged.matched)))
        leading = [at for at, leader in self.leaders.items() if leader.epoch == epoch]
        self.answers += [(at, epoch, to, judged) for at in leading]

    def hear(self, answer: tuple[int, Epoch, int, Taking | Gap]) -> None:
        at, epoch, of, judged = answer
        leader, replica = self.leaders.get(at), self.replicas[at]
        if leader is None or leader.epoch != epoch:
            return
        if isinstance(judged, Gap):
            leader.sent[of] = max(leader.matched[of], judged.last.index)
            return
        leader.sent[of] = max(leader.matched[of], judged.matched)
        leader.matched[of] = max(leader.matched[of], judged.matched)
        upto = min(replica.last.index, *leader.matched.values())
        for record in replica.tail[: max(0, upto - replica.begin.index)]:
            assert self.committed.setdefault(record.index, record) == record
        replica.commit(Index(upto))

    def check(self) -> None:
        for at, replica in enumerate(self.replicas):
            before = replica.begin
            for record in replica.tail:
                mine = Place(record.epoch, record.index)
                assert self.written[mine] == (record, before)
                assert replica.log_from <= self.positions[at][mine]
                before = mine
            for index, record in self.committed.items():
                if index > replica.begin.index:
                    assert replica.place_at(Index(index)) == (record.epoch, index)
            assert replica.begin.index <= replica.committed <= max(self.committed, default=0)
            again = replica_from(replica.kept(), TABLE, TABLET, position(self.clock))
            assert image(again) == image(replica)
            assert again.config_indexes == replica.config_indexes


def _stable(record: LogRecord) -> int:
    return Replica(TABLE, TABLET, bytes(record.payload)).config.stable


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_replicas_agree_whatever_becomes_of_messages(data: st.DataObject) -> None:
    world = World()
    world.elect({data.draw(st.integers(0, 2))})
    for _ in range(data.draw(st.integers(1, 60))):
        leading = sorted(world.leaders)
        can = ["elect"] + ["write", "write", "send", "send"] * bool(leading)
        can += ["deliver", "deliver", "repeat", "lose"] * bool(world.requests) + ["hear", "hear"] * bool(world.answers)
        what = data.draw(st.sampled_from(can))
        match what:
            case "elect":
                world.elect(data.draw(st.sets(st.integers(0, 2), min_size=1)))
            case "write":
                stable = data.draw(st.none() | st.integers(0, 12))
                world.write(data.draw(st.sampled_from(leading)), stable)
            case "send":
                at = data.draw(st.sampled_from(leading))
                to = data.draw(st.sampled_from([each for each in range(3) if each != at]))
                world.send(at, to, data.draw(st.sampled_from([0, 10, 10_000])))
            case "hear":
                world.hear(world.answers.pop(data.draw(st.integers(0, len(world.answers) - 1))))
            case _:
                at = data.draw(st.integers(0, len(world.requests) - 1))
                sent = world.requests[at] if what == "repeat" else world.requests.pop(at)
                if what != "lose":
                    world.deliver(sent)
        world.check()


def test_three_replicas_that_hear_of_everything_have_the_same() -> None:
    """The world of the property comes to an agreement, also after leaders that nobody has heard of."""
    world = World()
    for at in (0, 1, 2, 0):
        world.elect({at})
        for stable in (None, None, 1):
            world.write(at, stable)
    world.check()
    last = world.leaders[0]
    for _ in range(20):
        for to in (1, 2):
            world.send(0, to, 10_000)
        while world.requests:
            world.deliver(world.requests.pop(0))
        while world.answers:
            world.hear(world.answers.pop(0))
        world.check()
    assert list(world.leaders.values()) == [last]
    assert {replica.last for replica in world.replicas} == {place(last.epoch, 6)}
    assert {replica.committed for replica in world.replicas} == {6}
    assert {replica.encoded for replica in world.replicas} == {world.committed[6].payload}
    assert config_bytes() not in {replica.encoded for replica in world.replicas}
