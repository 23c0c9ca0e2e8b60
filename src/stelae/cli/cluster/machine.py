"""`stelae up` and `stelae down`: a whole cluster on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import stelae
from stelae.cli.places import CLUSTER_PANEL, JsonOption
from stelae.cli.screens import as_shown, err, grid, note, out, print_json, print_line, verb_help
from stelae.model.errors import InvalidArgument

if TYPE_CHECKING:
    from stelae.launch.machine.cluster import Happening
    from stelae.launch.machine.plan import Wishes
    from stelae.launch.machine.status import ClusterStatus

_LOOK_S = 0.2
_GOOD, _BAD = ("serves", "serves again"), ("has ended", "does not serve", "cannot be started")
_COLOURS = dict.fromkeys(_GOOD, "green") | dict.fromkeys(_BAD, "red")
_Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster's directory.", show_default=False)]


def register_machine(app: typer.Typer) -> None:
    for name, verb, example in (
        ("up", bring_up, "Example: stelae up --dir cluster --nodes 3 --shards 2 --detach"),
        ("down", bring_down, "Example: stelae down --dir cluster"),
    ):
        help_ = verb_help(verb.__doc__ or "")
        app.command(name, rich_help_panel=CLUSTER_PANEL, help=help_, epilog=example)(verb)


def bring_up(
    directory: _Directory,
    masters: Annotated[
        int | None,
        typer.Option("--masters", help="One of them leads, the others stand by: 1 for a new cluster, up to 7."),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="How many: 1 for a new cluster.")] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", help="Of each node, each a process of its own: 1 for a new cluster."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            help="Of each row, on as many nodes: what the default zone says of new tables. 1 for a new cluster.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Where the first master serves: 7100 for a new cluster; 0: one that is free."),
    ] = None,
    metastore: Annotated[
        str | None,
        typer.Option(
            "--metastore",
            metavar="sqlite|etcd|URL",
            help="What its processes agree by: sqlite for a new cluster, in its directory; etcd starts one of its own; "
            "or one that runs, etcd://HOST:PORT/NAMESPACE.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="DIR|URL", help="Where the data lies: in the cluster's directory, if left out."
        ),
    ] = None,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Give each process a port where it tells its numbers, for Prometheus."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster serves, and leave it running.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say what runs.")] = False,
    json: JsonOption = False,
) -> None:
    """Run a whole cluster on this machine: for development, trials and tests.

    Masters and nodes are processes of their own, each with a directory and a log.txt in DIR. In the foreground they are
    looked after, and started again when they end, until Ctrl-C stops all in order. With --detach it returns when the
    cluster serves; `stelae down` stops it.

    Run again on the same directory it starts what is missing, and leaves the rest alone. With larger numbers it adds
    masters and nodes; more shards of a node are for one that does not run.

        stelae up --dir cluster --masters 2 --nodes 3 --shards 2 --metastore etcd --detach
        stelae up --dir cluster --masters 2 --nodes 3 --shards 2 --replicas 3
        stelae up --dir cluster --store s3://bucket/cluster
        stelae up --dir cluster --status --json     what runs, for programs
    """
    from stelae.launch.machine.plan import Wishes

    if status and detach:
        raise InvalidArgument("give --status or --detach, not both")
    wishes = Wishes(directory, masters, nodes, shards, replicas, port, metastore, store, metrics)
    if status:
        _show_status(directory, json)
    else:
        _run(wishes, detach, json)


def _run(wishes: Wishes, detach: bool, json: bool) -> None:
    from stelae.adapters.signals import StopAsked, StopSignals
    from stelae.launch.machine import directory as machine

    with StopSignals() as stops:
        try:
            if detach:
                machine.bring_up(wishes, stelae.__version__, _tell, stops.wait)
                _show_status(wishes.directory, json)
                return
            tell = _tell_line if json else _tell
            with machine.hold_up(wishes, stelae.__version__, tell, stops.wait) as cluster:
                if json:
                    print_line({"what": "up", "connect": cluster.plan.connect})
                else:
                    _show_how_to_connect(cluster.plan.connect)
                    note("Ctrl-C stops it")
                cluster.look_after(_LOOK_S)
        except StopAsked:
            raise KeyboardInterrupt from None


def bring_down(directory: _Directory, json: JsonOption = False) -> None:
    """Stop a cluster on this machine, in order: its nodes, its masters, and its etcd, if it has one.

    What was acknowledged stays; `stelae up` starts the cluster again. A process that has not stopped after a minute is
    ended, which loses nothing either.
    """
    from threading import Event

    from stelae.launch.machine import directory as machine

    stopped: list[Happening] = []

    def tell(happening: Happening) -> None:
        stopped.append(happening)
        if not json:
            _tell(happening)

    machine.bring_down(directory, stelae.__version__, tell, Event().wait)
    if json:
        print_json({"stopped": [{"name": each.name, "pid": each.pid} for each in stopped]})
    elif not stopped:
        out().print("nothing was running")


def _tell(happening: Happening) -> None:
    """What goes on is no result: it goes to standard error."""
    process = f" [dim](process {happening.pid})[/]" if happening.pid is not None else ""
    what = f"[{_COLOURS.get(happening.what, 'default')}]{as_shown(happening.what)}[/]"
    words = f": {as_shown(happening.words)}" if happening.words else ""
    err().print(f"{as_shown(happening.name)} {what}{process}{words}", soft_wrap=True)


def _tell_line(happening: Happening) -> None:
    print_line(happening)


def _show_how_to_connect(connect: str) -> None:
    place = as_shown(connect)
    out().print(f'connect with [bold]stelae.connect("{place}")[/]', soft_wrap=True)


def _show_status(directory: Path, json: bool) -> None:
    from stelae.launch.machine.plan import cluster_directory
    from stelae.launch.machine.status import read_status

    found = read_status(cluster_directory(directory))
    if json:
        print_json(found)
        return
    _show_processes(found)
    if all(each.alive for each in found.masters):
        _show_how_to_connect(found.connect)


def _show_processes(found: ClusterStatus) -> None:
    table = grid("process", "pid", "serves on", "state", right=("pid",))
    for master in found.masters:
        words = "leads" if master.leading else "stands by"
        table.add_row(as_shown(master.name), _pid(master.pid), as_shown(master.address), _state(master.alive, words))
    for node in found.nodes:
        table.add_row(as_shown(node.name), _pid(node.pid), "", _state(node.alive, "runs"))
        for shard in node.shards:
            words = "serves" if shard.address else "starts"
            table.add_row(
                f"{as_shown(node.name)}/{shard.number}",
                _pid(shard.pid),
                as_shown(shard.address or ""),
                _state(shard.alive, words),
            )
    for each in found.metastore:
        state = "" if each.alive is None else _state(each.alive, "runs")
        table.add_row(as_shown(each.kind), _pid(each.pid), as_shown(each.address), state)
    out().print(table)


def _pid(pid: int | None) -> str:
    return "" if pid is None else str(pid)


def _state(is_alive: bool, words: str) -> str:
    return f"[green]{words}[/]" if is_alive else "[red]does not run[/]"
