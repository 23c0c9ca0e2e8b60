"""The `stelae` command.

Errors are one line on standard error. Exit codes: 0 done, 1 it says no, 2 wrong usage, 130 interrupted, 141 whoever
read the output is gone, of which nothing is said.

Starting is quick: a verb's module is imported when the verb is asked for, or the help that lists it, and imports what
needs Arrow when it runs (`tests/cli/test_starting.py` holds it to that).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

import stelae
from stelae.cli.places import CLUSTER_PANEL, STORE_PANEL, ClusterOption, PathOption, StoreOption, remember_place
from stelae.model.errors import StelaeError

INTERRUPTED, PIPE_BROKEN = 130, 141
_OBJECTS_A_COLLECTION = 50_000


def _rows(app: typer.Typer) -> None:
    from stelae.cli.rows import register_row_verbs

    register_row_verbs(app)


def _scan(app: typer.Typer) -> None:
    from stelae.cli.scans import register_scan

    register_scan(app)


def _import(app: typer.Typer) -> None:
    from stelae.cli.imports import register_import

    register_import(app)


def _tables(app: typer.Typer) -> None:
    from stelae.cli.altering import register_alter
    from stelae.cli.tables import table_app
    from stelae.cli.tablets import tablet_app

    register_alter(table_app)
    app.add_typer(table_app, name="table", rich_help_panel=STORE_PANEL)
    app.add_typer(tablet_app, name="tablet", rich_help_panel=STORE_PANEL)


def _spaces(app: typer.Typer) -> None:
    from stelae.cli.spaces import namespace_app, zone_app

    app.add_typer(namespace_app, name="namespace", rich_help_panel=STORE_PANEL)
    app.add_typer(zone_app, name="zone", rich_help_panel=STORE_PANEL)


def _catalog(app: typer.Typer) -> None:
    from stelae.cli.catalog import catalog_app

    app.add_typer(catalog_app, name="catalog", rich_help_panel=STORE_PANEL)


def _jobs(app: typer.Typer) -> None:
    from stelae.cli.jobs.bulk import register_jobs
    from stelae.cli.jobs.loading import register_load

    register_load(app)
    register_jobs(app)


def _check(app: typer.Typer) -> None:
    from stelae.cli.checks import register_check

    register_check(app)


def _bench(app: typer.Typer) -> None:
    from stelae.cli.benchmark import register_bench

    register_bench(app)


def _inspect(app: typer.Typer) -> None:
    from stelae.cli.inspection import register_inspect

    register_inspect(app)


def _processes(app: typer.Typer) -> None:
    from stelae.cli.cluster.processes import register_processes

    register_processes(app)


def _machine(app: typer.Typer) -> None:
    from stelae.cli.cluster.machine import register_machine

    register_machine(app)


def _cluster(app: typer.Typer) -> None:
    from stelae.cli.cluster.showing import cluster_app

    app.add_typer(cluster_app, name="cluster", rich_help_panel=CLUSTER_PANEL)


def _topology(app: typer.Typer) -> None:
    from stelae.cli.cluster.topology import topology_app

    app.add_typer(topology_app, name="topology", rich_help_panel=CLUSTER_PANEL)


def _demo(app: typer.Typer) -> None:
    from stelae.cli.demo.verb import register_demo

    register_demo(app)


_VERBS: dict[str, Callable[[typer.Typer], None]] = {
    **dict.fromkeys(("get", "put", "erase"), _rows),
    "scan": _scan,
    "import": _import,
    **dict.fromkeys(("table", "tablet"), _tables),
    **dict.fromkeys(("namespace", "zone"), _spaces),
    "catalog": _catalog,
    **dict.fromkeys(("load", "compact", "export", "backup", "restore", "verify", "stats"), _jobs),
    "check": _check,
    "bench": _bench,
    "inspect": _inspect,
    "demo": _demo,
    **dict.fromkeys(("up", "down"), _machine),
    **dict.fromkeys(("master", "node"), _processes),
    "cluster": _cluster,
    "topology": _topology,
}
"""In the order of the help; what each takes to be registered."""

_HIDDEN: dict[str, Callable[[typer.Typer], None]] = {"shard": _processes}
"""What processes of stelae ask of each other, and nobody types."""


@cache
def _register_commands(register: Callable[[typer.Typer], None]) -> Any:
    """The commands by their names."""
    from stelae.cli.dress import dress

    some = typer.Typer(context_settings=_SETTINGS)
    some.callback()(_nothing)  # else one verb alone would be no group
    register(some)
    return {name: dress(command) for name, command in get_group(some).commands.items()}


def _nothing() -> None:
    """No options of its own."""


class _Verbs(TyperGroup):
    """Imports a verb when it is asked for, and turns what it raises into a line and an exit code, wherever the app is
    called from."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's
        register = _VERBS.get(cmd_name) or _HIDDEN.get(cmd_name)
        return None if register is None else _register_commands(register)[cmd_name]

    def get_params(self, ctx: Any) -> Any:
        from stelae.cli.dress import dress_param

        return [dress_param(param) for param in super().get_params(ctx)]

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
            from stelae.cli.screens import err

            err().print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _tell(message: str) -> None:
    from rich.markup import escape

    from stelae.cli.screens import err

    err().print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)


_SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="stelae",
    help="A tablet store for Python and Spark.",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
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


def main() -> None:
    # Most of what a command makes stays until it ends: classes and functions. To look through them every 700 objects
    # takes a sixth of the time of `get`.
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
