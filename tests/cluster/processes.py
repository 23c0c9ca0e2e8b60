"""The processes of a cluster in the simulated world: the master and the shard that users run, and programs that are
connected to them. Each is started again when it ends. What blocks in them runs in simulated threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.adapters.threads import StepThread
from stelae.assembly.master import ClusterMasterSettings, open_master
from stelae.assembly.processes import ProcessPorts
from stelae.assembly.shard import ClusterShardSettings, ShardWorld, open_shard
from stelae.client.api.database import Database
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.cluster.masters import AnyMaster, ask_leading, brief_masters
from stelae.client.remote.cluster.store import ClusterStore
from stelae.client.remote.finding import FoundConnector
from stelae.client.remote.places import attach_patiently
from stelae.client.remote.takeover import AttachedStore
from stelae.launch.processes import MASTER_KIND_MAX, MASTER_TEND_S
from stelae.launch.steps import start_shard_steps
from stelae.master.cluster import OPERATIONS, ClusterMaster
from stelae.master.settings import MasterSettings
from stelae.model.errors import Corruption, Unavailable
from stelae.ports.rng import Rng
from stelae.ports.transport import Address
from stelae.registry.catalog.settings import HistoryKept
from stelae.registry.control_operations import PLACES
from stelae.registry.incarnations import ShardIdentity
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.sim import world as sim
from stelae.sim.loop import SimLoop
from stelae.sim.threads.blocking import BlockingLoop
from stelae.sim.threads.executor import ThreadsExecutor
from stelae.sim.threads.locks import simulated_locks
from stelae.sim.threads.paced import PacedLogFiles
from stelae.sim.threads.thread import SimThread, current_thread, run_in_thread
from stelae.storage.files.handles import OPEN_FILES
from stelae.storage.log.wal import WalSettings
from stelae.storage.shard import ShardSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.tserver.cluster import ClusterShard
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

MASTERS = ("master", "master-2")
SHARDS = ("shard-1", "shard-2", "shard-3")
LEASE_S_MIN, LEASE_S_MAX = 1.0, 5.0
CLIENT = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "", "client")
PATIENCE_S_MIN, PATIENCE_S_MAX = 0.3, 20.0
PREEMPTION_MAX = 0.1
HISTORY = HistoryKept()
"""How long the catalog's history becomes: longer than in any run, unless a test sets it."""
_WATCH_S = 1.0


class LoopsThread:
    """A `threading.Thread` as the adapters use it, in the simulated world."""

    def __init__(self, target: Callable[[], object], name: str, daemon: bool) -> None:
        loop = asyncio.get_running_loop() if (here := current_thread()) is None else here._loop
        assert isinstance(loop, SimLoop)
        self._thread = SimThread(loop, target, name)
        self.name = name

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def is_alive(self) -> bool:
        return not self._thread.is_over


@contextmanager
def simulated_threads(rng: Rng) -> Iterator[None]:
    """Threads and locks are simulated meanwhile. What a thread of the product fails with, other than what it expects,
    is raised at the end: in the real world it would only be logged."""
    heard = _Failures()
    logger = logging.getLogger("stelae")
    logger.addHandler(heard)
    try:
        preemption = PREEMPTION_MAX * rng.fraction() if rng.below(2) else 0.0
        with (
            simulated_locks(preemption),
            mock.patch("stelae.adapters.threads.Thread", LoopsThread),
            mock.patch.object(OPEN_FILES, "_users", WeakKeyDictionary()),  # those of other runs are not of this one
        ):
            yield
    finally:
        logger.removeHandler(heard)
    assert not heard.failures, f"a thread failed: {heard.failures[0]!r}"


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            self.failures.append(record.exc_info[1])


def process_ports(ports: sim.ProcessPorts, threads: int = 16) -> ProcessPorts:
    loop, transport = ports.loop, ports.transport
    serving = ThreadsExecutor(loop, threads, 1_000)
    return ProcessPorts(ports.metastore, ports.clock, ports.rng, BlockingLoop(loop), transport.connect, serving)


async def run_master(ports: sim.ProcessPorts, seen: dict[str, ClusterMaster] | None = None) -> None:
    """`seen`: where the master is put that serves now, by its process's name."""
    master = await run_in_thread(ports.loop, _serve_master, ports)
    if seen is not None:
        seen[ports.name] = master
    await asyncio.Event().wait()


def _master_address(name: str) -> Address:
    return Address(f"{name}:1")


def _draw_lease_s(rng: Rng) -> float:
    """In each life another: what counts is what the lease itself says."""
    return float(LEASE_S_MIN * (LEASE_S_MAX / LEASE_S_MIN) ** rng.fraction())


def _serve_master(ports: sim.ProcessPorts) -> ClusterMaster:
    limits = ServiceLimits(kind_max=MASTER_KIND_MAX)
    own, lease_s = process_ports(ports, limits.threads_max(len(OPERATIONS))), _draw_lease_s(ports.rng)
    settings = ClusterMasterSettings(
        ports.name,
        limits=limits,
        master=MasterSettings(grace_s=3600.0, history=HISTORY),
        lease_s=lease_s,
        trash_s=0.0,  # what is taken away by mistake is missed at once
        collect_every_s=float(0.2 * 50 ** ports.rng.fraction()),
    )
    master = open_master(own, settings, blobs=ports.blobs)
    master.serve(own.loop.run(ports.transport.listen(_master_address(ports.name))))

    def tend() -> bool:
        master.tend()
        return False

    StepThread("stelae-tend", tend, MASTER_TEND_S)
    return master


