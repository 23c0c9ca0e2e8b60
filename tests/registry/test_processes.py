"""Real processes on one catalog, on SQLite and on etcd, also while they are killed with -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stelae.catalog.check import check_catalog
from stelae.catalog.entries import TableCreated
from stelae.launch.metastores import open_metastore
from stelae.registry.catalog.reader import CatalogReader, HistoryStep
from tests.effort import HANG_S, tries
from tests.etcd import running_etcd
from tests.registry.worker import fingerprint, place_of

WORKERS = 8
COMMANDS = 400
NEVER = 1_000_000


class Process:
    """A worker, and all that it has said so far."""

    def __init__(self, place: str, name: str, seed: int, count: int, snapshot_every: int = 300) -> None:
        self.name = name
        self.said: list[dict[str, Any]] = []
        words = [place, name, str(seed), str(count), str(snapshot_every)]
        command = [sys.executable, "-m", "tests.registry.worker", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.said.append(json.loads(line))

    @property
    def acknowledged(self) -> int:
        return sum("ack" in facts for facts in self.said)

    @property
    def is_done(self) -> bool:
        return any("done" in facts for facts in self.said) or self._process.poll() is not None

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._end()

    def finish(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        error = self._end()
        assert self._process.returncode == 0, error
        return self.said[-1]

    def _end(self) -> str:
        self._process.wait(timeout=HANG_S)
        self._listener.join()
        assert self._process.stderr is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        error = self._process.stderr.read()
        for pipe in (self._process.stderr, self._process.stdin, self._process.stdout):
            pipe.close()
        return error


@pytest.fixture(params=["sqlite", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield json.dumps({"path": str(tmp_path / "store")})
        return
    with running_etcd(tmp_path) as (server,):
        yield json.dumps({"etcd": server.endpoint})


async def read_history(place: str) -> list[HistoryStep]:
    async with open_metastore(place_of(place), read_only=True) as store:
        return [step async for step in CatalogReader(store).history()]


def judge(place: str, processes: list[Process]) -> None:
    """The history that is there, against what the processes were told."""
    steps = asyncio.run(read_history(place))
    first, last = steps[0].update.version, steps[-1].after
    assert [step.update.version for step in steps] == list(range(first, first + len(steps)))
    check_catalog(last)
    made_in = {
        entry.table.name: step.update.version
        for step in steps
        for entry in step.update.entries
        if isinstance(entry, TableCreated)
    }
    authors = {step.update.version: step.update.author for step in steps}
    prints = {step.after.version: fingerprint(step.after) for step in steps}
    told: Counter[int] = Counter()
    for process in processes:
        for facts in process.said:
            version = facts.get("ack", facts.get("done", facts.get("final", 0)))
            assert version <= last.version
            if version < first:
                continue
            if facts.get("made"):
                assert made_in[facts["made"]] == version
            if "ack" in facts and authors[version] == process.name:
                told[version] += 1
            if "fingerprint" in facts:
                assert prints[version] == facts["fingerprint"]
    assert max(told.values()) == 1, "two commands were told the same version"
    names = [entry.table.name for step in steps for entry in step.update.entries if isinstance(entry, TableCreated)]
    assert len(names) == len(set(names)), "a command was carried out twice"


def test_eight_processes_make_one_history(place: str) -> None:
    count = COMMANDS // WORKERS
    processes = [Process(place, f"w{n}", n, count) for n in range(WORKERS)]
    while not all(process.is_done for process in processes):
        threading.Event().wait(0.05)
    finals = [process.finish() for process in processes]
    assert len({(final["final"], final["fingerprint"]) for final in finals}) == 1
    assert sum(process.acknowledged for process in processes) > COMMANDS // 2
    assert not any("unsure" in facts for process in processes for facts in process.said)
    judge(place, processes)


def test_processes_killed_in_the_middle_lose_nothing_and_repeat_nothing(place: str) -> None:
    """Nothing is compacted here, so that every acknowledgement can be held against the history."""
    chance = random.Random(8)
    processes = [Process(place, f"w{n}", n, 10_000, NEVER) for n in range(WORKERS)]
    everybody = [*processes]
    for kill in range(tries(6)):
        before = sum(process.acknowledged for process in everybody)
        while sum(process.acknowledged for process in everybody) < before + 40:
            threading.Event().wait(0.02)
            assert not any(process.is_done for process in processes), [p.said[-1:] for p in processes]
        victim = chance.randrange(len(processes))
        processes[victim].kill()
        processes[victim] = Process(place, f"k{kill}", 100 + kill, 10_000, NEVER)
        everybody.append(processes[victim])
    for process in processes:
        process.kill()
    after = Process(place, "after", 7, 3, NEVER)
    everybody.append(after)
    while not after.is_done:
        threading.Event().wait(0.05)
    after.finish()
    judge(place, everybody)
