"""A cluster for tests: a master and shards, as threads of the process that makes them, on files of their own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from stelae.launch.processes import LISTEN_DEFAULT, MasterOptions, MasterProcess, ShardOptions, ShardProcess

NODE = "0123456789abcdef"


class Cluster:
    """Serves from the moment it is made, unless `begun` is not said. Master and shards end and begin one by one, too:
    a master that begins again listens where it did, as one with a fixed port does. `shard_count`: of its one node."""

    def __init__(
        self,
        root: Path,
        *,
        begun: bool = True,
        metrics: str | None = None,
        shard_count: int = 1,
        collect_every_s: float = 300.0,
    ) -> None:
        self.root = root
        self._collect_every_s = collect_every_s
        self._metrics = metrics
        self.metastore = f"sqlite://{root}/metastore"
        self.store = root / "store"
        self.address = LISTEN_DEFAULT
        self.master: MasterProcess | None = None
        self.shards: dict[int, ShardProcess] = {}
        self._shard_count = shard_count
        if begun:
            try:
                self.begin_master()
                self.begin_shards()
            except BaseException:
                self.close()
                raise

    def begin_master(self) -> MasterProcess:
        place = self.root / "master-1"
        self.master = MasterProcess(
            MasterOptions(
                "master-1",
                place,
                self.metastore,
                str(self.store),
                self.address,
                metrics=self._metrics,
                collect_every_s=self._collect_every_s,
            )
        )
        self.address = self.master.address
        return self.master

    @property
    def shard(self) -> ShardProcess | None:
        """The first, which is the only one unless more were asked for; None while it is not there."""
        return self.shards.get(0)

    def begin_shard(self, directory: str | None = None, node: str = NODE, number: int = 0) -> ShardProcess:
        place = self.root / "node-1" / (directory or f"shard-{number}")
        options = ShardOptions(
            "node-1", place, self.metastore, str(self.store), metrics=self._metrics, node=node, number=number
        )
        self.shards[number] = shard = ShardProcess(options)
        return shard

    def begin_shards(self) -> None:
        for number in range(self._shard_count):
            self.begin_shard(number=number)

    def end_master(self) -> None:
        master, self.master = self.master, None
        if master is not None:
            master.close()

    def end_shard(self, number: int = 0) -> None:
        shard = self.shards.pop(number, None)
        if shard is not None:
            shard.close()

    def end_shards(self) -> None:
        with ExitStack() as ends:
            for number in list(self.shards):
                ends.callback(self.end_shard, number)

    def abandon_shard(self, number: int = 0) -> None:
        """As a process that is killed ends: nothing is put in order."""
        if number in self.shards:
            self.shards[number].shard.abandon()
        self.end_shard(number)

    def abandon_shards(self) -> None:
        for number in list(self.shards):
            self.abandon_shard(number)

    def close(self) -> None:
        try:
            self.end_shards()
        finally:
            self.end_master()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
