"""Processes that use one store and write down what they asked and what they were told.

    python -m tests.histories.worker BEATS

BEATS is the number of a pipe that gets a byte for each line of a history.

Reads commands as lines of JSON, and forks a process for each that is to be started, so that each begins with the
library loaded and no store open:

    {"start": [directory, number, seed, calls, log]}   ->  its process id
    {"wait": true}                                     ->  how the processes ended, [id, status] each
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import stelae

KEYS = ["a", "m"]
COUNTERS = ["n", "x"]
PATIENCE_S = 120.0
"""A worker goes on by itself when the owner is gone: no call may fail because of that."""


class Recorder:
    """One process's part of a history: each line is in the file when the call goes on."""

    def __init__(self, path: str, process: int, beats: int | None = None) -> None:
        """`beats`: a pipe that gets a byte for each line."""
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._process = process
        self._beats = beats

    def record(self, f: str, key: str, given: Any, job: Callable[[], Any]) -> str:
        """What became of the job. Its errors are part of the history."""
        self._write("invoke", f, key, given)
        kind, found = "ok", None
        try:
            found = job()
        except (stelae.Conflict, stelae.AlreadyExists):
            kind = "fail"
        except stelae.UnknownOutcome as error:
            assert not error.is_fault, error
            kind = "info"
        except stelae.Retryable:
            kind = "none"
        self._write(kind, f, key, found)
        return kind

    def _write(self, kind: str, f: str, key: str, value: Any) -> None:
        event = {
            "process": self._process,
            "type": kind,
            "f": f,
            "key": key,
            "value": value,
            "time": time.monotonic_ns(),
        }
        os.write(self._file, (json.dumps(event) + "\n").encode())
        if self._beats is not None:
            os.write(self._beats, b".")


def make_table(db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64"}, purge="max-history=3"), stelae.columns("h", {"w": "int64"})]
    db.create_table("t", key={"k": "string"}, groups=groups, splits=["m"])


class Worker:
    def __init__(self, directory: str, number: int, seed: int, log: str, beats: int | None = None) -> None:
        self._chance = random.Random(seed)
        self._recorder = Recorder(log, number, beats)
        self._next = number * 1_000_000
        self._db = stelae.open(directory, timeout_s=PATIENCE_S)
        self._table = self._db.table("t")

    def run(self, calls: int) -> None:
        for _ in range(calls):
            if self._chance.random() < 0.3:
                self._count(self._chance.choice(COUNTERS))
            else:
                self._call(self._chance.choice(KEYS))
        self._db.close()

    def read(self, key: str) -> Any:
        def get() -> Any:
            found = self._table.get(key)
            row.append(found)
            return None if found is None else found["v"]

        row: list[Any] = []
        self._recorder.record("get", key, None, get)
        return row[0] if row else None

    def _count(self, key: str) -> None:
        if self._chance.random() < 0.3:
            self.read(key)
        else:
            self._recorder.record("add", key, 1, lambda: self._table.increment(key, {"v": 1})["v"])

    def _call(self, key: str) -> None:
        record, table = self._recorder.record, self._table
        self._next += 1
        value, row = self._next, {"k": key, "v": self._next, "w": self._next}
        kinds = ["get", "put", "put", "put", "absent", "absent", "swap", "swap", "swap", "erase", "upkeep"]
        match self._chance.choice(kinds):
            case "get":
                self.read(key)
            case "put":
                record("put", key, value, lambda: void(table.put(row)))
            case "absent":
                if record("absent", key, value, lambda: void(table.put(row, if_absent=True))) == "fail":
                    self.read(key)
            case "erase":
                record("erase", key, None, lambda: void(table.erase(key)))
            case "swap":
                before = self.read(key)
                if before is not None:
                    given = [before["v"], value]
                    swap = record("swap", key, given, lambda: void(table.put(row, if_unchanged_since=before.txn)))
                    if swap == "fail":
                        self.read(key)
            case _:
                with suppress(stelae.UnknownOutcome):
                    if self._chance.random() < 0.5:
                        table.flush()
                    else:
                        table.compact()


def void(_: object) -> None:
    """A call whose result is not part of the history."""


def _start(beats: int, directory: str, number: int, seed: int, calls: int, log: str) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        Worker(directory, number, seed, log, beats).run(calls)
        status = 0
    except stelae.StelaeError as error:
        print(f"worker {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _load_all() -> None:
    """What a worker imports on its way is loaded once for all. One that does a little and ends says what that is."""
    reading, writing = os.pipe()
    if not os.fork():
        with tempfile.TemporaryDirectory() as directory:
            with stelae.open(directory) as db:
                make_table(db)
            Worker(directory, 0, 0, os.devnull).run(20)
            os.write(writing, "\n".join(name for name in sys.modules if name.isascii()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as names:
        for name in names.read().split():
            if not name.startswith("__"):
                with suppress(ImportError):
                    importlib.import_module(name)
    os.wait()


def _wait_for_all() -> list[tuple[int, int]]:
    ended = []
    while True:
        try:
            ended.append(os.wait())
        except ChildProcessError:
            return ended


def main() -> None:
    _load_all()
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = _start(int(sys.argv[1]), *command["start"]) if "start" in command else _wait_for_all()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
