"""A shard of a cluster: a server in a process of its own, which the cluster's clients and master ask over connections.

It follows the catalog by itself; what its master asks names the version of the catalog that it is about, and waits
until that has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any

import msgspec

from stelae.catalog.value import Catalog, CatalogVersion
from stelae.format.log.copies import RecordCopy, ReplicaKept
from stelae.model.errors import DeadlineExceeded, PermissionDenied, Unavailable
from stelae.model.events import Listener
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.logfiles import LogFiles
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.transport import Listener as Listening
from stelae.registry.catalog.needed import NeededVersion, needed_key
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import HistoryKept
from stelae.registry.changes.asking import ChangeReport, ChangeRequest
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.control_operations import SHARD_CONTROL, ChosenSplit, FilesNeeded
from stelae.registry.incarnations import FencedStore, ShardFence, ShardLife, register_shard
from stelae.registry.masters.heartbeats import Registration
from stelae.registry.replication.appending import REPLICATION_OPERATIONS, AppendAnswer, AppendPart
from stelae.registry.replication.comparing import REPLICA_IMAGES
from stelae.registry.senders import Sender
from stelae.registry.store_mark import StoreMark
from stelae.registry.telling.counts import EventCounts
from stelae.service.deadlines import Deadline, left_of
from stelae.service.operations import INFO
from stelae.service.reports import CheckReport, Progress
from stelae.service.table import SHARD_OPERATIONS
from stelae.service.tables import TableInfo
from stelae.service.tickets import LoadedFile
from stelae.storage.replicas.comparing import ReplicaImage, image_of
from stelae.storage.tablet.splitting import size_of
from stelae.tserver.checking import TabletsRecorded
from stelae.tserver.heartbeats import Heartbeats, HeartbeatWriter, ShardNow
from stelae.tserver.lease.leasing import Leasing
from stelae.tserver.lease.steadiness import SteadyClock
from stelae.tserver.links import RemoteMasterLink
from stelae.tserver.needs import SchemaNeeds
from stelae.tserver.replication.hosting import Hosting
from stelae.tserver.replication.streams import Streams
from stelae.tserver.server import TabletServer
from stelae.tserver.serving.served import Served

_LOOKS_MAX = 20
"""A check looks at tables so often, at most, until none was changed meanwhile."""

OPERATIONS = {
    **SHARD_OPERATIONS,
    INFO.name: INFO,
    **SHARD_CONTROL,
    **REPLICATION_OPERATIONS,
    REPLICA_IMAGES.name: REPLICA_IMAGES,
}
"""What a shard is asked. What is known of a table is asked of whoever has its rows: so reading goes on without a
master, and a schema is never newer than the tablets that are read by it."""


class ShardParts(msgspec.Struct, frozen=True):
    """What a shard is made of, all opened already. `fence`: which shard of the cluster it is, in this life. `clock`:
    the machine's, which the master is told of; `steady`: the one that the shard goes by."""

    metastore: Metastore
    loop: Loop
    mark: StoreMark
    catalog: CatalogService
    fence: ShardFence
    lease: Leasing
    sender: Sender
    to_master: RemoteMasterLink
    server: TabletServer
    counts: EventCounts
    clock: Clock
    steady: SteadyClock
    tell: Listener
    streams: Streams
    logs: LogFiles
    kept: HistoryKept
    release: str = ""


