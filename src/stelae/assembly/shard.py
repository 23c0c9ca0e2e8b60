"""A shard of a cluster, made of the ports of its process, its log and the shared store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stelae.assembly.processes import ProcessPorts, ProcessSettings, introduce_process, make_peer, serve_process
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.metastore import DeletePrefix, PutKey
from stelae.registry.catalog.following import follow_catalog
from stelae.registry.catalog.settings import HistoryKept
from stelae.registry.incarnations import FencedStore, ShardIdentity, begin_shard, check_shard, log_key
from stelae.registry.known_tables import KnownTables
from stelae.registry.leases.held import LEASE_S
from stelae.registry.peers import Peer
from stelae.registry.senders import Sender
from stelae.registry.store_mark import mark_store
from stelae.registry.tablet_records import holds_alone, read_tablets
from stelae.registry.telling.counts import IN_SHARDS, EventCounts, note_failure
from stelae.registry.views.own import OwnPart
from stelae.registry.views.prefixed import local_prefix
from stelae.registry.wires.finding import ShardFinder
from stelae.storage.shard import ShardSettings
from stelae.tserver.cluster import OPERATIONS, ClusterShard, ShardParts
from stelae.tserver.lease.leasing import Leasing, resume
from stelae.tserver.lease.steadiness import SteadyClock, set_by_master
from stelae.tserver.links import MasterFinder, RemoteMasterLink
from stelae.tserver.replication.streams import Streams
from stelae.tserver.server import TabletServer
from stelae.tserver.serving.service import ServiceLimits
from stelae.tserver.surroundings import ServerPorts, ServerSettings
from stelae.tserver.visits import Visits


class ShardWorld(msgspec.Struct, frozen=True):
    """What a shard has besides what every process has. Scans work ahead on `reading`."""

    logs: LogFiles
    blobs: BlobStore
    reading: Executor | None = None


class ClusterShardSettings(msgspec.Struct, frozen=True):
    """`fragments`: the URL under which jobs find the files. `pins_wait_s`: see `ServerSettings`. `lease_s`: so long, at
    most, does it answer about rows when it cannot reach the metastore."""

    identity: ShardIdentity
    fragments: str = ""
    shard: ShardSettings = msgspec.field(default_factory=ShardSettings)
    pins_wait_s: float = 5.0
    release: str = ""
    limits: ServiceLimits = msgspec.field(default_factory=ServiceLimits)
    lease_s: float = LEASE_S
    kept: HistoryKept = msgspec.field(default_factory=HistoryKept)

    @property
    def process(self) -> ProcessSettings:
        return ProcessSettings(self.identity.name, self.release, self.limits)


def open_shard(
    ports: ProcessPorts,
    world: ShardWorld,
    settings: ClusterShardSettings,
    proved: Callable[[], None] | None = None,
    listener: Listener = tell_nobody,
    deposed: Callable[[], None] | None = None,
) -> ClusterShard:
    """From what lies on the metastore, the log and the files, or from nothing. `proved` is called when all that was
    found has proved good, before anything is changed; `deposed`, on the loop, when another process has begun to be this
    shard: this one is of no use any more. Blocking: not for the loop's thread."""
    run, store, identity = ports.loop.run, ports.metastore, settings.identity
    counts, clock = EventCounts(IN_SHARDS), SteadyClock(ports.clock)
    tell, time = Listeners(counts, listener, on_failure=note_failure), HybridClock(clock.wall_ms)
    place = f"shard {identity.name}"
    mark = run(mark_store(store, ports.rng, is_cluster=True))
    run(check_shard(store, identity, holds_alone(run(read_tablets(store)), identity.name)))
    fence = run(begin_shard(store, identity))
    left = run(resume(store, fence, time))
    me = introduce_process(ports, settings.process, "shard", mark.token)
    sender = Sender(identity.name, time, store)
    find = MasterFinder(store, sender)
    run(set_by_master(clock, make_peer(ports, "the master", me, find, sender.sign), identity.name, tell))
    catalog = run(follow_catalog(store, ports.clock, time, ports.rng, identity.name))
    try:
        tables = KnownTables(catalog)
        run(find.guard())
        master = make_peer(ports, "the master", me, find, sender.sign)
        to_master = RemoteMasterLink(master, find, store, ports.loop, ports.clock)
        fenced, local = FencedStore(store, fence), local_prefix(identity.node, identity.number)
        if fence.is_new_log:
            noted = PutKey(log_key(identity.node, identity.number), identity.log.encode())
            run(fenced.txn([], [DeletePrefix(local), noted]))  # what it kept was about the log that it had
        around = (OwnPart(fenced, local), clock, time, ports.rng, ports.loop)
        server_ports = ServerPorts(world.logs, world.blobs, *around, world.reading, fenced)
        kept = (settings.fragments, mark.token, settings.shard, settings.pins_wait_s)
        as_said = ServerSettings(identity.name, place, *kept, is_alone=False, log=identity.log)
        visits = Visits(place, tables.info)
        server = TabletServer.open(server_ports, tables, to_master, as_said, visits, proved, tell)
    except BaseException:
        run(catalog.close())
        raise
    lease = Leasing(fenced, fence, left, clock, time, server.shard.wal, settings.lease_s, tell, deposed)
    known = (mark, catalog, fence, lease, sender, to_master, server, counts)

    def open_peer(shard: str) -> Peer:
        return make_peer(ports, f"shard {shard}", me, ShardFinder(store, shard), sender.sign)

    streams = Streams(server.shard, ports.clock, open_peer, master)
    return ClusterShard(
        ShardParts(
            store, ports.loop, *known, ports.clock, clock, tell, streams, world.logs, settings.kept, settings.release
        ),
        lambda shard, at: serve_process(ports, settings.process, me, shard, OPERATIONS, at, tell, sender, lease.doubt),
    )
