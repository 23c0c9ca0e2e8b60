"""The embedded store at work: rows in bulk and one by one, a writer killed in the middle, two processes, other programs
that read the same files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

import pyarrow.parquet as pq
from rich.markup import escape

import stelae
from stelae.cli.demo.fleet import FLEET, device, fleet_batch, make_fleet
from stelae.cli.demo.stage import DemoStage, halves_and_worst, short_time
from stelae.client.api.display import shown_bytes
from stelae.model.errors import Conflict, Corruption
from stelae.model.words import counted

_COUNTERS = "counters"
_CHUNK = 50_000
_PUTS, _GETS = 300, 5_000
_KILL_AFTER = 300
_INCREMENTS = 200


def put_fleet(stage: DemoStage) -> None:
    """Without Spark: many rows by `put_many`."""
    stage.fleet = make_fleet(stage.db, stage.rows, 1)
    stage.say(escape(repr(stage.fleet)))
    start, done = stage.clock.monotonic_s(), 0
    with stage.bar("putting") as told:
        while done < stage.rows:
            count = min(_CHUNK, stage.rows - done)
            stage.fleet.put_many(fleet_batch(done, count))
            done += count
            told(done, stage.rows)
    took = stage.clock.monotonic_s() - start
    stage.say(f"{stage.rows:,} rows in {took:.1f} s, all durable")
    stage.figure("put_many from Arrow, durable", f"{stage.rows / took:,.0f} rows/s", "put with put_many, durable")


def single_rows(stage: DemoStage) -> None:
    fleet = stage.fleet
    news = [{"device": f"new-{n:04d}", "city": "Cork", "status": "ok"} for n in range(_PUTS)]
    took = stage.measure([lambda row=row: fleet.put(row) for row in news])  # type: ignore[misc]
    stage.say(f"put of one row, durable when it returns: {halves_and_worst(took)}")
    stage.figure("put of one row, durable", halves_and_worst(took), "p99 of putting one row, durable")
    keys = [device(n * 7_919 % stage.rows) for n in range(_GETS)]
    found: list[stelae.Row | None] = []
    took = stage.measure([lambda key=key: found.append(fleet.get(key)) for key in keys])  # type: ignore[misc]
    if [row["device"] if row else None for row in found] != keys:
        raise Corruption("a row was not found as it was written", FLEET)
    stage.say(f"get of one row: {halves_and_worst(took)}")
    stage.figure("get of one row", halves_and_worst(took), "p99 of getting one row")
    stage.say(escape(repr(found[-1])))


def one_row(stage: DemoStage) -> None:
    fleet, key = stage.fleet, device(42)
    before = stage.db.now()
    read = fleet.get(key)
    if read is None:
        raise Corruption(f"row {key} is not there", FLEET)
    fleet.update(key, lambda row: {"status": "lent", "battery": row["battery"] - 1} if row else None)
    try:
        fleet.put({"device": key, "status": "scrapped"}, if_unchanged_since=read.txn)
    except Conflict:
        stage.say("somebody lent it since we looked, so it is not scrapped: [green]Conflict[/]")
    else:
        raise Corruption("a conflict was not noticed", FLEET)
    fleet.update(key, lambda _: {"status": "returned"})
    history = [version.value for version in fleet.history(key, columns=["status"])["status"]]
    then = fleet.get(key, at=before)
    stage.say(f"its states, newest first: {', '.join(history)}; with at= it is still {then and then['status']}")


# -- processes


def write_until_killed(path: str) -> None:
    """Says each number once its row is acknowledged."""
    with stelae.open(path) as db:
        fleet, number = db.table(FLEET), 0
        while True:
            fleet.put({"device": _killed(number), "status": "ok"})
            _say(str(number))
            number += 1


def count_beside(path: str) -> None:
    """Adds to the counter from a process of its own, from when it is told to."""
    with stelae.open(path) as db:
        counters = db.table(_COUNTERS)
        _say("ready")
        if not sys.stdin.readline():
            return  # whoever started it is gone
        for _ in range(_INCREMENTS):
            counters.increment("visits", {"count": 1})
        _say("done")


def _killed(number: int) -> str:
    return f"killed-{number:06d}"


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def kill_a_writer(stage: DemoStage) -> None:
    """The store is closed here, so that the other process owns it, and dies with all it had in memory."""
    stage.db.close()
    promised: list[int] = []
    with stage.beside(__name__, write_until_killed.__name__) as writer:
        stage.say(f"process {writer.pid} owns the store and writes, row by row")
        for line in _lines(writer.stdout):
            promised.append(int(line))
            if len(promised) == _KILL_AFTER:
                writer.kill()
    start = stage.clock.monotonic_s()
    stage.open()
    stage.fleet = stage.db.table(FLEET)
    took = stage.clock.monotonic_s() - start
    found = stage.fleet.get_many([_killed(number) for number in promised])
    if len(promised) < _KILL_AFTER or any(row is None for row in found):
        raise Corruption("an acknowledged row is lost", FLEET)
    stage.say(f"[green]all {len(promised)} acknowledged rows are there[/]; opened again in {short_time(took)}")
    stage.figure("acknowledged rows lost by kill -9", f"0 of {len(promised)}", "acknowledged rows lost by kill -9")
    stage.figure("open after kill -9", short_time(took))


def _lines(stream: IO[str] | None) -> Iterator[str]:
    """Whole ones only: the last may be torn."""
    for line in stream or ():
        if line.endswith("\n"):
            yield line


def two_processes(stage: DemoStage) -> None:
    groups = [stelae.columns("counts", {"count": "int64"})]
    counters = stage.db.create_table(_COUNTERS, key={"name": "string"}, groups=groups)
    with stage.beside(__name__, count_beside.__name__) as other:
        stage.say(f"process {other.pid} attaches to this one")
        ready = next(_lines(other.stdout), "")
        if other.stdin is not None and ready:
            other.stdin.write("go\n")
            other.stdin.flush()
        for _ in range(_INCREMENTS):
            counters.increment("visits", {"count": 1})
        done = next(_lines(other.stdout), "")
    row = counters.get("visits")
    count = row["count"] if row else None
    if not done or count != 2 * _INCREMENTS:
        raise Corruption(f"two processes added {_INCREMENTS} each, and the counter is {count}", _COUNTERS)
    stage.say(f"{_INCREMENTS} times one each, at once: the counter is {count}")


# -- the whole


def scan_all(stage: DemoStage) -> None:
    start = stage.clock.monotonic_s()
    everything = stage.fleet.scan().to_arrow()
    took = stage.clock.monotonic_s() - start
    stage.figure("scan to Arrow", f"{everything.num_rows / took:,.0f} rows/s", "scanned to Arrow")
    sums = everything.group_by("city").aggregate([("device", "count"), ("battery", "mean")]).sort_by("city")
    found = [row for row in sums.to_pylist() if row["city"] is not None and row["battery_mean"] is not None]
    rows = [(row["city"], row["device_count"], round(row["battery_mean"], 1)) for row in found]
    stage.say_rows(("city", "devices", "battery"), rows)


def fragments(stage: DemoStage) -> list[str]:
    """The Parquet files of the table, the largest first."""
    stage.fleet.flush()
    directory = stage.store / "fragments" / f"{stage.db.describe(FLEET)['id']:08x}"
    files = sorted(directory.glob("*.parquet"), key=lambda file: file.stat().st_size, reverse=True)
    size = sum(file.stat().st_size for file in files)
    stage.say(f"{len(files)} Parquet file(s), {shown_bytes(size)}")
    stage.figure("on disk, with all versions", f"{size / stage.rows:.1f} bytes a row")
    return [str(file) for file in files]


def find_duckdb() -> Any:
    """The module, or None where it is not installed."""
    try:
        import duckdb
    except ImportError:
        return None
    return duckdb


def read_a_file(stage: DemoStage, duckdb: Any) -> None:
    """Another program on one file of the store: DuckDB, or pyarrow if that is None."""
    file = fragments(stage)[0]
    stage.say(escape(file))
    if duckdb is None:
        stage.say("DuckDB is not installed (pip install duckdb); pyarrow reads it as well:")
        sums = pq.read_table(file, columns=["status"]).group_by("status").aggregate([("status", "count")])
        rows: list[tuple[Any, ...]] = sorted((row["status"] or "", row["status_count"]) for row in sums.to_pylist())
        stage.say_rows(("status", "versions"), rows)
        return
    query = (
        "select city, count(*), round(avg(battery), 1) from read_parquet($1) where city is not null "
        "group by city order by count(*) desc limit 3"
    )
    with duckdb.connect() as connection:
        rows = connection.execute(query, [file]).fetchall()
    stage.say(f"duckdb> [cyan]{escape(query.replace('$1', repr('...parquet')))}[/]")
    stage.say_rows(("city", "versions", "battery"), rows)


def check_all(stage: DemoStage) -> None:
    report = stage.db.check()
    if report.problems:
        raise Corruption("; ".join(f"{each.where}: {each.words}" for each in report.problems), str(stage.store))
    counts = ", ".join(counted(count, what.removesuffix("s"), what) for what, count in report.counts.items())
    stage.say(f"[green]whole[/]: {counts}")
