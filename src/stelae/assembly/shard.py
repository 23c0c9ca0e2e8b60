"""A shard of a cluster: a server in a process of its own, which the cluster's clients and master ask over connections.

What it needs of the world is handed in. It follows the catalog by itself; what its master asks names the version of the
catalog that it is about, and waits until that has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from stelae.assembly.catalogs import CATALOG_VERSIONS_MAX, follow_catalog
from stelae.assembly.listening import note_failure
from stelae.assembly.processes import ProcessPorts, ProcessSettings, Served, introduce_process, make_peer
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.errors import DeadlineExceeded, Unavailable
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TableId
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.transport import Listener as Listening
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.control_operations import SHARD_CONTROL, ChosenSplit
from stelae.registry.incarnations import FencedStore, ShardLife, begin_shard, check_shard, register_shard
from stelae.registry.known_tables import KnownTables
from stelae.registry.masters.guard import MasterGuard, read_guard
from stelae.registry.prefixed import PrefixedStore, local_prefix
from stelae.registry.senders import Sender
from stelae.registry.store_mark import mark_store
from stelae.service.deadlines import Deadline, left_of
from stelae.service.operations import INFO
from stelae.service.reports import CheckReport, Progress
from stelae.service.table import TABLET_OPERATIONS
from stelae.service.tables import TableInfo
from stelae.storage.shard import ShardSettings
from stelae.tserver.checking import TabletsRecorded
from stelae.tserver.counts import EventCounts
from stelae.tserver.links import RemoteMasterLink
from stelae.tserver.server import TabletServer
from stelae.tserver.serving.service import ServiceLimits
from stelae.tserver.surroundings import ServerPorts, ServerSettings
from stelae.tserver.visits import Visits

_LOOKS_MAX = 20
"""A check looks at tables so often, at most, until none was changed meanwhile."""

OPERATIONS = {**TABLET_OPERATIONS, INFO.name: INFO, **SHARD_CONTROL}
"""What a shard is asked. What is known of a table is asked of whoever has its rows: so reading goes on without a
master, and a schema is never newer than the tablets that are read by it."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """`node`: the node's id, `node_name` its name. `log`: the id of the log in the shard's directory."""

    node: str
    node_name: str
    number: int
    log: str

    @property
    def name(self) -> str:
        return f"{self.node_name}/{self.number}"


@dataclass(frozen=True, slots=True)
class ShardWorld:
    """What a shard has besides what every process has. Scans work ahead on `reading`."""

    logs: LogFiles
    blobs: BlobStore
    reading: Executor | None = None


@dataclass(frozen=True, slots=True)
class ClusterShardSettings:
    """`fragments`: the URL under which jobs find the files. `pins_wait_s`: see `ServerSettings`."""

    identity: ShardIdentity
    fragments: str = ""
    shard: ShardSettings = field(default_factory=ShardSettings)
    pins_wait_s: float = 5.0
    release: str = ""
    limits: ServiceLimits = field(default_factory=ServiceLimits)

    @property
    def process(self) -> ProcessSettings:
        return ProcessSettings(self.identity.name, self.release, self.limits)


class ClusterShard:
    """Carries out what a shard is asked (`OPERATIONS`). Blocking: made and asked by threads that are not the loop's."""

    is_local = True

    def __init__(
        self,
        ports: ProcessPorts,
        world: ShardWorld,
        settings: ClusterShardSettings,
        proved: Callable[[], None] | None = None,
        listener: Listener = tell_nobody,
    ) -> None:
        """From what lies on the metastore, the log and the files, or from nothing. `proved` is called when all that was
        found has proved good, before anything is changed."""
        self._ports = ports
        self._settings = settings
        self._run = run = ports.loop.run
        self._counts = EventCounts()
        self._tell = tell = Listeners(self._counts, listener, on_failure=note_failure)
        place, time = f"shard {settings.identity.name}", HybridClock(ports.clock.wall_ms)
        self.mark = run(mark_store(ports.metastore, ports.rng, is_cluster=True))
        identity = settings.identity
        run(check_shard(ports.metastore, identity.node, identity.node_name, identity.number, identity.log))
        self._fence = run(
            begin_shard(ports.metastore, identity.node, identity.node_name, identity.number, identity.log)
        )
        self._me = introduce_process(ports, settings.process, "shard", self.mark.token)
        self.catalog = run(follow_catalog(ports.metastore, ports.clock, time, ports.rng, settings.identity.name))
        try:
            tables = KnownTables(self.catalog)
            self._visits = Visits(place, tables.info)
            self._sender = Sender(settings.identity.name, time)
            run(self._find_guard())
            self._master = make_peer(ports, "the master", self._me, self._find_master, self._sender.sign)
            self._to_master = RemoteMasterLink(self._master, ports.metastore, ports.loop, ports.clock)
            fenced = FencedStore(ports.metastore, self._fence)
            own = PrefixedStore(fenced, local_prefix(identity.node, identity.number))
            server_ports = ServerPorts(
                world.logs, world.blobs, own, ports.clock, time, ports.rng, ports.loop, world.reading, fenced
            )
            server_settings = ServerSettings(
                settings.identity.name,
                place,
                settings.fragments,
                self.mark.token,
                settings.shard,
                settings.pins_wait_s,
                is_alone=False,
            )
            self.server = server = TabletServer.open(
                server_ports, tables, self._to_master, server_settings, self._visits, proved, tell
            )
        except BaseException:
            run(self.catalog.close())
            raise
        self._closing = RLock()
        self._is_closed = False
        self._served: Served | None = None
        self.wakes = server.wakes
        self.write, self.submit, self.wait_for_room = server.write, server.submit, server.wait_for_room
        self.newest, self.newest_cached, self.newest_many = server.newest, server.newest_cached, server.newest_many
        self.history, self.scan, self.now, self.pin = server.history, server.scan, server.now, server.pin
        self.truncate, self.flush, self.compact = server.truncate, server.flush, server.compact
        self.tablets, self.stats = server.tablets, server.stats
        self.hold, self.renew, self.release = server.hold, server.renew, server.release
        self.begin_load, self.commit_load = server.begin_load, server.commit_load
        self.begin_compaction, self.adopt = server.begin_compaction, server.adopt
        self.flush_step, self.compact_step, self.log_step = server.flush_step, server.compact_step, server.log_step

    def serve(self, listener: Listening) -> ShardLife:
        """Say in the metastore that this process is the shard, and where; from then on it is asked."""
        life = self._run(register_shard(self._ports.metastore, self._fence, str(listener.address)))
        self._sender.name = f"{self._fence.name} ({life.incarnation})"
        self._served = Served(
            self._ports, self._settings.process, self._me, self, OPERATIONS, listener, self._tell, self._sender
        )
        return life

    async def _find_guard(self) -> MasterGuard | None:
        guard = await read_guard(self._ports.metastore)
        if guard is not None:
            self._sender.note_guard(guard.number)
        return guard

    async def _find_master(self, _: Deadline | None) -> str:
        guard = await self._find_guard()
        if guard is None:
            raise Unavailable("no master has been started yet")
        return guard.address

    # -- what clients ask besides what the server does itself

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:  # noqa: ARG002 - it never waits
        return self._visits.info(table)

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - it never waits
        numbers, catalog = self.server.metrics(), self.catalog.latest
        tables = {"tables": len(catalog.tables), "tablets": numbers["tablets"], "catalog_version": catalog.version}
        served = {} if self._served is None else self._served.numbers()
        return {**tables, **numbers, **self._counts.numbers(), **served}

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:  # noqa: ARG002
        return self.server.check(self._look_at_rest, progress)

    def _look_at_rest(self, look: Callable[[Catalog, TabletsRecorded], None]) -> None:
        """Until the master has changed nothing while it was looked."""
        before = self._to_master.tablets_at_rest()
        for _ in range(_LOOKS_MAX):
            look(self._run(self.catalog.wait_ready(CatalogVersion(before.catalog))), before.of_table)
            after = self._to_master.tablets_at_rest()
            if after == before:
                return
            before = after
        raise Unavailable(f"tables were changed while they were looked at, {_LOOKS_MAX} times; check again")

    # -- what the master asks

    def control(
        self, request: ControlRequest, catalog: CatalogVersion, guard: int = 0, *, deadline: Deadline | None = None
    ) -> TabletReport:
        """`guard`: of the master that asks; Deposed if another one was heard of meanwhile."""
        with self._visits.visit():
            self._wait_for_catalog(catalog, deadline)
            return self.server.ask(request, lambda: self._sender.check_guard(guard, "a master"))

    def report(self, *, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002 - it waits for changes only
        with self._visits.visit():
            return self.server.report()

    def choose_split(
        self,
        table: TableId,
        at: Row | None,
        tablet: int | None,
        catalog: CatalogVersion,
        *,
        deadline: Deadline | None = None,
    ) -> ChosenSplit:
        self._wait_for_catalog(catalog, deadline)
        return ChosenSplit(*self.server.choose_split(table, at, tablet))

    def look_at_sizes(self, *, deadline: Deadline | None = None) -> None:  # noqa: ARG002 - it never waits
        self.server.look_at_sizes()

    def _wait_for_catalog(self, version: CatalogVersion, deadline: Deadline | None) -> None:
        async def wait() -> None:
            async with asyncio.timeout(left_of(deadline)):
                await self.catalog.wait_ready(version)

        try:
            self._run(wait())
        except TimeoutError:
            raise DeadlineExceeded(f"version {version} of the catalog has not come here yet") from None

    # -- the end

    def leave(self) -> None:
        """Take no more requests; those under way are answered first, if they do not take long."""
        if self._served is not None:
            self._served.close()

    def close(self) -> None:
        """All in files, so that starting it again reads no log. What cannot be written stays in the log."""
        self._end(self._close_server)

    def abandon(self) -> None:
        """End without putting anything in order."""
        self._end(self.server.abandon)

    def _end(self, end_server: Callable[[], None]) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.leave()
            finally:
                try:
                    end_server()
                finally:
                    self._run(self._master.close())
                    self._run(self.catalog.close())

    def _close_server(self) -> None:
        versions = self.catalog.latest.version - self.catalog.earliest.version
        self.server.close(self._compact_catalog if versions >= CATALOG_VERSIONS_MAX else None)

    def _compact_catalog(self) -> None:
        self._run(self.catalog.compact())
