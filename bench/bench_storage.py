"""The storage engine at its own edge, against the plain tools for the same work, on the same data in one run.

    python bench/bench_storage.py [--records 1000000] [--rounds 3] [--growth]

Prints a table of ratios (higher is better, 1.0 is the peer) and writes the same to bench/results/storage.json. Rounds
alternate between us and the peer; the best of each counts, since noise only ever adds. `--growth` adds how each figure
changes from 0.1 to 10 million records and with 1 to 16 fragments (about ten minutes).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row as BenchRow
from harness import best, report
from rocksdict import Options, Rdict, WriteOptions

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.adapters.rng import SystemRng
from stelae.format.block import SmallBlock
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.format.layout import user_field
from stelae.model.declare import columns, declare
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, SchemaVersion, TableId, TabletId
from stelae.model.mutation import Put
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import ALL_ROWS, EVERYTHING
from stelae.model.schema import TableSchema
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import reader_for
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.shard import Shard, ShardSettings
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.opening import open_shard
from stelae.storage.tablet.state import new_tablet
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.storage.upkeep.upkeep import Upkeep

TABLE, TABLET = TableId(1), TabletId(1)
KEY_BYTES, VALUE_BYTES = 24, 50
BATCH = 20_000
NEVER_FLUSH = SerializerSettings(seal_bytes=2**40, memory_bytes=2**40, log_bytes=2**40)
UNBOUNDED = ShardSettings(unflushed_bytes_max=2**40, cache_bytes=2**30, serializer=NEVER_FLUSH)
DEFAULTS = ShardSettings()


class Configs:
    def __init__(self) -> None:
        self.saved: dict[TabletId, TabletConfig] = {}

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        self.saved |= {config.tablet: config for config in configs}
        for tablet in removed:
            self.saved.pop(tablet, None)


class Store:
    """One tablet on a real disk."""

    def __init__(self, place: Path, schema: TableSchema, executor: ThreadExecutor, settings: ShardSettings) -> None:
        self.place = place
        self.settings = settings
        self.schema = schema
        self.configs = Configs()
        self.executor = executor
        self.open()
        with self.shard.lock:
            self.shard.install([new_tablet(TABLET, TABLE, ALL_ROWS, schema)])
        self.upkeep.touch([TABLET])
        self.upkeep.save()

    def open(self) -> None:
        saved = list(self.configs.saved.values())
        self.shard: Shard = open_shard(
            LocalLogFiles(self.place / "log"),
            LocalBlobStore(self.place / "blobs"),
            HybridClock(SystemClock().wall_ms),
            SystemRng(),
            self.configs,
            self.settings,
            saved,
            lambda _: [self.schema],
            reading=self.executor,
        )
        self.upkeep = Upkeep(self.shard, saved)

    def put(self, table: pa.Table) -> None:
        """Sorted rows, as columnar blocks."""
        for batch in table.combine_chunks().to_batches(max_chunksize=BATCH):
            self.shard.apply(TABLET, ColumnarBlock(self.schema.version, ColumnarOp.PUT, True, batch))
        self.shard.drain()

    def flush(self) -> None:
        self.upkeep.seal(TABLET)
        for memory in self.shard.state(TABLET).memories[:-1]:
            self.upkeep.flush(memory)
        self.upkeep.save()
        self.upkeep.collect_log()

    def compact(self) -> None:
        found = self.upkeep.pick_compaction(TABLET, whole_group=True)
        if found is not None:
            self.upkeep.compact(TABLET, *found)
            self.upkeep.save()
            self.upkeep.collect_files()

    def scan(self) -> int:
        request = ScanRequest(EVERYTHING, ALL_COLUMNS, self.asking())
        return sum(batch.batch.num_rows for batch in TableScan(self.shard, TABLE, self.schema, request))

    def asking(self) -> Asking:
        at = self.shard.visible
        return Asking(at, self.shard.state(TABLET).floor_at(at), 0)  # type: ignore[arg-type]

    def files(self) -> list[Path]:
        return [self.place / "blobs" / name for name in self.shard.state(TABLET).files()]


def schema_of(count: int) -> TableSchema:
    group = columns("data", {f"c{n}": "binary" for n in range(count)})
    return declare({"key": "binary"}, [group])


def rows_of(schema: TableSchema, numbers: np.ndarray[Any, Any], value_bytes: int, seed: int) -> pa.Table:
    """Rows with these numbers as keys, which must ascend."""
    chance = np.random.default_rng(seed)
    count = len(numbers)
    digits = np.char.zfill(numbers.astype("S20"), 20)
    matrix = np.frombuffer(digits.tobytes(), np.uint8).reshape(count, 20)
    keys = np.concatenate([np.tile(np.frombuffer(b"user", np.uint8), (count, 1)), matrix], axis=1)
    fields = [user_field(c.name, pa.binary(), c.id, nullable=False) for c in schema.key]
    arrays = [_binary(keys)]
    for column in schema.groups[0].columns:  # type: ignore[union-attr]
        fields.append(user_field(column.name, pa.binary(), column.id, nullable=True))
        arrays.append(_binary(np.frombuffer(chance.bytes(count * value_bytes), np.uint8).reshape(count, value_bytes)))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _binary(matrix: np.ndarray[Any, Any]) -> pa.Array:
    count, width = matrix.shape
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    )


@contextmanager
def store(schema: TableSchema, settings: ShardSettings | None = None) -> Iterator[Store]:
    executor = ThreadExecutor(2, 1_000)
    with tempfile.TemporaryDirectory() as place:
        opened = Store(Path(place), schema, executor, settings or UNBOUNDED)
        try:
            yield opened
        finally:
            opened.shard.close()
            executor.close()


def merge(records: int, runs: int, rounds: int, wanted: float | None = 0.8) -> BenchRow:
    """Sorted runs on disk into one fragment; the peer reads the same files, sorts and writes them."""
    schema = schema_of(2)
    chance = np.random.default_rng(7)
    ours_s, peer_s = [], []
    for round_ in range(rounds):
        with store(schema) as mine:
            for run in range(runs):
                numbers = np.sort(chance.choice(records * 100, records, replace=False))
                mine.put(rows_of(schema, numbers, VALUE_BYTES, run + round_ * 100))
                mine.flush()
            files = mine.files()
            target = mine.place / "peer.parquet"
            start = time.perf_counter()
            frames = [pl.read_parquet(file) for file in files]
            order = ["key", "_ts", "_txn"]
            pl.concat(frames).sort(order, descending=[False, True, True]).write_parquet(
                target, compression="zstd", compression_level=1
            )
            peer_s.append(time.perf_counter() - start)
            del frames
            start = time.perf_counter()
            mine.compact()
            ours_s.append(time.perf_counter() - start)
    return BenchRow(
        f"merge {runs} runs of {records:,}", min(ours_s), min(peer_s), "polars read, concat, sort, write zstd 1", wanted
    )


def scan_clean(records: int, rounds: int, fragments: int = 1, wanted: float | None = 0.9) -> BenchRow:
    schema = schema_of(2)
    with store(schema) as mine:
        numbers = np.arange(records) * 10
        for part in np.array_split(numbers, fragments):
            mine.put(rows_of(schema, part, VALUE_BYTES, 1))
            mine.flush()
        files = mine.files()
        ours, peer = best(rounds, mine.scan, lambda: [pq.read_table(f, columns=["key", "c0", "c1"]) for f in files])
    return BenchRow(f"scan {records:,} clean, {fragments} fragment(s)", ours, peer, "pyarrow read_table", wanted)


def scan_overwritten(records: int, rounds: int, fragments: int = 2, wanted: float | None = 0.5) -> BenchRow:
    """A tenth of the rows lie in newer runs too; the peer reads the first file, as if it were clean."""
    schema = schema_of(2)
    chance = np.random.default_rng(3)
    with store(schema) as mine:
        numbers = np.arange(records) * 10
        mine.put(rows_of(schema, numbers, VALUE_BYTES, 1))
        mine.flush()
        base = mine.files()[0]
        updated = chance.choice(numbers, records // 10, replace=False)
        for part in np.array_split(updated, max(1, fragments - 1)):
            mine.put(rows_of(schema, np.sort(part), VALUE_BYTES, 2))
            mine.flush()
        ours, peer = best(rounds, mine.scan, lambda: pq.read_table(base, columns=["key", "c0", "c1"]))
    return BenchRow(
        f"scan {records:,}, 10% overwritten in {fragments - 1} run(s)", ours, peer, "pyarrow read_table", wanted
    )


def point(records: int, rounds: int, fragments: int = 1, wanted: float | None = 0.25) -> BenchRow:
    """Hot rows of ten columns: everything is in the cache of both."""
    schema = schema_of(10)
    with store(schema) as mine, tempfile.TemporaryDirectory() as place:
        peer_db = Rdict(place, Options(raw_mode=True))
        numbers = np.arange(records) * 10
        for at, part in enumerate(np.array_split(numbers, fragments)):
            table = rows_of(schema, part, 100, at)
            mine.put(table)
            mine.flush()
            names = table.schema.names
            for row in table.to_pylist():
                peer_db.put(row["key"], b"".join(row[name] for name in names[1:]), write_opt=WriteOptions())
        peer_db.flush()
        chance = np.random.default_rng(5)
        wanted_rows = [b"user%020d" % n for n in chance.choice(numbers, 20_000)]
        reader = reader_for(mine.shard.state(TABLET), mine.shard.fragments, ALL_COLUMNS)
        asking = mine.asking()
        if reader.newest(Row(wanted_rows[0]), asking) is None:
            raise SystemExit("the row is not there")
        for row in wanted_rows:
            reader.newest(Row(row), asking)
        ours, peer = best(
            rounds,
            lambda: [reader.newest(Row(row), asking) for row in wanted_rows],
            lambda: [peer_db.get(row) for row in wanted_rows],
        )
        peer_db.close()
    what = f"20,000 hot point reads of {records:,} rows, {fragments} fragment(s)"
    return BenchRow(what, ours, peer, "rocksdict get, one value", wanted)


def replay_log(megabytes: int, small: bool) -> BenchRow:
    """A log is read back into memory; the peer is the limit of 100 MB/s."""
    schema = schema_of(10)
    with store(schema) as mine:
        ids = [c.id for c in schema.groups[0].columns]  # type: ignore[union-attr]
        count = megabytes * 1_000
        numbers = np.arange(count)
        if small:
            table = rows_of(schema, numbers, 90, 1).to_pylist()
            for row in table:
                values = tuple((id_, row[f"c{n}"]) for n, id_ in enumerate(ids))
                mine.shard.apply(TABLET, SmallBlock(SchemaVersion(schema.version), (Put(Row(row["key"]), values),)))
            mine.shard.drain()
            del table
        else:
            mine.put(rows_of(schema, numbers, 90, 1))
        size = sum(segment.size_bytes for segment in mine.shard.segments())
        mine.shard.close()
        start = time.perf_counter()
        mine.open()
        seconds = time.perf_counter() - start
    what = f"replay {size / 1e6:.0f} MB of log, {'single puts' if small else 'columnar blocks'}"
    return BenchRow(what, seconds, size / 100e6, "100 MB/s", 1.0)


def large(records: int) -> None:
    """Write, update a tenth, compact, and say how much memory the process took at most: 20 million records are to
    need less than 2 GB."""
    schema = schema_of(2)
    with store(schema, DEFAULTS) as mine:
        stages = []
        start = time.perf_counter()

        def upkeep(everything: bool = False) -> None:
            if everything:
                mine.upkeep.seal(TABLET)
            while (memory := mine.upkeep.pick_flush()) is not None:
                mine.upkeep.flush(memory)
                mine.upkeep.save()
                mine.upkeep.collect_log()
            while (found := mine.upkeep.pick_compaction(TABLET, whole_group=everything)) is not None:
                mine.upkeep.compact(TABLET, *found)
                mine.upkeep.save()
                mine.upkeep.collect_files()
                if everything:
                    break

        def stage(name: str) -> None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            files = len(mine.files())
            stages.append(f"{name}: {time.perf_counter() - start:.0f} s, peak memory {peak:.2f} GiB, {files} file(s)")
            print(stages[-1], flush=True)

        for first in range(0, records, BATCH):
            numbers = (np.arange(first, first + BATCH, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(2**40)
            mine.put(rows_of(schema, np.sort(numbers), VALUE_BYTES, first))
            upkeep()
        stage(f"{records:,} records written")
        chance = np.random.default_rng(11)
        for _ in range(records // 10 // BATCH):
            which = np.unique(chance.integers(0, records, BATCH, dtype=np.uint64))
            mine.put(rows_of(schema, np.sort((which * np.uint64(2654435761)) % np.uint64(2**40)), VALUE_BYTES, 1))
            upkeep()
        stage("a tenth updated")
        upkeep(everything=True)
        stage("all compacted")
        count = mine.scan()
        stage(f"scanned, {count:,} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--large", type=int, default=0, metavar="RECORDS", help="only this: 20000000 takes minutes")
    args = parser.parse_args()
    if args.large:
        large(args.large)
        return
    n, rounds = args.records, args.rounds
    benches: dict[str, Callable[[], BenchRow]] = {
        "merge": lambda: merge(n, 4, rounds),
        "clean": lambda: scan_clean(n, rounds),
        "overwritten": lambda: scan_overwritten(n, rounds),
        "point": lambda: point(min(n, 200_000), rounds),
        "replay": lambda: replay_log(100, small=True),
        "replay-columnar": lambda: replay_log(100, small=False),
    }
    rows = [run() for name, run in benches.items() if name.startswith(args.only)]
    if args.growth:
        for size in (100_000, 1_000_000, 10_000_000):
            rows += [merge(size // 4, 4, 1, None), scan_clean(size, 1, 1, None), scan_overwritten(size, 1, 2, None)]
        for fragments in (1, 4, 16):
            rows += [scan_clean(n, 1, fragments, None), scan_overwritten(n, 1, fragments + 1, None)]
            rows += [merge(n // fragments, fragments, 1, None)] if fragments > 1 else []
            rows.append(point(200_000, 1, fragments, None))
    report("storage", rows)


if __name__ == "__main__":
    main()
