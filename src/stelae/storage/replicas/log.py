"""What a shard writes to its log about replicas, and what becomes of that."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial

from stelae.format.log.copies import encode_kept
from stelae.format.log.marks import EpochBegun, encode_mark
from stelae.format.log.positions import Position
from stelae.format.log.records import NO_CLIENT, NO_INDEX, NO_SEQUENCE, NO_TABLET, LogKind, LogRecord, checksum_of
from stelae.model.errors import Closed, Unavailable, UnknownOutcome
from stelae.model.hybrid import TXN_MIN, HybridClock
from stelae.model.ids import Epoch, Index, TabletId, Txn
from stelae.storage.log.commits import CommitTracker, LogEntry, Quorum, TabletCommits, complete
from stelae.storage.log.wal import Wal
from stelae.storage.memory.memory import Memory
from stelae.storage.replicas.replica import Replica
from stelae.storage.tablet.config import TabletConfig, encode_config
from stelae.storage.tablet.state import TabletState

_LED_ELSEWHERE = "its tablet is led by another shard now"
_NOT_NOTED = (
    "the log had lost its end, and perhaps rows that were acknowledged; the disk refuses the note of that, without "
    "which nobody can be told what the replicas here have: {error}"
)


class ReplicaLog:
    """A part of `storage.shard.Shard`, whose lock, log and clock these are."""

    lock: AbstractContextManager[object]
    wal: Wal
    commits: CommitTracker
    clock: HybridClock
    replicas: dict[TabletId, Replica]
    has_lost_end: bool
    """See `ReplayedLog`."""
    _closed: bool

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the shard is closed")

    def _log_change(self, tablet: TabletId, states: Sequence[TabletState], data: bytes, txn: Txn) -> Future[Txn]:
        """One record of a tablet that has other replicas, or of all tablets of the table that have none."""
        commits = tuple(state.commits for state in states)
        index = NO_INDEX if tablet == NO_TABLET else Index(commits[0].index + 1)
        epoch = max(state.epoch for state in states)
        ids = (states[0].table, tablet, epoch, index, txn, NO_CLIENT, NO_SEQUENCE)
        record = LogRecord(LogKind.CHANGE, *ids, data, checksum_of(data))
        durable = self.wal.enqueue(record, commits)
        self.commits.note_change(commits)
        if tablet != NO_TABLET:
            commits[0].index = index
            self.replicas[tablet].take(record, self.wal.end)
        return durable

    def log_config(self, config: TabletConfig, commits: TabletCommits, epoch: Epoch) -> Future[Txn]:
        """Have all replicas of a tablet that is led here know a config; done when they do."""
        data = encode_config(config)
        with self.lock:
            self._check_open()
            index, txn = Index(commits.index + 1), self.clock.tick()
            ids = (config.table, config.tablet, epoch, index, txn, NO_CLIENT, NO_SEQUENCE)
            record = LogRecord(LogKind.CONFIG, *ids, data, checksum_of(data))
            durable = self.wal.enqueue(record, (commits,))
            commits.index = index
            self.replicas[config.tablet].take(record, self.wal.end)
            return durable

    def log_mark(self, replica: Replica, kind: LogKind, payload: bytes) -> Future[Txn]:
        """Write down what became of a replica here. The caller holds the lock."""
        ids = (replica.table, replica.tablet, replica.promised, NO_INDEX, TXN_MIN, NO_CLIENT, NO_SEQUENCE)
        return self.wal.enqueue(LogRecord(kind, *ids, payload, checksum_of(payload)))

    def keep_replica(self, replica: Replica) -> Future[Txn]:
        """Write a replica down whole: once that is durable, what the log had of it before is needed no more. The caller
        holds the lock."""
        position = self.wal.end
        replica.is_unwritten = False
        durable = self.log_mark(replica, LogKind.REPLICA, encode_kept(replica.kept()))
        durable.add_done_callback(partial(self._note_kept, replica, position))
        return durable

    def follow(self, replica: Replica, epoch: Epoch, kept: Index) -> Future[Txn]:
        """Write down that a replica follows, or leads in, an epoch, that what has a greater index than `kept` is void,
        and whether it may lack what was acknowledged. The caller holds the lock, and has changed the replica itself to
        that already."""
        mark = EpochBegun(((epoch, Index(kept + 1)),), kept, replica.may_lack)
        return self.log_mark(replica, LogKind.EPOCH, encode_mark(mark))

    def note_lost_end(self) -> None:
        """The log had lost its end when it was opened: no replica here is known to have all that was acknowledged.
        That is on the disk when this returns. Unavailable, in words, if the disk refuses it: nothing may be said of
        the replicas then."""
        with self.lock:
            for replica in self.replicas.values():
                replica.may_lack = True
            noted = [self.follow(each, each.promised, each.last.index) for each in self.replicas.values()]
        self.wal.drain()
        for error in (durable.exception() for durable in noted):
            if error is not None:
                raise Unavailable(_NOT_NOTED.format(error=error)) from error

    def _note_kept(self, replica: Replica, position: Position, durable: Future[Txn]) -> None:
        if durable.exception() is None:
            with self.lock:
                replica.note_kept(position)

    def acknowledge(self, tablet: TabletId, quorum: Quorum, replica: str, index: Index) -> None:
        """Another replica of a tablet that is led here has the records up to an index on its disk."""
        with self.lock:
            decided = self.commits.take_acknowledged(quorum, replica, index, self.wal.undecided())
            self._note_committed(tablet, quorum)
        complete(decided)

    def note_quorum(self, tablet: TabletId, quorum: Quorum) -> None:
        """The other replicas of a tablet that is led here are others now."""
        with self.lock:
            decided = self.commits.take_changed(quorum, self.wal.undecided())
            self._note_committed(tablet, quorum)
        complete(decided)

    def _note_alone(self, decided: Sequence[LogEntry]) -> None:
        """What was decided when it was durable here: of tablets that have no other replicas now. Under the lock."""
        led = {entry.record.tablet: entry.tablets[0].quorum for entry in decided if entry.tablets}
        for tablet, quorum in led.items():
            if quorum is not None:
                self._note_committed(tablet, quorum)

    def _note_committed(self, tablet: TabletId, quorum: Quorum) -> None:
        replica = self.replicas.get(tablet)
        if replica is not None:
            replica.commit(quorum.committed)

    def give_up_quorum(self, quorum: Quorum, why: str) -> None:
        """A tablet is led here no more: what waited for its other replicas is theirs to decide."""
        with self.lock:
            left = self.commits.give_up(quorum, self.wal.undecided())
        for entry in left:
            entry.future.set_exception(UnknownOutcome(f"txn {entry.record.txn} may count or not: {why}"))

    def wait_committed(self, memory: Memory, seconds: float) -> None:
        """Until all replicas have what is in a memory; Unavailable if they do not in that time."""
        self.wal.drain()
        with self.lock:
            waiting = [entry for entry in self.commits.waiting() if entry.record.tablet == memory.tablet]
            last = [entry.future for entry in waiting if entry.record.index <= memory.last_index][-1:]
        for future in last:
            try:
                future.result(seconds)
            except TimeoutError:
                raise Unavailable(f"not all replicas of tablet {memory.tablet} have what is to be flushed") from None
            except UnknownOutcome as error:
                raise Unavailable(str(error)) from error

    def _fail_orphans(self) -> None:
        orphans, self.commits.orphans = self.commits.orphans, []
        for entry in orphans:
            entry.future.set_exception(UnknownOutcome(f"txn {entry.record.txn} may count or not: {_LED_ELSEWHERE}"))

    def _note_refused(self, record: LogRecord) -> None:
        """The disk has refused a record. Under the lock. Never raises: others of the same group are to be told, too."""
        replica = self.replicas.get(record.tablet)
        if replica is not None:
            replica.is_unwritten = True
            if record.index:
                replica.lose(Index(record.index - 1))
