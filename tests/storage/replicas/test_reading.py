"""Replicas as a log has them: whatever was written of one, in whichever segments, gives the replica that wrote it; and
records of other tablets are nobody's business here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.log.copies import encode_kept
from stelae.format.log.marks import KIND_OF as KIND_OF_MARK
from stelae.format.log.marks import Dropped, EpochBegun, StayMark, encode_mark
from stelae.format.log.positions import Position
from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index, TabletId
from stelae.storage.log.replay import LogRun
from stelae.storage.replicas.reading import take_replicas
from stelae.storage.replicas.replica import Replica
from tests.effort import examples
from tests.format.logs import log_record
from tests.storage import engine as world
from tests.storage.replicas.records import (
    SCHEMA,
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

OTHER = TabletId(11)


def whole(replica: Replica) -> LogRecord:
    return _mark(LogKind.REPLICA, encode_kept(replica.kept()))


def mark(of: StayMark) -> LogRecord:
    return _mark(KIND_OF_MARK[type(of)], encode_mark(of))


def epoch(number: int, kept: int) -> LogRecord:
    return mark(EpochBegun(((Epoch(number), Index(kept + 1)),), Index(kept)))


def _mark(kind: LogKind, payload: bytes) -> LogRecord:
    return log_record(0, payload, kind=kind, table=TABLE, tablet=TABLET, epoch=0, client=0)


def run_of(begin: int, *records: LogRecord, is_plain: bool = False) -> LogRun:
    return LogRun(position(begin), records, is_plain, {})


def read(*records: LogRecord) -> Replica | None:
    found, left = take_replicas([run_of(1, *records)])
    assert left == []
    return found.get(TABLET)


def read_one(*records: LogRecord) -> Replica:
    replica = read(*records)
    assert replica is not None
    return replica


def test_a_log_without_replicas_is_left_as_it_is() -> None:
    runs = [run_of(1, block(1, 1), block(1, 2), is_plain=True), run_of(2, epoch(2, 1))]
    assert take_replicas(runs) == ({}, runs)
    assert take_replicas([]) == ({}, [])


def test_a_replica_is_what_was_kept_and_what_follows() -> None:
    replica = read_one(whole(replica_of(block(1, 1), promised=1)), block(1, 2), config(1, 3, stable=2), block(2, 4))
    assert image(replica) == image(replica_of(block(1, 1), block(1, 2), config(1, 3, stable=2), block(2, 4)))
    assert replica.promised == 2


def test_a_config_waits_for_whoever_says_that_all_have_it() -> None:
    replica = read_one(whole(replica_of()), block(1, 1), config(1, 2, stable=1))
    assert replica.encoded == config_bytes()
    assert replica.committed == 0
    assert replica.commit(Index(2))
    assert replica.config.stable == 1


def test_an_epoch_is_a_promise_and_cuts() -> None:
    replica = read_one(whole(replica_of()), block(1, 1), block(1, 2), block(1, 3), epoch(4, 1), block(4, 2))
    assert image(replica) == image(replica_of(block(1, 1), block(4, 2)))
    kept = read_one(whole(replica_of()), block(1, 1), epoch(4, 1))
    assert (kept.tail, kept.promised) == ([block(1, 1)], 4)


def test_an_epoch_that_cuts_what_all_had_is_corruption() -> None:
    replica = replica_of(block(1, 1), block(1, 2))
    replica.commit(Index(2))
    with pytest.raises(Corruption, match="up to 2 were acknowledged"):
        read(whole(replica), epoch(2, 1))


def test_a_replica_that_was_dropped_is_not_there() -> None:
    assert read(whole(replica_of()), block(1, 1), mark(Dropped())) is None
    assert read(whole(replica_of()), mark(Dropped()), block(1, 1), epoch(2, 1)) is None


def test_the_last_that_was_kept_whole_counts() -> None:
    second = replica_of(block(3, 6), begin=place(2, 5), promised=3)
    for between in ([], [mark(Dropped())]):
        replica = read_one(whole(replica_of(block(1, 1))), block(1, 2), *between, whole(second), block(3, 7))
        assert image(replica) == image(replica_of(block(3, 6), block(3, 7), begin=place(2, 5), promised=3))


def test_what_was_kept_with_it_is_not_taken_twice() -> None:
    """A record may be queued before the replica is written down whole, and lie behind it."""
    replica = read_one(whole(replica_of(block(1, 1), block(1, 2))), block(1, 2), block(1, 3))
    assert replica.tail == [block(1, 1), block(1, 2), block(1, 3)]


def test_what_lies_before_is_of_another_time() -> None:
    assert image(read_one(block(1, 1), epoch(2, 0), config(2, 1, 0), whole(replica_of()))) == image(replica_of())


def test_a_hole_is_corruption() -> None:
    with pytest.raises(Corruption, match="record 3 follows record 1"):
        read(whole(replica_of(block(1, 1))), block(1, 3))


@pytest.mark.parametrize("payload", [b"", b"junk", b"\x90"])
def test_what_cannot_be_read_is_corruption(payload: bytes) -> None:
    with pytest.raises(Corruption, match="of a replica cannot be read"):
        read(_mark(LogKind.REPLICA, payload))


def test_other_tablets_are_left_alone() -> None:
    def of_other(record: LogRecord) -> LogRecord:
        return record._replace(tablet=OTHER)

    of_table = log_record(3, kind=LogKind.CHANGE, table=TABLE, tablet=0)
    runs = [
        run_of(1, whole(replica_of()), of_other(block(1, 1)), block(1, 1)),
        run_of(2, of_other(block(1, 2)), of_table),
        run_of(3, block(1, 2)),
        run_of(4, block(1, 3), of_other(epoch(2, 1))),
    ]
    found, left = take_replicas(runs)
    assert list(found) == [TABLET]
    assert found[TABLET].tail == [block(1, 1), block(1, 2), block(1, 3)]
    assert left == [
        run_of(1, of_other(block(1, 1)), is_plain=True),
        run_of(2, of_other(block(1, 2)), of_table, is_plain=True),
        run_of(4, of_other(epoch(2, 1))),
    ]


# -- what may be deleted of a log

STEPS = st.lists(
    st.sampled_from(["block", "config", "commit", "cut", "promise", "whole"]) | st.just("block"), max_size=30
)


class LoggedReplica:
    """A replica, and a log of segments that hold one record each, written as a shard does."""

    def __init__(self) -> None:
        self.log: list[LogRecord] = []
        self.replica = replica_of()
        self.keep()

    def _end(self) -> Position:
        return position(len(self.log))

    def keep(self) -> None:
        self.replica.note_kept(self._end())
        self.log.append(whole(self.replica))

    def write(self, record: LogRecord) -> None:
        self.replica.take(record, self._end())
        self.log.append(record)

    def do(self, step: str) -> None:
        replica = self.replica
        number, index = max(1, replica.promised), replica.last.index + 1
        match step:
            case "block":
                self.write(block(number, index))
                replica.promise(Epoch(number))
            case "config":
                self.write(config(number, index, max(replica.committed, replica.config.stable)))
                replica.promise(Epoch(number))
            case "commit":
                replica.commit(replica.last.index)
            case "whole":
                self.keep()
            case _:
                kept = replica.committed if step == "cut" else replica.last.index
                replica.cut(kept)
                replica.promise(Epoch(number + 1))
                self.log.append(epoch(number + 1, kept))

    def read_from(self, begin: Position) -> Replica | None:
        runs = [run_of(at, record) for at, record in enumerate(self.log) if at >= begin]
        return take_replicas(runs)[0].get(TABLET)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_what_the_log_has_from_where_it_is_needed_is_the_replica(steps: Sequence[str]) -> None:
    """Whatever lies before `log_from` may be deleted at any time: what is left has all that the replica is."""
    logged = LoggedReplica()
    for step in steps:
        logged.do(step)
        found = logged.read_from(logged.replica.log_from)
        assert found is not None, f"after {step} nothing of the replica is left in the log"
        found.commit(logged.replica.committed)
        assert image(found) == image(logged.replica)


def test_a_shard_that_has_let_go_of_its_log_has_its_replica_still() -> None:
    """A config took over, and segments were deleted: what is left is read as the same replica after a crash."""
    engine = world.Engine(SCHEMA)
    shard = engine.shard
    with shard.lock:
        replica = Replica(world.TABLE, TABLET, config_bytes())
        shard.replicas[TABLET] = replica
        shard.keep_replica(replica)
        records = [*(block(1, index, bytes(600)) for index in range(1, 13)), config(1, 13, stable=12)]
        records += (block(1, index, bytes(600)) for index in range(14, 18))
    for record in records:
        with shard.lock:
            shard.wal.enqueue(record)
            replica.take(record, shard.wal.end)
            replica.promise(record.epoch)
        shard.drain()
    with shard.lock:
        assert replica.commit(Index(13))
    assert engine.upkeep.collect_log()
    engine.restart("crash")
    found = engine.shard.replicas.get(TABLET)
    assert found is not None
    found.commit(Index(13))
    assert found.last == place(1, 17)
    assert image(found) == image(replica)