async def run_shard(ports: sim.ProcessPorts, seen: dict[str, ClusterShard] | None = None) -> None:
    """`seen`: as for `run_master`."""
    over, known = asyncio.Event(), {} if seen is None else seen
    known.pop(ports.name, None)
    try:
        known[ports.name] = await run_in_thread(ports.loop, _serve_shard, ports, over.set)
    except Corruption as error:
        raise AssertionError(f"the shard does not come up, and no byte of it was touched: {error}") from error
    await over.wait()  # another begins to be the shard, or the shard was fenced: it is started again, as nodes do


def _draw_settings(rng: Rng) -> ShardSettings:
    """Small, so that flushes, compactions and new segments come soon; in each life others."""
    seal_bytes = int(2_000 * 15 ** rng.fraction())
    serializer = SerializerSettings(seal_bytes, memory_bytes=4 * seal_bytes, log_bytes=8 * seal_bytes)
    log = WalSettings(segment_bytes_max=int(1_000 * 10 ** rng.fraction()))
    return ShardSettings(cache_bytes=2**20, log=log, serializer=serializer)


def _serve_shard(ports: sim.ProcessPorts, deposed: Callable[[], None]) -> ClusterShard:
    own = process_ports(ports)
    logs = DeferredLogFiles(PacedLogFiles(ports.disk, ports.disk.pace, ports.loop))
    identity = ShardIdentity(f"id-of-{ports.name}", ports.name, 0, f"log-{ports.disk.wipes}-of-{ports.name}")
    own_settings, lease_s = _draw_settings(ports.rng), _draw_lease_s(ports.rng)
    settings = ClusterShardSettings(identity, "", own_settings, lease_s=lease_s, kept=HISTORY)
    reading = ThreadsExecutor(ports.loop, 2, 1_000)
    shard = open_shard(own, ShardWorld(logs, ports.blobs, reading), settings, logs.settle, deposed=deposed)
    start_shard_steps(shard)
    port = 1 + ports.rng.below(60_000)  # another one in each life, as the system chooses
    shard.serve(own.loop.run(ports.transport.listen(Address(f"{ports.name}:{port}"))))
    return shard


class Connected:
    """A `StorePlace`: the cluster, as a program is connected to it."""

    def __init__(self, ports: sim.ProcessPorts) -> None:
        self._ports = ports

    def own(self) -> None:
        return None

    def attach(self, deadline: Deadline | None) -> ClusterStore:
        ports = self._ports

        def connect(address: str) -> Any:
            return ports.transport.connector(Address(address))

        addresses = [_master_address(name) for name in MASTERS]
        masters = AnyMaster(brief_masters(addresses, connect, ports.clock), CLIENT, ports.clock)

        def find(shard: str, until: Deadline | None) -> str:
            for each in masters.ask(PLACES, until).shards:
                if each.name == shard:
                    return each.address
            raise Unavailable(f"no shard is called {shard}")

        def connect_shard(shard: str) -> FoundConnector:
            return FoundConnector(f"shard {shard}", partial(find, shard), connect, ports.clock)

        remote = ClusterStore(
            "the simulated cluster",
            masters,
            ask_leading(masters, "the simulated cluster", connect, CLIENT, ports.clock),
            connect_shard,
            CLIENT,
            ports.clock,
            ports.rng,
            ThreadsExecutor(ports.loop, 4, 1_000),
            ThreadsExecutor(ports.loop, 8, 1_000),
        )
        try:
            remote.attach(deadline)
        except BaseException:
            remote.close()
            raise
        return remote

    def away_words(self) -> str:
        return "the simulated cluster cannot be reached"


class Watched(AttachedStore):
    """As `launch.attached.WatchedStore`, by the process's own clock."""

    _watching: StepThread | None = None

    def keep(self, pin: Pin, store: Backend, deadline: Deadline | None) -> Pin:
        kept = super().keep(pin, store, deadline)
        if self._watching is None:
            self._watching = StepThread("stelae-pins", self._watch, _WATCH_S)
        return kept

    def _watch(self) -> bool:
        self.watch_pins(Deadline(self._clock, _WATCH_S * 2))
        return False


def draw_patience_s(rng: Rng) -> float:
    """Some programs give up soon, and do not know then what became of their calls."""
    return float(PATIENCE_S_MIN * (PATIENCE_S_MAX / PATIENCE_S_MIN) ** rng.fraction())


def sleep(seconds: float) -> None:
    """In a simulated thread."""
    thread = current_thread()
    assert thread is not None
    thread.sleep(seconds)


def connect(ports: sim.ProcessPorts, patience_s: float = PATIENCE_S_MAX) -> Database:
    """Blocking, for a simulated thread."""
    place = Connected(ports)
    patience = Patience(ports.clock, ports.rng, patience_s)

    opened = attach_patiently(place, patience.deadline(), sleep)
    return Database(Session(opened, patience, Watched(place, opened, ports.clock, ThreadsExecutor(ports.loop, 1, 1))))
