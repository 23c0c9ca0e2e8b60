"""How long a reader waits at most, of single rows and of scans at now, while a table on all shards is loaded anew or
truncated, and while the driver of the load or the leading master is killed with -9 in the midst of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from cluster_calls import GROUPS
from cluster_measuring import console, numbered
from harness import Row
from load_driver import ROWS
from remote_servers import StelaeServer, serve_stelae
from rich.table import Table

import stelae

PATIENCE_S = 900.0
ROUNDS = 6
LATER_S = 0.008
"""So much later than in the round before is a process killed: a load over four shards is decided after some 50 ms."""
WANTED_MS = 300
_DRIVER = Path(__file__).with_name("load_driver.py")


def bench_waits() -> tuple[dict[str, Any], list[Row]]:
    with serve_stelae(nodes=2, shards=2) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[10, 20, 30])
        table.put_many(numbered(0, ROWS))
        values = iter(range(10**6))
        jobs: Mapping[str, Callable[[], None]] = {
            "nothing happens": lambda: time.sleep(5),
            "processes are started that do nothing to it": lambda: _start_some(server),
            "it is loaded": lambda: _load(server, values, ROUNDS),
            "it is loaded, and the driver killed": lambda: _load_and_kill(server, values),
            "it is loaded, and the master killed": lambda: _disturb(server, lambda: _load(server, values, 1)),
            "it is truncated": lambda: _truncate_often(db, table),
            "it is truncated, and the master killed": lambda: _disturb(server, lambda: _truncate(db)),
        }
        found = {}
        for what, job in jobs.items():
            found[what] = longest_waits(server.endpoint, job)
            console.print(
                f"while {what}: {found[what][0] * 1e3:,.0f} ms for a get, {found[what][1] * 1e3:,.0f} for a scan"
            )
    shown = Table(title=f"the longest wait of a reader while ..., in ms (wanted: {WANTED_MS} at most)")
    shown.add_column("what")
    for reader in ("get", "scan"):
        shown.add_column(reader, justify="right")
    for what, seconds in found.items():
        shown.add_row(what, *(f"{each * 1e3:,.0f}" for each in seconds))
    console.print(shown)
    return found, []


def _start_some(server: StelaeServer) -> None:
    """As it is done when a master was killed: what that takes of the machine is no wait of a reader's."""
    for _ in range(ROUNDS):
        server.start_again()


def _drive(server: StelaeServer, first: int, rounds: int) -> subprocess.Popen[str]:
    words = [sys.executable, str(_DRIVER), server.endpoint, "t", str(first), str(rounds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _load(server: StelaeServer, values: Iterator[int], rounds: int) -> None:
    """Until each load is known to have happened: a driver that fails is started again."""
    first = min(next(values) for _ in range(rounds))
    for _ in range(ROUNDS):
        with _drive(server, first, rounds) as driver:
            said = driver.stdout.read() if driver.stdout is not None else ""
        if said.count("done") == rounds:
            return
    raise RuntimeError(f"a load has failed {ROUNDS} times")


def _load_and_kill(server: StelaeServer, values: Iterator[int]) -> None:
    for number in range(ROUNDS):
        with _drive(server, next(values), 1) as driver:
            assert driver.stdout is not None
            driver.stdout.readline()
            time.sleep(LATER_S * number)
            driver.kill()


def _disturb(server: StelaeServer, change: Callable[[], None]) -> None:
    """Kill the master in a change, a little later each time."""
    for number in range(ROUNDS):
        pid = server.master_pid()
        with ThreadPoolExecutor(1) as threads:
            changing = threads.submit(change)
            try:
                time.sleep(LATER_S * number)
                os.kill(pid, signal.SIGKILL)
            finally:
                server.start_again()
            changing.result()


def _truncate_often(db: stelae.Database, table: stelae.Table) -> None:
    for _ in range(ROUNDS):
        _truncate(db)
        table.put_many(numbered(0, ROWS))


def _truncate(db: stelae.Database) -> None:
    """Until it is known to have happened."""
    while True:
        try:
            db.truncate_table("t")
        except (stelae.Unavailable, stelae.UnknownOutcome):
            continue
        return


def longest_waits(endpoint: str, job: Callable[[], None]) -> tuple[float, float]:
    """Of one who gets one row after the other, of all tablets; and of one who scans all of them again and again."""
    is_over = Event()

    def read(call: Callable[[stelae.Table, int], object]) -> float:
        longest_s, number = 0.0, 0
        with stelae.connect(endpoint, timeout_s=PATIENCE_S) as db:
            table = db.table("t")
            call(table, number)
            while not is_over.is_set():
                begun_s = time.perf_counter()
                call(table, number)
                longest_s, number = max(longest_s, time.perf_counter() - begun_s), number + 7
        return longest_s

    with ThreadPoolExecutor(2) as threads:
        gets = threads.submit(read, lambda table, number: table.get(number % ROWS))
        scans = threads.submit(read, lambda table, _: list(table.scan()))
        try:
            job()
        finally:
            is_over.set()
        return gets.result(), scans.result()
