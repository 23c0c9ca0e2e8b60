"""Clusters of real processes on this machine, started by the command line, and ended for certain: by their ids, and
never one that only got the id of another."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Self

import msgspec

import stelae
from stelae.adapters.free_ports import check_free
from stelae.adapters.liveness import ProcessMark, is_alive, mark_process, send_signal, wait_for_end
from stelae.adapters.ownership import read_owner
from stelae.model.errors import StelaeError, Unavailable
from tests.cli.running import run
from tests.effort import HANG_S

PROGRAM = [sys.executable, "-P", "-m", "stelae.cli"]
_LOOK_S = 0.05
_nap = Event()


def free_port() -> int:
    """Below those that the system gives to whoever connects, so that nobody gets it by chance while its server is
    away."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(StelaeError):
            check_free("127.0.0.1", port)
            return port


def until(what: Callable[[], Any]) -> Any:
    """What it gives, once that counts as true."""
    give_up_s = time.monotonic() + HANG_S
    while not (found := what()):
        assert time.monotonic() < give_up_s, "it does not come"
        _nap.wait(_LOOK_S)
    return found


def run_stelae(
    *words: str | Path, code: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must end with that code. `environment`: None: as this one's."""
    done = subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def refusal(*words: str | Path) -> str:
    """The one error of a command that is refused."""
    said = run_stelae(*words, code=1).stderr
    assert said.count("error: ") == 1, said
    return said.partition("error: ")[2].strip()


def refused(*words: str | Path) -> str:
    """The same in this process, for what is refused before anything is done."""
    result = run(*words)
    assert result.exit_code == 1, (result.output, result.exception)
    before, found, said = result.stderr.rpartition("error: ")
    assert found
    assert "error: " not in before
    return said.strip()


def connected(address: str, timeout_s: float) -> stelae.Database:
    """For tests whose calls are to give up soon: connecting itself may be tried again."""
    while True:
        with suppress(Unavailable):
            return stelae.connect(address, timeout_s=timeout_s)


class RealCluster:
    """In one directory. `port`: its master's. `environment`: of its processes; None: as this one's."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._environment = environment
        self.port = free_port()
        self.seen: set[ProcessMark] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def up(self, *words: str) -> dict[str, Any]:
        """Its status, once it serves."""
        common = ("up", "--dir", self.directory, "--port", str(self.port), "--detach")
        run_stelae(*common, *words, environment=self._environment)
        return self.status()

    def down(self) -> None:
        run_stelae("down", "--dir", self.directory)

    def status(self) -> dict[str, Any]:
        """Asked in this process, because tests ask again and again."""
        result = run("up", "--dir", self.directory, "--status", "--json")
        assert result.exit_code == 0, (result.output, result.exception)
        found: dict[str, Any] = json.loads(result.stdout)
        self.living()
        return found

    def connect(self, timeout_s: float = HANG_S) -> stelae.Database:
        return stelae.connect(self.address, timeout_s=timeout_s)

    def shard(self) -> ProcessMark:
        """The process that serves as its only shard now."""

        def find() -> ProcessMark | None:
            note = read_owner(self.directory / "node-1" / "shard-0")
            mark = None if note is None or not note.address else ProcessMark(note.pid, note.began)
            return mark if mark is not None and is_alive(mark) else None

        found: ProcessMark = until(find)
        return found

    def living(self) -> set[ProcessMark]:
        """All processes of it that live, as far as anybody has written them down."""
        found = set()
        for file in self.directory.glob("**/owner"):
            note = read_owner(file.parent)
            if note is not None:
                found.add(ProcessMark(note.pid, note.began))
        with suppress(OSError, msgspec.MsgspecError):
            plan = msgspec.json.decode((self.directory / "cluster.json").read_bytes())
            parts = [*plan["masters"], *plan["nodes"], *([plan["etcd"]] if plan["etcd"] else [])]
            found |= {ProcessMark(**part["process"]) for part in parts if part["process"]}
        self.seen |= {mark for mark in found if mark.pid != os.getpid()}
        return {mark for mark in self.seen if is_alive(mark)}

    def end(self) -> None:
        """Whatever happened: a node may have started a shard meanwhile, so it is looked again."""
        while living := self.living():
            for mark in living:
                kill(mark)


def kill(mark: ProcessMark) -> None:
    """With -9; it has ended when this returns."""
    send_signal(mark, signal.SIGKILL)
    assert wait_for_end(mark, HANG_S)


def mark_of(pid: int) -> ProcessMark:
    found = mark_process(pid)
    assert found is not None, f"process {pid} does not live"
    return found


@contextmanager
def real_cluster(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[RealCluster]:
    cluster = RealCluster(directory, environment)
    try:
        yield cluster
    finally:
        cluster.end()


class Background:
    """A command that runs on, and what it says on standard output, line by line. Ended with the test."""

    def __init__(self, *words: str | Path, errors: Path | None = None) -> None:
        self._errors = errors.open("wb") if errors is not None else None
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def line(self) -> Any:
        """The next one, as JSON. An AssertionError if there is no more."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"ended: {self.process.wait(HANG_S)}"
        return json.loads(said)

    def lines_until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        said = [self.line()]
        while not wanted(said[-1]):
            said.append(self.line())
        return said

    def stop(self, number: signal.Signals) -> int:
        """Its exit code, once it has ended."""
        os.kill(self.process.pid, number)
        return self.process.wait(HANG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._errors is not None:
            self._errors.close()
