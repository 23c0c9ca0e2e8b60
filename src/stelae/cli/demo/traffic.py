"""Requests for single rows, sent at a steady pace while other things happen, and how they fare, live.

A thread sends them, so that Spark has the main one. Every so many reads comes an update: a transaction that reads the
row, changes it, and is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stelae.adapters.threads import StepThread
from stelae.cli.demo.fleet import FLEET, device
from stelae.cli.demo.stage import DemoStage, Latency, percentile, short_time
from stelae.model.errors import Corruption, StelaeError

_PERIOD_S = 0.01
_READS_PER_STEP = 10
_STEPS_PER_UPDATE = 2
_TICK_S = 0.1
_SLICE_S = 0.25
_SLICES_SHOWN = 48
_SPARKS = "▁▂▃▄▅▆▇█"
_SPREAD = 7_919


class Traffic:
    """A context: requests are sent while it is open. The first error ends it, and is raised at its end."""

    def __init__(self, stage: DemoStage) -> None:
        self._stage = stage
        self._start_s = stage.clock.monotonic_s()
        self._sent = 0
        self._steps = 0
        self._error: StelaeError | None = None
        self._thread: StepThread | None = None
        self.latencies: list[Latency] = []

    @property
    def elapsed_s(self) -> float:
        return self._stage.clock.monotonic_s() - self._start_s

    def __enter__(self) -> Self:
        self._thread = StepThread("stelae-demo-traffic", self._step, _PERIOD_S)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is not None:
            self._thread.close()
        if self._error is not None and kind is None:
            raise self._error

    def _step(self) -> bool:
        if self._error is not None:
            return False
        try:
            for _ in range(_READS_PER_STEP):
                self._read()
            self._steps += 1
            if self._steps % _STEPS_PER_UPDATE == 0:
                self._update()
        except StelaeError as error:
            self._error = error
        return False

    def _key(self) -> str:
        self._sent += 1
        return device(self._sent * _SPREAD % self._stage.rows)

    def _read(self) -> None:
        key, start_s = self._key(), self.elapsed_s
        found = self._stage.fleet.get(key)
        self.latencies.append(Latency(start_s, self.elapsed_s - start_s))
        if found is None or found["device"] != key:
            raise Corruption(f"row {key} is not there", FLEET)

    def _update(self) -> None:
        key, start_s = self._key(), self.elapsed_s
        self._stage.fleet.update(key, lambda row: {"battery": row["battery"] - 0.1} if row else None)
        self.latencies.append(Latency(start_s, self.elapsed_s - start_s, is_update=True))

    def took(self, *, is_update: bool, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        return [
            each.took_s
            for each in tuple(self.latencies)
            if each.is_update == is_update and since_s <= each.at_s < until_s
        ]

    def wait(self, seconds: float, tick: Callable[[], None]) -> None:
        """Let it run for so long, with nothing else going on."""
        end_s, never = self.elapsed_s + seconds, Event()
        while self.elapsed_s < end_s and self._error is None:
            never.wait(_TICK_S)
            tick()


def slices(latencies: Sequence[Latency], part: float, width_s: float = _SLICE_S) -> list[tuple[float, float]]:
    """A percentile of the reads by the time they were sent: the middle of each slice that has any, and the value."""
    by_slice: dict[int, list[float]] = {}
    for each in latencies:
        if not each.is_update:
            by_slice.setdefault(int(each.at_s / width_s), []).append(each.took_s)
    return [((place + 0.5) * width_s, percentile(took, part)) for place, took in sorted(by_slice.items())]


class TrafficPanel:
    """On a terminal the figures of the traffic, as they are now; elsewhere nothing."""

    def __init__(self, stage: DemoStage, traffic: Traffic) -> None:
        self._traffic = traffic
        self._live = Live(console=stage.console, transient=True, refresh_per_second=8)
        self._is_shown = stage.console.is_terminal

    def __enter__(self) -> Self:
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, doing: str) -> None:
        if self._is_shown:
            self._live.update(self._drawn(doing))

    def _drawn(self, doing: str) -> RenderableType:
        table = Table("live", "requests", "p50", "p99", "p99 of the last second")
        now_s = self._traffic.elapsed_s
        for name, is_update in (("point reads", False), ("updates, durable", True)):
            took = self._traffic.took(is_update=is_update)
            last = self._traffic.took(is_update=is_update, since_s=now_s - 1)
            shown = [short_time(percentile(values, part)) for values, part in ((took, 0.5), (took, 0.99), (last, 0.99))]
            table.add_row(name, f"{len(took):,}", *shown)
        return Group(table, Text(f"p99 {sparks(self._traffic.latencies)}", "cyan"), Text(doing, "bold"))


def sparks(latencies: Sequence[Latency]) -> str:
    """The p99 of the last slices, as a line of blocks."""
    found = [value for _, value in slices(tuple(latencies), 0.99)][-_SLICES_SHOWN:]
    most = max(found, default=0.0)
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(value / most * len(_SPARKS)))] for value in found)