class ClusterShard:
    """Carries out what a shard is asked (`OPERATIONS`). Blocking: made and asked by threads that are not the loop's."""

    is_local = True
    quick = None

    def __init__(self, parts: ShardParts, serve: Callable[[ClusterShard, Listening], Served]) -> None:
        """`serve` has what comes in at a listener carried out by it."""
        self._parts = parts
        self._run = parts.loop.run
        self._start_serving = serve
        self.mark = parts.mark
        self.catalog = parts.catalog
        self.server = server = parts.server
        self._closing = RLock()
        self._is_closed = False
        self._served: Served | None = None
        self._heartbeats: Heartbeats | None = None
        self.wakes = server.wakes
        reading, writing = parts.lease.reading, parts.lease.writing
        self.write, self.submit = writing(server.write), writing(server.submit)
        self.newest, self.newest_cached = reading(server.newest), reading(server.newest_cached)
        self.newest_many, self.history = reading(server.newest_many), reading(server.history)
        self.scan, self.now, self.pin = reading(server.scan), reading(server.now), reading(server.pin)
        self.wait_for_room, self.flush, self.compact = server.wait_for_room, server.flush, server.compact
        self.tablets, self.stats = server.tablets, server.stats
        self.hold, self.renew, self.release = reading(server.hold), server.renew, server.release
        self._take_part = writing(server.changes.answer)
        self.begin_compaction, self.adopt = server.begin_compaction, server.adopt
        self.flush_step, self.log_step = server.flush_step, server.log_step
        self._needs = SchemaNeeds(
            server.shard,
            server.upkeep,
            server.flushing,
            parts.logs,
            lambda: parts.catalog.latest,
            lambda: parts.catalog.schemas,
            NeededVersion(FencedStore(parts.metastore, parts.fence), needed_key(parts.fence.node, parts.fence.number)),
            parts.clock,
            parts.loop,
            parts.kept,
        )
        self._hosting.following.needs = self._needs
        self._hosting.leading.zone_of = self._zone_of
        self._hosting.leading.tell = parts.tell
        parts.streams.on_answer = lambda: self.wakes.streams()  # noqa: PLW0108 - set later, by whoever runs the steps

    def _zone_of(self, table: TableId) -> tuple[int, int] | None:
        catalog = self.catalog.latest
        known = catalog.tables.get(table)
        zone = None if known is None else catalog.zones.get(known.zone)
        return None if zone is None else (zone.replicas, zone.min_replicas)

    def serve(self, listener: Listening) -> ShardLife:
        """Take the lease, say in the metastore that this process is the shard, and where; from then on it is asked."""
        parts = self._parts
        self._needs.begin()
        self._run(parts.lease.start())
        life = self._run(register_shard(parts.metastore, parts.fence, str(listener.address)))
        parts.sender.name = f"{parts.fence.name} ({life.incarnation})"
        self._served = self._start_serving(self, listener)
        registration = Registration(life.node, life.address, parts.release)
        writer = HeartbeatWriter(parts.fence.name, life.incarnation, registration)
        self._run(parts.streams.start())
        send, believe = parts.to_master.send_heartbeat, parts.steady.believe
        self._heartbeats = Heartbeats(writer, self._look, send, parts.tell, believe)
        self._run(self._heartbeats.start())
        return life

    def _look(self) -> ShardNow:
        """What the next heartbeat says of this shard. Called on the loop: it must not wait."""
        shard = self.server.shard
        log_bytes = sum(segment.size_bytes for segment in shard.segments())
        tablets, catalog = self.server.control.glance(), self.catalog.latest.version
        leapt_ms, wall_ms = self._parts.steady.leapt_ms, self._parts.clock.wall_ms()
        return ShardNow(wall_ms, catalog, tablets, log_bytes, shard.unflushed_bytes(), leapt_ms)

    # -- what clients ask besides what the server does itself

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:  # noqa: ARG002 - it never waits
        return self.server.visits.info(table)

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - it never waits
        numbers, catalog = self.server.metrics(), self.catalog.latest
        tables = {"tables": len(catalog.tables), "tablets": numbers["tablets"], "catalog_version": catalog.version}
        served = {} if self._served is None else self._served.numbers()
        lease = {"lease_is_valid": int(self._parts.lease.is_valid)}
        return {**tables, **numbers, **lease, **self._parts.counts.numbers(), **served}

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:
        """The master is waited for until the deadline; what is here takes as long as it takes."""
        return self.server.check(partial(self._look_at_rest, deadline), progress, self._ask_images)

    def _ask_images(self, member: str, tablets: Sequence[TabletId]) -> Sequence[ReplicaImage | None]:
        return self._run(self._parts.streams.ask_images(member, tablets))

    def _look_at_rest(self, deadline: Deadline | None, look: Callable[[Catalog, TabletsRecorded], None]) -> None:
        """Until the master has changed nothing while it was looked. Each look has the caller's time anew."""
        to_master, until = self._parts.to_master, deadline
        before = to_master.tablets_at_rest(until)
        for _ in range(_LOOKS_MAX):
            look(self._wait_for_catalog(CatalogVersion(before.catalog), until), before.of_table)
            until = None if deadline is None else deadline.anew()
            after = to_master.tablets_at_rest(until)
            if after == before:
                return
            before = after
        raise Unavailable(f"tables were changed while they were looked at, {_LOOKS_MAX} times; check again")

    def compact_step(self) -> bool:
        """As the server's; when there is nothing to do, see which schemas are not needed any more."""
        if self.server.compact_step():
            return True
        self._needs.tend()
        return False

    def stream_step(self) -> bool:
        """Send other shards what they lack of the tablets that are led here."""
        return self._parts.streams.step(self._hosting.leading)

    # -- what other shards ask

    def append(
        self,
        log: str,
        parts: Sequence[AppendPart],
        copies: Sequence[Sequence[RecordCopy]],
        *,
        deadline: Deadline | None = None,
    ) -> tuple[AppendAnswer, ...]:
        with self.server.visits.visit():
            if log != self._parts.fence.log:
                return (AppendAnswer(),) * len(parts)  # of a log that was here once
            return self._hosting.append(parts, copies, deadline)

    def host(
        self,
        log: str,
        table: TableId,
        tablet: TabletId,
        epoch: int,
        kept: ReplicaKept,
        *,
        deadline: Deadline | None = None,
    ) -> AppendAnswer:
        with self.server.visits.visit():
            if log != self._parts.fence.log:
                return AppendAnswer()
            return self._hosting.host(table, tablet, epoch, kept, deadline)

    def replica_images(
        self,
        log: str,
        tablets: Sequence[TabletId],
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - it never waits
    ) -> tuple[ReplicaImage | None, ...]:
        """What is here of tablets, for their leader, which compares. Nothing is said of a log that was here once: who
        lost it is replaced by itself, and is no member any more when something is written next."""
        with self.server.visits.visit(), self.server.shard.lock:
            if log != self._parts.fence.log:
                return ()
            replicas = self.server.shard.replicas
            found = (replicas.get(TabletId(tablet)) for tablet in tablets)
            return tuple(None if replica is None else image_of(replica) for replica in found)

    @property
    def _hosting(self) -> Hosting:
        if self.server.hosting is None:
            raise Unavailable("this server is alone: its tablets have one replica")
        return self.server.hosting

    # -- what the master asks

    def control(
        self, request: ControlRequest, catalog: CatalogVersion, guard: int = 0, *, deadline: Deadline | None = None
    ) -> TabletReport:
        """`guard`: of the master that asks; Deposed if another one was heard of meanwhile."""
        with self.server.visits.visit():
            self._wait_for_catalog(catalog, deadline)
            return self.server.ask(request, self._master_check(guard))

    def change(
        self,
        request: ChangeRequest,
        files: Sequence[LoadedFile],
        catalog: CatalogVersion,
        guard: int = 0,
        *,
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        """Take part in a change of a table that has tablets on other servers, too. `guard`: as for `control`."""
        server = self.server
        with server.visits.visit():
            self._wait_for_catalog(catalog, deadline)
            report = self._take_part(request, files, self._master_check(guard))
        server.wakes.grown()
        return report

    def _master_check(self, guard: int) -> Callable[[], None]:
        """Raises Deposed once another master was heard of. PermissionDenied: it is no master that asks."""
        if guard < 1:
            raise PermissionDenied("only a master that leads may ask this: the request names no guard")
        return lambda: self._parts.sender.check_guard(guard, "a master")

    def report(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> TabletReport:  # noqa: ARG002 - it waits for changes only
        with self.server.visits.visit():
            return self.server.report(table)

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
        chosen, row = self.server.choose_split(table, at, tablet)
        shard = self.server.shard
        return ChosenSplit(chosen, row, shard.look(shard.state(chosen), size_of))

    def files_needed(self, *, deadline: Deadline | None = None) -> FilesNeeded:  # noqa: ARG002 - it never waits
        with self.server.visits.visit():
            return self.server.files_needed()

    def look_at_sizes(self, *, deadline: Deadline | None = None) -> None:  # noqa: ARG002 - it never waits
        self.server.look_at_sizes()

    def _wait_for_catalog(self, version: CatalogVersion, deadline: Deadline | None) -> Catalog:
        async def wait() -> Catalog:
            async with asyncio.timeout(left_of(deadline)):
                return await self.catalog.wait_ready(version)

        try:
            return self._run(wait())
        except TimeoutError:
            raise DeadlineExceeded(f"version {version} of the catalog has not come here yet") from None

    # -- the end

    def leave(self) -> None:
        """Take no more requests; those under way are answered first, if they do not take long."""
        if self._heartbeats is not None:
            self._run(self._heartbeats.close())
            self._run(self._parts.streams.close())
        if self._served is not None:
            self._served.close()

    def close(self) -> None:
        """All in files, so that starting it again reads no log. What cannot be written stays in the log. Nothing is put
        in order if another process is the shard by now."""
        if self._parts.lease.is_deposed:
            self.abandon()
        else:
            self._end(self.server.close, in_order=True)

    def abandon(self) -> None:
        """End without putting anything in order."""
        self._end(self.server.abandon, in_order=False)

    def _end(self, end_server: Callable[[], None], *, in_order: bool) -> None:
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
                    self._run(self._parts.lease.close(in_order=in_order))
                    self._run(self._parts.to_master.close())
                    self._run(self.catalog.close())
