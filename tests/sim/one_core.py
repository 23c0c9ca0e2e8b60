"""Threads that take turns share a core: then handing over costs a switch, and not the waking of another core."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


@contextmanager
def on_one_core() -> Iterator[None]:
    """All threads of this process, those that begin meanwhile included. Each core is for one process of tests at a
    time; one for which none is left goes where the system puts it, so that no core is idle beside a busy one. Where
    cores cannot be chosen, nothing is done."""
    if not hasattr(os, "sched_setaffinity") or not _TASKS.exists():
        yield
        return
    allowed = os.sched_getaffinity(0)
    with ExitStack() as held:
        core = next((core for core in sorted(allowed) if _take(core, held)), None)
        if core is not None:
            held.callback(_keep_to, allowed)
            _keep_to({core})
        yield


def _take(core: int, held: ExitStack) -> bool:
    """Nobody else has it until the end."""
    file = os.open(Path(tempfile.gettempdir(), f"stelae-tests-core-{core}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    held.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _keep_to(cores: set[int]) -> None:
    for task in _TASKS.iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(task.name), cores)
