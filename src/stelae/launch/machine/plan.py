"""What a cluster on one machine consists of: `DIR/cluster.json`, which is replaced as a whole.

    DIR/cluster.json     this
    DIR/owner            which `stelae up` looks after it, while one does
    DIR/metastore/       what all processes agree by, unless that is elsewhere; DIR/etcd/ of an etcd of its own
    DIR/store/           the data, as Parquet files, unless it is elsewhere
    DIR/master-1/        a directory for each master and each node, with a log.txt each
    DIR/node-1/

Processes are written down as soon as they are started, with when they began: one that got the id of another that has
ended is never taken for it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stelae.adapters.blobs.urls import blobs_url, store_directory
from stelae.adapters.files import os_errors, replace_file
from stelae.adapters.free_ports import check_free, choose_free, choose_run
from stelae.adapters.liveness import ProcessMark
from stelae.catalog.objects import REPLICAS_MAX
from stelae.launch.identity import NODE_FILE, SHARD_FILE
from stelae.launch.metastores import CLUSTER_FILE, METASTORE_FILE, metastore_place
from stelae.launch.supervising import check_shards
from stelae.model.errors import Corruption, InvalidArgument, NotFound, UnsupportedFormat

PLAN_FORMAT = 1
HOST = "127.0.0.1"
PORT_DEFAULT = 7100
MASTERS_MAX = 7
NODES_MAX = 64
SQLITE, ETCD = "sqlite", "etcd"
_ETCD_PORTS_BEHIND = 300
"""So far behind the masters' ports an etcd of its own has its ports: shards and other clusters fit between."""
_METRICS_PORTS_BEHIND = 100
"""So far behind the first master's port begin those for metrics."""


class MasterPlan(msgspec.Struct, frozen=True):
    """`address`: where it serves, each time it is started. `process`: the last one that was. `metrics_port`: where it
    tells its numbers; 0: nowhere."""

    name: str
    address: str
    process: ProcessMark | None = None
    metrics_port: int = 0


class NodePlan(msgspec.Struct, frozen=True):
    """`metrics_port`: where its first shard tells its numbers, the others behind it; 0: nowhere."""

    name: str
    shards: int = 1
    process: ProcessMark | None = None
    metrics_port: int = 0


class EtcdPlan(msgspec.Struct, frozen=True):
    """An etcd that the cluster has to itself."""

    client_port: int
    peer_port: int
    process: ProcessMark | None = None


class ClusterPlan(msgspec.Struct, frozen=True):
    """`metastore`, `store`: URLs. `etcd`: None, unless the cluster has one to itself."""

    metastore: str
    store: str
    masters: tuple[MasterPlan, ...]
    nodes: tuple[NodePlan, ...]
    etcd: EtcdPlan | None = None
    format: int = PLAN_FORMAT

    @property
    def connect(self) -> str:
        """The masters' addresses, as `stelae.connect` takes them."""
        return ",".join(master.address for master in self.masters)

    @property
    def own(self) -> tuple[MasterPlan | NodePlan, ...]:
        """The masters and nodes: all processes of the plan but the metastore's."""
        return (*self.masters, *self.nodes)


class Wishes(msgspec.Struct, frozen=True):
    """What somebody wants of the cluster in a directory; None: as it is, or as it is usual."""

    directory: Path
    masters: int | None = None
    nodes: int | None = None
    shards: int | None = None
    replicas: int | None = None
    port: int | None = None
    metastore: str | None = None
    store: str | None = None
    metrics: bool = False


def cluster_directory(given: Path) -> Path:
    """InvalidArgument if it can be no cluster's: a file, or the directory of something else."""
    directory = store_directory(given).absolute()
    if directory.exists() and not directory.is_dir():
        raise InvalidArgument(f"{directory} is a file; a cluster is a directory")
    for name, what in ((METASTORE_FILE, "a store"), (NODE_FILE, "a node"), (SHARD_FILE, "a shard")):
        if (directory / name).exists():
            raise InvalidArgument(
                f"{directory} is the directory of {what}: there is a {name}. A cluster needs a directory of its own"
            )
    return directory


