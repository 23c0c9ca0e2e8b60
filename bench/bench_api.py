"""The embedded store through its public API, against RocksDB (rocksdict), LMDB, SQLite in WAL mode and DuckDB.

Rows of a 24-byte key and ten 100-byte fields, or of a key and one 100-byte value. All calls come from Python, results
have the same form: dicts of the fields, or Arrow tables. What is durable is synced by every peer before it returns.

    bench_api.py [--rows 1000000] [--only put,get,scan,range,open] [--growth]

RocksDB and LMDB keep a row's ten fields as one value, msgpack of a list; a get unpacks it and makes the dict.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row as BenchRow
from harness import best, report, report_growth
from made_rows import BATCH, batch_of, batches, fields_of, key_of, place, seconds
from rich.console import Console
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

import stelae

console = Console(width=140)
_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[bytes]).decode


# -- the contenders


def stelae_table(path: Path, fields: int) -> tuple[Any, Any]:
    db = stelae.open(path / "stelae")
    columns = dict.fromkeys(fields_of(fields), "binary")
    db.create_table("t", key={"id": "binary"}, groups=[stelae.columns("g", columns)], if_not_exists=True)
    return db, db.table("t")


def rocks(path: Path) -> tuple[Any, WriteOptions]:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    synced = WriteOptions()
    synced.sync = True
    return Rdict(str(path / "rocks"), options), synced


def rocks_put_batch(db: Any, synced: WriteOptions, batch: pa.RecordBatch) -> None:
    writes = WriteBatch(raw_mode=True)
    keys, *values = [column.to_pylist() for column in batch.columns]
    for key, row in zip(keys, zip(*values, strict=True), strict=True):
        writes.put(key, _pack(row) if len(row) > 1 else row[0])
    db.write(writes, synced)


def sqlite(path: Path, fields: int) -> sqlite3.Connection:
    db = sqlite3.connect(path / "sqlite.db", isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    names = ", ".join(f"{name} blob" for name in fields_of(fields))
    db.execute(f"create table if not exists t (id blob primary key, {names}) without rowid")
    return db


def sqlite_put_batch(db: sqlite3.Connection, batch: pa.RecordBatch) -> None:
    marks = ", ".join("?" * batch.num_columns)
    db.execute("begin")
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    db.executemany(f"insert or replace into t values ({marks})", rows)
    db.execute("commit")


# -- what is measured


def put_many(rows: int, fields: int, wanted: float) -> list[BenchRow]:
    data = list(batches(rows, fields))
    with place("put") as path:
        db, table = stelae_table(path, fields)
        peer, synced = rocks(path)
        ours_s = peer_s = 0.0
        for batch in data:
            ours_s += seconds(partial(table.put_many, batch))
            peer_s += seconds(partial(rocks_put_batch, peer, synced, batch))
        db.close()
        peer.close()
    name = f"put_many of {rows:,} rows of {fields} field(s), {BATCH:,} at a time, durable"
    return [BenchRow(name, ours_s, peer_s, "RocksDB, synced write batches", wanted)]


def single_puts(count: int, fields: int = 10) -> list[BenchRow]:
    data = batch_of(0, count, fields).to_pylist()
    plain = [(row["id"], _pack([row[name] for name in fields_of(fields)])) for row in data]
    with place("single") as path:
        db, table = stelae_table(path, fields)
        peer, synced = rocks(path)
        lite = sqlite(path, fields)
        marks = ", ".join("?" * (fields + 1))
        tuples = [tuple(row.values()) for row in data]

        def to_sqlite() -> None:
            for row in tuples:
                lite.execute(f"insert or replace into t values ({marks})", row)

        def to_rocks() -> None:
            for key, value in plain:
                peer.put(key, value, synced)

        def to_stelae() -> None:
            for row in data:
                table.put(row)

        ours, rocks_s = best(3, to_stelae, to_rocks)
        ours_again, sqlite_s = best(3, to_stelae, to_sqlite)
        one = min(ours, ours_again)
        db.close()

        async def at_once() -> float:
            async with await stelae.aio.open(path / "stelae") as adb:
                atable = await adb.table("t")
                times = []
                for _ in range(3):
                    start = time.perf_counter()
                    waiting = iter(data)

                    async def worker(rows: Iterator[dict[str, Any]] = waiting) -> None:
                        for row in rows:
                            await atable.put(row)

                    await asyncio.gather(*(worker() for _ in range(32)))
                    times.append(time.perf_counter() - start)
                return min(times)

        many = asyncio.run(at_once())
        peer.close()
        lite.close()
    return [
        BenchRow(f"{count:,} single puts, durable, one thread", one, rocks_s, "RocksDB, synced", 0.9),
        BenchRow(f"{count:,} single puts, durable, one thread", one, sqlite_s, "SQLite, WAL, synchronous=full", 0.9),
        BenchRow(f"{count:,} single puts, durable, 32 at once (async)", many, one, "ours, one at a time", 5.0),
    ]


def filled(path: Path, rows: int, fields: int) -> tuple[Any, Any, Any]:
    db, table = stelae_table(path, fields)
    peer, _ = rocks(path)
    unsynced = WriteOptions()
    for batch in batches(rows, fields):
        table.put_many(batch)
        rocks_put_batch(peer, unsynced, batch)
    table.compact()
    peer.flush()
    return db, table, peer


def gets(rows: int, fields: int = 10, count: int = 20_000) -> list[BenchRow]:
    chance = np.random.default_rng(7)
    names = fields_of(fields)
    with place("get") as path:
        db, table, peer = filled(path, rows, fields)
        hot = [key_of(int(number)) for number in chance.integers(0, min(rows, 20_000), count)]
        many = [[key_of(int(number)) for number in chance.integers(0, rows, 1_000)] for _ in range(10)]

        def dict_of(key: bytes, value: bytes) -> dict[str, Any]:
            return {"id": key, **dict(zip(names, _unpack(value) if fields > 1 else (value,), strict=True))}

        if dict(table.get(hot[0])) != dict_of(hot[0], peer.get(hot[0])):
            raise SystemExit("the stores do not hold the same")
        for key in hot:
            table.get(key)
        one = best(5, lambda: [table.get(key) for key in hot], lambda: [dict_of(key, peer.get(key)) for key in hot])
        for keys in many:
            table.get_many(keys)

        def rocks_many() -> None:
            for keys in many:
                found = peer.get(keys)
                _ = [None if value is None else dict_of(key, value) for key, value in zip(keys, found, strict=True)]

        several = best(5, lambda: [table.get_many(keys) for keys in many], rocks_many)
        env = lmdb.open(str(path / "lmdb"), map_size=64 * 2**30, sync=False)
        with env.begin(write=True) as writing:
            for key, value in peer.items():
                writing.put(key, value)
        with env.begin() as reading:
            lmdb_s = min(seconds(lambda: [dict_of(key, reading.get(key) or b"") for key in hot]) for _ in range(5))
        env.close()
        db.close()
        peer.close()
    return [
        BenchRow(f"{count:,} gets of hot rows, {fields} fields", one[0], lmdb_s, "LMDB, unpacked to dicts"),
        BenchRow(f"{count:,} gets of hot rows, {fields} fields", *one, "RocksDB, unpacked to dicts", 0.5),
        BenchRow(f"10 get_many of 1,000 random rows of {rows:,}", *several, "RocksDB multi-get, to dicts", 1.0),
    ]


def rocks_to_arrow(peer: Any, fields: int) -> pa.Table:
    keys: list[bytes] = []
    columns: list[list[bytes]] = [[] for _ in range(fields)]
    for key, value in peer.items():
        keys.append(key)
        for column, field in zip(columns, _unpack(value) if fields > 1 else (value,), strict=True):
            column.append(field)
    arrays = [pa.array(values, pa.binary()) for values in (keys, *columns)]
    return pa.table(dict(zip(["id", *fields_of(fields)], arrays, strict=True)))


def scans(rows: int, fields: int = 10) -> list[BenchRow]:
    with place("scan") as path:
        db, table, peer = filled(path, rows, fields)
        plain = path / "plain.parquet"
        pq.write_table(table.scan().to_arrow(), plain, compression="zstd", compression_level=1)
        full = best(3, lambda: table.scan().to_arrow(), lambda: pq.read_table(plain))
        filled_s = min(seconds(lambda: rocks_to_arrow(peer, fields)) for _ in range(2))
        chance = np.random.default_rng(3)
        numbers = np.sort(chance.choice(rows, rows // 10, replace=False))
        for at in range(0, len(numbers), BATCH):
            some = numbers[at : at + BATCH]
            updated = batch_of(0, len(some), fields, seed=1)
            keys = pa.array([key_of(int(number)) for number in some], pa.binary())
            table.put_many(updated.set_column(0, "id", keys))
        dirty = best(3, lambda: table.scan().to_arrow(), lambda: pq.read_table(plain))
        db.close()
        peer.close()
    name = f"of {rows:,} rows of {fields} fields to Arrow"
    return [
        BenchRow(f"full scan {name}, compacted", *full, "pyarrow read_table", 0.7),
        BenchRow(f"full scan {name}, compacted", full[0], filled_s, "RocksDB's iterator to Arrow", 2.0),
        BenchRow(f"full scan {name}, 10% updated since", *dirty, "pyarrow read_table", 0.4),
    ]


def ranges(rows: int, fields: int = 10, count: int = 500) -> list[BenchRow]:
    chance = np.random.default_rng(5)
    starts = [
        (int(s), int(n))
        for s, n in zip(chance.integers(0, rows - 100, count), chance.integers(1, 101, count), strict=True)
    ]
    with place("range") as path:
        db, table, peer = filled(path, rows, fields)
        peer.close()
        lite = sqlite(path, fields)
        for batch in batches(rows, fields):
            sqlite_put_batch(lite, batch)
        duck = duckdb.connect(str(path / "duck.db"))
        whole = table.scan().to_arrow()
        duck.register("whole", whole)
        duck.execute("create table t as select * from whole order by id")
        duck.execute("create index t_id on t (id)")
        names = ["id", *fields_of(fields)]

        def ours() -> None:
            for start, length in starts:
                found = list(table.scan(start=key_of(start), stop=key_of(start + length)))
                if len(found) != length:
                    raise SystemExit(f"{len(found)} rows instead of {length}")

        def of_sqlite() -> None:
            for start, length in starts:
                cursor = lite.execute(
                    "select * from t where id >= ? and id < ?", (key_of(start), key_of(start + length))
                )
                _ = [dict(zip(names, row, strict=True)) for row in cursor]

        def of_duckdb() -> None:
            for start, length in starts[:100]:
                cursor = duck.execute(
                    "select * from t where id >= ? and id < ?", (key_of(start), key_of(start + length))
                )
                _ = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        ours_s, sqlite_s = best(3, ours, of_sqlite)
        duck_s = min(seconds(of_duckdb) for _ in range(2)) * len(starts) / 100
        db.close()
    name = f"{count} range scans of 1 to 100 rows, to dicts"
    return [
        BenchRow(name, ours_s, sqlite_s, "SQLite", 1.0),
        BenchRow(name, ours_s, duck_s, "DuckDB, with an index", 1.0),
    ]


_KILLED = """
import os, signal, sys
sys.path.insert(0, {bench!r})
import bench_api
from pathlib import Path
db, table = bench_api.stelae_table(Path({path!r}), 1)
size = 0
first = {rows}
while size < 64_000_000:
    batch = bench_api.batch_of(first, 1000, 1)
    table.put_many(batch)
    size += batch.nbytes
    first += 1000
