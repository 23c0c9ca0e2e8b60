"""A store that another process has open, against the same calls in the process that has it.

    bench_attached.py [--rows 1000000] [--rounds 5]

One process opens a table of a 24-byte key and a 100-byte value and stays; this one attaches to it by its socket. Both
get hot rows, put rows, and scan everything to an Arrow table, in turns, and the best of the rounds counts. The calls of
the process that has the store are measured there: no figure holds the way from one to the other twice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, report
from made_rows import batch_of, batches, key_of, place, seconds

import stelae

GETS, PUTS = 2_000, 500
WANTED = {"get": 0.3, "put": 0.8, "scan": 0.7}
OWN = """
import sys
sys.path.insert(0, sys.argv[1])
import bench_attached
bench_attached.own(sys.argv[2], int(sys.argv[3]))
"""


def works(table: Any, rows: int) -> dict[str, Callable[[], float]]:
    """What is measured, by name: one round each, in seconds."""
    keys = [key_of(int(number)) for number in np.random.default_rng(7).integers(0, min(rows, 20_000), GETS)]
    puts = batch_of(rows, PUTS, 1).to_pylist()

    def get() -> None:
        for key in keys:
            table.get(key)

    def put() -> None:
        for row in puts:
            table.put(row)

    def scan() -> None:
        found = table.scan().to_arrow().num_rows
        if found < rows:
            raise SystemExit(f"{found} rows instead of {rows}")

    return {name: partial(seconds, job) for name, job in (("get", get), ("put", put), ("scan", scan))}


def own(path: str, rows: int) -> None:
    """Have the store open, and do what is asked for by name, until nothing more is."""
    with stelae.open(path) as db:
        table = db.create_table("t", key={"id": "binary"}, groups=[stelae.columns("g", {"field0": "binary"})])
        for batch in batches(rows, 1):
            table.put_many(batch)
        table.compact()
        jobs = works(table, rows)
        print("ready", flush=True)
        for line in sys.stdin:
            print(jobs[line.strip()](), flush=True)


def compare(path: Path, rows: int, rounds: int) -> list[Row]:
    command = [sys.executable, "-c", OWN, str(Path(__file__).parent), str(path / "stelae"), str(rows)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if owner.stdin is None or owner.stdout is None or owner.stdout.readline() != "ready\n":
        raise SystemExit("the process that has the store did not open it")
    best: dict[str, tuple[float, float]] = {}
    with stelae.open(path / "stelae") as db:
        for _ in range(rounds):
            for name, job in works(db.table("t"), rows).items():
                owner.stdin.write(f"{name}\n")
                owner.stdin.flush()
                there_s, here_s = float(owner.stdout.readline()), job()
                before = best.get(name, (here_s, there_s))
                best[name] = min(before[0], here_s), min(before[1], there_s)
    owner.stdin.close()
    owner.wait()
    titles = {
        "get": f"{GETS:,} gets of hot rows, one at a time",
        "put": f"{PUTS:,} single puts, durable, one at a time",
        "scan": f"full scan of {rows:,} rows to Arrow",
    }
    return [Row(f"attached: {titles[name]}", *best[name], "the process that has it", WANTED[name]) for name in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with place("attached") as path:
        report("attached", compare(path, options.rows, options.rounds))


if __name__ == "__main__":
    main()
