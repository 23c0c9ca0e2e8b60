"""The `stelae` command. Errors are one line on standard error; exit codes: 0 done, 1 it says no, 2 wrong usage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import stelae
from stelae.cli import demo as demo_module
from stelae.cli import inspection
from stelae.cli.catalog import catalog_app
from stelae.model.errors import StelaeError

app = typer.Typer(
    name="stelae",
    help="A tablet store for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(catalog_app, name="catalog")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stelae {stelae.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """A tablet store for Python and Spark."""


@app.command(epilog="Example: stelae inspect data/fragments/00000000.parquet --json")
def inspect(
    file: Annotated[Path, typer.Argument(help="A fragment (.parquet) or a log segment (.log).")],
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what a fragment or a log segment holds, and whether its bytes are whole. Changes nothing."""
    inspection.inspect_file(file, json, Console())


@app.command(epilog="Example: stelae demo --rows 200000 --no-spark")
def demo(
    rows: Annotated[int, typer.Option(min=1_000, max=20_000_000, help="How many orders to make.")] = 1_000_000,
    spark: Annotated[bool, typer.Option(help="Read the result with Spark too.")] = True,
    keep: Annotated[Path | None, typer.Option(help="Leave the files in this (new) directory.")] = None,
) -> None:
    """See what stelae does, in a minute: in a directory of its own, removed at the end."""
    demo_module.run(rows, spark, keep, Console())


def main() -> None:
    try:
        app()
    except StelaeError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
