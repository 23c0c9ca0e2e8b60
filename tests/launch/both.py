"""The same store in this process and in another one, and the same trouble in either."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import stelae
from stelae.model.errors import Overloaded
from tests.effort import HANG_S

ROOT = Path(__file__).parents[2]
OWNER = """
import sys, stelae
from tests.launch.both import Trouble, create_table
with stelae.open(sys.argv[1]) as db:
    create_table(db)
    trouble = Trouble(db._session.backend)
    print("ready", flush=True)
    for line in sys.stdin:
        trouble.take(line.strip())
        print("taken", flush=True)
"""


def create_table(db: stelae.Database) -> None:
    groups = [stelae.columns("g", {"v": "int64", "n": "int64"})]
    db.create_table("t", key={"k": "string"}, groups=groups, splits=["b"], if_not_exists=True)


def make_table(path: Path) -> None:
    with stelae.open(path) as db:
        create_table(db)


@contextmanager
def owner_of(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store, with its table."""
    command = [sys.executable, "-c", OWNER, str(path)]
    owner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        yield owner
    finally:
        if owner.poll() is None:
            owner.send_signal(signal.SIGCONT)
            owner.kill()
        owner.communicate(timeout=HANG_S)


@contextmanager
def store_at(where: str, path: Path) -> Iterator[subprocess.Popen[str] | None]:
    """A store with its table: here (local), or with the process that has it (attached)."""
    if where == "local":
        make_table(path)
        yield None
    else:
        with owner_of(path) as owner:
            yield owner


class Trouble:
    """What can befall a store: "full", it has no room for writes; "stuck", its disk does not finish writing the log;
    "over", neither any more."""

    def __init__(self, store: Any) -> None:
        self._shard = store.server.shard
        self._segments = self._shard.wal._segments
        self._write: Callable[..., None] = self._segments.write
        self._go = Event()
        self._go.set()
        self._segments.write = self._write_later

    def take(self, kind: str) -> None:
        match kind:
            case "full":
                self._shard._check_room = _refuse
            case "stuck":
                self._go.clear()
            case "over":
                self._shard.__dict__.pop("_check_room", None)
                self._go.set()
            case _:
                raise ValueError(kind)

    def _write_later(self, *args: Any) -> None:
        self._go.wait()
        self._write(*args)


def _refuse(size: int, urgent: bool) -> None:
    raise Overloaded(f"no room for {size} bytes{', urgent as they are' if urgent else ''}")


def told_to(owner: subprocess.Popen[str]) -> Callable[[str], None]:
    """What `Trouble.take` does, in the process that has the store."""

    def take(kind: str) -> None:
        assert owner.stdin is not None
        assert owner.stdout is not None
        owner.stdin.write(f"{kind}\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "taken\n"

    return take
