"""What a person sees, and what a program reads.

Results go to standard output, everything else to standard error. Colours, progress, columns under each other and commas
in numbers are for terminals only (NO_COLOR is respected); elsewhere tables are lines with tabs, and nothing is cut.
Names and values from the store are shown as they are: no markup of theirs counts, and what is not printable is written
out.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.markup import escape
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_NO_WIDTH = 100_000
_NARROW = 12
"""No column of a table is folded into less."""
_GAP = 3
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
    size = shutil.get_terminal_size()
    width = size.columns if is_screen(stream) else _NO_WIDTH
    return _Screen(file=stream, width=width, height=size.lines, highlight=False, soft_wrap=False, emoji=False)


def is_screen(stream: Any) -> bool:
    """Whether a person reads it: a terminal, or what says that it is one."""
    return bool(stream.isatty()) or os.environ.get("TTY_COMPATIBLE") == "1"


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
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_line(value: Any) -> None:
    """One JSON line."""
    import msgspec

    typer.echo(msgspec.json.encode(value))


def as_shown(value: object) -> str:
    """A text that may have several lines."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(value))
    return _unmarked(text)


def on_one_line(value: object) -> str:
    """A name or a value: whatever is in it, it can be no other line or column of what is printed."""
    return _unmarked(_unbroken(value))


def _unmarked(text: str) -> str:
    """Markup that gives the text as it is. Backslashes at its end would count for a tag that follows: they get one."""
    body = text.rstrip("\\")
    count = len(text) - len(body)
    return escape(body) + ("\\" * 2 * count + "[dim][/dim]" if count else "")


def _unbroken(value: object) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


class Grid:
    """A table of texts with markup and of numbers. On a terminal its columns stand under each other; where they do not
    all fit, each row stands by itself, a line for each column: none is left out. Elsewhere it is for programs: lines
    with tabs between the columns, no padding, and numbers without commas."""

    def __init__(self, names: Sequence[str], right: Sequence[str], title: str | None) -> None:
        self.is_continued = False
        """Lines of it are behind other lines of the same: they have no second head."""
        self._names = names
        self._right = right
        self._title = title
        self._rows: list[tuple[str | int, ...]] = []

    def add_row(self, *cells: str | int) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not is_screen(console.file):
            yield Segment(self._lines())
            return
        shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in self._rows]
        yield self._table(shown) if self._fits(shown, options.max_width) else Group(*self._blocks(shown))

    def _lines(self) -> str:
        head = [] if self.is_continued else [[_unbroken(name) for name in self._names]]
        rows = [*head, *([_plain_cell(cell) for cell in row] for row in self._rows)]
        return "".join("\t".join(row) + "\n" for row in rows)

    def _fits(self, rows: Sequence[Sequence[str]], width: int) -> bool:
        """Long texts may be folded, but not into narrow strips."""
        widths = [cell_len(name) for name in self._names]
        for row in rows:
            lengths = (max((cell_len(line) for line in _plain_text(cell).split("\n")), default=0) for cell in row)
            widths = [max(one, min(other, _NARROW)) for one, other in zip(widths, lengths, strict=True)]
        return sum(widths) + _GAP * (len(widths) - 1) <= width

    def _table(self, rows: Sequence[Sequence[str]]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=self._title, title_justify="left", pad_edge=False, show_edge=False)
        for name in self._names:
            justify: JustifyMethod = "right" if name in self._right else "left"
            table.add_column(on_one_line(name), justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*row)
        return table

    def _blocks(self, rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
        if self._title:
            yield self._title
        for number, row in enumerate(rows, 1):
            yield Rule(f"[dim]{number}[/]", style="dim", align="left")
            yield _pairs(zip(self._names, row, strict=True))


def grid(*names: str, right: Sequence[str] = (), title: str | None = None) -> Grid:
    """A table whose columns of numbers, `right`, stand to the right."""
    return Grid(names, right, title)


class _Facts:
    """Names and what they are: on a terminal under each other, elsewhere with a tab between."""

    def __init__(self, pairs: Iterable[tuple[str, str | int]], title: str | None) -> None:
        self._rows = list(pairs)
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not is_screen(console.file):
            yield Segment("".join(f"{_unbroken(name)}\t{_plain_cell(value)}\n" for name, value in self._rows))
            return
        if self._title:
            yield self._title
        yield _pairs((name, f"{value:,}" if isinstance(value, int) else value) for name, value in self._rows)


def facts(pairs: Iterable[tuple[str, str | int]], title: str | None = None) -> RenderableType:
    """Names and what they are; the latter may hold markup."""
    return _Facts(pairs, title)


def _pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(on_one_line(name), value)
    return table


def _plain_text(cell: str) -> str:
    return Text.from_markup(cell, emoji=False).plain


def _plain_cell(cell: str | int) -> str:
    return str(cell) if isinstance(cell, int) else _plain_text(cell).replace("\n", "; ")


def number_text(count: int) -> str:
    """The number as text: with commas on a terminal, plain for programs."""
    return f"{count:,}" if is_screen(sys.stdout) else str(count)


def size_text(count_bytes: float) -> str:
    for unit in _UNITS:
        if count_bytes < 1024 or unit == _UNITS[-1]:
            return f"{count_bytes:,.0f} {unit}" if unit == "B" else f"{count_bytes:,.1f} {unit}"
        count_bytes /= 1024
    raise AssertionError("the last unit takes everything")


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{number_text(count)} {one if count == 1 else many or one + 's'}"


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
    from rich import progress as rich

    columns: list[rich.ProgressColumn] = [rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn()]
    columns += [rich.MofNCompleteColumn()] if counts else []
    columns += [
        rich.TextColumn("{task.fields[words]}"),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(compact=True),
    ]
    with rich.Progress(*columns, console=err(), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(as_shown(what), total=total, words=""))


def ask_yes_no(question: str) -> bool:
    """Asked on a terminal only; elsewhere it is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(question, err=True)
