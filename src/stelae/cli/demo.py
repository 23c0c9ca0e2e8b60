"""`stelae demo`: an embedded store at work on a directory of its own, with figures taken on the way.

Two steps start processes: one writes until it is killed in the middle, one opens the store beside this one. Each ends
with its step, whatever happens: it is killed and waited for when the step is left, and a writer whose reader is gone
ends by its broken pipe.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

import stelae
from stelae.adapters.clock import SystemClock
from stelae.client.display import shown_bytes
from stelae.model.errors import AlreadyExists, Conflict, Corruption

ITEMS = ("tea", "bread", "lamp", "paper", "chair", "bicycle")
_ORDERS, _COUNTERS = "orders", "counters"
_CHUNK = 50_000
_PUTS, _GETS = 300, 5_000
_KILL_AFTER = 300
_INCREMENTS = 200
_KILLED_CUSTOMER = "customer-killed"


class _Demo:
    def __init__(self, directory: Path, rows: int, console: Console) -> None:
        self.directory = directory
        self.rows = rows
        self.console = console
        self.clock = SystemClock()
        self.figures: list[tuple[str, str]] = []
        self.db: stelae.Database
        self.orders: stelae.Table
        self._steps = 0

    def open(self) -> None:
        self.db = stelae.open(self.directory)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self._steps += 1
        heading = f"{self._steps}. {title}"
        if self.console.is_terminal:
            self.console.rule(Text(heading, "bold"), align="left")
        else:
            self.say(f"\n== {heading}")
        start = self.clock.monotonic_s()
        yield
        self.say(f"[dim]{self.clock.monotonic_s() - start:.2f} s[/]")

    def say(self, words: object) -> None:
        self.console.print(words, highlight=False, soft_wrap=True)

    def timed(self, jobs: Sequence[Callable[[], Any]]) -> tuple[float, float]:
        """The median and the 99th percentile, in seconds."""
        took = []
        for job in jobs:
            start = self.clock.monotonic_s()
            job()
            took.append(self.clock.monotonic_s() - start)
        took.sort()
        return took[len(took) // 2], took[len(took) * 99 // 100]

    @contextmanager
    def beside(self, job: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs a function of this module on the directory, and does not outlive the step."""
        code = f"import sys; from stelae.cli import demo; demo.{job}(sys.argv[1])"
        command = [sys.executable, "-c", code, str(self.directory)]
        process: subprocess.Popen[str] | None = None
        interrupts: list[bool] = []
        # A Ctrl-C in the middle of starting it would leave a process that nobody knows of.
        before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
            signal.signal(signal.SIGINT, before)
            if interrupts:
                raise KeyboardInterrupt
            yield process
        finally:
            signal.signal(signal.SIGINT, before)
            if process is not None:
                process.kill()
                process.communicate()


def run(rows: int, spark: bool, keep: Path | None, console: Console) -> None:
    if keep is not None and keep.exists():
        raise AlreadyExists(f"{keep} is there already; name a new directory")
    directory = Path(tempfile.mkdtemp(prefix="stelae-demo-")) if keep is None else keep
    demo = _Demo(directory, rows, console)
    try:
        demo.open()
        try:
            _play(demo, spark)
        finally:
            demo.db.close()
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    console.print()
    table = Table("figures of this machine", "", show_header=True)
    for name, figure in demo.figures:
        table.add_row(name, figure)
    console.print(table)
    if keep is not None:
        demo.say(escape(f"The store is in {keep}. Try: stelae scan {_ORDERS} --limit 5 --path {keep}"))


def _play(demo: _Demo, spark: bool) -> None:
    with demo.step(f"Open a directory, make a table, put {demo.rows:,} orders into it"):
        _load(demo)
    with demo.step("Put single rows, each durable when it returns, and get single rows"):
        _single_rows(demo)
    with demo.step("Change a row in a transaction, and look at what it was"):
        _one_row(demo)
    with demo.step("Kill a writer with -9 in the middle, and find every row it was promised"):
        _kill(demo)
    with demo.step("Two processes on one directory add to the same counter"):
        _two_processes(demo)
    with demo.step("Scan it all to Arrow"):
        _scan(demo)
    with demo.step("Open the same files with DuckDB"):
        files = _files(demo)
        _duckdb(demo, files)
    if spark:
        with demo.step("And with Spark"):
            _spark(demo, files)
    with demo.step("Check every byte of it"):
        _check(demo)


# -- rows


