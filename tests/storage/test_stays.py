"""Which records of a log count for which tablet, against a shard that lives through the same: tablets come, leave, are
split, joined and cut, and at the end the log must give each what it held."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.format.log.marks import (
    KIND_OF,
    Dropped,
    EpochBegun,
    Hosted,
    JoinedOfTwo,
    SplitInTwo,
    StayMark,
    encode_mark,
)
from stelae.format.log.positions import position_at
from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index, Row, TabletId
from stelae.storage.log.stays import Stays
from tests.format.logs import log_record

ROWS = 16
"""Rows are single bytes below this."""


@dataclass
class Tablet:
    """What a live shard has of a tablet: rows in memory by (row, txn), and the own records it was sent."""

    rows: range
    held: set[tuple[int, int]] = field(default_factory=set)
    index: int = 0
    own: dict[int, set[tuple[int, int]]] = field(default_factory=dict)


class LiveShard:
    """Lives, and writes its log. `here`: the tablets it has; `elsewhere`: rows that are on other shards."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = Random(seed)
        self.records: list[LogRecord] = []
        self.here: dict[TabletId, Tablet] = {TabletId(1): Tablet(range(ROWS))}
        self.elsewhere: dict[TabletId, range] = {}
        self._last_tablet = 1
        self._epoch = 1
        self._txn = 1_000

    def draw(self, below: int) -> int:
        return self._chance.randrange(below)

    def choose(self) -> TabletId | None:
        return sorted(self.here)[self.draw(len(self.here))] if self.here else None

    def step(self) -> None:
        steps = [self.change_all, self.cut, self.drop, self.host, self.host_again, self.split, self.join]
        self._chance.choice([*steps, *[self.write] * 4])()

    def write(self) -> None:
        """A block of some rows, at any txn: clocks differ."""
        tablet = self.choose()
        if tablet is None:
            return
        mine = self.here[tablet]
        rows = sorted({mine.rows[self.draw(len(mine.rows))] for _ in range(1 + self.draw(3))})
        self._txn += 1
        txn = self._txn ^ 7
        mine.index += 1
        mine.own[mine.index] = {(row, txn) for row in rows}
        mine.held |= mine.own[mine.index]
        self.records.append(log_record(txn, bytes(rows), tablet=tablet, index=mine.index))

    def change_all(self) -> None:
        """Of the table: every tablet that is here has it, at every row."""
        self._txn += 1
        for mine in self.here.values():
            mine.held |= {(row, self._txn) for row in mine.rows}
        self.records.append(log_record(self._txn, bytes(range(ROWS)), kind=LogKind.CHANGE, tablet=0))

    def cut(self) -> None:
        """A new leader has less than this replica."""
        tablet = self.choose()
        if tablet is None:
            return
        mine = self.here[tablet]
        kept = mine.index - self.draw(min(mine.index, 3) + 1)
        for index in range(kept + 1, mine.index + 1):
            mine.held -= mine.own.pop(index, set())
        mine.index = kept
        self._epoch += 1
        self._mark(tablet, EpochBegun(((Epoch(self._epoch), Index(kept + 1)),), Index(kept)))

    def drop(self) -> None:
        tablet = self.choose()
        if tablet is None:
            return
        self.elsewhere[tablet] = self.here.pop(tablet).rows
        self._mark(tablet, Dropped())

    def host(self) -> None:
        """A tablet comes, perhaps one that was here before, or what became of it elsewhere: with its files, and nothing
        in memory."""
        if not self.elsewhere:
            return
        tablet = sorted(self.elsewhere)[self.draw(len(self.elsewhere))]
        rows = self.elsewhere.pop(tablet)
        if self.draw(2):
            tablet = self._new()
        stable = self.draw(50)
        self.here[tablet] = Tablet(rows, index=stable)
        self._mark(tablet, Hosted(Index(stable), Epoch(self._epoch)))

    def host_again(self) -> None:
        """It is to be rebuilt, though nobody has dropped what was here."""
        tablet = self.choose()
        if tablet is not None:
            self.here[tablet] = Tablet(self.here[tablet].rows)
            self._mark(tablet, Hosted(Index(0), Epoch(self._epoch)))

    def split(self) -> None:
        tablet = self.choose()
        if tablet is None or len(self.here[tablet].rows) < 2:
            return
        parent = self.here.pop(tablet)
        at = parent.rows[1 + self.draw(len(parent.rows) - 1)]
        left, right = self._new(), self._new()
        for child, rows in ((left, range(parent.rows.start, at)), (right, range(at, parent.rows.stop))):
            self.here[child] = Tablet(rows, {each for each in parent.held if each[0] in rows})
        self._mark(tablet, SplitInTwo(Row(bytes([at])), left, right), index=parent.index + 1)

    def join(self) -> None:
        pairs = [
            (a, b) for a in sorted(self.here) for b in self.here if self.here[a].rows.stop == self.here[b].rows.start
        ]
        if not pairs:
            return
        left, right = pairs[self.draw(len(pairs))]
        parents = self.here.pop(left), self.here.pop(right)
        child = self._new()
        rows = range(parents[0].rows.start, parents[1].rows.stop)
        self.here[child] = Tablet(rows)  # they were flushed for it
        self._mark(child, JoinedOfTwo(left, right))

    def late_record(self, tablet: TabletId) -> None:
        """Of a tablet that is not here any more: from a connection that was forgotten."""
        self.records.append(log_record(self._txn, bytes(range(ROWS)), tablet=tablet, index=1))

    def _new(self) -> TabletId:
        self._last_tablet += 1
        return TabletId(self._last_tablet)

    def _mark(self, tablet: TabletId, mark: StayMark, index: int = 0) -> None:
        self.records.append(log_record(0, encode_mark(mark), kind=KIND_OF[type(mark)], tablet=tablet, index=index))

    def check_replay(self) -> None:
        stays = Stays()
        half = len(self.records) // 2
        stays.take(position_at(1, 0), self.records[:half])
        stays.take(position_at(2, 0), self.records[half:])
        counting = stays.counting_for(self.here)
        for tablet, mine in self.here.items():
            found = counting[tablet]
            assert [each.place for each in found] == sorted({each.place for each in found})
            assert all((each.begin == position_at(1, 0)) == (each.place <= half) for each in found)
            held = {(row, each.record.txn) for each in found for row in bytes(each.record.payload) if row in mine.rows}
            assert held == mine.held
            assert stays.last_index(tablet) == mine.index


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_replay_gives_each_tablet_what_it_held(seed: int, steps: int) -> None:
    shard = LiveShard(seed)
    for _ in range(steps):
        shard.step()
    shard.check_replay()


