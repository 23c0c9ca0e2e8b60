"""What becomes of records that the log has taken: when they are decided, and what readers may see then.

The log says *durable up to this position, these records*. A commit is decided when every replica of its tablet has it;
a tablet here has no other replica, so what is durable is decided at once. Whoever waits is told afterwards, without the
lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from stelae.format.log.positions import POSITION_MIN, Position
from stelae.format.log.records import NO_INDEX, LogKind, LogRecord
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Index, Txn


class TabletCommits:
    """How far the commits of one tablet have come: one for all states of a tablet, changed under the shard's lock.

    `index`: of the last record that was let in. `visible`: the greatest txn with nothing of the tablet undecided at or
    below, as far as its own records say; readers take it without the lock."""

    __slots__ = ("decided", "index", "visible")

    def __init__(self, index: Index = NO_INDEX, visible: Txn = TXN_MIN) -> None:
        self.index = index
        self.visible = visible
        self.decided = visible
        """The greatest txn that is decided, though one below it may not be."""


class LogEntry(NamedTuple):
    """A record in the log's queue, the tablets it is of, and who is told what becomes of it."""

    record: LogRecord
    tablets: tuple[TabletCommits, ...]
    future: Future[Txn]
    size_bytes: int


class CommitTracker:
    """One for a shard, under its lock; `visible` is read without."""

    def __init__(self, visible: Txn = TXN_MIN) -> None:
        self.visible = visible
        """The greatest txn with nothing undecided at or below, of any tablet."""
        self.durable = POSITION_MIN
        """All of the log up to here is on this disk."""
        self._decided = visible
        """As `TabletCommits.decided`, of all."""
        self._changes = 0

    @property
    def is_changing(self) -> bool:
        """A change that states hold already is undecided."""
        return self._changes > 0

    def note_change(self) -> None:
        """A change was put in the log's queue, and states hold it already."""
        self._changes += 1

    def publish(self, txn: Txn) -> None:
        """All at or below the txn is decided."""
        if txn > self.visible:
            self.visible = txn

    def take_durable(
        self, group: Sequence[LogEntry], upto: Position, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        """The log is durable up to a position, and so is the group, in the order of the log; `undecided` lie behind it.
        What is decided by that: the caller completes it once it has left the lock."""
        self.durable = upto
        decided = self._decided
        for record, tablets, _, _ in group:
            txn = record.txn
            if txn > decided:
                decided = txn
            for commits in tablets:
                if txn > commits.decided:
                    commits.decided = txn
                if not undecided and commits.decided > commits.visible:
                    commits.visible = commits.decided
        self._decided = decided
        if undecided:
            self._show_below(group, undecided)
        elif decided > self.visible:
            self.visible = decided
        if self._changes:
            self._changes -= sum(entry.record.kind is LogKind.CHANGE for entry in group)
        return group

    def take_failed(self, entries: Sequence[LogEntry]) -> None:
        """All that was undecided has failed: it was never there, and its indexes are given out again."""
        for entry in entries:
            for commits in entry.tablets:
                if 0 < entry.record.index <= commits.index:
                    commits.index = Index(entry.record.index - 1)
                commits.visible = max(commits.visible, commits.decided)
        self._changes = 0
        self.publish(self._decided)

    def _show_below(self, group: Sequence[LogEntry], undecided: Collection[LogEntry]) -> None:
        """Make visible what is decided, below the least that is not: txns come in any order."""
        held: dict[TabletCommits, Txn] = {}
        least = self._decided
        for record, tablets, _, _ in undecided:
            below = Txn(record.txn - 1)
            least = min(least, below)
            for commits in tablets:
                held[commits] = min(below, held.get(commits, below))
        for commits in {commits for entry in group for commits in entry.tablets}:
            commits.visible = max(commits.visible, min(commits.decided, held.get(commits, commits.decided)))
        self.publish(least)


def complete(decided: Iterable[LogEntry]) -> None:
    """Tell those who wait, in the order of the log. Without the lock: what they do then may take any time."""
    for record, _, future, _ in decided:
        future.set_result(record.txn)
