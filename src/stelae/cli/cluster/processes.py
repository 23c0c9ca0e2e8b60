"""`stelae master` and `stelae node`: the processes of a cluster, each until it is asked to stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import stelae
from stelae.adapters.pandas_later import leave_pandas_for_later
from stelae.cli.cluster.access import (
    InsecureOption,
    SaidAccess,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsMutualOption,
    TokenFileOption,
)
from stelae.cli.cluster.draining import register_drain
from stelae.cli.places import CLUSTER_PANEL, JsonOption
from stelae.cli.screens import as_shown, out, print_line, verb_help
from stelae.model.errors import InvalidArgument, StelaeError

if TYPE_CHECKING:
    from stelae.launch.supervising import ServingShard

_Name = Annotated[str, typer.Option("--name", metavar="NAME", help="What it is called; no other of the cluster is.")]
_Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="A directory of its own, which is made if it is not there.")
]
_Metastore = Annotated[
    str,
    typer.Option(
        "--metastore",
        metavar="URL",
        help="What all processes agree by: sqlite:///DIR (those of one machine), or etcd://HOST:PORT, with /NAMESPACE "
        "behind it if several clusters share one.",
    ),
]
_Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the data lies, for all processes: a path, file:///DIR or s3://BUCKET/PREFIX. Said when the cluster "
        "is made; afterwards it is known.",
    ),
]
_Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Where it tells its numbers, for Prometheus: http://HOST:PORT/metrics. Left out: nowhere.",
    ),
]
_MASTER_EXAMPLE = (
    "Example: stelae master --name m1 --dir m1 --listen 127.0.0.1:7100 --metastore sqlite:///srv/meta --store /srv/data"
)
_NODE_EXAMPLE = (
    "Example: stelae node run --name n1 --dir n1 --shards 2 --metastore sqlite:///srv/meta --store /srv/data"
)


class _NodeGroup(TyperGroup):
    """`stelae node --name n1 ...` is `stelae node run --name n1 ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register_processes(app: typer.Typer) -> None:
    help_ = verb_help(run_master.__doc__ or "")
    app.command("master", rich_help_panel=CLUSTER_PANEL, help=help_, epilog=_MASTER_EXAMPLE)(run_master)
    words = "Run a node of a cluster (run, which need not be said), or have others lead before it is stopped (drain)."
    node_app = typer.Typer(help=words, cls=_NodeGroup, no_args_is_help=True)
    node_app.command("run", help=verb_help(run_node.__doc__ or ""), epilog=_NODE_EXAMPLE)(run_node)
    register_drain(node_app)
    app.add_typer(node_app, name="node", rich_help_panel=CLUSTER_PANEL)
    app.command("shard", hidden=True)(run_shard)


def run_master(
    name: _Name,
    directory: _Directory,
    metastore: _Metastore,
    store: _Store = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it serves. Port 0: the system chooses one.")
    ] = "127.0.0.1:7100",
    metrics: _Metrics = None,
    collect_every_s: Annotated[
        float,
        typer.Option("--collect-every", metavar="SECONDS", help="How often files are removed that nobody needs."),
    ] = 300.0,
    token_file: TokenFileOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_mutual: TlsMutualOption = False,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Run a master of a cluster: it makes and changes tables, and says where their rows are.

    It says in a line where it serves, and serves until SIGTERM or Ctrl-C, which close it in order; a second one ends it
    at once. What happens goes to standard error.
    """
    leave_pandas_for_later()
    from stelae.launch.processes import MasterOptions, MasterProcess
    from stelae.launch.serving import serve_until_stopped

    said = SaidAccess(token_file, tls_ca, tls_cert, tls_key, tls_mutual, insecure)
    options = MasterOptions(
        name,
        _own(directory),
        metastore,
        _place(store),
        listen,
        said.find(),
        insecure,
        metrics,
        stelae.__version__,
        collect_every_s,
    )

    def tell(process: MasterProcess) -> None:
        if json:
            known = {"kind": "master", "name": name, "address": process.address, "pid": os.getpid()}
            print_line({**known, "metrics": process.metrics} if process.metrics else known)
        else:
            out().print(f"master {as_shown(name)} serves on [bold]{as_shown(process.address)}[/]")

    serve_until_stopped(lambda: MasterProcess(options), tell)


def run_node(
    name: _Name,
    directory: _Directory,
    metastore: _Metastore,
    store: _Store = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST", help="Where its shards serve; the system chooses the ports.")
    ] = "127.0.0.1",
    shards: Annotated[
        int, typer.Option("--shards", help="How many: one for each core that they may have. Never less than before.")
    ] = 1,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Where its first shard tells its numbers, for Prometheus; each other one on the port behind.",
        ),
    ] = None,
    rack: Annotated[
        str,
        typer.Option(
            "--rack",
            metavar="RACK",
            help="Where it stands: replicas of a tablet lie on different racks, if zones say so.",
        ),
    ] = "",
    sharing: Annotated[int, typer.Option("--sharing", hidden=True)] = 0,
    token_file: TokenFileOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_mutual: TlsMutualOption = False,
    insecure: InsecureOption = False,
    json: JsonOption = False,
) -> None:
    """Run a node of a cluster: the shards that keep tables' rows, each a process of its own.

    A shard that ends by itself is started again, and holds up no other. The node says in a line where its shards serve,
    and runs until SIGTERM or Ctrl-C, which close them in order; a second one ends all at once. What happens goes to
    standard error. Its name and its directory belong together, and no other node of the cluster has its name.
    """
    from stelae.launch import supervising

    def tell(serving: tuple[ServingShard, ...]) -> None:
        if json:
            found = [_json_shard(each) for each in serving]
            print_line({"kind": "node", "name": name, "pid": os.getpid(), "shards": found})
        else:
            places = ", ".join(as_shown(each.address) for each in serving)
            out().print(f"node {as_shown(name)} serves on [bold]{places}[/]")

    said = SaidAccess(token_file, tls_ca, tls_cert, tls_key, tls_mutual, insecure)
    said.find()
    options = supervising.NodeOptions(
        name,
        _own(directory),
        metastore,
        _place(store),
        _host(listen),
        shards,
        tuple(said.words()),
        metrics,
        sharing,
        stelae.__version__,
        rack,
    )
    supervising.run_node(options, tell)


def _json_shard(shard: ServingShard) -> dict[str, object]:
    known = {"number": shard.number, "pid": shard.pid, "address": shard.address}
    return {**known, "metrics": shard.metrics} if shard.metrics else known


def run_shard(
    name: _Name,
    directory: _Directory,
    metastore: _Metastore,
    node: Annotated[str, typer.Option("--node")],
    number: Annotated[int, typer.Option("--number")],
    listen: Annotated[str, typer.Option("--listen")],
    store: _Store = None,
    metrics: _Metrics = None,
    sharing: Annotated[int, typer.Option("--sharing", min=1)] = 1,
    rack: Annotated[str, typer.Option("--rack")] = "",
    token_file: TokenFileOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_mutual: TlsMutualOption = False,
    insecure: InsecureOption = False,
) -> None:
    """For a node, which starts it: one of its shards. It ends when its standard input does."""
    leave_pandas_for_later()
    from stelae.launch.processes import ShardOptions, ShardProcess
    from stelae.launch.serving import serve_child
    from stelae.launch.supervising import ShardWord, word_of_failure

    try:
        said = SaidAccess(token_file, tls_ca, tls_cert, tls_key, tls_mutual, insecure)
        options = ShardOptions(
            name,
            directory,
            metastore,
            store,
            listen,
            said.find(),
            insecure,
            metrics,
            stelae.__version__,
            node=node,
            number=number,
            sharing=sharing,
            rack=rack,
        )
        serve_child(
            lambda: ShardProcess(options),
            lambda process: print_line(ShardWord(address=process.address, metrics=process.metrics)),
        )
    except StelaeError as error:
        print_line(word_of_failure(error))
        raise typer.Exit(1) from None


def _own(directory: Path) -> Path:
    from stelae.adapters.blobs.urls import store_directory

    own = store_directory(directory).absolute()
    if own.exists() and not own.is_dir():
        raise InvalidArgument(f"{own} is a file; a process has a directory of its own")
    return own


def _place(store: str | None) -> str | None:
    """As a URL, which means the same to every process."""
    from stelae.adapters.blobs.urls import blobs_url

    return None if store is None else blobs_url(store)


def _host(listen: str) -> str:
    from stelae.adapters.sockets.addresses import host_and_port

    host = f"[{listen}]" if listen.count(":") > 1 and not listen.startswith("[") else listen
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise InvalidArgument(f"--listen {listen}: name a host alone; the system chooses the ports of the shards")
    host_and_port(f"{host}:0")
    return host
