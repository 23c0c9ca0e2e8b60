"""Where processes of a forked cluster are killed with -9: before or after a step of a change of many tablets.

`master _decide after` ends the master when a load or a truncation is decided and nobody was told yet; `driver _decide
after` ends, at the same moment, the program that asked for it, and the master goes on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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


def set_trap(what: str, step: str, when: str, victim: str = "") -> None:
    """In the process that takes the step. Once it is set, the next such step is the end: of this process, or of the one
    whose id lies in the file `victim`."""
    spring = _Spring(Path(victim) if victim else None)
    if what == "master":
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
    place: Any = places.get(step, coordinator.ChangeCoordinator)
    done = getattr(place, step)

    async def trapped(*args: Any, **options: Any) -> Any:
        if when == "before":
            spring()
        result = await done(*args, **options)
        if when == "after":
            spring()
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
