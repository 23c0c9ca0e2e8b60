"""Several processes on one directory, of which owners are killed and stopped: every row is linearizable.

A seed says what is done, but not when the machine lets each process run. `STELAE_SEED=0:200` runs two hundred of them.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.ownership import read_owner
from tests.histories.checker import check_history
from tests.histories.worker import COUNTERS, KEYS, Recorder, make_table
from tests.sim.seeds import repeat, seeds

ROOT = Path(__file__).parents[2]
CALLS = 40
QUIET_S = 5.0
STOPPED_S = 0.2


class Zygote:
    """The process that workers are forked from."""

    def __init__(self, process: subprocess.Popen[str], beats: int) -> None:
        self._process = process
        self._beats = beats

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait_for_lines(self, count: int, seconds: float) -> None:
        """Until the workers have written so many more lines, or none for so long: all may be done, or wait for one that
        is stopped."""
        while count > 0 and select.select([self._beats], [], [], seconds)[0]:
            count -= len(os.read(self._beats, min(count, 4_096)))


@contextmanager
def made_zygote() -> Iterator[Zygote]:
    beats, writing = os.pipe()
    command = [sys.executable, "-m", "tests.histories.worker", str(writing)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, pass_fds=[writing]) as process:
        os.close(writing)
        yield Zygote(process, beats)
        assert process.stdin is not None
        process.stdin.close()
    os.close(beats)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with made_zygote() as found:
        yield found


class Run:
    """One history. `log` is what an outside checker reads."""

    def __init__(self, directory: Path, seed: int, zygote: Zygote) -> None:
        self.log = directory / "history.jsonl"
        self._store = directory / "store"
        self._chance = random.Random(seed)
        self._zygote = zygote
        self._workers: set[int] = set()
        self._number = 0

    def go(self) -> None:
        with stelae.open(self._store) as db:
            make_table(db)
        for _ in range(self._chance.randrange(4, 7)):
            self._start()
        for _ in range(self._chance.randrange(2, 7)):
            self._zygote.wait_for_lines(self._chance.randrange(5, 60), QUIET_S)
            self._disturb()
        self._zygote.ask({"wait": True})
        self._zygote.wait_for_lines(sys.maxsize, 0)

    def _start(self) -> None:
        self._number += 1
        seed = self._chance.randrange(2**32)
        self._workers.add(self._zygote.ask({"start": [str(self._store), self._number, seed, CALLS, str(self.log)]}))

    def _disturb(self) -> None:
        note = read_owner(self._store)
        victim = self._chance.choice(sorted(self._workers))
        if note is not None and note.pid in self._workers and self._chance.random() < 0.7:
            victim = note.pid
        if self._chance.random() < 0.6:
            with signals(victim, signal.SIGKILL):
                self._workers.discard(victim)
            self._start()
        else:
            with signals(victim, signal.SIGSTOP, signal.SIGCONT):
                self._zygote.wait_for_lines(self._chance.randrange(5, 30), self._chance.random() * STOPPED_S)

    def finish(self) -> list[str]:
        """What the rows show in the end is part of the history."""
        recorder = Recorder(str(self.log), 0)
        with stelae.open(self._store) as db:
            table = db.table("t")
            for key in (*KEYS, *COUNTERS):
                recorder.record("get", key, None, partial(shown, table, key))
        return check_history(self.log.read_text().splitlines())


def shown(table: stelae.Table, key: str) -> Any:
    row = table.get(key)
    return None if row is None else row["v"]


@contextmanager
def signals(process: int, first: signal.Signals, second: signal.Signals | None = None) -> Iterator[None]:
    """Sent to one that may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(process, first)
    try:
        yield
    finally:
        if second is not None:
            with suppress(ProcessLookupError):
                os.kill(process, second)


def test_every_row_is_linearizable(tmp_path: Path, zygote: Zygote) -> None:
    for seed in seeds(5):
        directory = tmp_path / str(seed)
        directory.mkdir()
        run = Run(directory, seed, zygote)
        run.go()
        problems = run.finish()
        assert not problems, f"{repeat(seed)}\nsaw in {run.log}:\n" + "\n".join(problems)
