"""Processor time of processes and all that they started, as Linux counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Places in `/proc/<pid>/stat` behind the name."""


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    processor_s: float


def _threads_s(pid: int) -> float:
    """Of the threads that live, to the nanosecond; that of the whole process is in hundredths of a second, which is too
    coarse for many processes that do little each."""
    found_ns = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for directory in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found_ns += int((directory / "schedstat").read_text().split()[0])
    return found_ns / 1e9


class ProcessTree:
    """Some processes and their descendants; by default this one.

    Spark ends its workers when they have been idle, and not all of them are waited for: so what a process had used when
    it was last seen stays counted. One that begins and ends between two looks is not.
    """

    def __init__(self, *roots: int) -> None:
        self._roots = frozenset(roots or (os.getpid(),))
        self._used_s: dict[tuple[int, int], float] = {}
        """By number and the time it started: numbers are used again."""

    def processor_s(self) -> float:
        parents: dict[int, int] = {}
        used_s: dict[tuple[int, int], float] = {}
        for directory in Path("/proc").iterdir():
            if not directory.name.isdecimal():
                continue
            try:
                stat = (directory / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            values = [0, *map(int, stat.rpartition(")")[2].split()[1:])]
            pid = int(directory.name)
            parents[pid] = values[_PARENT]
            used_s[pid, values[_STARTED]] = (values[_USER] + values[_SYSTEM]) / _TICKS_PER_S
        for who, each_s in used_s.items():
            if self._is_ours(who[0], parents):
                self._used_s[who] = max(each_s, _threads_s(who[0]))
        return sum(self._used_s.values())

    def _is_ours(self, pid: int, parents: dict[int, int]) -> bool:
        while pid and pid not in self._roots:
            pid = parents.get(pid, 0)
        return pid in self._roots

    def measured(self, run: Callable[[], object]) -> Took:
        processor, wall = self.processor_s(), time.perf_counter()
        run()
        return Took(time.perf_counter() - wall, self.processor_s() - processor)
