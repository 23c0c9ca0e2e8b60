"""The processes of a cluster, with real files, sockets, threads and clocks: a master, and a shard.

Each has a directory of its own, which one process at a time has (`owner`), serves until it is closed, and ends what it
began in the reverse of the order in which it began.

    DIR/master.json      which master it is
    DIR/shard.json       which shard it is, and which log lies here
    DIR/log/, *.mark     what is not in fragments yet, and how far it has come
    DIR/owner            which process has it, and where that serves

The fragments lie on the store that all processes share, tables and tablets' records on the metastore.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import msgspec

from stelae.adapters.blobs.urls import blobs_url
from stelae.adapters.clock import SystemClock
from stelae.adapters.descriptors import connections_allowed, take_descriptors
from stelae.adapters.event_log import EventLog
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.adapters.logfiles.marks import LogMarks
from stelae.adapters.ownership import Ownership, read_owner
from stelae.adapters.rng import SystemRng
from stelae.adapters.signals import ask_to_stop
from stelae.adapters.sockets.tcp import TcpTransport
from stelae.adapters.threads import LoopThread, StepThread
from stelae.assembly.master import ClusterMasterSettings, open_master
from stelae.assembly.processes import ProcessPorts
from stelae.assembly.shard import ClusterShardSettings, ShardWorld, open_shard
from stelae.launch.access import NO_ACCESS, Access
from stelae.launch.binding import check_binding
from stelae.launch.fragments import open_fragment_blobs
from stelae.launch.identity import read_master, read_shard
from stelae.launch.local import shard_settings
from stelae.launch.metastores import LOG_DIRECTORY, SEGMENT_SUFFIX, InDirectory, metastore_place, open_metastore
from stelae.launch.metrics import MetricsPage, check_metrics_binding
from stelae.launch.steps import start_shard_steps
from stelae.master.cluster import OPERATIONS
from stelae.model.errors import AlreadyExists
from stelae.model.events import Listener as EventListener
from stelae.model.events import ServedInsecurely
from stelae.ports.blobs import BlobStore
from stelae.ports.metastore import Metastore
from stelae.ports.transport import Address, Listener
from stelae.registry.incarnations import ShardIdentity
from stelae.storage.files.handles import OPEN_FILES
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.frames import WireLimits

LISTEN_DEFAULT = "127.0.0.1:0"

MASTER_TEND_S = 1.0
"""So often a master looks whether there is something to be done: a shard that came back, say. Mostly there is not."""
MASTER_KIND_MAX = 64
"""So many requests of one kind a master carries out at once. Each has a thread, which mostly waits: for a turn, or for
a shard that may be stopped. Threads are made when they are needed, and one that waits costs some ten KiB."""
_READING_QUEUED_MAX = 10_000


class ProcessOptions(msgspec.Struct, frozen=True):
    """`name`: what it is called. `directory`: its own. `metastore`: a URL. `store`: the URL of the fragments, which has
    to be said when the cluster is made. `listen`: `host:port`; port 0 lets the system choose. `access`: what others
    have to show, and what is shown to them; where other machines can connect, there is a token and TLS, or it is said
    that it is `insecure`. `metrics`: where it tells its numbers (`launch.metrics`); None: nowhere."""

    name: str
    directory: Path
    metastore: str
    store: str | None = None
    listen: str = LISTEN_DEFAULT
    access: Access = NO_ACCESS
    insecure: bool = False
    metrics: str | None = None
    release: str = ""

    @property
    def role(self) -> str:
        return "master"

    @property
    def process(self) -> str:
        """What the process is called in the cluster."""
        return self.name


class MasterOptions(ProcessOptions, frozen=True):
    """`collect_every_s`: how often files that nobody needs are looked for."""

    collect_every_s: float = 300.0


class ShardOptions(ProcessOptions, frozen=True):
    """`node`, `number`: of which node it is which shard; the node's name is `name`. `sharing`: so many shards share the
    machine's memory, unless `memory_bytes` says how much this one has. `rack`: where the node stands."""

    node: str = ""
    number: int = 0
    memory_bytes: int | None = None
    sharing: int = 1
    rack: str = ""

    @property
    def role(self) -> str:
        return "shard"

    @property
    def process(self) -> str:
        return f"{self.name}/{self.number}"


