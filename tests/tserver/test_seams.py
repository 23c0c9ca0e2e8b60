"""Whoever asks the metastore, writes a file or syncs the log holds no lock: nobody else waits for a network."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stelae.sim.effects import Effect
from stelae.storage.turns import Turn
from tests.assembly import scripts
from tests.assembly.worlds import Machine
from tests.tserver import test_jobs

ROOMS = ("stelae.storage.", "stelae.tserver.")

ALLOWED = {
    "stelae.tserver.server": "closing is the last thing that a server does: whoever closes it, too, waits for that",
    "stelae.storage.log.segments": "of two that collect the log one deletes; nobody else takes that lock",
}
"""Modules whose lock may be held during an effect, and why."""


class NotedLock:
    """A lock that stands in `held` while somebody has it."""

    def __init__(self, real: Any, module: str, held: list[str]) -> None:
        self._real = real
        self._module = module
        self._held = held

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        taken = bool(self._real.acquire(*args, **kwargs))
        if taken:
            self._held.append(self._module)
        return taken

    def release(self) -> None:
        self._held.remove(self._module)
        self._real.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class NotedThreading:
    """What a module that says `threading.Lock` finds there."""

    def __init__(self, make_lock: Callable[[], NotedLock]) -> None:
        self.Lock = make_lock

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locks of both rooms that are held now, by the modules that made them. All is done by one thread."""
    found: list[str] = []

    def noted(real: Any, module: str) -> Callable[[], NotedLock]:
        return lambda: NotedLock(real(), module, found)

    for name, module in list(sys.modules.items()):
        if name.startswith(ROOMS) and name != Turn.__module__:
            for key, value in list(vars(module).items()):
                if value is threading.Lock or value is threading.RLock:
                    monkeypatch.setattr(module, key, noted(value, name))
                if value is threading:
                    monkeypatch.setattr(module, key, NotedThreading(noted(threading.Lock, name)))
    return found


@pytest.mark.parametrize("script", [scripts.SCRIPT, test_jobs.SCRIPT], ids=["tables", "jobs"])
def test_no_lock_is_held_while_something_is_written(held: list[str], script: Sequence[scripts.Step]) -> None:
    seen: Counter[str] = Counter()

    def look(effect: Effect) -> None:
        seen[effect.name if effect.name == "metastore" else effect.kind] += 1
        wrong = [module for module in held if module not in ALLOWED]
        assert not wrong, f"{effect} while a lock of {wrong} is held"

    machine = Machine(1, look)
    store = machine.open()
    for step in script:
        step.act(machine, store)
    machine.end("closed")
    assert {"metastore", "commit", "delete", "append", "sync"} <= seen.keys(), "the script does too little"
    assert not held
