"""`stelae demo`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stelae.cli.places import MACHINE_PANEL
from stelae.cli.screens import verb_help


def register_demo(app: typer.Typer) -> None:
    app.command(
        "demo",
        rich_help_panel=MACHINE_PANEL,
        help=verb_help(show_demo.__doc__ or ""),
        epilog="Example: stelae demo --rows 500000 --dir fleet-demo",
    )(show_demo)


def show_demo(
    rows: Annotated[
        int | None,
        typer.Option(min=1_000, max=50_000_000, help="How many devices; 2 million if left out, without Spark 300,000."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="A new directory for all of it; a temporary one if left out."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the report goes; else into the directory.")
    ] = None,
    spark: Annotated[bool, typer.Option(help="With Spark; without, what the embedded store does by itself.")] = True,
) -> None:
    """See what stelae does, in three minutes.

    Loads a fleet of devices with Spark, serves single rows while Spark scans, upserts, kills a writer, compacts, backs
    up, restores and verifies, and leaves a report with plots. Everything is in one directory, which it names; if it is
    interrupted, a temporary one is removed.
    """
    from rich.console import Console

    from stelae.cli.demo.show import run

    run(rows, spark, directory, Console(), report)
