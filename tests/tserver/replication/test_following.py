"""A follower's disk: what it has answered it has after a crash, also if the disk refused something in between."""

from __future__ import annotations

import msgspec
import pytest

from stelae.format.log.copies import RecordCopy, ReplicaKept, copy_record
from stelae.format.log.records import LogRecord
from stelae.model.errors import DiskFull, StelaeError
from stelae.model.ids import Epoch, TableId, TabletId
from stelae.registry.replication.appending import AppendAnswer, AppendPart
from stelae.storage.replicas.replica import NOWHERE, Replica
from stelae.storage.tablet.config import decode_config, encode_config
from stelae.tserver.replication.following import Following
from tests.storage import engine as world
from tests.storage.replicas.records import SCHEMA, TABLET, block, config, config_bytes, image


class Follower:
    """A shard with one replica, which is sent records, and crashes."""

    def __init__(self) -> None:
        self.engine = world.Engine(SCHEMA)

    @property
    def following(self) -> Following:
        return Following(self.engine.shard)

    def host(self, epoch: int = 0) -> AppendAnswer:
        kept = ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config_bytes(), ())
        return self.following.host(world.TABLE, TABLET, epoch, kept)

    def append(self, epoch: int, prev: tuple[int, int], *records: LogRecord, committed: int = 0) -> AppendAnswer:
        part = AppendPart(TABLET, world.TABLE, epoch, prev, committed)
        (answer,) = self.following.append([part], [[copy_record(record) for record in records]])
        return answer

    @property
    def replica(self) -> Replica:
        return self.engine.shard.replicas[TABLET]

    def is_in_doubt(self) -> bool:
        return self.replica.may_lack

    def crash(self) -> None:
        self.engine.restart("crash")


@pytest.fixture
def follower() -> Follower:
    made = Follower()
    assert made.host() == AppendAnswer(0)
    return made


def test_what_was_answered_is_there_after_a_crash(follower: Follower) -> None:
    assert follower.append(1, (0, 0), block(1, 1), block(1, 2)) == AppendAnswer(2)
    assert follower.append(2, (1, 1), block(2, 2), config(2, 3, stable=0)) == AppendAnswer(3)
    before = image(follower.replica)
    follower.crash()
    assert image(follower.replica) == before
    assert follower.append(1, (1, 1), block(1, 2)) == AppendAnswer(promised=2)


def test_a_promise_to_whoever_sends_nothing_is_kept(follower: Follower) -> None:
    assert follower.append(5, (3, 3)) == AppendAnswer(last=(0, 0))
    follower.crash()
    assert follower.append(4, (0, 0), block(4, 1)) == AppendAnswer(promised=5)


# -- a log that has lost its end


def test_a_replica_whose_log_has_lost_its_end_says_so_until_it_has_all_that_is_committed(follower: Follower) -> None:
    assert follower.append(1, (0, 0), block(1, 1), block(1, 2)) == AppendAnswer(2)
    assert follower.append(1, (1, 2), block(1, 3), committed=2) == AppendAnswer(3)
    assert follower.engine.disk.flip_bit()
    follower.crash()
    assert follower.replica.tail == [block(1, 1), block(1, 2)]
    follower.engine.shard.note_lost_end()
    for _ in range(2):
        follower.crash()
        assert follower.is_in_doubt()
        follower.engine.upkeep.collect_log()
        with follower.engine.shard.lock:
            follower.engine.shard.keep_replica(follower.replica)
        follower.engine.shard.drain()
    assert follower.append(2, (1, 1), committed=0) == AppendAnswer(1)
    assert follower.append(2, (1, 1), block(1, 2), committed=1) == AppendAnswer(2)
    assert follower.append(2, (1, 2), block(1, 3), committed=2) == AppendAnswer(3)
    assert follower.is_in_doubt(), "its leader has committed nothing of its own yet"
    follower.crash()
    assert follower.append(2, (1, 3), block(2, 4), committed=3) == AppendAnswer(4)
    assert follower.is_in_doubt()
    assert follower.append(2, (2, 4), committed=4) == AppendAnswer(4)
    assert not follower.is_in_doubt()
    follower.engine.shard.drain()
    follower.crash()
    assert not follower.is_in_doubt()


