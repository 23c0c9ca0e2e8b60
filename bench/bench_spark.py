"""The Spark pipeline against native Parquet, Delta and Iceberg: read, read what was updated, load, upsert, point reads.

    bench_spark.py [--rows 10000000] [--only load,read,updated,together,upsert,narrow,point]
                   [--peers delta,iceberg,deltalake] [--growth] [--rounds 3] [--cold] [--memory 2g]
                   [--master local[2]] [--probe]

Rows of ten columns (a number as the key, texts, numbers, a decimal, a time) in 16 tablets or sorted files, all zstd.
Everything that is read goes to Spark's `noop` sink, and what it takes to open the table is counted. Processor time is
that of all processes of a contender. Updates are 5% of
the rows, new in every column. Delta and Iceberg run as their documents say for small updates, see `spark_peer_process`;
what could not be run is said below the table.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyspark
import spark_peers
from harness import Row, report, report_growth, write_facts
from processor_time import Took
from spark_data import EVENLY, KEY, NARROW, PART_OF_UPDATES, TABLETS, TOGETHER, TWO, all_of, totals
from spark_peers import Peer
from spark_world import Options, Stored, World, compared, console, opened

NATIVE = "native Parquet, same rows, sorted"
LOADED = "repartitionById + sortWithinPartitions + Parquet"
GROWTH = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000)
_POINT_S_MIN = 5.0


# -- what is measured


def loads(world: World) -> list[Row]:
    world.source()

    def ours() -> Took:
        table = world.empty("loaded")
        took = world.processes.measured(lambda: table.load(world.source()))
        table.drop()
        return took

    took = world.medians({"ours": ours, "native": lambda: world.write_native(world.directory / "written")})
    name = f"load {world.rows:,} rows, sorted into {TABLETS} tablets"
    return compared(name, took["ours"], took["native"], LOADED, 1.0)


def reads(world: World) -> list[Row]:
    """The clean table."""
    return _reads(world, world.stored("clean"), "clean", 0.85, [], {})


def updated(world: World, how: str = EVENLY) -> list[Row]:
    """5% of the rows have been updated, as every contender does it."""
    table, name, updates = world.updated(how), world.name_of(how), world.updates(how, 0)
    peers = [peer for peer in world.peers if world.made(peer, how)]
    for peer in [peer for peer in peers if peer.kind != "parquet"]:
        try:
            peer.ask("merge", table=name, source=str(updates))
        except spark_peers.PeerFailed as error:
            world.refuse(f"{peer.title}, MERGE", error)
            peers.remove(peer)
    others: dict[str, Callable[[list[str] | None], Any]] = {}
    if world.lake is not None:
        lake = world.lake
        lake.make(name, world.native())
        lake.merge_s(name, updates)
        others[lake.title] = lambda columns: _selected(lake.frame(world.spark, name), columns)
    _compare(world, table, name, peers)
    words = "all over the table" if how == EVENLY else "side by side"
    return _reads(world, table, f"5% updated, {words}", 0.6, peers, others, name)


def together(world: World) -> list[Row]:
    found = updated(world, TOGETHER)
    world.drop(TOGETHER)
    return found


def _selected(frame: Any, columns: list[str] | None) -> Any:
    return frame if columns is None else frame.select(*columns)


def _compare(world: World, table: Stored, name: str, peers: Sequence[Peer]) -> None:
    """Who is fast with something else is no peer."""
    ours = totals(table.frame())
    for peer in [peer for peer in peers if peer.kind != "parquet"]:
        try:
            theirs = peer.ask("totals", table=name)["totals"]
        except spark_peers.PeerFailed as error:
            world.refuse(f"{peer.title}, comparing what it holds", error)
            continue
        if theirs != ours:
            raise SystemExit(f"{peer.title} holds {theirs}, the store {ours}")


def _reads(
    world: World,
    table: Stored,
    state: str,
    wanted: float,
    peers: Sequence[Peer],
    others: dict[str, Callable[[list[str] | None], Any]],
    name: str = "",
) -> list[Row]:
    """`name`: of the table, as the peers call it."""
    world.native()
    aims = {NATIVE: wanted, **{peer.title: 1.0 for peer in peers if peer.kind != "parquet"}}
    found: list[Row] = []
    questions: list[tuple[str, list[str] | None]] = [("all columns", None), ("two of ten columns", TWO), ("count", [])]
    for what, columns in questions:
        frames = {"ours": table.frame, NATIVE: world.native_frame, **others}
        contenders: dict[str, Callable[[], object]] = {
            title: partial(_run, frame, columns) for title, frame in frames.items()
        }
        for peer in peers:
            asked: dict[str, Any] = {"do": "count"} if columns == [] else {"do": "read", "columns": columns}
            contenders[peer.title] = partial(peer.took, table=name, **asked)
        took = world.medians(contenders)
        for title in took:
            if title != "ours":
                found += compared(f"read, {state}: {what}", took["ours"], took[title], title, aims.get(title))
    return found


def _run(frame_of: Callable[[list[str] | None], Any], columns: list[str] | None) -> None:
    """Opening it is part of it. No columns: the rows are counted."""
    if columns == []:
        frame_of(None).count()
    else:
        all_of(frame_of(columns))


def upserts(world: World) -> list[Row]:
    """Each round updates other rows of the same tables, all over them; the first round does not count."""
    table, put_into, name = world.stored("upserted"), world.stored("put"), world.name_of("upserted")
    peers = [peer for peer in world.peers if peer.kind != "parquet" and world.made(peer, "upserted")]
    files = [world.updates(EVENLY, number) for number in range(world.options.rounds + 1)]
    sources = {each: iter(files) for each in ("ours", "puts", "lake", *(peer.title for peer in peers))}
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: _load_until_seen(table, next(sources["ours"])),
        "puts": lambda: _put_until_seen(put_into, next(sources["puts"])),
    }
    for peer in peers:
        contenders[peer.title] = lambda p=peer: p.took(  # type: ignore[misc]
            "merge", table=name, source=str(next(sources[p.title]))
        )
    if world.lake is not None:
        lake = world.lake
        lake.make(name, world.native())
        contenders[lake.title] = lambda: lake.merge_s(name, next(sources["lake"]))
    took = world.medians(contenders)
    _compare(world, table, name, [peer for peer in peers if peer.title in took])
    world.drop("upserted", "put")
    what = f"upsert {world.rows // PART_OF_UPDATES:,} rows into {world.rows:,}, until seen"
    found = compared(what, took["ours"], took["puts"], "ours by put_many, without Spark")
    for each in took:
        if each not in ("ours", "puts"):
            found += compared(what, took["ours"], took[each], f"MERGE, {each}", 10.0)
    return found


def narrow(world: World) -> list[Row]:
    """Rows changed in one column, and in all of them: each in a table of its own, other rows in each round."""
    peers = [peer for peer in world.peers if peer.kind != "parquet" and world.made(peer, "narrow")]
    rounds = range(world.options.rounds + 1)
    tables = {"ours": world.stored("narrow"), "whole": world.stored("whole")}
    one = [KEY, NARROW]
    files = [world.updates(EVENLY, number, one) for number in rounds]
    sources = {each: iter(files) for each in ("ours", *(peer.title for peer in peers))}
    sources["whole"] = iter([world.updates(EVENLY, number) for number in rounds])
    contenders: dict[str, Callable[[], object]] = {
        each: partial(_load_next, table, sources[each]) for each, table in tables.items()
    }
    for peer in peers:
        contenders[peer.title] = partial(_merge_next, peer, world.name_of("narrow"), sources[peer.title])
    took = world.medians(contenders)
    _compare(world, tables["ours"], world.name_of("narrow"), [peer for peer in peers if peer.title in took])
    world.drop("narrow", "whole")
    what = f"upsert one column of {world.rows // PART_OF_UPDATES:,} rows of {world.rows:,}, until seen"
    found = compared(what, took["ours"], took["whole"], "ours, all columns", 1.0)
    for each in took:
        if each not in tables:
            found += compared(what, took["ours"], took[each], f"MERGE, {each}")
    return found


def _load_next(table: Stored, sources: Iterator[Path]) -> None:
    _load_until_seen(table, next(sources))


def _merge_next(peer: Peer, table: str, sources: Iterator[Path]) -> Took:
    return peer.took("merge", table=table, source=str(next(sources)))


def _load_until_seen(table: Stored, source: Path) -> None:
    table.load(source)
    _see(table, source)


def _put_until_seen(table: Stored, source: Path) -> None:
    for batch in ds.dataset(source).to_batches(batch_size=50_000):
        if batch.num_rows:
            table.rows().put_many(batch)
    _see(table, source)


def _see(table: Stored, source: Path) -> None:
    """A reader has the new row."""
    wanted = ds.dataset(source).head(1).to_pylist()[0]
    found = table.rows().get(wanted[KEY])
    if found is None or any(found[name] != value for name, value in wanted.items()):
        raise SystemExit(f"a reader sees {found}, not {wanted}")


# -- point reads


class Gets:
    """A client that gets random rows one after the other, in a thread of this process."""

    def __init__(self, world: World, table: Stored) -> None:
        self._table = table.rows()
        self._keys = np.random.default_rng(5).integers(0, world.rows, 1_000_000).tolist()
        self._stop = threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        for key in self._keys:
            if self._stop.is_set():
                return
            start = time.perf_counter()
            row = self._table.get(key)
            self.times.append(time.perf_counter() - start)
            if row is None:
                raise SystemExit(f"row {key} is missing")

    def during(self, work: Callable[[], object]) -> float:
        """The 99th of a hundred, in seconds."""
        self.times = []
        self._stop.clear()
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            end = time.perf_counter() + _POINT_S_MIN
            while time.perf_counter() < end:
                work()
        finally:
            self._stop.set()
            thread.join()
        return float(np.quantile(self.times, 0.99))


def points(world: World) -> list[Row]:
    found: list[Row] = []
    for words, table in (("clean", world.stored("clean")), ("5% updated", world.updated(EVENLY))):
        gets = Gets(world, table)
        gets.during(lambda: time.sleep(0.1))
        took = world.medians(
            {
                "idle": lambda g=gets: Took(g.during(lambda: time.sleep(0.1)), 0.0),  # type: ignore[misc]
                "scan": lambda g=gets, t=table: Took(g.during(lambda: all_of(t.frame())), 0.0),  # type: ignore[misc]
            },
            warm=False,
        )
        scan_s, idle_s = took["scan"].wall_s, took["idle"].wall_s
        name = f"p99 of a get during a full Spark scan, {words}: {scan_s * 1e6:,.0f} µs"
        found.append(Row(name, scan_s, idle_s, f"p99 of a get, Spark idle: {idle_s * 1e6:,.0f} µs", 0.1))
    return found


# -- the whole


JOBS: dict[str, Callable[[World], list[Row]]] = {
    "load": loads,
    "read": reads,
    "updated": updated,
    "together": together,
    "upsert": upserts,
    "narrow": narrow,
    "point": points,
}


def measured(world: World, only: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for name in only:
        console.print(f"[dim]{name}, {world.rows:,} rows ...[/]")
        start = time.perf_counter()
        rows = JOBS[name](world)
        for row in rows:
            console.print(f"[dim]  {row.what}: {row.ours_s:.3f} s, {row.ratio:.2f} of {row.peer}[/]")
        console.print(f"[dim]{name} took {time.perf_counter() - start:.0f} s in all[/]")
        found += rows
    return found


def growth(world: World, only: Sequence[str], most: int) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for rows in [rows for rows in GROWTH if rows <= most]:
        size = world.fresh(rows)
        found[rows] = measured(size, only)
        size.drop_all()
    return found


def _grown(rows: int, row: Row) -> tuple[str, str, str]:
    """Seconds for a million rows, and the ratio."""
    what = row.what.replace(f"{rows:,}", "N").replace(f"{rows // PART_OF_UPDATES:,}", "5% of N")
    if what.startswith("p99"):
        return what.rpartition(":")[0], "p99 of a get, Spark idle", f"{row.ours_s * 1e6:,.0f} µs, {row.ratio:.2f}"
    return what, row.peer, f"{row.ours_s * 1e6 / rows:.2f} s/M, {row.ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", default=",".join(JOBS), help="some of these, with commas between")
    parser.add_argument("--peers", default="delta,iceberg,deltalake", help="besides native Parquet; none: ''")
    parser.add_argument("--growth", action="store_true", help="from 1 to 20 million rows, or to --rows if that is less")
    parser.add_argument("--rounds", type=int, default=3, help="that count; the median is taken")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="2g", help="of each Java process")
    parser.add_argument("--cold", action="store_true", help="the system forgets all files before each turn")
    parser.add_argument("--probe", action="store_true", help="try again what did not run on this Spark before")
    parser.add_argument("--name", default="spark", help="of the file in bench/results")
    said = parser.parse_args()
    only = [name for name in said.only.split(",") if name]
    if unknown := [name for name in only if name not in JOBS]:
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(JOBS)}")
    if said.probe:
        spark_peers.forget()
    peers = tuple(said.peers.split(",")) if said.peers else ()
    options = Options(said.rows, said.rounds, said.master, said.memory, peers, said.cold)
    name = said.name
    facts: dict[str, Any] = {"spark": pyspark.__version__, "cores": os.cpu_count(), "master": said.master}
    with opened(options) as world:
        if said.growth:
            name += "_growth"
            grown = growth(world, only, said.rows if said.rows != parser.get_default("rows") else GROWTH[-1])
            report_growth(name, grown, _grown)
        else:
            report(name, measured(world, only))
        refusals = [str(refusal) for refusal in world.refusals]
    if refusals:
        console.print("Could not be run:")
        for refusal in refusals:
            console.print(f"- {refusal}")
    write_facts(name, facts | {"could_not_run": refusals, "table_rows": said.rows})


if __name__ == "__main__":
    main()
