"""What a person sees, and what a program reads.

Results go to standard output, everything else to standard error. Colours and progress are for terminals only (NO_COLOR
is respected); what is not a terminal has no width, so nothing is cut there. Names and values from the store are shown
as they are: no markup of theirs counts, and what is not printable is written out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from typing import Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_NO_WIDTH = 100_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """For whoever runs the verb to deal with; rich itself would end the program."""
        raise BrokenPipeError


def out() -> Console:
    """Made anew each time: tests and shells put other streams in its place."""
    return _console(sys.stdout)


def err() -> Console:
    return _console(sys.stderr)


def _console(stream: Any) -> Console:
    return _Screen(file=stream, width=None if stream.isatty() else _NO_WIDTH, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """A word on what was done, beside the results."""
    err().print(escape(text), style="dim" if sys.stderr.isatty() else None)


def verb_help(text: str) -> str:
    """Prose flows, what is indented stays as it is, and brackets are no markup."""
    paragraphs = cleandoc(text).split("\n\n")
    flowing = [each if each.startswith(" ") else " ".join(each.split("\n")) for each in paragraphs]
    return escape("\n\n".join(flowing))


def print_json(value: Any) -> None:
    """One document, for people too."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_line(value: Any) -> None:
    """One JSON line."""
    typer.echo(msgspec.json.encode(value))


def as_shown(value: object) -> str:
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(value))
    return escape(text)


def on_one_line(value: object) -> str:
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value)))


def grid(*names: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """A table whose columns of numbers stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(as_shown(name), justify="right" if name in right else "left", overflow="fold")
    return table


def facts(pairs: Iterable[tuple[str, str]], title: str | None = None) -> Table:
    """Names and what they are; the latter may hold markup."""
    table = Table(box=None, show_header=False, title=title, title_justify="left", pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(as_shown(name), value)
    return table


def size_text(count_bytes: float) -> str:
    for unit in _UNITS:
        if count_bytes < 1024 or unit == _UNITS[-1]:
            return f"{count_bytes:,.0f} {unit}" if unit == "B" else f"{count_bytes:,.1f} {unit}"
        count_bytes /= 1024
    raise AssertionError("the last unit takes everything")


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class Bar:
    """Work under way: how far it is, and a word on it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def at(self, done: float, total: float | None = None, words: str | None = None) -> None:
        changes: dict[str, Any] = {"completed": done}
        if total is not None:
            changes["total"] = total
        if words is not None:
            changes["words"] = words
        self._progress.update(self._task, **changes)


@contextmanager
def progress_bar(what: str, total: float | None = None, *, counts: bool = False) -> Iterator[Bar]:
    """On standard error, while it lasts, and only if that is a terminal."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if counts else []
    columns += [TextColumn("{task.fields[words]}"), TimeElapsedColumn(), TimeRemainingColumn(compact=True)]
    with Progress(*columns, console=err(), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(as_shown(what), total=total, words=""))


def confirmed(question: str) -> bool:
    """Asked on a terminal only; elsewhere it is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(question, err=True)