def test_a_log_whose_last_bytes_were_never_written_whole_has_lost_its_end(follower: Follower) -> None:
    assert follower.append(1, (0, 0), block(1, 1), block(1, 2)) == AppendAnswer(2)
    follower.crash()
    assert not follower.engine.shard.has_lost_end
    assert follower.append(1, (1, 2), block(1, 3)) == AppendAnswer(3)
    assert follower.engine.disk.flip_bit()
    follower.crash()
    assert follower.engine.shard.has_lost_end


# -- one of several


def test_what_is_wrong_with_one_tablet_holds_up_no_other(follower: Follower) -> None:
    other = TabletId(TABLET + 1)
    config = encode_config(msgspec.structs.replace(decode_config(config_bytes(), "here"), tablet=other))
    follower.following.host(world.TABLE, other, 0, ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config, ()))
    assert follower.append(1, (0, 0), block(1, 1), block(1, 2)) == AppendAnswer(2)
    assert follower.append(1, (1, 2), committed=2) == AppendAnswer(2)

    def append(record: RecordCopy, index: int) -> tuple[AppendAnswer, AppendAnswer]:
        parts = [
            AppendPart(TABLET, world.TABLE, 2, (1, 1), 0),
            AppendPart(other, world.TABLE, 2, (min(1, index - 1), index - 1), 0),
        ]
        good = copy_record(block(1, index)._replace(tablet=other))
        first, second = follower.following.append(parts, [[record], [good]])
        return first, second

    refused, taken = append(copy_record(block(2, 2)), 1)
    assert "were acknowledged" in refused.refused
    assert taken == AppendAnswer(1)
    bent = msgspec.structs.replace(copy_record(block(2, 3)), payload=b"something else")
    refused, taken = append(bent, 2)
    assert "is not what was written" in refused.refused
    assert taken == AppendAnswer(2)
    assert follower.replica.tail == [block(1, 1), block(1, 2)]
    follower.crash()
    assert follower.engine.shard.replicas[other].last == (1, 2)


def test_who_hosts_nothing_says_so(follower: Follower) -> None:
    follower.following.drop([TABLET])
    assert follower.append(1, (0, 0), block(1, 1)) == AppendAnswer()
    follower.crash()
    assert TABLET not in follower.engine.shard.replicas


def test_what_is_sent_again_is_answered_as_before(follower: Follower) -> None:
    for _ in range(2):
        assert follower.append(1, (0, 0), block(1, 1)) == AppendAnswer(1)
        assert follower.host(1) == AppendAnswer(last=(1, 1))
    assert follower.replica.tail == [block(1, 1)]


def test_records_that_the_disk_refused_are_taken_when_they_are_sent_again(follower: Follower) -> None:
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(StelaeError):
        follower.append(0, (0, 0), block(0, 1))
    assert follower.replica.tail == []
    assert follower.append(0, (0, 0), block(0, 1)) == AppendAnswer(1)
    follower.crash()
    assert follower.replica.tail == [block(0, 1)]


def test_a_cut_that_the_disk_refused_is_made_when_it_is_asked_for_again(follower: Follower) -> None:
    follower.append(1, (0, 0), block(1, 1), block(1, 2), block(1, 3))
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(StelaeError):
        follower.append(2, (1, 1), block(2, 2))
    assert follower.append(2, (1, 1), block(2, 2)) == AppendAnswer(2)
    follower.crash()
    assert follower.replica.tail == [block(1, 1), block(2, 2)]


