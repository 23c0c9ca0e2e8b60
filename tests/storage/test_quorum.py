"""Commits of tablets that have other replicas: nothing is shown before all of them have it, whatever comes first."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.log.records import NO_TABLET, LogKind
from stelae.model.ids import Index, Txn
from stelae.storage.log.commits import CommitTracker, LogEntry, Quorum, TabletCommits
from tests.effort import examples
from tests.format.logs import log_record
from tests.storage.replicas.records import position

OTHERS = ("b", "c")


class Log:
    """A tracker, and the queue of the log that it hears of. Tablet 0 has other replicas, 1 too; 2 and 3 have none."""

    def __init__(self) -> None:
        self.tracker = CommitTracker(Txn(0))
        self.tracker.has_quorums = True
        self.told: list[int] = []
        """By index, how often there was more to be sent."""
        self.tablets = [TabletCommits() for _ in range(4)]
        for commits in self.tablets[:2]:
            commits.quorum = Quorum(Index(0), dict.fromkeys(OTHERS, Index(0)), lambda: self.told.append(1))
        self.queue: list[LogEntry] = []
        self.txn = 0
        self.durable = 0

    def quorum(self, at: int) -> Quorum:
        quorum = self.tablets[at].quorum
        assert quorum is not None
        return quorum

    def enqueue(self, *of: int, kind: LogKind = LogKind.BLOCK) -> LogEntry:
        """A record of these tablets; of none: of one that is led elsewhere."""
        self.txn += 1
        commits = tuple(self.tablets[at] for at in of)
        index = Index(commits[0].index + 1) if len(of) == 1 else Index(0)
        for each in commits[:1] if len(of) == 1 else ():
            each.index = index
        tablet = of[0] + 1 if len(of) == 1 else NO_TABLET
        record = log_record(self.txn, kind=kind, tablet=tablet, index=index)
        entry = LogEntry(record, commits, Future(), 10)
        if kind is LogKind.CHANGE:
            self.tracker.note_change(commits)
        self.queue.append(entry)
        return entry

    def write(self, count: int = 1) -> Sequence[LogEntry]:
        group, self.queue = self.queue[:count], self.queue[count:]
        self.durable += count
        return self.tracker.take_durable(group, position(self.durable), self.queue)

    def acknowledge(self, at: int, replica: str, index: int) -> Sequence[LogEntry]:
        return self.tracker.take_acknowledged(self.quorum(at), replica, Index(index), self.queue)

    def visible(self, at: int) -> int:
        return self.tablets[at].visible


def test_a_commit_is_shown_when_all_have_it() -> None:
    log = Log()
    entry = log.enqueue(0)
    assert list(log.write()) == []
    assert log.told == [1]
    assert list(log.acknowledge(0, "b", 1)) == []
    assert (log.tracker.visible, log.visible(0)) == (0, 0)
    assert list(log.acknowledge(0, "c", 1)) == [entry]
    assert (log.tracker.visible, log.visible(0)) == (1, 1)
    assert list(log.tracker.waiting()) == []


def test_what_others_have_first_waits_for_this_disk() -> None:
    log = Log()
    entry = log.enqueue(0)
    assert list(log.acknowledge(0, "b", 1)) == []
    assert list(log.acknowledge(0, "c", 1)) == []
    assert log.tracker.visible == 0
    assert list(log.write()) == [entry]
    assert log.tracker.visible == 1


def test_a_tablet_that_waits_holds_up_the_shard_and_no_other_tablet() -> None:
    log = Log()
    log.enqueue(0)
    alone = log.enqueue(2)
    assert list(log.write(2)) == [alone]
    assert (log.visible(2), log.visible(0), log.tracker.visible) == (2, 0, 0)
    log.acknowledge(0, "b", 1)
    log.acknowledge(0, "c", 1)
    assert (log.visible(2), log.visible(0), log.tracker.visible) == (2, 1, 2)


def test_the_newest_snapshot_has_all_that_is_acknowledged_though_older_ones_wait() -> None:
    log = Log()
    log.enqueue(0)
    alone = log.enqueue(2)
    assert list(log.write(2)) == [alone]
    assert (log.tracker.visible, log.tracker.newest) == (0, 2)
    log.acknowledge(0, "b", 1)
    log.acknowledge(0, "c", 1)
    assert (log.tracker.visible, log.tracker.newest) == (2, 2)


def test_what_is_queued_holds_up_what_other_replicas_have() -> None:
    log = Log()
    log.enqueue(0)
    log.enqueue(2)
    log.enqueue(0)
    log.write()
    log.acknowledge(0, "b", 1)
    assert len(log.acknowledge(0, "c", 1)) == 1
    assert (log.tracker.visible, log.visible(0)) == (1, 1)
    log.write(2)
    assert (log.tracker.visible, log.visible(2), log.visible(0)) == (2, 2, 1)


def test_records_of_followed_tablets_show_and_hide_nothing() -> None:
    log = Log()
    followed = log.enqueue()
    assert list(log.write()) == [followed]
    assert log.tracker.visible == 0
    log.enqueue()
    own = log.enqueue(2)
    log.enqueue()
    assert list(log.write(2))[-1] is own
    assert (log.tracker.visible, log.visible(2)) == (3, 3)
    log.write()
    assert log.tracker.visible == 3


def test_an_answer_that_is_late_or_of_a_stranger_changes_nothing() -> None:
    log = Log()
    for _ in range(2):
        log.enqueue(0)
    log.write(2)
    log.acknowledge(0, "b", 2)
    assert list(log.acknowledge(0, "b", 1)) == []
    assert list(log.acknowledge(0, "stranger", 2)) == []
    assert log.quorum(0).others == {"b": 2, "c": 0}
    assert len(log.acknowledge(0, "c", 2)) == 2


def test_whoever_is_dropped_is_not_waited_for() -> None:
    log = Log()
    entry = log.enqueue(0)
    log.write()
    log.acknowledge(0, "b", 1)
    del log.quorum(0).others["c"]
    assert list(log.tracker.take_changed(log.quorum(0), log.queue)) == [entry]
    assert log.tracker.visible == 1


def test_whoever_gives_up_leaves_it_to_others() -> None:
    log = Log()
    waiting, alone = log.enqueue(0), log.enqueue(2)
    orphan = log.enqueue(0)
    log.write(2)
    assert log.tracker.give_up(log.quorum(0), log.queue) == [waiting]
    assert alone.record.txn == log.tracker.visible == 2
    assert log.visible(0) == 0
    assert list(log.write()) == []
    assert log.tracker.orphans == [orphan]
    assert list(log.acknowledge(0, "b", 2)) == list(log.acknowledge(0, "c", 2)) == []
    assert log.visible(0) == 0


def test_what_has_failed_gives_its_index_back_and_holds_up_nothing() -> None:
    log = Log()
    first = log.enqueue(0)
    log.write()
    failed = [log.enqueue(0), log.enqueue(2)]
    log.queue.clear()
    log.tracker.take_failed(failed)
    assert (log.tablets[0].index, log.tablets[2].index) == (1, 0)
    log.acknowledge(0, "b", 1)
    assert list(log.acknowledge(0, "c", 1)) == [first]
    assert log.tracker.visible == 1


def test_a_change_that_others_decide_holds_up_its_tablet_alone() -> None:
    log = Log()
    log.enqueue(0, kind=LogKind.CHANGE)
    assert (log.tracker.is_changing, log.tablets[0].changing) == (False, 1)
    log.enqueue(2, 3, kind=LogKind.CHANGE)
    assert log.tracker.is_changing
    log.write(2)
    assert (log.tracker.is_changing, log.tablets[0].changing) == (False, 1)
    log.acknowledge(0, "b", 1)
    log.acknowledge(0, "c", 1)
    assert log.tablets[0].changing == 0
    log.enqueue(1, kind=LogKind.CHANGE)
    log.write()
    log.tracker.give_up(log.quorum(1), log.queue)
    assert log.tablets[1].changing == 0


# -- against a plain model

KINDS = st.sampled_from([(0,), (1,), (2,), (3,), (2, 3), ()])


class Model:
    """What is decided by the definition, from all that ever happened."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.entries: list[LogEntry] = []
        self.durable: set[int] = set()
        self.decided: set[int] = set()
        self.lost: set[int] = set()
        """Not for this shard to decide."""
        self.over: set[int] = set()

    def expect(self) -> list[int]:
        """What is decided now and was not before."""
        new = [entry.record.txn for entry in self.entries if self._is_decided(entry)]
        found: list[int] = [txn for txn in new if txn not in self.decided]
        self.decided |= set(found)
        return found

    def _is_decided(self, entry: LogEntry) -> bool:
        txn = entry.record.txn
        if txn in self.decided:
            return True
        if txn not in self.durable or txn in self.lost:
            return False
        quorum = entry.tablets[0].quorum if entry.tablets else None
        return quorum is None or all(entry.record.index <= has for has in quorum.others.values())

    def check(self) -> None:
        log = self.log
        undecided = [e for e in self.entries if e.tablets and e.record.txn not in self.decided | self.lost]
        shown = [e for e in self.entries if e.tablets and e.record.txn in self.decided]
        least = min((e.record.txn for e in undecided), default=log.txn + 1)
        assert log.tracker.visible < least
        for at, commits in enumerate(log.tablets):
            mine = min((e.record.txn for e in undecided if commits in e.tablets), default=log.txn + 1)
            assert commits.visible < mine
            last = max((e.record.txn for e in shown if commits in e.tablets), default=0)
            assert commits.visible <= last, f"tablet {at} shows more than it has"
            if mine > last:
                assert commits.visible == last
        greatest = max((e.record.txn for e in shown), default=0)
        assert log.tracker.visible == min(greatest, least - 1)
        waiting = [e.record.txn for e in undecided if e.record.txn in self.durable]
        assert sorted(e.record.txn for e in log.tracker.waiting()) == waiting


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_what_is_decided_and_shown_is_so_by_definition(data: st.DataObject) -> None:
    log = Log()
    model = Model(log)
    for _ in range(data.draw(st.integers(1, 40))):
        found: Sequence[LogEntry] = ()
        what = data.draw(st.sampled_from(["enqueue", "enqueue", "write", "acknowledge", "acknowledge", "drop", "end"]))
        at = data.draw(st.integers(0, 1))
        match what:
            case "enqueue":
                model.entries.append(log.enqueue(*data.draw(KINDS)))
            case "write":
                count = data.draw(st.integers(1, 5))
                txns = {entry.record.txn for entry in log.queue[:count]}
                orphans = {e.record.txn for e in log.queue[:count] if e.tablets and e.record.tablet - 1 in model.over}
                found = log.write(count)
                model.durable |= txns
                model.lost |= orphans
                assert {entry.record.txn for entry in log.tracker.orphans} >= orphans
            case "acknowledge":
                index = data.draw(st.integers(0, log.tablets[at].index))
                found = log.acknowledge(at, data.draw(st.sampled_from(OTHERS)), index)
            case "drop":
                log.quorum(at).others.pop(data.draw(st.sampled_from(OTHERS)), None)
                found = log.tracker.take_changed(log.quorum(at), log.queue)
            case _ if at not in model.over and data.draw(st.integers(0, 3)) == 0:
                model.over.add(at)
                left = log.tracker.give_up(log.quorum(at), log.queue)
                model.lost |= {entry.record.txn for entry in left}
        assert sorted(entry.record.txn for entry in found) == model.expect()
        for each in range(4):
            mine = [entry.record.index for entry in found if entry.record.tablet == each + 1]
            assert mine == sorted(mine)
        model.check()
