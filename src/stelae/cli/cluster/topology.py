"""`stelae topology`: who belongs to a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

import stelae
from stelae.cli.places import ClusterPlace, JsonOption, cluster_placed
from stelae.cli.screens import as_shown, counted, out, print_json

_PATIENCE_S = 60.0

topology_app = typer.Typer(help="Change who belongs to a cluster.", no_args_is_help=True)


@topology_app.callback()
def _group() -> None:
    """Change who belongs to a cluster."""


@topology_app.command("remove", epilog="Example: stelae topology remove node-3 --cluster 127.0.0.1:7100")
@cluster_placed
def remove_servers(
    place: ClusterPlace,
    name: Annotated[str, typer.Argument(metavar="NODE", help="A node; or one of its shards, as in node-3/1.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Though it has the only replica of tablets: their rows are lost.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Take out a node that never comes back.

    While it belongs to the cluster it is waited for: with snapshots of the whole store, and with files that it might
    need. It must have stopped; that is seen by its lease, which takes some seconds. Nobody can be this node again: a
    process that is started from its directory is refused. If tablets have their only replica there it is refused, too,
    unless their loss is accepted: then empty tablets take their place.
    """
    from stelae.launch.access import find_access
    from stelae.launch.looking import ClusterMasters

    masters = ClusterMasters(place.masters, find_access(), stelae.__version__, _PATIENCE_S)
    found = masters.remove(name, accepts_loss=accept_loss)
    if json:
        print_json(found)
        return
    out().print(f"taken out: {as_shown(', '.join(found.shards))}")
    for each in found.lost:
        out().print(
            f"[red]lost[/]: {counted(each.tablets, 'tablet')} of {as_shown(each.table)}, made anew without rows"
        )
