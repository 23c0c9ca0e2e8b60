"""`stelae cluster show`: a cluster at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

import stelae
from stelae.cli.places import ClusterPlace, JsonOption, cluster_placed
from stelae.cli.screens import Grid, as_shown, counted, grid, out, print_json, size_text

if TYPE_CHECKING:
    from stelae.registry.masters.overview import ClusterOverview, ShardSeen

_PATIENCE_S = 30.0
_UNKNOWN = "[dim]?[/]"

cluster_app = typer.Typer(help="Look at a cluster.", no_args_is_help=True)


@cluster_app.callback()
def _group() -> None:
    """Look at a cluster."""


@cluster_app.command("show", epilog="Example: stelae cluster show --cluster 127.0.0.1:7100")
@cluster_placed
def show_cluster(place: ClusterPlace, json: JsonOption = False) -> None:
    """Who leads, who serves, and what is late.

    A master asks each process how it is, now: who does not answer within a few seconds is shown so. Any master can be
    asked; the one that leads is preferred.
    """
    from stelae.launch.access import find_access
    from stelae.launch.looking import ClusterMasters

    found = ClusterMasters(place.masters, find_access(), stelae.__version__, _PATIENCE_S).look()
    if json:
        print_json(found)
        return
    _show(found)


def _show(found: ClusterOverview) -> None:
    console = out()
    leads = f"[bold]{as_shown(found.leader)}[/] leads, number {found.guard}" if found.leader else "no master leads yet"
    console.print(f"{leads}; version {found.catalog_version} of the catalog, {counted(found.tables, 'table')}")
    masters = grid("master", "serves on", "state", "release")
    for master in found.masters:
        state = "leads" if master.leads else "stands by"
        masters.add_row(
            as_shown(master.name), as_shown(master.address), _state(state, master.trouble), as_shown(master.release)
        )
    console.print(masters)
    console.print(_shards(found.shards))
    for late in found.late:
        console.print(f"[red]{as_shown(late.what)}[/]: {as_shown(late.words)}", soft_wrap=True)
    if not found.late:
        console.print("[green]nothing is late[/]")


def _shards(shards: tuple[ShardSeen, ...]) -> Grid:
    numbers = ("starts", "tablets", "in files", "in memory", "log", "catalog")
    racks = ("rack",) if any(shard.rack for shard in shards) else ()
    table = grid("shard", *racks, "serves on", "state", *numbers, right=numbers)
    for shard in shards:
        told = shard.numbers
        sizes = [
            size_text(told[name]) if name in told else _UNKNOWN
            for name in ("fragment_bytes", "unflushed_bytes", "log_bytes")
        ]
        table.add_row(
            as_shown(shard.name),
            *(as_shown(shard.rack) for _ in racks),
            as_shown(shard.address),
            _state("drained" if shard.is_drained else "serves", shard.trouble)
            if told.get("lease_is_valid", 1)
            else "[red]has no lease[/]",
            shard.incarnation,
            shard.tablets,
            *sizes,
            int(told["catalog_version"]) if "catalog_version" in told else _UNKNOWN,
        )
    return table


def _state(words: str, trouble: str) -> str:
    return "[red]does not answer[/]" if trouble else f"[green]{words}[/]"