os.kill(os.getpid(), signal.SIGKILL)
"""


def opening(rows: int) -> list[BenchRow]:
    with place("open") as path:
        db, table = stelae_table(path, 1)
        for batch in batches(rows, 1):
            table.put_many(batch)
        db.close()

        def open_and_read() -> None:
            again, found = stelae_table(path, 1)
            if found.get(key_of(rows // 2)) is None:
                raise SystemExit("a row is missing")
            opened.append(again)

        opened: list[Any] = []
        clean_s = seconds(open_and_read)
        opened.pop().close()
        program = _KILLED.format(bench=str(Path(__file__).parent), path=str(path), rows=rows)
        ended = subprocess.run([sys.executable, "-c", program], check=False)
        if ended.returncode != -signal.SIGKILL:
            raise SystemExit(f"the writer ended with {ended.returncode}")
        log = path / "stelae" / "log"
        log_mb = sum(file.stat().st_size for file in log.iterdir()) / 1e6
        killed_s = seconds(open_and_read)
        opened.pop().close()
    return [
        BenchRow(f"open {rows:,} rows after a clean close, and get one", clean_s, 0.5, "0.5 s", 1.0),
        BenchRow(f"open {rows:,} rows after kill -9 with {log_mb:.0f} MB of log", killed_s, 2.0, "2 s", 1.0),
    ]


def many_tables(count: int = 1_000) -> list[BenchRow]:
    """Tables of four tablets each, with a few rows in every tablet."""
    with place("tables") as path:
        db = stelae.open(path / "stelae")
        for number in range(count):
            table = db.create_table(
                f"t{number}", key={"id": "string"}, groups=[stelae.columns("g", {"n": "int64"})], splits=["g", "n", "t"]
            )
            table.put_many([{"id": name, "n": number} for name in ("a", "h", "o", "u")])
        db.close()
        start = time.perf_counter()
        db = stelae.open(path / "stelae")
        open_s = time.perf_counter() - start
        if db.table("t7").count() != 4:
            raise SystemExit("rows are missing")
        time.sleep(2)
        used_s = time.process_time()
        time.sleep(5)
        used_s = time.process_time() - used_s
        db.close()
    console.print(f"{count:,} tables of 4 tablets: an idle store takes {used_s / 5:.2%} of a core")
    return [BenchRow(f"open {count:,} tables of 4 tablets", open_s, 5.0, "5 s", 1.0)]


def amplification(rows: int, fields: int = 10) -> None:
    """How much is written and kept for what is put."""
    with place("space") as path:
        db, table = stelae_table(path, fields)
        before = _written_bytes()
        user = 0
        for batch in batches(rows, fields):
            user += batch.nbytes
            table.put_many(batch)
        table.compact()
        db.close()
        written = _written_bytes() - before
        kept = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"{rows:,} rows of {fields} fields ({user / 2**20:.0f} MiB): write amplification {written / user:.2f}, "
        f"space {kept / user:.2f}, peak memory of this process {peak:.2f} GiB"
    )


def _written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def growth() -> dict[int, list[BenchRow]]:
    """Of rows of one field, so that it is the same at every size."""
    found: dict[int, list[BenchRow]] = {}
    for rows in (100_000, 1_000_000, 10_000_000):
        console.print(f"[dim]{rows:,} rows ...[/]")
        found[rows] = [*put_many(rows, 1, 3.0), *gets(rows, 1), *scans(rows, 1), *ranges(rows, 1), *opening(rows)]
        amplification(rows, 1)
    return found


def _grown(rows: int, row: BenchRow) -> tuple[str, str, str]:
    what = re.sub(r"with \d+ MB", "with 64 MB", row.what).replace(f"{rows:,}", "N")
    return what, row.peer, f"{row.ours_s:.3f} s, {row.ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", default="put,single,get,scan,range,open,tables,space")
    parser.add_argument("--growth", action="store_true", help="from 0.1 to 10 million rows")
    options = parser.parse_args()
    if options.growth:
        report_growth("api_growth", growth(), _grown)
        return
    jobs: dict[str, Callable[[], Sequence[BenchRow]]] = {
        "put": lambda: [*put_many(options.rows, 1, 3.0), *put_many(options.rows, 10, 1.3)],
        "single": lambda: single_puts(2_000),
        "get": lambda: gets(options.rows),
        "scan": lambda: scans(options.rows),
        "range": lambda: ranges(options.rows),
        "open": lambda: opening(10 * options.rows),
        "tables": many_tables,
    }
    rows: list[BenchRow] = []
    for name in options.only.split(","):
        if name in jobs:
            console.print(f"[dim]{name} ...[/]")
            rows += jobs[name]()
    report("api", rows)
    if "space" in options.only.split(","):
        amplification(options.rows)


if __name__ == "__main__":
    os.environ.setdefault("RUST_LOG", "error")
    main()
