"""Where a demo plays: its directory, its screen, its clock, and what it remembers for the report.

A process that a step starts ends with the step, whatever happens: it is killed and waited for when the step is left. A
writer whose reader is gone ends by its broken pipe.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import stelae
from stelae.adapters.clock import SystemClock
from stelae.adapters.signals import interrupts_later, started_without_interrupts
from stelae.service.reports import Progress as Told


@dataclass(frozen=True, slots=True)
class StepTaken:
    """`did`: what happened to the rows in it, for the report's headline. `with_spark`: it was a job of Spark's."""

    title: str
    seconds: float
    did: tuple[str, ...] = ()
    with_spark: bool = False


@dataclass(frozen=True, slots=True)
class DemoFigure:
    """One line of the closing table. `head`: what it is called on top of the report, if it is one of the few there."""

    name: str
    value: str
    head: str = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """One request: when it was sent, since the traffic began, and how long it took."""

    at_s: float
    took_s: float
    is_update: bool = False


@dataclass(slots=True)
class DemoStory:
    """What the report is made of. `scans`: from when to when Spark was scanning. `firmware`: devices by version, before
    and after the upsert. `tablets`: where each begins, and its files before and after the compaction. `store`: the
    directory that is left. `taken_ms`: when it was."""

    rows: int
    figures: list[DemoFigure] = field(default_factory=list)
    steps: list[StepTaken] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    scans: list[tuple[float, float]] = field(default_factory=list)
    firmware: list[tuple[str, int, int]] = field(default_factory=list)
    tablets: list[tuple[str, int, int]] = field(default_factory=list)
    store: str = ""
    taken_ms: int = 0


class DemoStage:
    def __init__(self, directory: Path, rows: int, console: Console) -> None:
        self.directory = directory
        self.rows = rows
        self.console = console
        self.clock = SystemClock()
        self.story = DemoStory(rows, store=str(self.store), taken_ms=self.clock.wall_ms())
        self.db: stelae.Database
        self.fleet: stelae.Table

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def backups(self) -> Path:
        return self.directory / "backups"

    def open(self) -> None:
        self.db = stelae.open(self.store)

    @contextmanager
    def step(self, title: str, *did: str, with_spark: bool = False) -> Iterator[None]:
        heading = f"{len(self.story.steps) + 1}. {title}"
        if self.console.is_terminal:
            self.console.rule(Text(heading, "bold"), align="left")
        else:
            self.say(f"\n== {heading}")
        start = self.clock.monotonic_s()
        yield
        took = self.clock.monotonic_s() - start
        self.story.steps.append(StepTaken(title, took, did, with_spark))
        self.say(f"[dim]{took:.2f} s[/]")

    def say(self, words: object) -> None:
        self.console.print(words, highlight=False, soft_wrap=True)

    def say_rows(self, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Numbers to the right, as people write them."""
        table = Table()
        for place, name in enumerate(names):
            is_number = bool(rows) and isinstance(rows[0][place], int | float)
            table.add_column(name, justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row))
        self.console.print(table)

    def figure(self, name: str, value: str, head: str = "") -> None:
        self.story.figures.append(DemoFigure(name, value, head))

    @contextmanager
    def bar(self, what: str) -> Iterator[Told]:
        """Gives whom to tell how far a job is."""
        columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
        columns.append(TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=None)

            def told(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total or None)

            yield told

    def measure(self, jobs: Sequence[Callable[[], Any]]) -> list[float]:
        """How long each took, in seconds."""
        took = []
        for job in jobs:
            start = self.clock.monotonic_s()
            job()
            took.append(self.clock.monotonic_s() - start)
        return took

    @contextmanager
    def beside(self, module: str, job: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs a function on the store, and does not outlive the step."""
        code = f"import sys; from {module} import {job}; {job}(sys.argv[1])"
        command = [sys.executable, "-c", code, str(self.store)]
        process: subprocess.Popen[str] | None = None
        try:
            # In the middle of starting it, an interrupt would leave a process that nobody knows of.
            with interrupts_later(), started_without_interrupts():
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
            yield process
        finally:
            if process is not None:
                process.kill()
                process.communicate()


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least this part of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def short_time(seconds: float) -> str:
    """As people say it: 85 us, 1.2 ms, 3.4 s."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def halves_and_worst(took: Sequence[float]) -> str:
    return f"p50 {short_time(percentile(took, 0.5))}, p99 {short_time(percentile(took, 0.99))}"


_LONG_NUMBER = re.compile(r"\d{2,3}(,\d{3})+|\d(,\d{3}){2,}")


def rounded(text: str) -> str:
    """With long numbers in it as people say them: the other digits are of this run alone."""
    return _LONG_NUMBER.sub(_round, text)


def _round(number: re.Match[str]) -> str:
    value = int(number[0].replace(",", ""))
    return f"{value / 1e6:.1f} million" if value >= 1_000_000 else f"{value // 1_000},000"
