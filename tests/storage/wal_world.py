"""A log on a simulated disk, held against what its writers were told. Its txns are mixed, and of three tablets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future

from stelae.format.log.positions import POSITION_MAX, Position
from stelae.format.log.records import LogRecord
from stelae.model.errors import DiskFailed, DiskFull, StelaeError
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import Index, TabletId, Txn
from stelae.sim.disk import DiskCall, SimDisk
from stelae.sim.effects import Effects, SimCrash
from stelae.sim.rng import SimRng
from stelae.storage.log.commits import CommitTracker, LogEntry, TabletCommits
from stelae.storage.log.replay import LogRun, ReplayedLog, replay
from stelae.storage.log.wal import Wal, WalSettings
from tests.format.logs import log_record

PAGES = (4096, 64, 256)
"""On large pages, what was not synced more often survives whole."""
SMALL = WalSettings(segment_bytes_max=750, group_bytes_max=270)
DISK_CALLS: tuple[DiskCall, ...] = ("create", "append", "sync", "truncate", "delete")
DISK_ERRORS = (DiskFull, DiskFailed)
FAULTS_MAX = 10
TABLETS = tuple(TabletId(number) for number in (1, 2, 3))


def record(txn: int, payload: bytes = b"payload") -> LogRecord:
    return log_record(txn, payload, sequence=txn)


def records_of(log: Iterable[LogRun]) -> list[LogRecord]:
    return [each for run in log for each in run.records]


class Heard:
    """Who is told what becomes of records, and only passes it on: each is decided when it is durable."""

    def __init__(self) -> None:
        self.commits = CommitTracker()
        self.durable: list[Position] = []

    def take_durable(
        self, group: Sequence[LogEntry], upto: Position, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        self.durable.append(upto)
        return self.commits.take_durable(group, upto, undecided)

    def take_failed(self, entries: Sequence[LogEntry], error: StelaeError) -> None:
        self.commits.take_failed(entries)


class Lock:
    """A plain lock that knows whether it is held, and can be interrupted while someone waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.entered = 0
        self.interrupt_at = 0
        self.left_by: set[threading.Thread] = set()
        self.left = threading.Condition()

    @property
    def is_held(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> None:
        self.entered += 1
        if self.entered == self.interrupt_at:
            raise KeyboardInterrupt
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        with self.left:
            self.left_by.add(threading.current_thread())
            self.left.notify_all()

    def wait_until_left_by(self, thread: threading.Thread) -> None:
        with self.left:
            self.left.wait_for(lambda: thread in self.left_by)


class Death(Effects):
    """A process that can be told to die some effects from now."""

    def die_after(self, count: int) -> None:
        self._crash_at = self.count + count

    @property
    def is_dead(self) -> bool:
        return self._dead


class World:
    """A log on a simulated disk, and what everybody was told about each record, by its txn."""

    def __init__(
        self, seed: int, settings: WalSettings = SMALL, dies_by: Callable[[SimDisk], None] = SimDisk.crash
    ) -> None:
        self.effects = Death()
        self.disk = SimDisk(SimRng(seed), page_bytes=PAGES[seed % len(PAGES)], effects=self.effects)
        self.dies_by = dies_by
        self.settings = settings
        self.payloads: dict[Txn, bytes] = {}
        """In the order in which they came."""
        self.kept: set[Txn] = set()
        self.never: set[Txn] = set()
        self.unknown: set[Txn] = set()
        self.failed: set[Txn] = set()
        self.errors: set[type[object]] = set()
        self.needless: set[Txn] = set()
        """Of segments that lay before what was said to be needed."""
        self.count = 0
        self.wrong: list[str] = []
        self.open()

    @property
    def last(self) -> Txn:
        """Of the record that came last."""
        return list(self.payloads)[-1]

    def open(self) -> None:
        """Replay, as often as the disk lets the process die or fail in it, and go on."""
        assert self.wrong == []
        log = self._replay()
        self.lock = Lock()
        self.futures: dict[Txn, Future[Txn]] = {}
        self.announced: set[Txn] = set()
        self._told_of: list[Txn] = []
        self._undecided: list[tuple[TabletId, Txn]] = []
        self._decided: list[tuple[TabletId, Txn]] = []
        self._visible: dict[TabletId | None, Txn] = {}
        self.tracker = CommitTracker()
        self.wal = Wal(self.disk, self.lock, self.settings, self, log)

    def _replay(self) -> ReplayedLog:
        while True:
            log = replay(self.disk)
            try:
                runs = list(log)
            except SimCrash:
                self.dies_by(self.disk)
            except DISK_ERRORS:
                self.disk.crash()
            else:
                self._judge(records_of(runs))
                self._take_up(log, runs)
                return log

    def _take_up(self, log: ReplayedLog, runs: Sequence[LogRun]) -> None:
        """Where each record lies in the log as it is numbered now, and how far each tablet came."""
        self.positions: dict[Txn, Position] = {}
        self.tablets = {tablet: TabletCommits() for tablet in TABLETS}
        for run, info in zip(runs, log.segments, strict=True):
            assert (run.begin, bool(run.records)) == (info.begin, info.has_records)
            for entry in run.records:
                self.positions[entry.txn] = Position(info.end - 1)
                assert self.tablets[entry.tablet].index in (0, entry.index - 1), "an index is missing or given twice"
                self.tablets[entry.tablet].index = entry.index
            assert all(self.tablets[tablet].index == index for tablet, index in run.last_indexes.items())

    def _judge(self, found: list[LogRecord]) -> None:
        txns = [entry.txn for entry in found]
        assert not [txn for txn, count in Counter(txns).items() if count > 1], "a record twice"
        assert txns == [txn for txn in self.payloads if txn in set(txns)], "a record out of order"
        assert {entry.txn: entry.payload for entry in found}.items() <= self.payloads.items(), "an invented record"
        lost = self.kept - self.needless - set(txns)
        assert not lost, "an acknowledged record is lost"
        assert not self.never & set(txns), "a failed record came back"
        self.kept = set(txns)
        self.unknown.clear()
        self.never |= self.payloads.keys() - self.needless - set(txns)

    def enqueue(self, size: int = 7) -> Txn:
        """Of txns that come near each other, the greater often comes first."""
        txn = Txn(100 + (self.count ^ 5))
        tablet = TABLETS[(self.count * 7 + size) % len(TABLETS)]
        self.count += 1
        self.payloads[txn] = txn.to_bytes(8) + b"\xa5" * size
        with self.lock:
            commits = self.tablets[tablet]
            index = Index(commits.index + 1)
            entry = log_record(txn, self.payloads[txn], tablet=tablet, index=index)
            self.futures[txn] = self.wal.enqueue(entry, (commits,))
            commits.index = index
            self._undecided.append((tablet, txn))
        self.futures[txn].add_done_callback(lambda future: self._told(txn, future))
        return txn

    def drain(self) -> None:
        self.wal.drain()
        assert self.wrong == []
        assert all(future.done() for future in self.futures.values())
        assert self.wal.queued_bytes == 0
        assert self._undecided == []
        assert self.tracker.durable <= self.wal.end

    def write(self, *sizes: int) -> None:
        for size in sizes:
            self.enqueue(size)
        self.drain()

    def collect(self, needed_from: Position) -> None:
        ends = [info.end for info in self.wal.segments() if info.end <= needed_from]
        self.needless |= {txn for txn, position in self.positions.items() if position < max(ends, default=0)}
        names = {info.name for info in self.disk.list()}
        try:
            deleted = self.wal.collect(needed_from)
        except DISK_ERRORS:
            return
        assert names - {info.name for info in self.disk.list()} <= set(deleted)

    def end(self, how: Callable[[SimDisk], None]) -> None:
        how(self.disk)
        self.open()

    def finish(self) -> None:
        """Once all faults are over, writing goes on, and nothing but the last segment stays."""
        self.end(SimDisk.crash)
        for _ in range(FAULTS_MAX):
            self.write(9)
            self.wal.roll()
            self.drain()
            self.collect(POSITION_MAX)
        assert self.last in self.kept
        (last,) = self.wal.segments()
        assert [info.name for info in self.disk.list()] == [last.name]
        self.close()
        self.end(SimDisk.crash)

    def close(self) -> None:
        try:
            self.wal.close()
        except DISK_ERRORS:
            return
        self._settle_unknown()

    def _settle_unknown(self) -> None:
        self.never |= self.unknown
        self.unknown.clear()

    def take_durable(
        self, group: Sequence[LogEntry], upto: Position, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        assert self.lock.is_held
        assert upto == self.wal.end > self.tracker.durable
        txns = [entry.record.txn for entry in group]
        assert not any(self.futures[txn].done() for txn in txns), "told the writer first"
        self.announced |= set(txns)
        position = upto
        for entry in reversed(group):
            position = Position(position - entry.size_bytes)
            self.positions[entry.record.txn] = position
        decided = self.tracker.take_durable(group, upto, undecided)
        self._decided += self._undecided[: len(group)]
        del self._undecided[: len(group)]
        assert [txn for _, txn in self._undecided] == [entry.record.txn for entry in undecided]
        self._check_visible()
        return decided

    def take_failed(self, entries: Sequence[LogEntry], error: StelaeError) -> None:
        assert self.lock.is_held
        assert self.wal.queued_bytes == 0
        assert not any(self.futures[entry.record.txn].done() for entry in entries)
        self.failed |= {entry.record.txn for entry in entries}
        self.tracker.take_failed(entries)
        self._undecided.clear()
        self._check_visible()

    def _check_visible(self) -> None:
        """By the plain rule: up to the greatest that is decided, and below the least that is not; never back."""
        for tablet in (None, *TABLETS):
            decided, undecided = (
                [txn for of, txn in some if tablet in (None, of)] for some in (self._decided, self._undecided)
            )
            if decided:
                now = min(max(decided), min(undecided, default=TXN_MAX + 1) - 1)
                self._visible[tablet] = max(self._visible.get(tablet, Txn(0)), Txn(now))
            found = self.tracker.visible if tablet is None else self.tablets[tablet].visible
            assert found == self._visible.get(tablet, 0)

    def _told(self, txn: Txn, future: Future[Txn]) -> None:
        if self.effects.is_dead:
            return
        error = future.exception()
        self._expect(not self.lock.is_held, "a writer was told under the lock")
        self._told_of.append(txn)
        self._expect(self._told_of == list(self.futures)[: len(self._told_of)], "futures out of order")
        self._expect((error is None) == (txn not in self.failed), "the writer and the shard were told different things")
        self.errors.add(type(error))
        if error is None:
            self._expect(future.result() == txn and txn in self.announced, "a writer was told before the shard")
            self.kept.add(txn)
            self._settle_unknown()
        elif "never" in str(error):
            self.never.add(txn)
        else:
            self._expect("not known" in str(error), f"an unclear error: {error}")
            self.unknown.add(txn)

    def _expect(self, is_so: bool, otherwise: str) -> None:
        """An assertion in a future's callback would be swallowed."""
        if not is_so:
            self.wrong.append(otherwise)
