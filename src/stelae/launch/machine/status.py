"""What runs of a cluster on one machine, in the shape that `stelae up --status --json` gives to programs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec

from stelae.adapters.ownership import read_living_owner, read_owner
from stelae.launch.machine.members import EtcdMember, MasterMember, NodeMember, members_of
from stelae.launch.machine.plan import HOST, SQLITE, ClusterPlan, known_plan, metastore_kind
from stelae.launch.metastores import InDirectory, OnEtcd, metastore_place, open_metastore
from stelae.launch.supervising import shard_directory
from stelae.model.errors import StelaeError
from stelae.registry.masters.guard import read_guard

_LOOK_S_MAX = 5.0


class MasterStatus(msgspec.Struct, frozen=True):
    """`pid`: of the last process, if it is not `alive`; None if none is known. `leading`: it alone changes tables.
    `metrics`: where it tells its numbers; left out if nowhere."""

    name: str
    address: str
    pid: int | None
    leading: bool
    alive: bool
    metrics: str | msgspec.UnsetType = msgspec.UNSET


class ShardStatus(msgspec.Struct, frozen=True):
    """`address`: where it serves; None while it does not. `metrics`: as of a master."""

    number: int
    pid: int | None
    address: str | None
    alive: bool
    metrics: str | msgspec.UnsetType = msgspec.UNSET


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    pid: int | None
    alive: bool
    shards: tuple[ShardStatus, ...]


class MetastoreStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """`address`: a directory, or the endpoints of etcd. `pid`, `alive`: of an etcd that the cluster has to itself."""

    kind: str
    address: str
    pid: int | None = None
    alive: bool | None = None


class ClusterStatus(msgspec.Struct, frozen=True):
    """`connect`: what programs give to `stelae.connect`."""

    masters: tuple[MasterStatus, ...]
    nodes: tuple[NodeStatus, ...]
    metastore: tuple[MetastoreStatus, ...]
    connect: str


def read_status(directory: Path) -> ClusterStatus:
    """NotFound if there is no cluster."""
    plan = known_plan(directory)
    leader = asyncio.run(_read_leader(plan))
    members = members_of(directory, plan)
    masters = tuple(_master(each, leader) for each in members if isinstance(each, MasterMember))
    nodes = tuple(_node(each) for each in members if isinstance(each, NodeMember))
    etcd = next((each for each in members if isinstance(each, EtcdMember)), None)
    return ClusterStatus(masters, nodes, (_metastore_of(plan, etcd),), plan.connect)


def _master(master: MasterMember, leader: str | None) -> MasterStatus:
    is_living = master.process() is not None
    is_leading = is_living and leader == master.name
    metrics = _metrics_at(master.metrics_port)
    return MasterStatus(master.name, master.address, master.last_pid(), is_leading, is_living, metrics)


def _node(node: NodeMember) -> NodeStatus:
    return NodeStatus(node.name, node.last_pid(), node.process() is not None, _shards_of(node))


def _shards_of(node: NodeMember) -> tuple[ShardStatus, ...]:
    found = []
    for number in range(node.shards):
        directory = shard_directory(node.directory, number)
        note, last = read_living_owner(directory), read_owner(directory)
        pid, address = None if last is None else last.pid, None if note is None else note.address or None
        metrics = _metrics_at(node.metrics_port and node.metrics_port + number)
        found.append(ShardStatus(number, pid, address, note is not None, metrics))
    return tuple(found)


def _metrics_at(port: int) -> str | msgspec.UnsetType:
    return f"{HOST}:{port}" if port else msgspec.UNSET


def _metastore_of(plan: ClusterPlan, etcd: EtcdMember | None) -> MetastoreStatus:
    match metastore_place(plan.metastore):
        case InDirectory(path):
            return MetastoreStatus(SQLITE, str(path))
        case OnEtcd(endpoints=endpoints):
            kind, address = metastore_kind(plan), ",".join(endpoints)
            if etcd is None:
                return MetastoreStatus(kind, address)
            return MetastoreStatus(kind, address, etcd.last_pid(), etcd.process() is not None)


async def _read_leader(plan: ClusterPlan) -> str | None:
    """Which master the others ask, as the metastore says; None if it does not, or nobody answers there."""
    with suppress(StelaeError, TimeoutError):
        async with (
            asyncio.timeout(_LOOK_S_MAX),
            open_metastore(metastore_place(plan.metastore), read_only=True) as found,
        ):
            guard = await read_guard(found)
            return None if guard is None else guard.master
    return None
