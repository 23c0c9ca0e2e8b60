"""Processor time of a process and all that it started, as Linux counts it: in hundredths of a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Places in `/proc/<pid>/stat` behind the name."""


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    processor_s: float


class ProcessTree:
    """This process and its descendants.

    Spark ends its workers when they have been idle, and not all of them are waited for: so what a process had used when
    it was last seen stays counted. One that begins and ends between two looks is not.
    """

    def __init__(self) -> None:
        self._root = os.getpid()
        self._ticks: dict[tuple[int, int], int] = {}
        """By number and the time it started: numbers are used again."""

    def processor_s(self) -> float:
        parents: dict[int, int] = {}
        ticks: dict[tuple[int, int], int] = {}
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
            ticks[pid, values[_STARTED]] = values[_USER] + values[_SYSTEM]
        self._ticks |= {who: each for who, each in ticks.items() if self._is_ours(who[0], parents)}
        return sum(self._ticks.values()) / _TICKS_PER_S

    def _is_ours(self, pid: int, parents: dict[int, int]) -> bool:
        while pid and pid != self._root:
            pid = parents.get(pid, 0)
        return pid == self._root

    def measured(self, run: Callable[[], object]) -> Took:
        processor, wall = self.processor_s(), time.perf_counter()
        run()
        return Took(time.perf_counter() - wall, self.processor_s() - processor)
