"""Groups, segments, collection, the end of the log and its replay; threads on real files."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from stelae.adapters.logfiles.local import LocalLogFile, LocalLogFiles
from stelae.format.log.layout import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from stelae.format.log.positions import (
    POSITION_MAX,
    POSITION_MIN,
    Position,
    SegmentId,
    position_at,
    segment_name,
    segment_of,
)
from stelae.format.log.records import LogRecord, SegmentEnd
from stelae.format.log.writer import SegmentWriter
from stelae.model.errors import Closed, Corruption, DiskFailed, DiskFull, InvalidArgument, Unavailable
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import Txn
from stelae.sim.disk import SimDisk
from stelae.sim.effects import Effects
from stelae.sim.rng import SimRng
from stelae.storage.log.commits import TabletCommits
from stelae.storage.log.replay import ReplayedLog, replay
from stelae.storage.log.wal import Wal, WalSettings
from tests.effort import HANG_S
from tests.storage.wal_world import SMALL, Heard, Lock, World, record, records_of


def test_the_empty_directory_is_an_empty_log() -> None:
    disk = SimDisk(SimRng(0))
    log = replay(disk)
    assert list(log) == []
    assert (log.segments, log.end, log.last_txn, log.leftovers) == ((), None, 0, ())
    wal = Wal(disk, threading.Lock(), SMALL, Heard(), log)
    wal.close()
    assert disk.list() == []


def test_groups_are_synced_once_and_segments_roll_by_size() -> None:
    happened: list[str] = []
    disk = SimDisk(SimRng(0), effects=Effects(on_effect=lambda effect: happened.append(effect.kind)))
    log = replay(disk)
    assert list(log) == []
    three_groups_bytes = SEGMENT_HEADER_BYTES + 3 * (GROUP_HEADER_BYTES + 10 * 100)
    payload = bytes(100 - RECORD_HEADER_BYTES)
    settings = WalSettings(three_groups_bytes - 1, 1_000)
    wal = Wal(disk, threading.Lock(), settings, Heard(), log)
    futures = [wal.enqueue(record(txn, payload)) for txn in range(10, 50)]
    assert wal.queued_bytes == 40 * 100
    assert wal.end == POSITION_MIN
    assert happened == []
    wal.drain()
    assert [future.result(0) for future in futures] == list(range(10, 50))
    group = ["append", "sync"]
    assert happened == 2 * ["create", *group, *group, *group]
    first, second = wal.segments()
    two_groups_bytes = SEGMENT_HEADER_BYTES + 2 * (GROUP_HEADER_BYTES + 10 * 100)
    assert (first.name, first.begin, first.end) == (
        segment_name(SegmentId(10)),
        position_at(1, 0),
        position_at(1, two_groups_bytes),
    )
    assert (second.name, second.begin, second.end) == (
        segment_name(SegmentId(30)),
        position_at(2, 0),
        position_at(2, two_groups_bytes),
    )
    assert [info.is_active for info in wal.segments()] == [False, True]
    assert wal.end == second.end
    assert [(info.name, info.size_bytes) for info in wal.segments()] == [
        (info.name, info.size_bytes) for info in disk.list()
    ]
    wal.enqueue(record(50, bytes(9_000)))
    wal.enqueue(record(51, bytes(1)))
    wal.drain()
    assert [info.begin for info in wal.segments()] == [position_at(number, 0) for number in (1, 2, 3, 4)]
    assert all(info.has_records for info in wal.segments())


def test_collect_deletes_a_prefix_of_what_nobody_needs() -> None:
    world = World(0)
    for _ in range(4):
        world.write(50, 350)
    first, second, third, active = world.wal.segments()
    assert world.wal.collect(Position(first.end - 1)) == ()
    assert world.wal.collect(Position(second.end - 1)) == (first.name,)
    assert world.wal.collect(second.begin) == ()
    assert world.wal.collect(POSITION_MAX) == (second.name, third.name)
    assert world.wal.segments() == (active,)
    world.wal.roll()
    assert world.wal.collect(POSITION_MAX) == ()
    world.drain()
    assert world.wal.collect(POSITION_MAX) == (active.name,)
    (empty,) = world.wal.segments()
    assert (empty.has_records, empty.is_active) == (False, True)
    assert empty.name > segment_name(SegmentId(max(world.payloads)))
    assert empty.begin > active.end
    world.wal.roll()
    world.drain()
    assert world.wal.segments() == (empty,)
    world.write(2 * SMALL.segment_bytes_max)
    assert [info.name for info in world.wal.segments()] == [empty.name]


def test_an_empty_segment_between_two_that_are_needed_stays() -> None:
    world = World(0)
    world.write(5)
    world.end(SimDisk.kill)
    world.close()
    world.end(SimDisk.kill)
    world.write(5)
    first, empty, _ = world.wal.segments()
    assert not empty.has_records
    assert world.wal.collect(Position(first.end - 1)) == ()
    assert world.wal.collect(first.end) == (first.name, empty.name)


def test_a_segment_from_before_the_restart_can_be_rolled_and_collected() -> None:
    world = World(0)
    world.write(5)
    world.close()
    world.end(SimDisk.kill)
    (old,) = world.wal.segments()
    assert not old.is_active
    assert world.wal.collect(POSITION_MAX) == ()
    world.wal.roll()
    world.drain()
    assert world.wal.collect(POSITION_MAX) == (old.name,)


def test_a_roll_that_the_disk_refuses_is_done_by_a_later_drain() -> None:
    world = World(0)
    world.write(5)
    world.wal.roll()
    world.disk.fail("create", DiskFull)
    world.drain()
    assert [info.is_active for info in world.wal.segments()] == [False]
    world.drain()
    assert [info.is_active for info in world.wal.segments()] == [False, True]


def test_sync_tells_of_the_last_record() -> None:
    world = World(0)
    assert world.wal.sync().result(0) == 0
    world.enqueue()
    last = world.enqueue()
    waiting = world.wal.sync()
    assert not waiting.done()
    world.drain()
    assert waiting.result(0) == world.wal.sync().result(0) == last
    world.disk.fail("sync", DiskFailed)
    world.enqueue(200)
    world.enqueue(200)
    waiting = world.wal.sync()
    world.drain()
    with pytest.raises(DiskFailed):
        waiting.result(0)
    with pytest.raises(Unavailable, match="was not made durable"):
        world.wal.sync().result(0)
    again = world.enqueue()
    world.drain()
    assert world.wal.sync().result(0) == again


def test_whoever_asks_for_a_txn_waits_for_the_last_record_at_or_below() -> None:
    wal = Wal(disk := SimDisk(SimRng(0)), threading.Lock(), SMALL, Heard(), finished(disk))
    assert wal.last_undecided(TXN_MAX) is None
    futures = {txn: wal.enqueue(record(txn), (TabletCommits(),)) for txn in (20, 5, 30, 10, 25)}
    for at, last in ((4, None), (5, 5), (9, 5), (10, 10), (24, 10), (25, 25), (TXN_MAX, 25)):
        assert wal.last_undecided(Txn(at)) is (None if last is None else futures[last])
    wal.drain()
    assert wal.last_undecided(TXN_MAX) is None


def test_txns_come_in_any_order_until_the_log_is_closed() -> None:
    disk = SimDisk(SimRng(0))
    wal = Wal(disk, threading.Lock(), SMALL, Heard(), finished(disk))
    txns = [7, 3, 9, 3, 0, TXN_MAX - 1, 8]
    futures = [wal.enqueue(record(txn)) for txn in txns]
    with pytest.raises(InvalidArgument, match="not a txn"):
        wal.enqueue(record(TXN_MAX + 1))
    assert not futures[0].cancel()
    wal.close()
    wal.close()
    assert [future.result(0) for future in futures] == txns
    with pytest.raises(Closed):
        wal.enqueue(record(10))
    wal.roll()
    wal.drain()
    assert not any(info.is_active for info in wal.segments())
    log = replay(disk)
    assert [entry.txn for entry in records_of(log)] == txns
    assert log.last_txn == TXN_MAX - 1


def finished(disk: SimDisk) -> ReplayedLog:
    log = replay(disk)
    assert records_of(log) == []
    return log


def files_of(disk: SimDisk) -> dict[str, bytes]:
    return {info.name: disk.read(info.name) for info in disk.list()}


def disk_of(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk(SimRng(1))
    for name, data in files.items():
        file = disk.create(name)
        file.append(data)
        file.sync()
        file.close()
    return disk


def test_corruption_leaves_every_file_alone() -> None:
    world = World(0)
    for _ in range(3):
        world.write(600)
    files = files_of(world.disk)
    newest = max(files)
    files[newest] += b"torn tail"
    files[segment_name(SegmentId(10_000))] = b"torn header"
    for name in files:
        broken = dict(files)
        broken[name] = broken[name][:100] + b"!" + broken[name][101:]
        disk = disk_of(broken)
        if name < newest:
            with pytest.raises(Corruption, match=name):
                list(replay(disk))
            assert files_of(disk) == broken
        else:
            list(replay(disk))
            assert len(disk.list()) == 3


def test_the_torn_tail_is_cut_and_what_the_chain_passes_over_is_deleted() -> None:
    world = World(0)
    world.write(602)
    world.count += 16
    world.write(602)
    first, last = files_of(world.disk).items()
    name = SegmentId(segment_of(first[0]) + 1)
    between = SegmentWriter(name, SegmentEnd(segment_of(first[0]), len(first[1])))
    passed_over = between.start() + between.group([record(101)])
    disk = disk_of(dict([first, last]) | {segment_name(name): passed_over, "0000000000001000.log": b"torn"})
    disk = disk_of(files_of(disk) | {last[0]: last[1] + b"tail"})
    disk.fail("delete", DiskFailed)
    log = replay(disk)
    assert [entry.txn for entry in records_of(log)] == list(world.payloads)
    assert disk.read(last[0]) == last[1]
    assert log.leftovers == (segment_name(name),)
    assert log.last_txn == 0x1000
    wal = Wal(disk, threading.Lock(), SMALL, Heard(), log)
    assert wal.collect(POSITION_MIN) == log.leftovers
    assert files_of(disk) == dict([first, last])


def test_what_a_log_was_closed_with_is_never_taken_for_a_torn_tail() -> None:
    for is_closed_before in (True, False):
        world = World(0)
        world.write(5, 6)
        if is_closed_before:
            world.close()
        whole = files_of(world.disk)
        world.end(SimDisk.kill)
        world.close()
        reopened = files_of(world.disk)
        (name,) = whole
        assert not is_closed_before or breaks(whole, name) == {"corrupt"}
        assert is_closed_before or breaks(whole, name) == {"torn"}
        assert breaks(reopened, name) == {"corrupt"}
        world.end(SimDisk.kill)
        world.close()
        assert files_of(world.disk) == reopened, "opening and closing must not add files for ever"


def breaks(files: dict[str, bytes], name: str) -> set[str]:
    """How replay takes a flipped bit in the first and the last record."""
    found = set()
    records = [files[name].rindex(b"\xa5"), files[name].index(b"\xa5")]
    for place in records:
        data = bytearray(files[name])
        data[place] ^= 1
        try:
            assert len(records_of(replay(disk_of(files | {name: bytes(data)})))) < 2
            found.add("torn")
        except Corruption:
            found.add("corrupt")
    return found


def test_a_log_is_replayed_once_and_to_its_end_before_it_is_written() -> None:
    world = World(0)
    world.write(5, 6)
    world.end(SimDisk.kill)
    log = replay(world.disk)
    next(iter(log))
    with pytest.raises(InvalidArgument, match="replayed to its end"):
        Wal(world.disk, threading.Lock(), SMALL, Heard(), log)
    with pytest.raises(InvalidArgument, match="once"):
        list(log)


class CountingFiles(LocalLogFiles):
    """Knows how many records were in memory when a whole segment was read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.in_memory: list[int] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is None:
            self.in_memory.append(sum(isinstance(thing, LogRecord) for thing in gc.get_objects()))
        return super().read(name, offset, length)


