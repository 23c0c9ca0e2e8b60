"""A log on a simulated disk, held against what its writers were told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from stelae.format.log import LogKind, LogRecord
from stelae.model.errors import DiskFailed, DiskFull, StelaeError
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import ClientId, Epoch, TableId, TabletId, Txn
from stelae.model.ids import Sequence as ClientSequence
from stelae.sim.disk import DiskCall, SimDisk
from stelae.sim.effects import Effects, SimCrash
from stelae.sim.rng import SimRng
from stelae.storage.log.replay import ReplayedLog, replay
from stelae.storage.log.wal import Wal, WalSettings

PAGES = (4096, 64, 256)
"""On large pages, what was not synced more often survives whole."""
SMALL = WalSettings(segment_bytes_max=700, group_bytes_max=250)
DISK_CALLS: tuple[DiskCall, ...] = ("create", "append", "sync", "truncate", "delete")
DISK_ERRORS = (DiskFull, DiskFailed)
FAULTS_MAX = 10


def record(txn: int, payload: bytes = b"payload") -> LogRecord:
    ids = TableId(1), TabletId(2), Epoch(3), Txn(txn), ClientId(4), ClientSequence(txn)
    return LogRecord(LogKind.BLOCK, *ids, payload)


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
    """A log on a simulated disk, and what everybody was told about each txn."""

    def __init__(
        self, seed: int, settings: WalSettings = SMALL, dies_by: Callable[[SimDisk], None] = SimDisk.crash
    ) -> None:
        self.effects = Death()
        self.disk = SimDisk(SimRng(seed), page_bytes=PAGES[seed % len(PAGES)], effects=self.effects)
        self.dies_by = dies_by
        self.settings = settings
        self.payloads: dict[Txn, bytes] = {}
        self.kept: set[Txn] = set()
        self.never: set[Txn] = set()
        self.unknown: set[Txn] = set()
        self.failed: set[Txn] = set()
        self.errors: set[type[object]] = set()
        self.needed_from = Txn(0)
        self.next_txn = 100
        self.wrong: list[str] = []
        self.open()

    def open(self) -> None:
        """Replay, as often as the disk lets the process die or fail in it, and go on."""
        assert self.wrong == []
        log = self._replay()
        self.lock = Lock()
        self.futures: dict[Txn, Future[Txn]] = {}
        self._told_last = Txn(0)
        self.announced = Txn(0)
        self.next_txn = max(self.next_txn, log.last_txn + 1)
        self.wal = Wal(self.disk, self.lock, self.settings, self._on_durable, self._on_failed, log)

    def _replay(self) -> ReplayedLog:
        while True:
            log = replay(self.disk)
            try:
                found = list(log)
            except SimCrash:
                self.dies_by(self.disk)
            except DISK_ERRORS:
                self.disk.crash()
            else:
                self._judge(found)
                return log

    def _judge(self, found: list[LogRecord]) -> None:
        txns = [entry.txn for entry in found]
        assert txns == sorted(set(txns)), "a record twice or out of order"
        assert {entry.txn: entry.payload for entry in found}.items() <= self.payloads.items(), "an invented record"
        lost = {txn for txn in self.kept if txn >= self.needed_from} - set(txns)
        assert not lost, "an acknowledged record is lost"
        assert not self.never & set(txns), "a failed record came back"
        self.kept = set(txns)
        self.unknown.clear()
        self.never |= {txn for txn in self.payloads if txn >= self.needed_from} - set(txns)

    def enqueue(self, size: int = 7) -> Txn:
        txn = Txn(self.next_txn)
        self.next_txn += 1 + size % 3
        self.payloads[txn] = txn.to_bytes(8) + b"\xa5" * size
        with self.lock:
            self.futures[txn] = self.wal.enqueue(record(txn, self.payloads[txn]))
        self.futures[txn].add_done_callback(lambda future: self._told(txn, future))
        return txn

    def drain(self) -> None:
        self.wal.drain()
        assert self.wrong == []
        assert all(future.done() for future in self.futures.values())
        assert self.wal.queued_bytes == 0
        assert self.wal.durable == max(self.futures, default=self.wal.durable)

    def write(self, *sizes: int) -> None:
        for size in sizes:
            self.enqueue(size)
        self.drain()

    def collect(self, needed_from: Txn) -> None:
        self.needed_from = max(self.needed_from, needed_from)
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
            self.collect(TXN_MAX)
        assert max(self.payloads) in self.kept
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

    def _on_durable(self, txn: Txn) -> None:
        assert self.lock.is_held
        assert self.wal.durable == txn
        assert not self.futures[txn].done(), "told the writer first"
        assert txn > self.announced
        self.announced = txn

    def _on_failed(self, records: Sequence[LogRecord], error: StelaeError) -> None:
        assert self.lock.is_held
        assert self.wal.durable == records[-1].txn
        assert self.wal.queued_bytes == 0
        assert not any(self.futures[entry.txn].done() for entry in records)
        self.failed |= {entry.txn for entry in records}

    def _told(self, txn: Txn, future: Future[Txn]) -> None:
        if self.effects.is_dead:
            return
        error = future.exception()
        self._expect(not self.lock.is_held, "a writer was told under the lock")
        self._expect(txn > self._told_last, "futures out of order")
        self._expect((error is None) == (txn not in self.failed), "the writer and the shard were told different things")
        self._told_last = txn
        self.errors.add(type(error))
        if error is None:
            self._expect(future.result() == txn <= self.announced, "a writer was told before the shard")
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