def test_what_was_void_does_not_come_back_with_a_child() -> None:
    """A shard follows a tablet and has a record nobody acknowledged; the tablet moves away, the record is void, and
    later a child of the tablet comes, with the same rows."""
    shard = LiveShard()
    shard.write()
    shard.drop()
    shard.elsewhere = {TabletId(7): range(4)}
    shard.host()
    shard.check_replay()
    assert [tablet.held for tablet in shard.here.values()] == [set()]


def test_changes_of_the_table_reach_those_that_came_out_of_a_tablet_that_was_there() -> None:
    shard = LiveShard()
    shard.change_all()
    shard.write()
    shard.split()
    shard.change_all()
    shard.check_replay()


def test_what_comes_late_for_a_tablet_that_ended_counts_for_nobody() -> None:
    shard = LiveShard()
    shard.write()
    shard.split()
    shard.late_record(TabletId(1))
    shard.check_replay()
    shard.drop()
    (dropped,) = shard.elsewhere
    shard.late_record(dropped)
    shard.check_replay()


def test_tablets_that_were_there_all_along_share_what_nobody_has_any_more_by_rows() -> None:
    """As in an embedded store, which splits and joins without a record."""
    stays = Stays()
    records = [
        log_record(1, b"of one that was split", tablet=1, index=1),
        log_record(3, b"left", tablet=2, index=1),
        log_record(2, b"right", tablet=3, index=1),
        log_record(4, b"all", kind=LogKind.CHANGE, tablet=0),
        log_record(0, b"", kind=LogKind.EPOCH, tablet=2),
    ]
    stays.take(position_at(1, 0), records)
    counting = stays.counting_for([TabletId(2), TabletId(3)])
    payloads = {tablet: [each.record.payload for each in found] for tablet, found in counting.items()}
    assert payloads == {2: [b"of one that was split", b"left", b"all"], 3: [b"of one that was split", b"right", b"all"]}
    assert stays.last_index(TabletId(4)) == 0


def test_a_mark_that_cannot_be_read_is_named() -> None:
    with pytest.raises(Corruption, match="HOSTED of tablet 2"):
        Stays().take(position_at(1, 0), [log_record(0, msgspec.msgpack.encode("x"), kind=LogKind.HOSTED)])