def test_what_was_given_out_is_not_kept_in_memory(tmp_path: Path) -> None:
    files = CountingFiles(tmp_path)
    log = replay(files)
    assert list(log) == []
    wal = Wal(files, threading.Lock(), WalSettings(3_000, 1_000), Heard(), log)
    for txn in range(1, 101):
        wal.enqueue(record(txn, bytes(30)))
    wal.drain()
    wal.close()
    del wal
    before = sum(isinstance(thing, LogRecord) for thing in gc.get_objects())
    runs, count = iter(replay(files)), 0
    while (run := next(runs, None)) is not None:
        count += len(run.records)
        del run
    assert count == 100
    assert len(files.in_memory) >= 4, "a segment for each three thousand bytes, more if the writer's groups were small"
    assert max(files.in_memory) - before <= 1


def ended(thread: threading.Thread) -> None:
    thread.join(HANG_S)
    assert not thread.is_alive(), "it waits for what never comes"


def test_threads_that_write_and_drain_at_once(tmp_path: Path) -> None:
    files = LocalLogFiles(tmp_path)
    log = replay(files)
    assert list(log) == []
    lock = threading.Lock()
    heard = Heard()
    wal = Wal(files, lock, WalSettings(20_000, 2_000), heard, log)
    commits = TabletCommits()
    txns = iter(range(1, 10_000))
    wrong: list[str] = []

    def writer() -> None:
        for _ in range(150):
            with lock:
                entry = record(next(txns), bytes(100))
                future = wal.enqueue(entry, (commits,))
            wal.drain()
            if not future.done():
                wrong.append("drained, and yet not decided")
            elif heard.commits.visible < future.result(0):
                wrong.append("synced, and yet not visible")

    threads = [threading.Thread(target=writer, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        ended(thread)
    assert wrong == []
    assert heard.durable == sorted(set(heard.durable))
    assert heard.durable[-1] == wal.end
    assert heard.commits.visible == 300
    wal.close()
    assert wal.collect(wal.segments()[-1].begin) != ()
    found = [entry.txn for entry in records_of(replay(files))]
    assert found == list(range(found[0], 301))
    assert found[0] > 1


class GatedFile(LocalLogFile):
    files: GatedFiles

    def sync(self) -> None:
        self.files.arrived.release()
        self.files.gate.acquire()
        if self.files.is_broken:
            raise DiskFailed("this disk is broken")
        super().sync()


class GatedFiles(LocalLogFiles):
    """Every sync waits to be let through."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.is_broken = False
        self.created: list[LocalLogFile] = []

    def create(self, name: str) -> LocalLogFile:
        file = super().create(name)
        file.__class__ = GatedFile
        file.files = self  # type: ignore[attr-defined]
        self.created.append(file)
        return file


def test_a_second_drain_waits_for_what_it_saw_and_no_longer(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path)
    log = replay(files)
    assert list(log) == []
    lock = Lock()
    wal = Wal(files, lock, WalSettings(group_bytes_max=1), Heard(), log)
    with lock:
        futures = [wal.enqueue(record(txn)) for txn in (1, 2)]
    first, second = (threading.Thread(target=job, daemon=True) for job in (wal.drain_all, wal.drain))
    first.start()
    files.gate.release(2)
    assert futures[0].result(HANG_S) == 1
    second.start()
    lock.wait_until_left_by(second)
    for _ in range(3):
        files.arrived.acquire()
    assert not wal.sync().done()
    assert wal.queued_bytes > 0
    with lock:
        futures.append(wal.enqueue(record(3)))
    files.gate.release()
    ended(second)
    assert futures[1].done()
    assert not futures[2].done()
    assert first.is_alive()
    files.gate.release()
    ended(first)
    assert futures[2].done()
    files.gate.release()
    wal.close()


class Left:
    """Of somebody's time."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s


def gated_wal(directory: Path) -> tuple[Wal, GatedFiles, threading.Semaphore]:
    """A log of one record in each group, its files, and how often it called for its own thread."""
    files, called = GatedFiles(directory), threading.Semaphore(0)
    log = replay(files)
    assert list(log) == []
    wal = Wal(files, threading.Lock(), WalSettings(group_bytes_max=1), Heard(), log)
    wal.on_left = called.release
    return wal, files, called


def test_nobody_writes_what_others_bring_after_its_own(tmp_path: Path) -> None:
    wal, files, called = gated_wal(tmp_path)
    mine = wal.enqueue(record(1))
    first = threading.Thread(target=wal.drain, daemon=True)
    first.start()
    files.arrived.acquire()
    others = [wal.enqueue(record(txn)) for txn in (2, 3)]
    files.gate.release(2)  # the first segment's header is synced, too
    ended(first)
    assert mine.result(0) == 1
    assert not any(future.done() for future in others)
    assert called.acquire(blocking=False), "the log's own thread was called for the others"
    files.gate.release(2)
    wal.drain_all()
    assert [future.result(0) for future in others] == [2, 3]
    assert not called.acquire(blocking=False)
    files.gate.release()
    wal.close()


def test_the_turn_goes_to_a_thread_that_waits(tmp_path: Path) -> None:
    wal, files, called = gated_wal(tmp_path)
    wal.enqueue(record(1))
    first, second = (threading.Thread(target=wal.drain, daemon=True) for _ in range(2))
    first.start()
    files.arrived.acquire()
    waiting = wal.enqueue(record(2))
    second.start()
    while not wal._waiting:
        assert second.is_alive()
    files.gate.release(2)
    ended(first)
    assert not waiting.done()
    files.gate.release()
    ended(second)
    assert waiting.result(0) == 2
    assert not called.acquire(blocking=False)
    files.gate.release()
    wal.close()


def test_who_has_no_time_left_writes_one_group_and_leaves_the_rest(tmp_path: Path) -> None:
    wal, files, called = gated_wal(tmp_path)
    futures = [wal.enqueue(record(txn)) for txn in (1, 2, 3)]
    files.gate.release(20)
    wal.drain(Left(0))
    assert [future.done() for future in futures] == [True, False, False]
    assert called.acquire(blocking=False)
    wal.drain(Left(1))
    assert all(future.done() for future in futures)
    assert not called.acquire(blocking=False)
    wal.close()


def test_what_a_thread_leaves_that_gave_up_waiting_is_called_for(tmp_path: Path) -> None:
    wal, files, called = gated_wal(tmp_path)
    wal.enqueue(record(1))
    first = threading.Thread(target=wal.drain, daemon=True)
    first.start()
    files.arrived.acquire()
    given_up = wal.enqueue(record(2))
    wal.drain(Left(0))
    assert not called.acquire(blocking=False), "another thread has the turn, and looks when it gives it back"
    files.gate.release(20)
    ended(first)
    assert not given_up.done()
    assert called.acquire(blocking=False)
    wal.drain_all()
    assert given_up.result(0) == 2
    wal.close()


def test_what_an_interrupted_thread_leaves_is_called_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal, files, called = gated_wal(tmp_path)
    files.gate.release(20)
    wal.enqueue(record(1))

    def interrupted(_: float | None = None) -> None:
        wal._taken = False
        raise KeyboardInterrupt

    monkeypatch.setattr(wal, "_wait", interrupted)
    wal._taken = True
    with pytest.raises(KeyboardInterrupt):
        wal.drain()
    assert called.acquire(blocking=False)
    wal.close()


def test_what_a_callback_adds_is_called_for(tmp_path: Path) -> None:
    wal, files, called = gated_wal(tmp_path)
    files.gate.release(20)
    added: list[Future[Txn]] = []
    wal.enqueue(record(1)).add_done_callback(lambda _: added.append(wal.enqueue(record(2))))
    wal.drain()
    assert not added[0].done()
    assert called.acquire(blocking=False)
    wal.drain_all()
    assert added[0].result(0) == 2
    wal.close()


def test_failures_leave_no_file_open(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path)
    files.gate.release(20)
    log = replay(files)
    assert list(log) == []
    wal = Wal(files, threading.Lock(), WalSettings(), Heard(), log)
    for txn, files.is_broken in ((1, True), (2, False), (3, True), (4, False)):
        future = wal.enqueue(record(txn))
        wal.drain()
        assert isinstance(future.exception(), DiskFailed) == files.is_broken
    wal.close()
    for file in files.created:
        with pytest.raises(Closed):
            file.append(b"")
    assert [entry.txn for entry in records_of(replay(files))] == [2, 4]