class _Process:
    """What both kinds begin and end with. Whatever fails on the way, what was begun is ended."""

    address: str = ""
    """Where it serves, once it does."""
    metrics: str = ""
    """Where it tells its numbers; empty if nowhere."""

    def __init__(self, options: ProcessOptions, loop_name: str) -> None:
        self._options = options
        self._ends = ExitStack()
        try:
            self._begin(options, loop_name)
            self._serve()
            self._owned.note(self.address)
        except BaseException:
            self._ends.close()
            raise

    def close(self) -> None:
        """Stop what the process runs, the last that was started first. Closing twice is no error."""
        self._ends.close()

    def _begin(self, options: ProcessOptions, loop_name: str) -> None:
        has_tls = options.access.tls is not None
        has_token = options.access.token is not None
        self._missing = check_binding(options.listen, has_token=has_token, has_tls=has_tls, insecure=options.insecure)
        if options.metrics is not None and check_metrics_binding(options.metrics, insecure=options.insecure):
            _warn(f"{options.process} tells its numbers to other machines on {options.metrics}", "read them")
        OPEN_FILES.allow(take_descriptors())
        self._own(options)
        self._loop = LoopThread(loop_name)
        self._ends.callback(self._loop.close)
        self._page: MetricsPage | None = None
        if options.metrics is not None:
            self._page = MetricsPage(self._loop, options.metrics, options.process, options.role)
            self._ends.callback(self._page.close)
            self.metrics = self._page.address
        self._metastore = self._open_metastore(options.metastore)
        connections = connections_allowed()
        kinds, kind_max = self._kinds()
        self._limits = limits = ServiceLimits(
            connections_max=connections, greetings_max=connections // 4, kind_max=kind_max
        )
        serving = ThreadExecutor(limits.threads_max(kinds), limits.connections_max * limits.requests_max)
        self._ends.callback(serving.close)
        clock, rng = SystemClock(), SystemRng()
        self._ports = ProcessPorts(
            self._metastore,
            clock,
            rng,
            self._loop,
            TcpTransport(tls=options.access.tls).connect,
            serving,
            options.access.token,
        )

    def _serve(self) -> None:
        raise NotImplementedError

    def _kinds(self) -> tuple[int, int]:
        """If each kind of request has places of its own: how many kinds, and how many places. See `ServiceLimits`."""
        return 0, 0

    def _tell_numbers(self, numbers: Callable[[], Mapping[str, object]]) -> None:
        """Tell these at its `/metrics`, if it has that, until it ends."""
        if self._page is not None:
            self._page.tell(numbers)
            self._ends.callback(self._page.hush)

    def _own(self, options: ProcessOptions) -> None:
        owned = Ownership.take(options.directory, options.release)
        if owned is None:
            who = read_owner(options.directory) or "another process"
            raise AlreadyExists(f"{options.directory} is in use: {who} has it")
        self._ends.callback(owned.release)
        self._owned = owned

    def _open_metastore(self, url: str) -> Metastore:
        place = metastore_place(url)
        if isinstance(place, InDirectory):
            place.path.mkdir(parents=True, exist_ok=True)
        opened = AsyncExitStack()
        self._ends.callback(lambda: self._loop.run(opened.aclose()))
        return self._loop.run(opened.enter_async_context(open_metastore(place)))

    def _open_blobs(self) -> tuple[BlobStore, str]:
        """Where the fragments lie; a new cluster is marked with it."""
        directory, given, ports = self._options.directory, self._options.store, self._ports
        store = None if given is None else blobs_url(given)
        return open_fragment_blobs(
            directory, ports.metastore, ports.rng, self._loop.run, store, read_only=False, is_cluster=True
        )

    def _listen(self, tell: EventListener) -> Listener:
        access = self._options.access
        limits = WireLimits(first_frames=1 if access.token is None else 2)
        listener = self._loop.run(TcpTransport(limits, access.tls).listen(Address(self._options.listen)))
        self._ends.callback(lambda: self._loop.run(listener.close()))
        self.address = str(listener.address)
        if self._missing:
            tell(ServedInsecurely(self.address, self._missing))
            words = f"{self._options.name} serves other machines on {self.address} without {self._missing}"
            _warn(words, "read and change everything")
        return listener


class MasterProcess(_Process):
    """Serves when it is made."""

    def __init__(self, options: MasterOptions) -> None:
        self._master_options = options
        super().__init__(options, "stelae-master")

    def _serve(self) -> None:
        options = self._master_options
        blobs, url = self._open_blobs()
        known = read_master(options.directory, self._ports.rng)
        settings = ClusterMasterSettings(
            options.name,
            options.release,
            self._limits,
            known.id,
            collect_every_s=options.collect_every_s,
            fragments=url,
        )
        tell = EventLog(options.name)
        self.master = open_master(self._ports, settings, tell, blobs)
        self._ends.callback(self.master.close)
        self.master.serve(self._listen(tell))
        self._tell_numbers(self.master.metrics)
        tending = StepThread("stelae-tend", self._tend, MASTER_TEND_S)
        self._ends.callback(tending.close)

    def _kinds(self) -> tuple[int, int]:
        return len(OPERATIONS), MASTER_KIND_MAX

    def _tend(self) -> bool:
        self.master.tend()
        return False


class ShardProcess(_Process):
    """Serves when it is made."""

    def __init__(self, options: ShardOptions) -> None:
        self._shard_options = options
        super().__init__(options, "stelae-shard")

    def _serve(self) -> None:
        options, directory = self._shard_options, self._options.directory
        known = read_shard(directory, options.node, options.number, self._ports.rng)
        blobs, url = self._open_blobs()
        reading = ThreadExecutor(max(2, os.cpu_count() or 1), _READING_QUEUED_MAX)
        self._ends.callback(reading.close)
        marks = LogMarks(directory, SEGMENT_SUFFIX)
        self._ends.callback(marks.close)
        logs = DeferredLogFiles(LocalLogFiles(directory / LOG_DIRECTORY, SEGMENT_SUFFIX, marks))
        settings = ClusterShardSettings(
            ShardIdentity(options.node, options.name, options.number, known.log, options.rack),
            url,
            shard_settings(options.memory_bytes, options.sharing),
            release=options.release,
            limits=self._limits,
        )
        world = ShardWorld(logs, blobs, reading)
        tell = EventLog(settings.identity.name)
        self.shard = open_shard(self._ports, world, settings, logs.settle, tell, ask_to_stop)
        self._ends.callback(self.shard.close)
        for end in reversed(start_shard_steps(self.shard)):
            self._ends.callback(end)
        self.life = self.shard.serve(self._listen(tell))
        self._ends.callback(self.shard.leave)
        self._tell_numbers(self.shard.metrics)


def _warn(words: str, danger: str) -> None:
    """Whoever starts a process reads this, whether or not anybody reads its log."""
    sys.stderr.write(f"stelae: insecure: {words}: whoever reaches it may {danger}\n")
