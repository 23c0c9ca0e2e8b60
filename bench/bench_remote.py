"""A shard behind TCP against Redis, Postgres, etcd and Kudu: gets, durable puts, many rows at once, scans to Arrow.

    bench_remote.py [--seconds 1] [--rounds 3] [--callers 1,8,64] [--rows 1000000] [--peers redis,postgres,etcd,kudu]

A master and a shard are processes of their own (`stelae up`), and so is every peer; all traffic is on 127.0.0.1. A put
has been synced when it returns, by every server. Rows of a 24-byte key and a 100-byte value. Each client is a process
of its own; callers at once are tasks of asyncio where the client has that, else threads. Contenders take turns, in
short loads and several rounds, so that all meet the same machine; where others use that, too, processor time tells more
than throughput.

Peers are installed by whoever runs this: `redis-server`, `postgres` and `etcd` on PATH; the Python packages `redis`
(and `hiredis`), `psycopg[binary]`, `adbc-driver-postgresql` and `JPype1`; for Kudu see --kudu. What cannot be run is
named, with the reason, and the rest goes on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from harness import Row, report, write_facts
from kudu_server import serve_kudu
from made_rows import batch_of, batches, seconds
from remote_clients import CLIENTS
from remote_load import GET, HOT_ROWS, PUT, Client, Load, Measure
from remote_servers import open_embedded, serve_etcd, serve_postgres, serve_redis, serve_stelae
from rich.console import Console
from rich.table import Table
from server_processes import Server, add_homes
from spark_peers import PeerFailed, Refusal

OURS = "stelae"
PUT_MANY, SCAN = "put_many", "scan"
MANY_ROWS = 100_000
PEERS = ("redis", "postgres", "etcd", "kudu")
CALLERS_ARE = {
    "stelae": "stelae.aio",
    "stelae-threads": "stelae, threads",
    "stelae-uvloop": "stelae.aio",
    "embedded": "stelae",
    "redis": "redis.asyncio",
    "postgres": "psycopg, asyncio",
    "postgres-arrow": "ADBC",
    "etcd": "grpc.aio",
    "kudu": "Java client by JPype, threads",
}
_BULK = {"embedded": 0.7, "postgres": 5.0, "postgres-arrow": None}
"""Who puts and scans many rows besides ours, and the ratio that we aim at."""
_SCANNED = (OURS, "stelae-uvloop", "embedded", "postgres")
"""Who has a table of its own that is scanned."""
console = Console(width=150)


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. `callers`: at once; 1 where a call is about many rows."""

    what: str
    callers: int = 1

    def words(self, rows: int) -> str:
        match self.what:
            case "put_many":
                return f"put_many of {MANY_ROWS:,} rows, durable"
            case "scan":
                return f"scan of {rows:,} rows to Arrow"
            case _:
                return f"{'durable ' if self.what == PUT else ''}{self.what}, {self.callers} at once"

    def each_s(self, load: Load) -> float:
        """What the ratios are of: a run of bulk work, or 1,000 calls."""
        return load.wall_s / len(load.took_s) if self.is_bulk else 1_000 / load.per_s

    @property
    def is_bulk(self) -> bool:
        return self.what in (PUT_MANY, SCAN)


class Contender:
    """A server, and a process that asks it."""

    def __init__(self, kind: str, server: Server, asking: ProcessPoolExecutor) -> None:
        self.kind = kind
        self.title = f"{server.title} ({CALLERS_ARE[kind]})"
        self._asking = asking

    @property
    def takes_calls(self) -> bool:
        return self.kind not in ("embedded", "postgres-arrow")

    def tell(self, job: Callable[..., Any], *args: Any) -> Any:
        """What it gives, done in the client's process."""
        try:
            return self._asking.submit(job, *args).result()
        except Exception as error:
            if self.kind.startswith(OURS):
                raise
            raise PeerFailed(f"{type(error).__name__}: {error}") from error

    def fill(self, rows: int) -> None:
        if self.takes_calls:
            self.tell(_fill)
        if rows and self.kind in _SCANNED:
            self.tell(_fill_large, rows)

    def takes(self, cell: Cell) -> bool:
        if cell.is_bulk:
            return self.kind in (*_SCANNED, *_BULK)
        return self.takes_calls

    def load(self, cell: Cell, round_: int, seconds_: float) -> Load:
        match cell.what:
            case "put_many":
                return self.tell(_put_many, round_, self.kind == "postgres-arrow")
            case "scan":
                return self.tell(_scan)
            case _:
                return self.tell(_drive, cell.what, cell.callers, seconds_)


