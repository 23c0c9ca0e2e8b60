"""`stelae node drain`: what is done before a node is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

import stelae
from stelae.cli.places import ClusterPlace, JsonOption, cluster_placed
from stelae.cli.screens import as_shown, counted, out, print_json, verb_help

_PATIENCE_S = 60.0
_EXAMPLE = "Example: stelae node drain node-2 --cluster 127.0.0.1:7100"


def register_drain(app: typer.Typer) -> None:
    app.command("drain", help=verb_help(drain_node.__doc__ or ""), epilog=_EXAMPLE)(cluster_placed(drain_node))


def drain_node(
    place: ClusterPlace,
    name: Annotated[str, typer.Argument(metavar="NODE", help="A node; or one of its shards, as in node-2/1.")],
    json: JsonOption = False,
) -> None:
    """Have other nodes lead what a node leads, so that it can be stopped and no call fails.

    Of tablets with several replicas another one leads when this returns, and programs have found it by themselves. The
    node serves on until it is stopped; until it is started again it leads nothing and gets nothing new. Rows of tables
    with one replica are away while the node is: it is said how many tablets these are.
    """
    from stelae.launch.access import find_access
    from stelae.launch.looking import ClusterMasters

    found = ClusterMasters(place.masters, find_access(), stelae.__version__, _PATIENCE_S).drain(name)
    if json:
        print_json(found)
        return
    out().print(
        f"{as_shown(name)} can be stopped: {counted(found.moved, 'tablet is', 'tablets are')} led by other nodes now"
    )
    if found.alone:
        out().print(f"[yellow]{counted(found.alone, 'tablet has', 'tablets have')} no other replica[/]: away with it")
