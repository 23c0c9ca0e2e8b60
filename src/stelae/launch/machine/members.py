"""The processes of a cluster on one machine: how each is started, and what is known of the one that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import msgspec

from stelae.adapters.children import stelae_command
from stelae.adapters.etcd.server import SOUND_SINCE, etcd_command, find_etcd, is_healthy
from stelae.adapters.liveness import ProcessMark, is_alive
from stelae.adapters.ownership import read_living_owner, read_owner
from stelae.launch.machine.plan import HOST, ClusterPlan, EtcdPlan, MasterPlan, NodePlan
from stelae.launch.supervising import shard_directory

LOG_FILE = "log.txt"


class Member(ABC):
    """One process. It is known by what it says of itself in its directory, and else by what was written down when it
    was started."""

    def __init__(self, name: str, directory: Path, started: ProcessMark | None) -> None:
        self.name = name
        self.directory = directory
        self.started = started

    @property
    def log(self) -> Path:
        return self.directory / LOG_FILE

    def process(self) -> ProcessMark | None:
        """The process of this member that runs now, whoever started it; None: there is none."""
        note = read_living_owner(self.directory)
        if note is not None:
            return ProcessMark(note.pid, note.began)
        return self.started if self.started is not None and is_alive(self.started) else None

    def last_pid(self) -> int | None:
        """Of the process that lives, or that was the last to live."""
        note = read_owner(self.directory)
        return note.pid if note is not None else None if self.started is None else self.started.pid

    def is_serving(self) -> bool:
        """Whether it lives and does what it is for."""
        note = read_living_owner(self.directory)
        return note is not None and bool(note.address)

    def parts(self) -> dict[str, ProcessMark]:
        """Processes that it has started itself and that serve, by their names."""
        return {}

    def missing(self) -> list[str]:
        """Names of processes that it should have started, and that do not serve."""
        return []

    def doubts(self) -> list[str]:
        """Warnings for whoever starts the member, one sentence each."""
        return []

    @abstractmethod
    def command(self) -> list[str]:
        """The words that start it, as of a shell."""

    @abstractmethod
    def with_process(self, plan: ClusterPlan, process: ProcessMark | None) -> ClusterPlan:
        """The plan with the process that was started."""


class MasterMember(Member):
    def __init__(self, directory: Path, plan: ClusterPlan, master: MasterPlan) -> None:
        super().__init__(master.name, directory / master.name, master.process)
        self.address = master.address
        self.metrics_port = master.metrics_port
        self._plan = plan

    def command(self) -> list[str]:
        words = ["master", "--name", self.name, "--dir", str(self.directory), "--listen", self.address]
        words += _metrics_words(self.metrics_port)
        return stelae_command(*words, "--metastore", self._plan.metastore, "--store", self._plan.store, "--json")

    def with_process(self, plan: ClusterPlan, process: ProcessMark | None) -> ClusterPlan:
        masters = tuple(
            msgspec.structs.replace(each, process=process) if each.name == self.name else each for each in plan.masters
        )
        return msgspec.structs.replace(plan, masters=masters)


class NodeMember(Member):
    def __init__(self, directory: Path, plan: ClusterPlan, node: NodePlan) -> None:
        super().__init__(node.name, directory / node.name, node.process)
        self.shards = node.shards
        self.metrics_port = node.metrics_port
        self._plan = plan

    def command(self) -> list[str]:
        words = ["node", "--name", self.name, "--dir", str(self.directory), "--shards", str(self.shards)]
        words += ["--listen", HOST, "--metastore", self._plan.metastore, "--store", self._plan.store]
        words += ["--sharing", str(sum(node.shards for node in self._plan.nodes)), *_metrics_words(self.metrics_port)]
        return stelae_command(*words, "--json")

    def with_process(self, plan: ClusterPlan, process: ProcessMark | None) -> ClusterPlan:
        nodes = tuple(
            msgspec.structs.replace(each, process=process) if each.name == self.name else each for each in plan.nodes
        )
        return msgspec.structs.replace(plan, nodes=nodes)

    def parts(self) -> dict[str, ProcessMark]:
        notes = {number: read_living_owner(shard_directory(self.directory, number)) for number in range(self.shards)}
        return {
            f"{self.name}/{number}": ProcessMark(note.pid, note.began)
            for number, note in notes.items()
            if note is not None and note.address
        }

    def missing(self) -> list[str]:
        names = (f"{self.name}/{number}" for number in range(self.shards))
        serving = self.parts()
        return [name for name in names if name not in serving]


class EtcdMember(Member):
    def __init__(self, directory: Path, etcd: EtcdPlan) -> None:
        super().__init__("etcd", directory / "etcd", etcd.process)
        self._etcd = etcd

    def command(self) -> list[str]:
        ports = self._etcd.client_port, self._etcd.peer_port
        return etcd_command(find_etcd(), self.directory / "data", HOST, *ports)

    def doubts(self) -> list[str]:
        program = find_etcd()
        if program.is_sound:
            return []
        sound = ".".join(map(str, SOUND_SINCE))
        return [f"{program.words} is older than {sound}, and may lose data when it is killed: for trials only"]

    def is_serving(self) -> bool:
        return self.process() is not None and is_healthy(HOST, self._etcd.client_port)

    def with_process(self, plan: ClusterPlan, process: ProcessMark | None) -> ClusterPlan:
        return msgspec.structs.replace(plan, etcd=msgspec.structs.replace(self._etcd, process=process))


def _metrics_words(port: int) -> list[str]:
    return ["--metrics", f"{HOST}:{port}"] if port else []


def members_of(directory: Path, plan: ClusterPlan) -> list[Member]:
    """All processes of a plan, in the order in which they are started."""
    etcd = [] if plan.etcd is None else [EtcdMember(directory, plan.etcd)]
    masters = [MasterMember(directory, plan, each) for each in plan.masters]
    return [*etcd, *masters, *(NodeMember(directory, plan, each) for each in plan.nodes)]