def test_a_promise_that_the_disk_refused_is_made_when_it_is_asked_for_again(follower: Follower) -> None:
    follower.append(1, (0, 0), block(1, 1))
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(StelaeError):
        follower.append(2, (1, 1))
    assert follower.append(2, (1, 1)) == AppendAnswer(1)
    follower.crash()
    assert follower.replica.promised == Epoch(2)


def test_a_replica_that_the_disk_refused_is_hosted_when_it_is_sent_again() -> None:
    follower = Follower()
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(StelaeError):
        follower.host()
    follower.host()
    assert follower.append(1, (0, 0), block(1, 1)) == AppendAnswer(1)
    follower.crash()
    assert follower.replica.tail == [block(1, 1)]


def test_a_replica_that_could_not_be_written_down_anew_keeps_its_log(follower: Follower) -> None:
    """A quiet replica is written down again, so that the log of others can go; the disk refuses just that."""
    follower.append(1, (0, 0), block(1, 1))
    before = image(follower.replica)
    engine = follower.engine
    for _ in range(8):
        with engine.shard.lock:
            engine.shard.wal.enqueue(block(1, 1, bytes(1_500))._replace(table=TableId(99)))
        engine.shard.drain()
    engine.disk.fail("sync", DiskFull)
    engine.upkeep.collect_log()
    engine.restart("crash")
    assert TABLET in engine.shard.replicas
    assert image(follower.replica) == before


def test_what_others_have_committed_and_this_disk_refuses_is_taken_again_with_all_that_came_along(
    follower: Follower,
) -> None:
    """One tablet is being brought up to date, so its leader has committed more than is here; another is a full member.
    The disk refuses what both were sent together."""
    other = TabletId(TABLET + 1)
    config = encode_config(msgspec.structs.replace(decode_config(config_bytes(), "here"), tablet=other))
    follower.following.host(world.TABLE, other, 0, ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config, ()))

    def of_other(index: int) -> LogRecord:
        return block(1, index)._replace(tablet=other)

    def append(prev: int, committed: int, mine: list[LogRecord], others: list[LogRecord]) -> tuple[AppendAnswer, ...]:
        parts = [AppendPart(each, world.TABLE, 1, (min(prev, 1), prev), committed) for each in (TABLET, other)]
        return follower.following.append(parts, [[copy_record(record) for record in some] for some in (mine, others)])

    assert append(0, 0, [block(1, 1)], [of_other(1)]) == (AppendAnswer(1), AppendAnswer(1))
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(DiskFull):
        append(1, 3, [block(1, 2), block(1, 3)], [of_other(2)])
    replicas = follower.engine.shard.replicas
    assert [(each.last.index, each.is_unwritten) for each in (replicas[TABLET], replicas[other])] == [(1, True)] * 2
    assert all(each.committed <= 1 for each in replicas.values())
    assert append(1, 3, [block(1, 2), block(1, 3)], [of_other(2)]) == (AppendAnswer(3), AppendAnswer(2))
    assert replicas[TABLET].committed == 3
    follower.crash()
    replicas = follower.engine.shard.replicas
    assert replicas[TABLET].tail == [block(1, 1), block(1, 2), block(1, 3)]
    assert replicas[other].tail == [of_other(1), of_other(2)]


def test_a_config_that_this_disk_refuses_does_not_count_here_though_others_have_committed_it(
    follower: Follower,
) -> None:
    """What counts lets records go, which could not be taken back."""
    assert follower.append(1, (0, 0), block(1, 1)) == AppendAnswer(1)
    follower.engine.disk.fail("sync", DiskFull)
    with pytest.raises(DiskFull):
        follower.append(1, (1, 1), config(1, 2, stable=1), committed=2)
    assert (follower.replica.begin, follower.replica.tail) == (NOWHERE, [block(1, 1)])
    assert follower.append(1, (1, 1), config(1, 2, stable=1), committed=2) == AppendAnswer(2)
    assert follower.replica.begin == (1, 1)
