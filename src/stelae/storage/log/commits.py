"""What becomes of records that the log has taken: when they are decided, and what readers may see then.

The log says *durable up to this position, these records*. A commit is decided when every replica of its tablet has it:
at once where the tablet has no other, else when all others have said so (`Quorum`). Whoever waits is told afterwards,
without the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from stelae.format.log.positions import POSITION_MIN, Position
from stelae.format.log.records import NO_INDEX, LogKind, LogRecord
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Index, Txn
from stelae.storage.log.done import DoneWrites, done_of


class TabletCommits:
    """How far the commits of one tablet have come: one for all states of a tablet, changed under the shard's lock.

    `index`: of the last record that was let in. `visible`: the greatest txn with nothing of the tablet undecided at or
    below, as far as its own records say; readers take it without the lock."""

    __slots__ = ("changing", "decided", "done", "index", "quorum", "visible")

    def __init__(
        self,
        index: Index = NO_INDEX,
        visible: Txn = TXN_MIN,
        quorum: Quorum | None = None,
        done: DoneWrites | None = None,
    ) -> None:
        self.index = index
        self.visible = visible
        self.done = DoneWrites() if done is None else done
        """The numbered writes that were let in."""
        self.quorum = quorum
        """The tablet's other replicas; None: it has no others."""
        self.changing = 0
        """How many changes its states hold that other replicas have to decide."""
        self.decided = visible
        """The greatest txn that is decided, though one below it may not be."""

    def parted(self) -> TabletCommits:
        """Of one of the tablets that this one is split into."""
        return TabletCommits(visible=self.visible, done=self.done.copy())

    def joined(self, other: TabletCommits) -> TabletCommits:
        """Of the tablet that this one and another are joined to."""
        done = done_of(self.done.saved(), other.done.saved())
        return TabletCommits(visible=min(self.visible, other.visible), done=done)


class Quorum:
    """The other replicas of a tablet, as its leader sees them, under the shard's lock. A record is decided when it is
    on this disk and on the disks of all of them; so they may be changed to fewer only by whoever is sure that the
    others are out of the tablet's set."""

    __slots__ = ("_committed", "_on_durable", "here", "is_over", "others", "refusal", "waiting")

    def __init__(self, here: Index, others: Mapping[str, Index], on_durable: Callable[[], None]) -> None:
        """`here`: the last record that is on this disk. `others`: by replica the last that is on its disk, of those
        that this leader has. `on_durable`: called under the lock when there is more to be sent."""
        self.here = here
        self.others = dict(others)
        self.waiting: deque[LogEntry] = deque()
        """On this disk, and not on all others."""
        self._on_durable = on_durable
        self._committed = NO_INDEX
        """What all had before one of them said that it has lost something."""
        self.refusal = ""
        """Why no write is let in now, in words; empty: they are."""
        self.is_over = False
        """The tablet is led elsewhere: nothing is decided here any more."""

    @property
    def committed(self) -> Index:
        return max(self._committed, min((self.here, *self.others.values())))

    def note_lost(self, replica: str, kept: Index) -> None:
        """A replica has said that it lacks what has a greater index: what follows is decided when it has it again. What
        was decided before stays so."""
        if kept < self.others.get(replica, kept):
            self._committed = self.committed
            self.others[replica] = kept

    def take_durable(self, entry: LogEntry) -> None:
        self.here = entry.record.index
        self.waiting.append(entry)
        self._on_durable()

    def take_decided(self) -> list[LogEntry]:
        """What every replica has by now: no more waiting."""
        committed, decided = self.committed, []
        while self.waiting and self.waiting[0].record.index <= committed:
            decided.append(self.waiting.popleft())
        return decided