def read_plan(directory: Path) -> ClusterPlan | None:
    """None if there is no cluster."""
    file = directory / CLUSTER_FILE
    try:
        with os_errors(str(file)):
            data = file.read_bytes()
    except NotFound:
        return None
    try:
        found = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if found != PLAN_FORMAT:
            raise UnsupportedFormat(f"{file} is of format {found}; this release knows format {PLAN_FORMAT}")
        return msgspec.json.decode(data, type=ClusterPlan)
    except msgspec.MsgspecError as error:
        raise Corruption(f"cannot be read: {error}", str(file)) from None


def known_plan(directory: Path) -> ClusterPlan:
    """NotFound if there is no cluster."""
    plan = read_plan(directory)
    if plan is None:
        raise NotFound(
            f"no cluster in {directory}: there is no {CLUSTER_FILE}; `stelae up --dir {directory}` makes one"
        )
    return plan


def write_plan(directory: Path, plan: ClusterPlan) -> None:
    file = str(directory / CLUSTER_FILE)
    with os_errors(file):
        replace_file(file, msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")


def check_size(wishes: Wishes) -> None:
    """InvalidArgument if this release cannot run a cluster of that size."""
    if wishes.masters is not None and not 1 <= wishes.masters <= MASTERS_MAX:
        raise InvalidArgument(
            f"--masters {wishes.masters}: a cluster has 1 to {MASTERS_MAX} masters; one of them leads"
        )
    if wishes.nodes is not None and not 1 <= wishes.nodes <= NODES_MAX:
        raise InvalidArgument(f"--nodes {wishes.nodes}: a cluster on one machine has 1 to {NODES_MAX} nodes")
    if wishes.shards is not None:
        check_shards(wishes.shards)
    if wishes.replicas is not None and not 1 <= wishes.replicas <= REPLICAS_MAX:
        raise InvalidArgument(f"--replicas {wishes.replicas}: a row has 1 to {REPLICAS_MAX} replicas")


def check_replicas(wishes: Wishes, plan: ClusterPlan) -> None:
    """InvalidArgument if there are too few nodes for them."""
    if wishes.replicas is not None and wishes.replicas > len(plan.nodes):
        raise InvalidArgument(
            f"--replicas {wishes.replicas}: each lies on a node of its own, and the cluster has {len(plan.nodes)}: say "
            f"--nodes {wishes.replicas}"
        )


def new_plan(wishes: Wishes, directory: Path) -> ClusterPlan:
    """Nothing is made yet. Ports that are to be used are free now; somebody else may be quicker."""
    wanted = PORT_DEFAULT if wishes.port is None else wishes.port
    check_free(HOST, wanted)
    ports = choose_free(HOST, wishes.masters or 1, wanted)
    etcd = None
    match wishes.metastore:
        case None | "sqlite":
            metastore = f"sqlite://{directory / 'metastore'}"
        case "etcd":
            client_port, peer_port = choose_free(HOST, 2, wanted and wanted + _ETCD_PORTS_BEHIND)
            etcd = EtcdPlan(client_port, peer_port)
            metastore = f"etcd://{HOST}:{etcd.client_port}"
        case url:
            metastore_place(url)
            metastore = url
    store = blobs_url(directory / "store" if wishes.store is None else wishes.store)
    masters = tuple(_master(number, port) for number, port in enumerate(ports, 1))
    nodes = tuple(NodePlan(f"node-{number}", wishes.shards or 1) for number in range(1, (wishes.nodes or 1) + 1))
    plan = ClusterPlan(metastore, store, masters, nodes, etcd)
    return measured(plan) if wishes.metrics else plan


def _master(number: int, port: int) -> MasterPlan:
    return MasterPlan(f"master-{number}", f"{HOST}:{port}")


def _ports_of(plan: ClusterPlan) -> set[int]:
    """Also of processes that do not run now."""
    etcd = () if plan.etcd is None else (plan.etcd.client_port, plan.etcd.peer_port)
    metrics = {master.metrics_port for master in plan.masters}
    metrics |= {node.metrics_port + number for node in plan.nodes if node.metrics_port for number in range(node.shards)}
    return {*etcd, *metrics, *(_port_of(master) for master in plan.masters)}


def _port_of(master: MasterPlan) -> int:
    return int(master.address.rpartition(":")[2])


def grown(wishes: Wishes, plan: ClusterPlan) -> ClusterPlan:
    """With as many masters, nodes and shards as are wished, and with metrics if they are. InvalidArgument if there are
    more already. The same plan if nothing is new."""
    with_masters = _with_masters(_wished_count("masters", wishes.masters, len(plan.masters)), plan)
    with_nodes = _with_nodes(wishes, with_masters)
    return measured(with_nodes) if wishes.metrics or _is_measured(plan) else with_nodes


def _wished_count(what: str, wished: int | None, known: int) -> int:
    if wished is not None and wished < known:
        raise InvalidArgument(f"--{what} {wished}: the cluster has {known}, and they stay: leave out --{what}")
    return known if wished is None else wished


def _with_masters(wished: int, plan: ClusterPlan) -> ClusterPlan:
    known = len(plan.masters)
    if wished == known:
        return plan
    ports = choose_free(HOST, wished - known, _port_of(plan.masters[-1]) + 1, _ports_of(plan))
    more = tuple(_master(number, port) for number, port in enumerate(ports, known + 1))
    return msgspec.structs.replace(plan, masters=(*plan.masters, *more))


def _with_nodes(wishes: Wishes, plan: ClusterPlan) -> ClusterPlan:
    """A node whose shards become more tells its numbers elsewhere: behind its ports there may be another's."""
    known = plan.nodes
    wished = _wished_count("nodes", wishes.nodes, len(known))
    shards = _wished_count("shards", wishes.shards, max(node.shards for node in known))
    nodes = [
        node if node.shards == shards else msgspec.structs.replace(node, shards=shards, metrics_port=0)
        for node in known
    ]
    nodes += [NodePlan(f"node-{number}", shards) for number in range(len(known) + 1, wished + 1)]
    return plan if tuple(nodes) == known else msgspec.structs.replace(plan, nodes=tuple(nodes))


def _is_measured(plan: ClusterPlan) -> bool:
    return any(each.metrics_port for each in plan.own)


def measured(plan: ClusterPlan) -> ClusterPlan:
    """With ports where all masters and shards tell their numbers. The same plan if all have them."""
    first, taken = _port_of(plan.masters[0]) + _METRICS_PORTS_BEHIND, _ports_of(plan)

    def choose(count: int) -> int:
        port = choose_run(HOST, count, first, taken)
        taken.update(range(port, port + count))
        return port

    masters = tuple(
        each if each.metrics_port else msgspec.structs.replace(each, metrics_port=choose(1)) for each in plan.masters
    )
    nodes = tuple(
        each if each.metrics_port else msgspec.structs.replace(each, metrics_port=choose(each.shards))
        for each in plan.nodes
    )
    is_same = (masters, nodes) == (plan.masters, plan.nodes)
    return plan if is_same else msgspec.structs.replace(plan, masters=masters, nodes=nodes)


def check_same(wishes: Wishes, plan: ClusterPlan) -> None:
    """InvalidArgument if the cluster that is there keeps its data, or what it agrees by, elsewhere than is wished."""
    if wishes.store is not None and blobs_url(wishes.store) != plan.store:
        raise InvalidArgument(
            f"--store {wishes.store}: the cluster has its data in {plan.store}, and it stays there: leave out --store"
        )
    if wishes.metastore is None:
        return
    kind = metastore_kind(plan)
    if wishes.metastore not in (plan.metastore, SQLITE if kind == SQLITE else ETCD if plan.etcd is not None else None):
        raise InvalidArgument(
            f"--metastore {wishes.metastore}: the cluster agrees by {plan.metastore}, and that stays so: leave out "
            "--metastore"
        )


def moved(wishes: Wishes, plan: ClusterPlan) -> ClusterPlan:
    """With its first master where it is wished, while that does not run."""
    (master, *others), port = plan.masters, wishes.port or 0
    if not port or master.address == f"{HOST}:{port}":
        return plan
    if port in _ports_of(plan):
        raise InvalidArgument(f"--port {port}: another process of the cluster has it")
    check_free(HOST, port)
    there = msgspec.structs.replace(master, address=f"{HOST}:{port}")
    return msgspec.structs.replace(plan, masters=(there, *others))


def metastore_kind(plan: ClusterPlan) -> str:
    return plan.metastore.partition("://")[0]
