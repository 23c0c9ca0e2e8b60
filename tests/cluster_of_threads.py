"""A cluster for tests: a master and a shard, as threads of the process that makes them, on files of their own."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from stelae.launch.processes import LISTEN_DEFAULT, MasterProcess, ProcessOptions, ShardOptions, ShardProcess

NODE = "0123456789abcdef"


class Cluster:
    """Serves from the moment it is made, unless `begun` is not said. Master and shard end and begin one by one, too:
    a master that begins again listens where it did, as one with a fixed port does."""

    def __init__(self, root: Path, *, begun: bool = True, metrics: str | None = None) -> None:
        self.root = root
        self._metrics = metrics
        self.metastore = f"sqlite://{root}/metastore"
        self.store = root / "store"
        self.address = LISTEN_DEFAULT
        self.master: MasterProcess | None = None
        self.shard: ShardProcess | None = None
        if begun:
            try:
                self.begin_master()
                self.begin_shard()
            except BaseException:
                self.close()
                raise

    def begin_master(self) -> MasterProcess:
        place = self.root / "master-1"
        self.master = MasterProcess(
            ProcessOptions("master-1", place, self.metastore, str(self.store), self.address, metrics=self._metrics)
        )
        self.address = self.master.address
        return self.master

    def begin_shard(self, directory: str = "shard-0", node: str = NODE) -> ShardProcess:
        place = self.root / "node-1" / directory
        self.shard = ShardProcess(
            ShardOptions("node-1", place, self.metastore, str(self.store), metrics=self._metrics, node=node)
        )
        return self.shard

    def end_master(self) -> None:
        master, self.master = self.master, None
        if master is not None:
            master.close()

    def end_shard(self) -> None:
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.close()

    def abandon_shard(self) -> None:
        """As a process that is killed ends: nothing is put in order."""
        if self.shard is not None:
            self.shard.shard.abandon()
        self.end_shard()

    def close(self) -> None:
        try:
            self.end_shard()
        finally:
            self.end_master()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
