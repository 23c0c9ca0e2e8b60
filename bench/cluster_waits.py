"""How long a reader waits at most, of single rows and of scans at now, while a table on all shards is loaded anew or
truncated, and while the driver of the load, the leading one of two masters, or a shard is killed with -9 in the midst
of it. Whoever of those dies that make the change, a reader is wanted to wait `WANTED_MS` at most. A killed shard is
something else: what it alone has waits until it is started again."""

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
NOTHING = "nothing happens"
SHARD_DIES = "it is loaded, and a shard killed"
_DRIVER = Path(__file__).with_name("load_driver.py")


def bench_waits() -> tuple[dict[str, Any], list[Row]]:
    with (
        serve_stelae(nodes=2, shards=2, masters=2) as server,
        stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db,
    ):
        table = db.create_table("t", {"id": "int64"}, GROUPS, splits=[10, 20, 30])
        table.put_many(numbered(0, ROWS))
        values = iter(range(10**6))
        jobs: Mapping[str, Callable[[], None]] = {
            NOTHING: lambda: time.sleep(5),
            "processes are started that do nothing to it": lambda: _start_some(server),
            "it is loaded": lambda: _load(server, values, ROUNDS),
            "it is loaded, and the driver killed": lambda: _load_and_kill(server, values, None),
            "it is loaded, and the leading master killed": lambda: _load_and_kill(server, values, server.master_pid),
            "it is truncated": lambda: _truncate_often(db, table),
            "it is truncated, and the leading master killed": lambda: _truncate_and_kill(server, db),
            SHARD_DIES: lambda: _load_and_kill(server, values, server.shard_pid),
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
    shown.add_column("as wanted")
    for what, seconds in found.items():
        shown.add_row(what, *(f"{each * 1e3:,.0f}" for each in seconds), judge(found, what))
    console.print(shown)
    return found, []


def judge(found: Mapping[str, tuple[float, float]], what: str) -> str:
    """Whether readers waited no longer than is wanted. A machine on which they wait for nothing shows nothing."""
    if max(found[what]) * 1e3 <= WANTED_MS:
        return "yes"
    if what == SHARD_DIES:
        return "no: one replica, which waits for its shard to be started again"
    return "not shown on this machine" if max(found[NOTHING]) * 1e3 > WANTED_MS else "no"


def _start_some(server: StelaeServer) -> None:
    """As it is done when a master was killed: what that takes of the machine is no wait of a reader's."""
    for _ in range(ROUNDS):
        server.start_again()


def _drive(server: StelaeServer, first: int, rounds: int) -> subprocess.Popen[str]:
    words = [sys.executable, str(_DRIVER), server.endpoint, "t", str(first), str(rounds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _load(server: StelaeServer, values: Iterator[int], rounds: int) -> None:
    _load_again(server, min(next(values) for _ in range(rounds)), rounds)


def _load_again(server: StelaeServer, first: int, rounds: int) -> None:
    """Until each load is known to have happened: a driver that fails is started again."""
    for _ in range(ROUNDS):
        with _drive(server, first, rounds) as driver:
            said = driver.stdout.read() if driver.stdout is not None else ""
        if said.count("done") == rounds:
            return
    raise RuntimeError(f"a load has failed {ROUNDS} times")


def _load_and_kill(server: StelaeServer, values: Iterator[int], find: Callable[[], int] | None) -> None:
    """Kill a process, None: the driver, when a load is about to be committed, and a little later each time. Those that
    are left bring the load to its end before the process is started again; a driver's, if it was decided."""
    for number in range(ROUNDS):
        victim, value = None if find is None else find(), next(values)
        with _drive(server, value, 1) as driver:
            assert driver.stdout is not None
            driver.stdout.readline()
            time.sleep(LATER_S * number)
            if victim is None:
                driver.kill()
                continue
            os.kill(victim, signal.SIGKILL)
            said = driver.stdout.read()
        if "done" not in said:
            _load_again(server, value, 1)
        server.start_again()


def _truncate_and_kill(server: StelaeServer, db: stelae.Database) -> None:
    for number in range(ROUNDS):
        pid = server.master_pid()
        with ThreadPoolExecutor(1) as threads:
            changing = threads.submit(_truncate, db)
            try:
                time.sleep(LATER_S * number)
            finally:
                os.kill(pid, signal.SIGKILL)
            changing.result()
        server.start_again()


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
