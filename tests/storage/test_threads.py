"""The engine with real threads, on real files: writers, readers, flushes, compactions, splits and joins, all at once.

Rows come in sets. Every block gives all rows of a set, in both groups, the next number of that set, if nobody else has
done so since it looked. So a reader that ever sees two numbers in a set has seen half of a block, or two snapshots; and
if a number were lost, or given twice, the last one would not be the count of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Lock, Semaphore

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.adapters.rng import SystemRng
from stelae.format.block import SmallBlock
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import Conflict, NotFound, Overloaded, TabletAway
from stelae.model.hybrid import HybridClock, micros_of
from stelae.model.ids import Row, TableId, TabletId, Txn
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import ALL_ROWS, EVERYTHING
from stelae.storage.log.wal import WalSettings
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import reader_for
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.shard import Shard, ShardSettings
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.opening import open_shard
from stelae.storage.tablet.state import new_tablet
from stelae.storage.upkeep.picker import PickerSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.storage.upkeep.upkeep import Upkeep
from tests.effort import HANG_S, tries

TABLE = TableId(3)
SCHEMA = declare(
    {"id": "string"},
    [columns("base", {"number": "int64"}), columns("other", {"again": "int64"}), cells("cells", ["seen"])],
)
IDS = {name: SCHEMA.column(name)[1].id for name in ("number", "again")}
SETS = [[SCHEMA.codec.encode((f"{letter}{place}",)) for place in range(4)] for letter in "abcdef"]
SETTINGS = ShardSettings(
    unflushed_bytes_max=60_000,
    log=WalSettings(segment_bytes_max=8_000, group_bytes_max=2_000),
    serializer=SerializerSettings(seal_bytes=8_000, memory_bytes=30_000, log_bytes=30_000),
    picker=PickerSettings(fan_in=2, fan_in_max=4, read_amplification_max=4),
    cache_bytes=100_000,
)
WRITERS, READERS = 4, 2
BLOCKS = tries(50)
"""Nothing is measured by it: only whoever waits for ever fails."""


class Configs:
    def __init__(self) -> None:
        self._lock = Lock()
        self.saved: dict[TabletId, TabletConfig] = {}

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        assert self._lock.acquire(blocking=False), "two threads save at once"
        try:
            self.saved |= {config.tablet: config for config in configs}
            for tablet in removed:
                self.saved.pop(tablet, None)
        finally:
            self._lock.release()


class World:
    def __init__(self, directory: Path, reading: ThreadExecutor) -> None:
        self._directory = directory
        self._reading = reading
        self.configs = Configs()
        self.next_tablet = count(2)
        self.done = Event()
        self.written = Semaphore(0)
        self.resizes = Semaphore(0)
        self.open()
        with self.shard.lock:
            self.shard.install([new_tablet(TabletId(1), TABLE, ALL_ROWS, SCHEMA)])
        self.upkeep.touch([TabletId(1)])
        self.upkeep.save()

    def open(self) -> None:
        saved = list(self.configs.saved.values())
        self.shard: Shard = open_shard(
            LocalLogFiles(str(self._directory / "log")),
            LocalBlobStore(str(self._directory / "blobs")),
            HybridClock(SystemClock().wall_ms),
            SystemRng(),
            self.configs,
            SETTINGS,
            saved,
            lambda _: [SCHEMA],
            reading=self._reading,
        )
        self.upkeep = Upkeep(self.shard, saved)

    def close(self) -> None:
        self.shard.close()
        self.shard.fragments.close()

    # writing

    def write(self, seed: int) -> None:
        for turn in range(BLOCKS):
            self.give_next(SETS[(seed + turn) % len(SETS)])
            self.written.release()
            if turn % 10 == 9:
                self.resizes.release()

    def give_next(self, rows: Sequence[Row]) -> None:
        """Until nobody comes between reading and writing."""
        while True:
            at = self.shard.visible
            try:
                last = self.number_of(rows[0], at)
                commit = self.shard.apply(
                    self.shard.state_at(TABLE, rows[0]).tablet,
                    SmallBlock(SCHEMA.version, block(rows, last + 1)),
                    max_txn=at,
                )
            except (Conflict, TabletAway, NotFound):
                continue
            except Overloaded:
                room = self.shard.when_room()  # asked for before anything can make it
                self.written.release()
                room.result(timeout=HANG_S)
                continue
            self.shard.drain()
            assert commit.durable.result(timeout=HANG_S) == commit.txn <= self.shard.visible
            return

    def number_of(self, row: Row, at: Txn) -> int:
        state = self.shard.state_at(TABLE, row)
        asking = Asking(at, state.floor_at(at), micros_of(at))
        values = reader_for(state, self.shard.fragments, ALL_COLUMNS).newest(row, asking)
        return 0 if values is None else int(values["number"] or 0)

    # reading

    def read(self) -> int:
        """How often: each set has one number at each snapshot, which never gets smaller, and is the same a second
        time."""
        turns, last = 0, [0] * len(SETS)
        while not self.done.is_set() or turns < 3:
            at = self.shard.visible
            with self.shard.pinned(at, TABLE):
                found = self.numbers(at, reverse=bool(turns % 2))
                assert all(now >= before for now, before in zip(found, last, strict=True))
                assert self.numbers(at, reverse=not turns % 2) == found
            last = found
            turns += 1
        return turns

    def numbers(self, at: Txn, *, reverse: bool = False) -> list[int]:
        """One for each set."""
        seen: dict[str, set[object]] = {}
        rows: list[str] = []
        request = ScanRequest(EVERYTHING, ALL_COLUMNS, Asking(at, Txn(0), micros_of(at)), reverse=reverse)
        for batch in TableScan(self.shard, TABLE, SCHEMA, request):
            for record in batch.batch.to_pylist():
                rows.append(record["id"])
                cell = int(dict(record["seen"])["number"])
                seen.setdefault(record["id"][0], set()).update((record["number"], record["again"], cell))
        assert rows == sorted(rows, reverse=reverse)
        assert len(rows) == 4 * len(seen)
        assert all(len(numbers) == 1 for numbers in seen.values()), seen
        return [int(str(seen.get(letter, {0}).pop())) for letter in "abcdef"]

    # upkeep

    def flush(self) -> int:
        """Some blocks at a time, as they come."""
        flushed = 0
        while not self.done.is_set():
            self.written.acquire(timeout=HANG_S)
            while (memory := self.upkeep.pick_flush()) is not None:
                flushed += bool(self.upkeep.flush(memory))
            self.upkeep.save()
            self.upkeep.collect_log()
        return flushed

    def compact(self) -> int:
        """Everywhere, in turn; the horizon follows."""
        compacted = 0
        while not self.done.is_set():
            self.written.acquire(timeout=HANG_S)
            self.shard.advance_horizon(TABLE, self.shard.visible)
            for tablet in list(self.shard.tablets()):
                try:
                    found = self.upkeep.pick_compaction(tablet)
                    if found is not None:
                        compacted += self.upkeep.compact(tablet, *found) is not None
                except (TabletAway, NotFound):
                    continue
            self.upkeep.save()
            self.upkeep.collect_files()
        return compacted

    def resize(self) -> int:
        """Splits between sets, and joins."""
        for turn in count():
            if self.done.is_set():
                return turn
            self.resizes.acquire(timeout=HANG_S)
            with self.shard.lock:
                states = sorted(self.shard.tablets().values(), key=lambda state: state.rows.start)
                at = SETS[1 + turn % (len(SETS) - 1)][0]
                state = self.shard.state_at(TABLE, at)
                if len(states) > 3:
                    left = turn % (len(states) - 1)
                    pair = states[left].tablet, states[left + 1].tablet
                    self.upkeep.join(*pair, TabletId(next(self.next_tablet)))
                elif at > state.rows.start:
                    ids = TabletId(next(self.next_tablet)), TabletId(next(self.next_tablet))
                    self.upkeep.split(state.tablet, at, *ids)
            self.upkeep.save()
        raise AssertionError("a count has no end")


def block(rows: Sequence[Row], number: int) -> tuple[Mutation, ...]:
    puts = [Put(row, tuple((id_, number) for id_ in IDS.values())) for row in rows]
    return (*puts, *(PutCell(row, "seen", "number", str(number).encode()) for row in rows))


@contextmanager
def executor() -> Iterator[ThreadExecutor]:
    made = ThreadExecutor(workers=2, queued_max=100)
    try:
        yield made
    finally:
        made.close()


def test_all_at_once(tmp_path: Path) -> None:
    with executor() as reading, ThreadPoolExecutor(WRITERS + READERS + 3) as threads:
        world = World(tmp_path, reading)
        upkeep: list[Callable[[], int]] = [world.flush, world.compact, world.resize]
        others = [threads.submit(work) for work in [*upkeep, *[world.read] * READERS]]
        writers = [threads.submit(world.write, seed) for seed in range(WRITERS)]
        try:
            for writer in writers:
                writer.result(timeout=HANG_S)
        finally:
            world.done.set()
            world.written.release(100)
            world.resizes.release()
        for other in others:
            assert other.result(timeout=HANG_S) > 0
        written = world.numbers(world.shard.visible)
        assert sum(written) == WRITERS * BLOCKS
        world.close()
        world.open()
        assert world.numbers(world.shard.visible) == written
        world.close()