# -- in the client's process

_client: Client


def _connect(kind: str, endpoint: str, servers: Sequence[int]) -> None:
    global _client  # noqa: PLW0603 - there is one client in the process
    try:
        _client = CLIENTS[kind](endpoint, servers)
    except Exception as error:
        if kind.startswith(OURS):
            raise
        raise PeerFailed(f"{type(error).__name__}: {error}") from None  # what Java raises does not travel


def _fill() -> None:
    _client.fill(batch_of(0, HOT_ROWS, 1))


def _fill_large(rows: int) -> None:
    _client.fill_large(pa.Table.from_batches(batches(rows, 1)))


def _drive(what: str, callers: int, seconds_: float) -> Load:
    return _client.drive(what, callers, seconds_)


def _put_many(round_: int, beside: bool) -> Load:
    """New rows each time; of two clients of one server each has its own."""
    rows = pa.table(batch_of((2 * round_ + beside) * MANY_ROWS, MANY_ROWS, 1))
    measure = Measure(_client.servers)
    return measure.end(MANY_ROWS, [seconds(lambda: _client.put_many(rows))])


def _scan() -> Load:
    found: list[pa.Table] = []
    measure = Measure(_client.servers)
    took_s = seconds(lambda: found.append(_client.scan()))
    return measure.end(found[0].num_rows, [took_s])


# -- the contenders


@contextmanager
def start(options: argparse.Namespace, refusals: list[Refusal]) -> Iterator[list[Contender]]:
    servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        OURS: serve_stelae,
        "redis": serve_redis,
        "postgres": serve_postgres,
        "etcd": serve_etcd,
        "kudu": partial(serve_kudu, options.kudu),
    }
    beside = {OURS: ("stelae-threads",), "postgres": ("postgres-arrow",)}
    wanted = [OURS, *options.peers]
    if options.uvloop:
        servers["stelae-uvloop"] = partial(serve_stelae, uvloop=True)
        wanted.insert(1, "stelae-uvloop")
    if {PUT_MANY, SCAN} & set(options.only):
        servers["embedded"] = open_embedded
        wanted.insert(1, "embedded")
    with ExitStack() as ends:
        contenders: list[Contender] = []
        for kind in wanted:
            console.print(f"[dim]{kind} ...[/]")
            try:
                server = ends.enter_context(servers[kind]())
            except PeerFailed as error:
                refusals.append(Refusal(kind, str(error)))
                continue
            for client in (kind, *beside.get(kind, ())):
                try:
                    contenders.append(_asked_by(client, server, ends))
                except PeerFailed as error:
                    refusals.append(Refusal(client, str(error)))
        yield contenders


def _asked_by(kind: str, server: Server, ends: ExitStack) -> Contender:
    """In a process that does what this one tells it."""
    asking = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    ends.callback(asking.shutdown)
    asking.submit(_connect, kind, server.endpoint, server.pids).result()
    return Contender(kind, server, asking)


# -- what is measured


def measure(contenders: list[Contender], options: argparse.Namespace, refusals: list[Refusal]) -> dict[Cell, Any]:
    """By cell and kind of contender, all rounds together."""
    left = list(contenders)

    def goes_on(contender: Contender, job: Callable[[], None]) -> None:
        try:
            job()
        except PeerFailed as error:
            refusals.append(Refusal(contender.kind, str(error)))
            left.remove(contender)

    for contender in contenders:
        goes_on(contender, partial(contender.fill, options.rows if SCAN in options.only else 0))
    cells = [Cell(what, callers) for what in (GET, PUT) if what in options.only for callers in options.callers]
    cells += [Cell(what) for what in (PUT_MANY, SCAN) if what in options.only]
    found: dict[Cell, dict[str, Load]] = {cell: {} for cell in cells}
    for round_ in range(options.rounds):
        for cell in cells:
            for contender in left[:: -1 if round_ % 2 else 1]:
                if contender.takes(cell):
                    goes_on(contender, partial(_add, found[cell], contender, cell, round_, options.seconds))
            console.print(f"[dim]round {round_ + 1}: {cell.words(options.rows)}[/]")
    return found


