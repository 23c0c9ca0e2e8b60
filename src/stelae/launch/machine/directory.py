"""Who has the directory of a cluster: one `stelae up` or `stelae down` at a time, by a lock of the system's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stelae.adapters.clock import SystemClock
from stelae.adapters.liveness import ProcessMark, send_signal, wait_for_end
from stelae.adapters.ownership import Ownership, read_living_owner, read_owner
from stelae.adapters.signals import StopAsked
from stelae.launch.machine.cluster import (
    START_S_MAX,
    STOP_S_MAX,
    Happening,
    LocalCluster,
    Nap,
    Tell,
    heard_or_not,
)
from stelae.launch.machine.members import members_of
from stelae.launch.machine.plan import (
    ClusterPlan,
    Wishes,
    check_replicas,
    check_same,
    check_size,
    cluster_directory,
    grown,
    known_plan,
    moved,
    new_plan,
    read_plan,
    write_plan,
)
from stelae.launch.metastores import CLUSTER_FILE
from stelae.model.errors import AlreadyExists, InvalidArgument

_LOOK_S = 0.2


def bring_up(wishes: Wishes, release: str, tell: Tell, nap: Nap) -> None:
    """Start what is missing, and return when the cluster serves. Somebody else who does that already is waited for."""
    directory = _checked(wishes)
    clock = SystemClock()
    until_s = clock.monotonic_s() + START_S_MAX
    while (owned := Ownership.take(directory, release)) is None:
        plan = read_plan(directory)
        if plan is not None and all(member.is_serving() for member in members_of(directory, plan)):
            if grown(wishes, plan) is not plan:
                raise _in_use(directory)
            _set_replicas(wishes, plan, release)
            return
        if clock.monotonic_s() > until_s:
            raise _in_use(directory)
        if nap(_LOOK_S):
            raise StopAsked
    try:
        cluster = _start(wishes, directory, release, tell, nap)
        cluster.leave()
    finally:
        owned.release()


@contextmanager
def hold_up(wishes: Wishes, release: str, tell: Tell, nap: Nap) -> Iterator[LocalCluster]:
    """The same, for as long as it is held: then all is stopped. AlreadyExists if somebody else looks after it."""
    directory = _checked(wishes)
    owned = Ownership.take(directory, release)
    if owned is None:
        raise _in_use(directory)
    try:
        cluster = _start(wishes, directory, release, tell, nap)
        try:
            yield cluster
        finally:
            cluster.stop()
            cluster.leave()
    finally:
        owned.release()


def bring_down(given: Path, release: str, tell: Tell, nap: Nap) -> None:
    """Stop all that runs of a cluster, also who looks after it. NotFound if there is none."""
    directory = cluster_directory(given)
    known_plan(directory)
    owner = read_living_owner(directory)
    if owner is not None:
        process = ProcessMark(owner.pid, owner.began)
        send_signal(process, signal.SIGTERM)
        if not wait_for_end(process, 2 * STOP_S_MAX):
            send_signal(process, signal.SIGKILL)
            wait_for_end(process, STOP_S_MAX)
        heard_or_not(tell)(Happening("stelae up", "stopped", owner.pid))
    owned = Ownership.take(directory, release)
    if owned is None:
        raise _in_use(directory)
    try:
        LocalCluster(directory, known_plan(directory), tell, nap).stop()
    finally:
        owned.release()


def _checked(wishes: Wishes) -> Path:
    """Before anything is made: the directory may be a cluster's, and the wishes can be fulfilled."""
    check_size(wishes)
    directory = cluster_directory(wishes.directory)
    if read_plan(directory) is None:
        check_replicas(wishes, new_plan(wishes, directory))
    return directory


def _start(wishes: Wishes, directory: Path, release: str, tell: Tell, nap: Nap) -> LocalCluster:
    plan = read_plan(directory)
    cluster = LocalCluster(directory, _wished(wishes, directory, plan), tell, nap, is_new=plan is None)
    write_plan(directory, cluster.plan)
    try:
        cluster.start_missing()
        _set_replicas(wishes, cluster.plan, release)
    except BaseException:
        cluster.stop_started()
        if plan is None:  # nothing was made that would be missed: it may be wished for otherwise next time
            with suppress(OSError):
                (directory / CLUSTER_FILE).unlink()
        raise
    return cluster


def _set_replicas(wishes: Wishes, plan: ClusterPlan, release: str) -> None:
    if wishes.replicas is not None:
        check_replicas(wishes, plan)
        from stelae.launch.machine.replicas import set_replicas  # a client: few who start a cluster need one

        set_replicas(plan.connect, wishes.replicas, release)


def _wished(wishes: Wishes, directory: Path, plan: ClusterPlan | None) -> ClusterPlan:
    if plan is None:
        return new_plan(wishes, directory)
    check_same(wishes, plan)
    wanted = moved(wishes, plan)
    master = next(each for each in members_of(directory, plan) if each.name == plan.masters[0].name)
    if wanted is not plan and master.process() is not None:
        raise InvalidArgument(
            f"--port {wishes.port}: the master serves on {plan.masters[0].address}; `stelae down` stops it, and then "
            "it can be started on another port"
        )
    wished = grown(wishes, wanted)
    check_replicas(wishes, wished)
    _check_running(directory, plan, wished)
    return wished


def _check_running(directory: Path, plan: ClusterPlan, wished: ClusterPlan) -> None:
    """InvalidArgument if a process runs that would have to be started again to be as it is wished."""
    running = {each.name for each in members_of(directory, plan) if each.process() is not None}
    nodes = {node.name: node for node in wished.nodes}
    for node in plan.nodes:
        if node.name in running and node.shards != nodes[node.name].shards:
            raise InvalidArgument(
                f"--shards {nodes[node.name].shards}: {node.name} runs with {node.shards}; `stelae down` stops it, and "
                "then it can be started with more"
            )
    ports = {each.name: each.metrics_port for each in wished.own}
    for each in plan.own:
        if each.name in running and each.metrics_port != ports[each.name]:
            raise InvalidArgument(
                f"--metrics: {each.name} runs without; `stelae down` stops it, and then it can be started with metrics"
            )


def _in_use(directory: Path) -> AlreadyExists:
    who = read_owner(directory) or "another process"
    return AlreadyExists(
        f"{directory} is in use: {who} looks after the cluster; `stelae down --dir {directory}` ends it"
    )
