"""Where processes of a forked cluster are killed with -9: before or after a step of a change of many tablets.

`master _decide after` ends the master when a load or a truncation is decided and nobody was told yet; `driver _decide
after` ends, at the same moment, the program that asked for it, and the master goes on.

The masters of a cluster that `stelae up` started have traps, too, at the steps of tables' lives and of changes
(`trapped/sitecustomize.py` lays them): each is set later, by a file, and whichever master takes the step next is sent
the signal that the file says (`set_later`).
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MASTER_STEPS = ("begin_load", "_announce", "_prepare", "_decide", "_spread", "forget_session")
SHARD_STEPS = ("_prepare", "_adopt")
WHENS = ("before", "after")
STEPS = [
    *((who, step, when) for step in MASTER_STEPS for when in WHENS for who in ("master", "driver")),
    *(("shard-1", step, when) for step in SHARD_STEPS for when in WHENS),
]
"""All there are: who, the step, and when it dies."""
TABLE_STEPS = {
    "create": ("_make", "create"),
    "alter": ("ask",),
    "drop": ("tell",),
    "create or drop": ("write",),
    "load": MASTER_STEPS[1:5],
}
"""The steps of a master that leads, by what it is doing then."""
_PLACES = {
    "_make": ("stelae.master.master", "Master"),
    "create": ("stelae.master.assignment", "Assignment"),
    "ask": ("stelae.master.tables.telling", "Telling"),
    "tell": ("stelae.master.tables.telling", "Telling"),
    "write": ("stelae.master.records", "Records"),
    **dict.fromkeys(MASTER_STEPS[1:5], ("stelae.master.changes.coordinator", "ChangeCoordinator")),
}
TRAPS = "STELAE_TEST_TRAPS"
"""The variable that says in which directory traps are set."""


def set_trap(what: str, step: str, when: str, victim: str = "") -> None:
    """In the process that takes the step. Once it is set, the next such step is the end: of this process, or of the one
    whose id lies in the file `victim`."""
    spring = _Spring(Path(victim) if victim else None)
    if what.startswith("master"):
        _set_for_master(step, when, spring)
    else:
        _set_for_server(step, when, spring)


class _Spring:
    def __init__(self, victim: Path | None) -> None:
        self._victim = victim
        self._is_set = True

    def __call__(self) -> None:
        if self._is_set:
            self._is_set = False
            os.kill(os.getpid() if self._victim is None else int(self._victim.read_text()), signal.SIGKILL)


def _set_for_master(step: str, when: str, spring: Callable[[], None]) -> None:
    from stelae.master.changes import coordinator
    from stelae.master.changes.loads import TableChanges

    places = {"begin_load": TableChanges, "forget_session": coordinator}
    _wrap(places.get(step, coordinator.ChangeCoordinator), step, lambda now: spring() if now == when else None)


def _wrap(place: Any, step: str, at: Callable[[str], object]) -> None:
    """`at` is told "before" and "after" each such step."""
    done = getattr(place, step)

    async def trapped(*args: Any, **options: Any) -> Any:
        at("before")
        result = await done(*args, **options)
        at("after")
        return result

    setattr(place, step, trapped)


def _set_for_server(step: str, when: str, spring: Callable[[], None]) -> None:
    from stelae.tserver.changes import ShardChanges

    done = getattr(ShardChanges, step)

    def trapped(self: Any, *args: Any, **options: Any) -> Any:
        if when == "before":
            spring()
        result = done(self, *args, **options)
        spring()
        return result

    setattr(ShardChanges, step, trapped)


# -- traps that are set later


def trapped_environment(directory: Path) -> Mapping[str, str]:
    """For the processes of a cluster whose masters are to have traps, which are set in that directory."""
    paths = [str(Path(__file__).parent / "trapped"), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    directory.mkdir()
    return {**os.environ, TRAPS: str(directory), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def lay_traps(directory: Path) -> None:
    """In the process of a master: at each step, before and after it."""
    for step, (module, place) in _PLACES.items():
        _wrap(getattr(importlib.import_module(module), place), step, _Trap(directory, step))


class _Trap:
    def __init__(self, directory: Path, step: str) -> None:
        self._files = {when: directory / f"{step}-{when}" for when in WHENS}

    def __call__(self, when: str) -> None:
        """Of several masters that take the step at the same moment, one finds the trap."""
        sprung = self._files[when].with_suffix(f".{os.getpid()}")
        with suppress(FileNotFoundError):
            os.rename(self._files[when], sprung)
            os.kill(os.getpid(), int(sprung.read_text()))


def set_later(directory: Path, step: str, when: str, number: signal.Signals) -> Callable[[], int | None]:
    """The next master that takes the step is sent the signal then. What is returned says which process that was; None:
    none yet."""
    trap = directory / f"{step}-{when}"
    unset = trap.with_suffix(".unset")
    unset.write_text(str(int(number)))
    unset.rename(trap)

    def find() -> int | None:
        sprung = [each.suffix.removeprefix(".") for each in directory.glob(f"{step}-{when}.*")]
        return int(sprung[0]) if sprung else None

    return find