def _add(loads: dict[str, Load], contender: Contender, cell: Cell, round_: int, seconds_: float) -> None:
    load = contender.load(cell, round_, seconds_)
    before = loads.get(contender.kind)
    loads[contender.kind] = load if before is None else before + load


def show(found: dict[Cell, dict[str, Load]], titles: dict[str, str], rows: int) -> None:
    table = Table(title="stelae bench: remote, each load")
    table.add_column("what")
    table.add_column("server (caller)")
    for heading in ("p50 ms", "p99 ms", "per second", "server µs each", "caller µs each", "stelae is"):
        table.add_column(heading, justify="right")
    for cell, loads in found.items():
        for at, (kind, load) in enumerate(loads.items()):
            table.add_row(
                "" if at else cell.words(rows),
                titles[kind],
                f"{load.quantile_s(0.5) * 1e3:.3f}",
                f"{load.quantile_s(0.99) * 1e3:.3f}",
                f"{load.per_s:,.0f}",
                f"{load.server_s / load.count * 1e6:.1f}",
                f"{load.caller_s / load.count * 1e6:.1f}",
                "" if kind == OURS else f"{loads[OURS].per_s / load.per_s:.2f}",
            )
        table.add_section()
    console.print(table)


def ratios(found: dict[Cell, dict[str, Load]], titles: dict[str, str], rows: int) -> list[Row]:
    """Of the seconds of a run, or of 1,000 calls. Of gets Redis shows where the limit is: no ratio is aimed at."""
    result = []
    for cell, loads in found.items():
        for kind, load in loads.items():
            if kind == OURS or kind.startswith("stelae-"):
                continue
            wanted = _BULK[kind] if cell.is_bulk else None if kind == "redis" and cell.what == GET else 1.0
            what = cell.words(rows) if cell.is_bulk else f"1,000 times {cell.words(rows)}"
            result.append(Row(what, cell.each_s(loads[OURS]), cell.each_s(load), titles[kind], wanted))
    return result


def facts(found: dict[Cell, dict[str, Load]], titles: dict[str, str], rows: int) -> list[dict[str, Any]]:
    """The same as the table, for programs."""
    return [
        {
            "what": cell.words(rows),
            "contender": titles[kind],
            "p50_s": load.quantile_s(0.5),
            "p99_s": load.quantile_s(0.99),
            **{name: value for name, value in asdict(load).items() if name != "took_s"},
        }
        for cell, loads in found.items()
        for kind, load in loads.items()
    ]


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load, in each round; a third more warms up")
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn")
    parser.add_argument("--callers", type=numbers, default=[1, 8, 64], help="at once: 1,8,64")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table that is scanned")
    parser.add_argument("--peers", type=words, default=list(PEERS), help=f"some of {','.join(PEERS)}; '' for none")
    parser.add_argument("--only", type=words, default=[GET, PUT, PUT_MANY, SCAN], help="some of get,put,put_many,scan")
    parser.add_argument("--uvloop", action="store_true", help="also a cluster whose event loops are uvloop's")
    add_homes(parser, "kudu")
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.peers if name not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(unknown)}; choose from {', '.join(PEERS)}")
    if unknown := [name for name in found.only if name not in (GET, PUT, PUT_MANY, SCAN)]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from get, put, put_many, scan")
    return found


def main() -> None:
    options = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end: what was started is ended"))
    refusals: list[Refusal] = []
    with start(options, refusals) as contenders:
        titles = {contender.kind: contender.title for contender in contenders}
        found = measure(contenders, options, refusals)
    show(found, titles, options.rows)
    report("remote", ratios(found, titles, options.rows))
    for refusal in refusals:
        console.print(f"[yellow]not run:[/] {refusal}")
    write_facts(
        "remote", {"loads": facts(found, titles, options.rows), "not_run": [str(refusal) for refusal in refusals]}
    )


if __name__ == "__main__":
    main()