def _load(demo: _Demo) -> None:
    demo.orders = demo.db.create_table(
        _ORDERS,
        key={"customer": "string", "number": "int64"},
        groups=[
            stelae.columns(
                "orders", {"item": "string", "amount": "decimal(12, 2)", "placed": "timestamp", "state": "string"}
            )
        ],
    )
    demo.db.create_table(_COUNTERS, key={"name": "string"}, groups=[stelae.columns("counts", {"count": "int64"})])
    demo.say(escape(repr(demo.orders)))
    start, done = demo.clock.monotonic_s(), 0
    columns = (TextColumn("putting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=demo.console, transient=True, disable=not demo.console.is_terminal) as progress:
        task = progress.add_task("", total=demo.rows, rate="")
        while done < demo.rows:
            count = min(_CHUNK, demo.rows - done)
            demo.orders.put_many(_made_orders(done, count, demo.rows))
            done += count
            rate = done / (demo.clock.monotonic_s() - start)
            progress.update(task, completed=done, rate=f"{rate:,.0f} rows/s")
    took = demo.clock.monotonic_s() - start
    demo.say(f"{demo.rows:,} rows in {took:.1f} s, all durable")
    demo.figures.append(("put_many from Arrow, durable", f"{demo.rows / took:,.0f} rows/s"))


def _made_orders(first: int, count: int, total: int) -> pa.Table:
    """The same in every run, without a visible pattern."""
    numbers = np.arange(first, first + count)

    def mixed(step: int, below: int) -> Any:
        return (numbers * step >> 7) % below

    customers = max(1, total // 10)
    return pa.table(
        {
            "customer": pa.array([_customer(n) for n in mixed(2_654_435_761, customers)]),
            "number": pa.array(numbers),
            "item": pa.array(ITEMS).take(pa.array(mixed(40_503_551, len(ITEMS)))),
            "amount": pa.array(mixed(7_919_777, 99_900) / 100 + 0.99).cast(pa.decimal128(12, 2)),
            "placed": pa.array(1_790_000_000_000_000 + numbers * 1_000).cast(pa.timestamp("us", "UTC")),
            "state": pa.array(["placed"] * count),
        }
    )


def _customer(number: int) -> str:
    return f"customer-{number:06d}"


def _key(demo: _Demo, number: int) -> tuple[str, int]:
    return _customer((number * 2_654_435_761 >> 7) % max(1, demo.rows // 10)), number


def _single_rows(demo: _Demo) -> None:
    orders = demo.orders
    news = [{"customer": "customer-new", "number": n, "item": ITEMS[n % 6], "state": "placed"} for n in range(_PUTS)]
    p50, p99 = demo.timed([lambda row=row: orders.put(row) for row in news])  # type: ignore[misc]
    demo.say(f"put: half of {_PUTS} took less than {p50 * 1e3:.2f} ms, one in a hundred more than {_ms(p99)}")
    demo.figures.append(("put of one row, durable", f"p50 {_ms(p50)}, p99 {_ms(p99)}"))
    keys = [_key(demo, n * 7_919 % demo.rows) for n in range(_GETS)]
    found: list[stelae.Row | None] = []
    p50, p99 = demo.timed([lambda key=key: found.append(orders.get(key)) for key in keys])  # type: ignore[misc]
    if [(row["customer"], row["number"]) if row else None for row in found] != keys:
        raise Corruption("a row was not found as it was written", _ORDERS)
    demo.say(f"get: half of {_GETS:,} took less than {_us(p50)}, one in a hundred more than {_us(p99)}")
    demo.figures.append(("get of one row", f"p50 {_us(p50)}, p99 {_us(p99)}"))
    demo.say(escape(repr(found[-1])))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def _one_row(demo: _Demo) -> None:
    orders, key = demo.orders, _key(demo, 42)
    before = demo.db.now()
    read = orders.get(key)
    if read is None:
        raise Corruption(f"row {key} is not there", _ORDERS)
    orders.update(key, lambda row: {"state": "paid", "amount": row["amount"] + 5} if row else None)
    try:
        orders.put({**read, "state": "cancelled"}, if_unchanged_since=read.txn)
    except Conflict:
        demo.say("somebody paid since we looked, so it is not cancelled: [green]Conflict[/]")
    else:
        raise Corruption("a conflict was not noticed", _ORDERS)
    orders.update(key, lambda _: {"state": "sent"})
    history = [version.value for version in orders.history(key, columns=["state"])["state"]]
    then = orders.get(key, at=before)
    demo.say(f"its states, newest first: {', '.join(history)}; with at= it is still {then and then['state']}")


# -- processes


def write_until_killed(directory: str) -> None:
    """Says each number once its row is acknowledged."""
    with stelae.open(directory) as db:
        orders, number = db.table(_ORDERS), 0
        while True:
            orders.put({"customer": _KILLED_CUSTOMER, "number": number, "state": "placed"})
            _said(str(number))
            number += 1


def count_beside(directory: str) -> None:
    """Adds to the counter from a process of its own, from when it is told to."""
    with stelae.open(directory) as db:
        counters = db.table(_COUNTERS)
        _said("ready")
        if not sys.stdin.readline():
            return  # whoever started it is gone
        for _ in range(_INCREMENTS):
            counters.increment("visits", {"count": 1})
        _said("done")


def _said(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _kill(demo: _Demo) -> None:
    """The store is closed here, so that the other process owns it, and dies with all it had in memory."""
    demo.db.close()
    promised: list[int] = []
    with demo.beside("write_until_killed") as writer:
        demo.say(f"process {writer.pid} owns the store and writes, row by row")
        for line in _lines(writer.stdout):
            promised.append(int(line))
            if len(promised) == _KILL_AFTER:
                writer.kill()
    start = demo.clock.monotonic_s()
    demo.open()
    demo.orders = demo.db.table(_ORDERS)
    took = demo.clock.monotonic_s() - start
    found = demo.orders.get_many([(_KILLED_CUSTOMER, number) for number in promised])
    if len(promised) < _KILL_AFTER or any(row is None for row in found):
        raise Corruption("an acknowledged row is lost", _ORDERS)
    demo.say(f"[green]all {len(promised)} acknowledged rows are there[/]; opened again in {_ms(took)}")
    demo.figures.append(("open after kill -9", _ms(took)))


def _lines(stream: IO[str] | None) -> Iterator[str]:
    """Whole ones only: the last may be torn."""
    for line in stream or ():
        if line.endswith("\n"):
            yield line


def _two_processes(demo: _Demo) -> None:
    counters = demo.db.table(_COUNTERS)
    with demo.beside("count_beside") as other:
        demo.say(f"process {other.pid} attaches to this one")
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
    demo.say(f"{_INCREMENTS} times one each, at once: the counter is {count}")


# -- the whole


def _scan(demo: _Demo) -> None:
    start = demo.clock.monotonic_s()
    everything = demo.orders.scan().to_arrow()
    took = demo.clock.monotonic_s() - start
    demo.figures.append(("scan to Arrow", f"{everything.num_rows / took:,.0f} rows/s"))
    sums = everything.group_by("item").aggregate([("number", "count"), ("amount", "sum")]).sort_by("item")
    rows = [tuple(row.values()) for row in sums.to_pylist() if row["item"] is not None]
    _print_rows(demo, ("item", "orders", "amount"), rows)


def _files(demo: _Demo) -> list[str]:
    demo.orders.compact()
    directory = demo.directory / "fragments" / f"{demo.db.describe(_ORDERS)['id']:08x}"
    files = sorted(directory.glob("*.parquet"))
    size = sum(file.stat().st_size for file in files)
    demo.say(f"{len(files)} Parquet file(s), {shown_bytes(size)}")
    demo.figures.append(("on disk, compacted", f"{size / demo.rows:.1f} bytes a row"))
    return [str(file) for file in files]


def _duckdb(demo: _Demo, files: list[str]) -> None:
    try:
        import duckdb
    except ImportError:
        demo.say("DuckDB is not installed (pip install duckdb); passed over")
        return
    query = "select state, count(*), max(_txn) from read_parquet($1) group by state order by state"
    with duckdb.connect() as connection:
        rows = connection.execute(query, [files]).fetchall()
    _print_rows(demo, ("state", "versions", "newest txn"), rows)


def _spark(demo: _Demo, files: list[str]) -> None:
    from stelae.spark.session import session

    with demo.console.status("starting Spark"):
        running = session("stelae-demo", **{"spark.sql.shuffle.partitions": "2"})
        try:
            frame = running.read.parquet(*files)
            top = frame.groupBy("customer").count().orderBy("count", "customer", ascending=False).limit(3).collect()
            if frame.count() != demo.orders.stats().records:
                raise Corruption("Spark does not see every record", _ORDERS)
        finally:
            running.stop()
    _print_rows(demo, ("best customers", "versions"), [tuple(row) for row in top])


def _check(demo: _Demo) -> None:
    report = demo.db.session.backend.check()
    if report.problems:
        raise Corruption("; ".join(f"{each.where}: {each.words}" for each in report.problems), str(demo.directory))
    counts = ", ".join(f"{count:,} {what}" for what, count in report.counts.items())
    demo.say(f"[green]whole[/]: {counts}")


def _print_rows(demo: _Demo, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*names)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    demo.console.print(table)
