"""What it takes to start a process: a command, a program with its first row, the processes of a cluster.

    bench_start.py [--runs 20] [--only first,get]

Each is started again and again, in turns with two peers that do what cannot be avoided or what others do: a program
that imports pyarrow, and one that makes a SQLite file and inserts a row. Shown are the processor time, user and system
of the whole process, and the wall time, the best of all runs, each against both peers. Directories lie in memory where
there is plenty (`/dev/shm`), so that no disk is measured. A process that stays, a master or a node, is measured until
it says that it is ready.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import Row, report
from processor_time import ProcessTree, Took

HERE = Path(__file__).resolve().parent.parent
MEMORY = Path("/dev/shm")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled by the first run, as they are for users."""
COMMAND = (sys.executable, "-c", "from stelae.cli.app import main; main()")

FIRST_ROW = """
import sys, stelae
with stelae.open(sys.argv[1]) as db:
    table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"name": "string", "age": "int64"})])
    table.put({"id": "ann", "name": "Ann", "age": 31})
"""
FIRST_INSERT = """
import sys, sqlite3
with sqlite3.connect(sys.argv[1]) as db:
    db.execute("create table t (id text primary key, name text, age integer)")
    db.execute("insert into t values ('ann', 'Ann', 31)")
"""
ARROW, SQLITE = "import pyarrow", "sqlite3: create and insert"


def run_to_end(command: Sequence[str]) -> Took:
    """One process, from its start to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Took(took, used.ru_utime + used.ru_stime)


def run_to_ready(command: Sequence[str]) -> Took:
    """One process, from its start to the first line that it prints; then it is ended."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise SystemExit(f"{' '.join(command)} ended before it was ready")
        return Took(time.perf_counter() - began, ProcessTree(process.pid).processor_s())
    finally:
        process.terminate()
        process.communicate()


class Starts:
    """What is started, by a short name: a title, and how it is run once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._count = 0
        self._store = place / "store"
        run_to_end((sys.executable, "-c", FIRST_ROW, str(self._store)))
        self.ways: dict[str, tuple[str, Callable[[], Took]]] = {
            "version": ("stelae --version", lambda: run_to_end((*COMMAND, "--version"))),
            "get": ("stelae get, of a store that nobody has open", self._get),
            "attached": ("stelae get, of a store that is open elsewhere", self._get_attached),
            "import": ("import stelae", lambda: run_to_end((sys.executable, "-c", "import stelae"))),
            "first": ("a new store, a table, its first row", self._first_row),
            "master": ("stelae master, of a new cluster, until ready", lambda: self._process("master")),
            "node": ("stelae node of one shard, until ready", lambda: self._process("node")),
        }
        self.peers: dict[str, Callable[[], Took]] = {
            ARROW: lambda: run_to_end((sys.executable, "-c", "import pyarrow")),
            SQLITE: lambda: run_to_end((sys.executable, "-c", FIRST_INSERT, self._new("sqlite"))),
        }

    def _new(self, kind: str) -> str:
        self._count += 1
        return str(self._place / f"{kind}-{self._count}")

    def _get(self) -> Took:
        return run_to_end((*COMMAND, "--path", str(self._store), "get", "t", "ann"))

    def _get_attached(self) -> Took:
        import stelae

        with stelae.open(self._store):
            return self._get()

    def _first_row(self) -> Took:
        path = self._new("first")
        try:
            return run_to_end((sys.executable, "-c", FIRST_ROW, path))
        finally:
            shutil.rmtree(path)

    def _process(self, kind: str) -> Took:
        """A node needs a master that made the cluster: one is started before it, and not measured."""
        place = Path(self._new("cluster"))
        place.mkdir()
        common = ("--metastore", f"sqlite://{place / 'meta'}", "--store", str(place / "data"), "--insecure", "--json")
        master = (*COMMAND, "master", "--name", "m", "--dir", str(place / "m"), "--listen", "127.0.0.1:0", *common)
        node = (*COMMAND, "node", "--name", "n", "--dir", str(place / "n"), "--shards", "1", *common)
        try:
            took = run_to_ready(master)
            return took if kind == "master" else run_to_ready(node)
        finally:
            shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each")
    parser.add_argument("--only", help="some of: version, get, attached, import, first, master, node")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-start-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        starts = Starts(Path(place))
        wanted = list(starts.ways) if arguments.only is None else arguments.only.split(",")
        if unknown := set(wanted) - set(starts.ways):
            parser.error(f"--only: {', '.join(sorted(unknown))} is none of: {', '.join(starts.ways)}")
        runs: dict[str, Callable[[], Took]] = {starts.ways[name][0]: starts.ways[name][1] for name in wanted}
        found: dict[str, list[Took]] = {}
        for _ in range(arguments.runs):
            for title, run in (runs | starts.peers).items():
                found.setdefault(title, []).append(run())
    rows = []
    for title in runs:
        for peer in starts.peers:
            for what, of in (("processor", "processor_s"), ("wall", "wall_s")):
                ours, other = (min(getattr(took, of) for took in found[each]) for each in (title, peer))
                rows.append(Row(f"{title} ({what})", ours, other, peer))
    report("start", rows)


if __name__ == "__main__":
    main()
