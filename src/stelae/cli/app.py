"""The `stelae` command.

Errors are one line on standard error. Exit codes: 0 done, 1 it says no, 2 wrong usage, 130 interrupted, 141 whoever
read the output is gone, of which nothing is said.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import stelae
from stelae.cli.altering import register_alter
from stelae.cli.benchmark import register_bench
from stelae.cli.bulk import register_jobs
from stelae.cli.catalog import catalog_app
from stelae.cli.checks import register_check
from stelae.cli.demo.verb import register_demo
from stelae.cli.imports import register_import
from stelae.cli.loading import register_load
from stelae.cli.places import MACHINE_PANEL, STORE_PANEL, ClusterOption, PathOption, StoreOption, remember_place
from stelae.cli.rows import register_row_verbs
from stelae.cli.scans import register_scan
from stelae.cli.screens import err, out
from stelae.cli.spaces import namespace_app, zone_app
from stelae.cli.tables import table_app
from stelae.cli.tablets import tablet_app
from stelae.model.errors import StelaeError

INTERRUPTED, PIPE_BROKEN = 130, 141


class _Verbs(TyperGroup):
    """Turns what a verb raises into a line and an exit code, wherever the app is called from."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StelaeError as error:
            _tell(str(error))
            raise typer.Exit(1) from None
        except BrokenPipeError:
            raise typer.Exit(PIPE_BROKEN) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            _tell(f"{place}{error.strerror or error}")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            err().print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _tell(message: str) -> None:
    err().print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)


app = typer.Typer(
    name="stelae",
    help="A tablet store for Python and Spark.",
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stelae {stelae.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    path: PathOption = None,
    store: StoreOption = None,
    cluster: ClusterOption = None,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """A tablet store for Python and Spark."""
    remember_place(context, path, cluster, store)


register_row_verbs(app)
register_scan(app)
register_import(app)
register_alter(table_app)
app.add_typer(table_app, name="table", rich_help_panel=STORE_PANEL)
app.add_typer(tablet_app, name="tablet", rich_help_panel=STORE_PANEL)
app.add_typer(namespace_app, name="namespace", rich_help_panel=STORE_PANEL)
app.add_typer(zone_app, name="zone", rich_help_panel=STORE_PANEL)
app.add_typer(catalog_app, name="catalog", rich_help_panel=STORE_PANEL)
register_load(app)
register_jobs(app)
register_check(app)
register_bench(app)


@app.command(rich_help_panel=MACHINE_PANEL, epilog="Example: stelae inspect data/fragments/00000000.parquet --json")
def inspect(
    file: Annotated[Path, typer.Argument(help="A fragment (.parquet) or a log segment (.log).")],
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What a file of a store holds, and whether its bytes are whole. Changes nothing."""
    from stelae.cli.inspection import inspect_file

    inspect_file(file, json, out())


register_demo(app)


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
