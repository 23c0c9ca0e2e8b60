"""Servers that a bench starts: on 127.0.0.1 only, known by their processes, ended with the bench.

What is not on PATH, or in the place named for it, is not installed: `PeerFailed` says in words what is missing.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_peers import PeerFailed

HOST = "127.0.0.1"
LOG_CHARS = 300
_START_S_MAX = 180.0
_STOP_S_MAX = 30.0
_LOOK_S = 0.05
_ANSWER_S_MAX = 1_800.0


@dataclass(frozen=True, slots=True)
class Server:
    """`title`: which release it is, and how it is kept durable. `pids`: of its processes when it was started; those
    that they start count, too. `members`: where it has several, each may be lost."""

    title: str
    endpoint: str
    pids: tuple[int, ...]
    members: tuple[Member, ...] = ()


class Member:
    """One process of a server, which may be killed, stopped and started again. `port`: where clients find it."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        port: int,
        how: Mapping[str, Any] | None = None,
        end_with: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.port = port
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        self._command, self._how, self._end_with = command, how, end_with
        directory.mkdir(exist_ok=True)

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "it was not started"
        return self.process

    @property
    def pid(self) -> int:
        return self.running.pid

    def start(self, is_ready: Callable[[], bool] | None = None) -> None:
        """It runs, and is ready: where nothing is said, it takes connections."""
        self.process = begin(self._command, self.directory, self._how)
        wait_ready(self.process, is_ready or (lambda: accepts(self.port)), self.directory)

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.pid, which)

    def end(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.signal(signal.SIGCONT)
            end_process(self.process, self._end_with)


def client_module(name: str, package: str) -> Any:
    """A client that the bench's user installs: none of them is in the lock."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerFailed(f"the Python package {package} is not installed ({error})") from error


_HOMES = {
    "kudu": "where kudu-binary was unpacked, with the jars of kudu-client",
    "cassandra": "where the jars of cassandra-all are, with all that it needs",
    "hbase": "where the jars of hbase-server are, with all that it needs and those of Hadoop 3.3 or later",
}


def add_homes(parser: argparse.ArgumentParser, *peers: str) -> None:
    """Options that say where peers were installed."""
    for peer in peers:
        variable = f"{peer.upper()}_HOME"
        home = os.environ.get(variable)
        default = None if home is None else Path(home)
        parser.add_argument(f"--{peer}", type=Path, default=default, help=f"{_HOMES[peer]}; else {variable}")


def find(name: str, hint: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PeerFailed(f"there is no {name} on PATH; {hint}")
    return found


def find_postgres(name: str) -> str:
    """Debian keeps the server's programs of each release in a directory of their own, which is not on PATH."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(beside[-1]) if beside else find(name, "Debian's package postgresql has it")


def other_user(directory: Path) -> dict[str, Any]:
    """Postgres does not run as root: then it is its own user, who gets the directory."""
    if os.geteuid():
        return {}
    try:
        shutil.chown(directory, "postgres", "postgres")
    except LookupError as error:
        raise PeerFailed(f"Postgres does not run as root, and there is no user for it ({error})") from error
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


def begin(command: Sequence[str], directory: Path, how: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
    with (directory / "log.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory, **(how or {}))


def wait_ready(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], directory: Path) -> None:
    until_s = time.monotonic() + _START_S_MAX
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until_s:
            said = (directory / "log.txt").read_text(errors="replace").strip()
            raise PeerFailed(f"it did not start: {said[-LOG_CHARS:]}")
        time.sleep(_LOOK_S)


def accepts(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((HOST, port)) == 0


@contextmanager
def ended(how: signal.Signals = signal.SIGTERM) -> Iterator[Callable[[subprocess.Popen[bytes]], Any]]:
    """What is noted here has ended when this is left."""
    with ExitStack() as ends:

        def note(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            ends.callback(end_process, process, how)
            return process

        yield note


def end_process(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answer_of(future: Future[Any], server: Server | None = None) -> Any:
    """What a client in a process of its own answers. PeerFailed, and the client is ended, if that takes too long or
    there is nobody to answer it: `server` has ended."""
    until_s = time.monotonic() + _ANSWER_S_MAX
    while True:
        try:
            return future.result(1.0)
        except TimeoutError:
            if future.done():
                raise
        ended_by_itself = server is not None and any(each.running.poll() is not None for each in server.members)
        if ended_by_itself or time.monotonic() > until_s:
            for child in multiprocessing.active_children():
                child.kill()
            raise PeerFailed("the server ended" if ended_by_itself else f"no answer in {_ANSWER_S_MAX:,.0f} s")
