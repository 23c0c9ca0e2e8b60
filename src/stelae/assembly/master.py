"""A master of a cluster, made of the ports of its process."""

from __future__ import annotations

import msgspec

from stelae.assembly.processes import ProcessPorts, ProcessSettings, introduce_process, make_peer, serve_process
from stelae.master.changes.desk import ChangesDesk
from stelae.master.changes.loads import TableChanges
from stelae.master.cluster import OPERATIONS, ClusterMaster, MasterParts
from stelae.master.desk import TableDesk
from stelae.master.garbage.collection import Collection
from stelae.master.garbage.rounds import CollectionRounds
from stelae.master.leadership import MasterIdentity
from stelae.master.links import ChangedServers, ShardServers
from stelae.master.lookout import Lookout
from stelae.master.master import Master
from stelae.master.removal import Removal
from stelae.master.replication.draining import Draining
from stelae.master.settings import MasterSettings
from stelae.master.terms import LeadingGate, Term, Terms
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.ports.blobs import BlobStore
from stelae.registry.catalog.following import follow_catalog
from stelae.registry.known_tables import KnownTables
from stelae.registry.leases.held import LEASE_S
from stelae.registry.masters.guard import GuardedStore, HeldGuard
from stelae.registry.peers import Peer
from stelae.registry.senders import Sender
from stelae.registry.store_mark import mark_store
from stelae.registry.telling.counts import IN_MASTERS, EventCounts, note_failure
from stelae.registry.wires.finding import ShardFinder
from stelae.tserver.visits import Visits


class ClusterMasterSettings(ProcessSettings, frozen=True):
    """`id`: lies in the directory of the master, which one process at a time has; its name if none is given. `away_s`:
    so long is a shard that is away waited for with a change that it has to follow. `lease_s`: so long does no other
    master take its place when it is silent. `trash_s`: how long unneeded files are kept aside; `collect_every_s`: how
    often they are looked for. `fragments`: the URL under which jobs write files."""

    id: str = ""
    master: MasterSettings = msgspec.field(default_factory=MasterSettings)
    away_s: float = 5.0
    lease_s: float = LEASE_S
    trash_s: float = 3600.0
    collect_every_s: float = 300.0
    fragments: str = ""


def open_master(
    ports: ProcessPorts,
    settings: ClusterMasterSettings,
    listener: Listener = tell_nobody,
    blobs: BlobStore | None = None,
) -> ClusterMaster:
    """`blobs`: where the fragments lie; without it nothing is collected. Blocking: not for the loop's thread."""
    run, store, clock = ports.loop.run, ports.metastore, ports.clock
    counts, time = EventCounts(IN_MASTERS), HybridClock(clock.wall_ms)
    tell = Listeners(counts, listener, on_failure=note_failure)
    mark = run(mark_store(store, ports.rng, is_cluster=True))
    me = introduce_process(ports, settings, "master", mark.token)
    catalog = run(follow_catalog(store, clock, time, ports.rng, settings.name))
    tables, sender = KnownTables(catalog), Sender(settings.name, time, store)
    visits = Visits(f"master {settings.name}", tables.info)

    def make_term(held: HeldGuard) -> Term:
        number = held.guard.number
        sender.note_guard(number)

        def open_peer(shard: str) -> Peer:
            return make_peer(ports, f"shard {shard}", me, ShardFinder(store, shard), sender.signing_by(number))

        servers = ShardServers(store, open_peer, catalog, clock, settings.away_s)
        guarded = GuardedStore(store, held)
        master = Master(guarded, catalog, servers, clock, settings.master, tell, servers.descriptors)
        changed, root = ChangedServers(servers, master.maps), settings.fragments
        changes = TableChanges(
            guarded, changed, tables.info, clock, time, ports.rng, root, lambda table: table in tables.kept(), tell
        )
        removal, draining = Removal(guarded, master, catalog, clock, tell), Draining(guarded, master, catalog, clock)
        return Term(held, master, servers, changes, removal, draining, tell)

    identity = MasterIdentity(settings.id or settings.name, settings.name)
    terms = Terms(store, clock, ports.rng, identity, settings.lease_s, make_term, ports.loop, tell)
    gate = LeadingGate(visits, terms)
    desk = TableDesk(terms.master, tables, ports.loop, gate, terms.choose_split, terms.look_at_sizes, is_alone=False)
    collection = None
    if blobs is not None:
        now_ms, trash_s = clock.wall_ms, settings.trash_s
        collection = Collection(store, blobs, ports.loop, time, now_ms, trash_s, tables.is_known, tell)
    changes = ChangesDesk(terms.changes, ports.loop, gate)
    lookout = Lookout(store, clock, identity, settings.release, lambda name, find: make_peer(ports, name, me, find))
    rounds = CollectionRounds(clock, settings.collect_every_s, tell)
    opened = (store, ports.loop, clock, mark, catalog, visits, terms, desk, changes, lookout, rounds)
    parts = MasterParts(*opened, counts.numbers, collection)
    return ClusterMaster(
        parts, lambda master, at: serve_process(ports, settings, me, master, OPERATIONS, at, tell, sender)
    )
