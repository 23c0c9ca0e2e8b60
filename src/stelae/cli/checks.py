"""`stelae check`: whether a whole store is sound."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from stelae.cli.places import STORE_PANEL, JsonOption, StorePlace, placed
from stelae.cli.screens import as_shown, counted, err, grid, is_screen, out, print_json, progress_bar
from stelae.model.errors import StelaeError

if TYPE_CHECKING:
    from stelae.service.reports import CheckReport

PROBLEMS_FOUND, NOT_CHECKED = 1, 2


def register_check(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=STORE_PANEL, epilog="Example: stelae check --path data")(check_whole_store)


@placed
def check_whole_store(place: StorePlace, json: JsonOption = False) -> None:
    """Is the store whole?

    Reads all of it: the catalog, what tablets refer to, every checksum. Changes nothing. Of a cluster every shard
    looks at what it has; one that does not answer is a problem.

    Exit code 0: whole. 1: problems were found, and are listed. 2: it could not be checked.
    """
    try:
        with progress_bar("checking", counts=True) as bar:
            report = place.check(bar.at)
    except StelaeError as error:
        err().print(f"[bold red]error:[/] {as_shown(error)}")
        raise typer.Exit(NOT_CHECKED) from None
    if json:
        problems = [{"what": each.what, "where": each.where, "words": each.words} for each in report.problems]
        print_json({"whole": not problems, "problems": problems, "counts": report.counts})
    else:
        _show(report)
    if report.problems:
        raise typer.Exit(PROBLEMS_FOUND)


def _show(report: CheckReport) -> None:
    console, problems, counts = out(), report.problems, report.counts
    if problems and is_screen(sys.stdout):
        for each in problems:
            console.print(f"[red]{as_shown(each.what)}[/] {as_shown(each.where)}", soft_wrap=True)
            console.print(f"    {as_shown(each.words)}", soft_wrap=True)
    elif problems:
        table = grid("what", "where", "problem")
        for each in problems:
            table.add_row(f"[red]{as_shown(each.what)}[/]", as_shown(each.where), as_shown(each.words))
        console.print(table)
    looked = as_shown(", ".join(counted(count, what.removesuffix("s"), what) for what, count in counts.items()))
    word = f"[bold red]{counted(len(problems), 'problem')}[/]" if problems else "[bold green]whole[/]"
    console.print(f"{word} [dim]({looked})[/]" if looked else word, soft_wrap=True)
