"""Threads that take turns share a core: then handing over costs a switch, and not the waking of another core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


@contextmanager
def on_one_core() -> Iterator[None]:
    """All threads of this process, those that begin meanwhile included. Where that cannot be said, nothing is done."""
    if not hasattr(os, "sched_setaffinity") or not _TASKS.exists():
        yield
        return
    allowed = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    _keep_to({sorted(allowed)[worker % len(allowed)]})
    try:
        yield
    finally:
        _keep_to(allowed)


def _keep_to(cores: set[int]) -> None:
    for task in _TASKS.iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(task.name), cores)
