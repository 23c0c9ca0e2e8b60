"""Where processes of a forked cluster end with -9, by themselves: before or after a step of a change of many tablets.

`master decide after` ends the master when a load or a truncation is decided and nobody was told yet.
"""

from __future__ import annotations

import os
import signal
from typing import Any

MASTER_STEPS = ("_announce", "_prepare", "_decide", "_spread")
SHARD_STEPS = ("_prepare", "_adopt")
WHENS = ("before", "after")
STEPS = [
    *(("master", step, when) for step in MASTER_STEPS for when in WHENS),
    *(("shard-1", step, when) for step in SHARD_STEPS for when in WHENS),
]
"""All there are: who, the step, and when it dies."""


def set_trap(what: str, step: str, when: str) -> None:
    """In the process that is to die. Once it is set, the next such step is its end."""
    if what == "master":
        _set_for_coordinator(step, when)
    else:
        _set_for_server(step, when)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _set_for_coordinator(step: str, when: str) -> None:
    from stelae.master.changes.coordinator import ChangeCoordinator

    done = getattr(ChangeCoordinator, step)

    async def trapped(self: Any, *args: Any) -> Any:
        if when == "before":
            _die()
        await done(self, *args)
        _die()

    setattr(ChangeCoordinator, step, trapped)


def _set_for_server(step: str, when: str) -> None:
    from stelae.tserver.changes import ShardChanges

    done = getattr(ShardChanges, step)

    def trapped(self: Any, *args: Any, **options: Any) -> Any:
        if when == "before":
            _die()
        done(self, *args, **options)
        _die()

    setattr(ShardChanges, step, trapped)
