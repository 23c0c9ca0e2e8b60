"""A cluster of several shards: what calls cost over 1, 2 and 4 of them, loading and reading it with Spark, changes of
tables, tables of many tablets, and how long a reader waits while a truncation's master is killed. Beside it Kudu,
Cassandra and HBase.

    bench_cluster.py [--seconds 2] [--warm-up 2] [--shards 1,2,4] [--rows 200000] [--tablets 1000,10000]
                     [--spark-rows 2000000] [--only rows,spark,tables,tablets,waits]
                     [--peers kudu,cassandra,hbase]

All processes are those that users run (`stelae up`), with SQLite as their metastore; all traffic is on 127.0.0.1. A put
has been synced when it returns. Processor time is that of all servers and of the client together: on a machine of few
cores, or a busy one, it says more than what the clock on the wall says.

A peer is one server process with one replica of each row and a sync for each commit, asked from Python: ratios are
those of ours with the fewest shards. Peers are installed by whoever runs this: for Kudu (1.17 or later) see --kudu, for
Cassandra (5.0) --cassandra, for HBase (2.6, with the jars of Hadoop 3.3 or later) --hbase; the Python packages `JPype1`
and `cassandra-driver`; Java 17. Kudu and HBase are asked by their Java clients in Python's process. What cannot be run
is named, with the reason, and the rest goes on. Tables of more than 1,000 tablets are ours alone, and so is Spark: how
peers do there depends on a connector of somebody else's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster_calls import GROUPS, StelaeCalls
from cluster_contenders import PEERS, Contenders
from cluster_measuring import (
    Measured,
    Span,
    console,
    measure_rows,
    measure_tables,
    measure_tablets,
    rows_beside,
    show,
)
from cluster_waits import bench_waits
from harness import Row, report, write_facts
from remote_servers import StelaeServer, serve_stelae
from server_processes import add_homes
from spark_data import COLUMNS, KEY, SETTINGS, TWO, all_of, splits, table_frame

import stelae
import stelae.spark

PATIENCE_S = 900.0
NODES, SHARDS = 3, 2
"""What tables of many tablets lie on."""
PEER_TABLETS_MAX = 1_000


# -- rows


def bench_rows(shards: Sequence[int], rows: int, span: Span, peers: Contenders) -> tuple[dict[str, Any], list[Row]]:
    """Two tablets on each shard; of a peer as many as on the fewest shards."""
    found: dict[str, Measured] = {}
    for count in shards:
        with serve_stelae(shards=count) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
            found[_words(count)] = measure_rows(StelaeCalls(db), server.pids, rows, 2 * count, span)
    fewest = min(shards)
    beside = peers.rows(rows, 2 * fewest, span)
    facts = show("one call", found | beside, "microseconds", 1e6)
    return facts, rows_beside("1,000 calls", found[_words(fewest)], beside, 1_000)


def _words(shards: int) -> str:
    return f"{shards} shards" if shards > 1 else "1 shard"


# -- Spark


def bench_spark(shards: Sequence[int], rows: int) -> tuple[dict[str, Any], list[Row]]:
    """Rows of ten columns in no order, sorted into 16 tablets; the starting of Spark is not counted, as a load and a
    read of few rows come first."""
    directory = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    spark = stelae.spark.session("stelae-bench", "local[2]", **SETTINGS)
    found: dict[str, Measured] = {}
    try:
        source = str(directory / "source")
        table_frame(spark, rows).repartition(8).write.parquet(source)
        for count in shards:
            with serve_stelae(shards=count) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
                found[_words(count)] = _measure_spark(spark, db, server, source, rows)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return show(f"Spark, {rows:,} rows", found, "milliseconds", 1e3), []


def _measure_spark(spark: Any, db: stelae.Database, server: StelaeServer, source: str, rows: int) -> Measured:
    def read(name: str, columns: list[str] | None = None) -> None:
        all_of(stelae.spark.read(spark, db, name, columns=columns))

    measured = Measured(server.pids)
    _load(spark, db, "few", table_frame(spark, 1_000), 1_000)
    read("few")
    measured.once("load", lambda: _load(spark, db, "t", spark.read.parquet(source), rows))
    measured.once("read", lambda: read("t"))
    measured.once("read two of ten columns", lambda: read("t", TWO))
    seen = stelae.spark.read(spark, db, "t").count()
    if seen != rows:
        raise SystemExit(f"{seen:,} rows are there after a load of {rows:,}")
    return measured


def _load(spark: Any, db: stelae.Database, name: str, frame: Any, rows: int) -> None:
    group = stelae.columns("values", {column: type_ for column, type_ in COLUMNS.items() if column != KEY})
    db.create_table(name, key={KEY: COLUMNS[KEY]}, groups=[group], splits=splits(rows))
    stelae.spark.load(spark, db, name, frame)


# -- tables


def bench_tables(peers: Contenders) -> tuple[dict[str, Any], list[Row]]:
    with serve_stelae(nodes=2, shards=2) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        ours = measure_tables(StelaeCalls(db), server.pids, db.recall_table)
    beside = peers.tables()
    title = "changes of a table of 4 tablets"
    return show(title, {"4 shards": ours} | beside, "milliseconds", 1e3), rows_beside(title, ours, beside)


# -- tablets


def bench_tablets(counts: Sequence[int], peers: Contenders) -> tuple[dict[str, Any], list[Row]]:
    facts: dict[str, Any] = {}
    rows: list[Row] = []
    for count in counts:
        with serve_stelae(nodes=NODES, shards=SHARDS) as server:
            ours = _use_tablets(server, count)
        beside = peers.tablets(count) if count <= PEER_TABLETS_MAX else {}
        title = f"a table of {count:,} tablets"
        name = f"{NODES * SHARDS} shards"
        facts[f"{count:,} tablets"] = show(title, {name: ours} | beside, "milliseconds", 1e3)
        rows += rows_beside(title, ours, beside)
    return facts, rows


def _use_tablets(server: StelaeServer, count: int) -> Measured:
    with stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        measured = measure_tablets(StelaeCalls(db), server.pids, count)
        measured.once("list", db.table("many").tablets)
        with stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as other:
            measured.once("get by one who has to locate it", lambda: other.table("many").get(0))
        measured.once("check", db.check)
        os.kill(server.master_pid(), signal.SIGKILL)
        server.start_again()
        measured = Measured((*server.pids, server.master_pid()), measured.took)
        measured.once("create one after the master was killed", lambda: db.create_table("x", {"id": "int64"}, GROUPS))
        measured.once("drop", lambda: db.drop_table("many"))
    return measured


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each call about rows")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds of it before, which do not count")
    parser.add_argument("--shards", type=numbers, default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--spark-rows", type=int, default=2_000_000)
    parser.add_argument("--tablets", type=numbers, default=[1_000, 10_000])
    parser.add_argument("--only", type=words, default=["rows", "spark", "tables", "tablets", "waits"])
    parser.add_argument("--peers", type=words, default=list(PEERS), help=f"some of {','.join(PEERS)}; '' for none")
    add_homes(parser, *PEERS)
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.peers if name not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(unknown)}; choose from {', '.join(PEERS)}")
    return found


def main() -> None:
    said = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end: what was started is ended"))
    peers = Contenders(said.peers, {name: getattr(said, name) for name in PEERS})
    benches: dict[str, Callable[[], tuple[dict[str, Any], list[Row]]]] = {
        "rows": lambda: bench_rows(said.shards, said.rows, Span(said.warm_up, said.seconds), peers),
        "spark": lambda: bench_spark(said.shards, said.spark_rows),
        "tables": lambda: bench_tables(peers),
        "tablets": lambda: bench_tablets(said.tablets, peers),
        "waits": bench_waits,
    }
    console.print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    facts: dict[str, Any] = {}
    rows: list[Row] = []
    for name in said.only:
        facts[name], beside = benches[name]()
        rows += beside
        write_facts("cluster", {name: facts[name]})
    if rows:
        report("cluster", rows)
    for refusal in peers.refusals:
        console.print(f"[yellow]not run:[/] {refusal}")
    write_facts("cluster", facts | {"not_run": [str(refusal) for refusal in peers.refusals]})
    console.print(f"load of the machine after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