class LogEntry(NamedTuple):
    """A record in the log's queue, the tablets it is of, and who is told what becomes of it. Without tablets: of one
    that is led elsewhere, which says nothing about what is visible here."""

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
        self.has_quorums = False
        """Whether any tablet here has other replicas."""
        self.orphans: list[LogEntry] = []
        """What became durable after its tablet was led elsewhere."""
        self._waiting: dict[Quorum, None] = {}
        """Those that anything waits for."""

    @property
    def newest(self) -> Txn:
        """At or above all that anybody was told is done. Where tablets have other replicas, a commit of one may be
        decided before an older one of another: then this lies above `visible`, and whoever reads at it waits first."""
        return max(self.visible, self._decided)

    @property
    def is_changing(self) -> bool:
        """A change that states hold already is undecided."""
        return self._changes > 0

    def note_change(self, tablets: Collection[TabletCommits]) -> None:
        """A change of these tablets was put in the log's queue, and states hold it already. One that other replicas
        have to decide, too, holds up its own tablet alone."""
        for commits in tablets:
            if commits.quorum is not None:
                commits.changing += 1
                return
        self._changes += 1

    def _end_changes(self, entries: Iterable[LogEntry]) -> None:
        """These records are committed, or have failed: what they change in tablets is under way no more."""
        for record, tablets, _, _ in entries:
            if record.kind is LogKind.CHANGE:
                if tablets and tablets[0].quorum is not None:
                    tablets[0].changing -= 1
                elif tablets:
                    self._changes -= 1

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
        if self.has_quorums:
            group = self._hold_back(group)
        return self._decide(group, undecided)

    def take_acknowledged(
        self, quorum: Quorum, replica: str, index: Index, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        """Another replica has the records up to an index on its disk. What is decided by that, as `take_durable`."""
        if index <= quorum.others.get(replica, index):
            return ()
        quorum.others[replica] = index
        return self.take_changed(quorum, undecided)

    def take_changed(self, quorum: Quorum, undecided: Collection[LogEntry]) -> Sequence[LogEntry]:
        """The other replicas are others now, or have more: what is decided by that."""
        decided = quorum.take_decided()
        if not quorum.waiting:
            self._waiting.pop(quorum, None)
        return self._decide(decided, undecided) if decided else ()

    def give_up(self, quorum: Quorum, undecided: Collection[LogEntry]) -> list[LogEntry]:
        """This is the leader no more: what waited for other replicas is theirs to decide."""
        quorum.is_over = True
        left = list(quorum.waiting)
        quorum.waiting.clear()
        self._waiting.pop(quorum, None)
        self._end_changes(left)
        self._decide((), undecided)
        return left

    def waiting(self) -> Iterator[LogEntry]:
        """What is on this disk and waits for other replicas."""
        for quorum in self._waiting:
            yield from quorum.waiting

    def _hold_back(self, group: Sequence[LogEntry]) -> Sequence[LogEntry]:
        """Of what is durable here that which is decided; the rest waits for other replicas."""
        decided: list[LogEntry] = []
        for entry in group:
            quorum = entry.tablets[0].quorum if entry.tablets else None
            if quorum is None:
                decided.append(entry)
                continue
            if quorum.is_over:
                self.orphans.append(entry)
                continue
            quorum.take_durable(entry)
            decided += quorum.take_decided()
            if quorum.waiting:
                self._waiting[quorum] = None
        return decided

    def _decide(self, group: Sequence[LogEntry], undecided: Collection[LogEntry]) -> Sequence[LogEntry]:
        if self._waiting:
            undecided = [*undecided, *self.waiting()]
        decided = self._decided
        for record, tablets, _, _ in group:
            if not tablets:
                continue
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
        if self._changes or self.has_quorums:
            self._end_changes(group)
        return group

    def take_failed(self, entries: Sequence[LogEntry]) -> None:
        """All that was not durable has failed: it was never there, and its indexes are given out again."""
        for entry in entries:
            for commits in entry.tablets:
                if 0 < entry.record.index <= commits.index:
                    commits.index = Index(entry.record.index - 1)
        self._end_changes(entries)
        self._show_below(entries, list(self.waiting()))

    def _show_below(self, group: Sequence[LogEntry], undecided: Collection[LogEntry]) -> None:
        """Make visible what is decided, below the least that is not: txns come in any order."""
        held: dict[TabletCommits, Txn] = {}
        least = self._decided
        for record, tablets, _, _ in undecided:
            if not tablets:
                continue
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
