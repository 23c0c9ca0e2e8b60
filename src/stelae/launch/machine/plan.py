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

from dataclasses import dataclass
from pathlib import Path

import msgspec

from stelae.adapters.blobs.urls import blobs_url, store_directory
from stelae.adapters.files import os_errors, replace_file
from stelae.adapters.free_ports import check_free, choose_free
from stelae.adapters.liveness import ProcessMark
from stelae.launch.identity import NODE_FILE, SHARD_FILE
from stelae.launch.metastores import CLUSTER_FILE, METASTORE_FILE, metastore_place
from stelae.launch.supervising import check_shards
from stelae.model.errors import Corruption, InvalidArgument, NotFound, UnsupportedFormat

PLAN_FORMAT = 1
HOST = "127.0.0.1"
PORT_DEFAULT = 7100
MASTERS_MAX = 7
SQLITE, ETCD = "sqlite", "etcd"
_ETCD_PORTS_BEHIND = 300
"""So far behind the masters' ports an etcd of its own has its ports: shards and other clusters fit between."""


class MasterPlan(msgspec.Struct, frozen=True):
    """`address`: where it serves, each time it is started. `process`: the last one that was."""

    name: str
    address: str
    process: ProcessMark | None = None


class NodePlan(msgspec.Struct, frozen=True):
    name: str
    shards: int = 1
    process: ProcessMark | None = None


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
        """What programs connect to."""
        return ",".join(master.address for master in self.masters)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What somebody wants of the cluster in a directory; None: as it is, or as it is usual."""

    directory: Path
    masters: int | None = None
    nodes: int = 1
    shards: int = 1
    replicas: int = 1
    port: int | None = None
    metastore: str | None = None
    store: str | None = None


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
    for option, count, what in (
        ("--nodes", wishes.nodes, "node"),
        ("--replicas", wishes.replicas, "replica"),
    ):
        if count != 1:
            raise InvalidArgument(
                f"{option} {count}: a cluster has one {what} in this release; several come with a later one"
            )
    check_shards(wishes.shards)


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
    return ClusterPlan(metastore, store, masters, (NodePlan("node-1", wishes.shards),), etcd)


def _master(number: int, port: int) -> MasterPlan:
    return MasterPlan(f"master-{number}", f"{HOST}:{port}")


def _ports_of(plan: ClusterPlan) -> set[int]:
    """Also of processes that do not run now."""
    etcd = () if plan.etcd is None else (plan.etcd.client_port, plan.etcd.peer_port)
    return {*etcd, *(int(master.address.rpartition(":")[2]) for master in plan.masters)}


def grown(wishes: Wishes, plan: ClusterPlan) -> ClusterPlan:
    """With as many masters as are wished. InvalidArgument if there are more."""
    known = len(plan.masters)
    wished = known if wishes.masters is None else wishes.masters
    if wished < known:
        raise InvalidArgument(f"--masters {wished}: the cluster has {known}, and they stay: leave out --masters")
    last = int(plan.masters[-1].address.rpartition(":")[2])
    ports = choose_free(HOST, wished - known, last + 1, _ports_of(plan)) if wished > known else []
    more = tuple(_master(number, port) for number, port in enumerate(ports, known + 1))
    return msgspec.structs.replace(plan, masters=(*plan.masters, *more)) if more else plan


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
