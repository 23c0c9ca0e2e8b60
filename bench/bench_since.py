"""The embedded store now against the same store at an earlier commit: nothing should have become slower.

    bench_since.py [--since REV[,REV...]] [--turns 7] [--rows 20000] [--only get,put]

Processes of both take turns on the same machine. Each makes a store in memory (`/dev/shm` where there is one), so that
what the code itself takes is not hidden behind the disk; of each process the best of many short rounds counts. Shown
are the time before divided by the time after (above 1: faster now), of the best process and as the median of pairs, in
processor time of the whole process. `--since` is any commit of this repository; it is checked out beside this one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")
WHAT = ("put", "put_many", "get", "get_many", "scan of 10", "scan as rows", "scan as Arrow", "open after a kill")


def best_of(run: Callable[[], object], times: int, seconds: float) -> float:
    """Processor time of one run, the best of rounds of so many runs, as long as there is time."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    run()
    gc.collect()
    gc.disable()
    while len(found) < 3 or time.perf_counter() < end:
        start = time.process_time()
        for _ in range(times):
            run()
        found.append((time.process_time() - start) / times)
    gc.enable()
    return min(found)


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": f"user{number:09d}", "name": f"name {number}", "age": number % 90} for number in range(count)]


def measure(path: Path, rows: int, only: list[str], seconds: float) -> dict[str, float]:
    """What one process sees. It uses only names that every version has."""
    import stelae

    db = stelae.open(path / "store")
    columns = stelae.columns("g", {"name": "string", "age": "int64"})
    db.create_table("t", key={"id": "string"}, groups=[columns])
    table, made = db.table("t"), rows_of(rows)
    table.put_many(made)
    table.flush()
    keys = [row["id"] for row in made]
    table.get_many(keys)
    count = iter(range(10**9))

    def put() -> None:
        number = next(count)
        table.put({"id": keys[number % 5000], "name": f"other {number}", "age": number})

    def get() -> None:
        table.get(keys[next(count) * 7919 % len(keys)])

    def short_scan() -> None:
        assert len(list(table.scan(start=keys[next(count) * 7919 % (len(keys) - 10)], limit=10))) == 10

    ways: dict[str, tuple[Callable[[], object], int]] = {
        "get": (get, 500),
        "get_many": (lambda: table.get_many(keys[:1000]), 3),
        "scan of 10": (short_scan, 50),
        "scan as rows": (lambda: sum(1 for _ in table.scan()), 1),
        "scan as Arrow": (lambda: table.scan().to_arrow(), 5),
        "put": (put, 200),
        "put_many": (lambda: table.put_many(made), 1),
    }
    found = {what: best_of(*way, seconds) for what, way in ways.items() if what in only}
    db.close()
    if "open after a kill" in only:
        found["open after a kill"] = min(_open_killed(path / f"killed-{turn}") for turn in range(3))
    return found


def _open_killed(path: Path) -> float:
    """Of a store whose owner ended in the midst of work, with 2,000 rows in its log."""
    import stelae

    if (owner := os.fork()) == 0:
        db = stelae.open(path)
        db.create_table("t", key={"id": "string"}, groups=[stelae.columns("g", {"name": "string", "age": "int64"})])
        for row in rows_of(2000):
            db.table("t").put(row)
        os._exit(0)
    os.waitpid(owner, 0)
    start = time.process_time()
    db = stelae.open(path)
    took = time.process_time() - start
    assert db.table("t").count() == 2000
    db.close()
    return took


def run_of(source: Path, arguments: argparse.Namespace) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--rows", str(arguments.rows)]
    command += ["--only", ",".join(arguments.only), "--seconds", str(arguments.seconds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(revision: str, arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-since-") as directory:
        before = Path(directory) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(before), revision], cwd=HERE, check=True)
        try:
            pairs = [(run_of(before, arguments), run_of(HERE, arguments)) for _ in range(arguments.turns)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)
    print(f"since {revision}: time before / time now, best and (median of {arguments.turns} pairs); now in us")
    for what in arguments.only:
        earlier, later = [pair[0][what] for pair in pairs], [pair[1][what] for pair in pairs]
        ratio = min(earlier) / min(later)
        middle = statistics.median(a / b for a, b in zip(earlier, later, strict=True))
        print(f"  {what:18} {ratio:5.2f} ({middle:.2f})  {min(later) * 1e6:12,.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", help="a commit, or several with commas between")
    parser.add_argument("--turns", type=int, default=7, help="processes of each")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measure in a process")
    parser.add_argument("--only", default=",".join(WHAT), help="some of: " + ", ".join(WHAT))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(WHAT):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of: {', '.join(WHAT)}")
    if arguments.one:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY if MEMORY.is_dir() else None) as place:
            print(json.dumps(measure(Path(place), arguments.rows, arguments.only, arguments.seconds)))
        return
    for revision in arguments.since.split(","):
        compare(revision, arguments)


if __name__ == "__main__":
    main()
