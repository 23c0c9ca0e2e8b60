"""A master in a process of its own: tables' lives, for clients and shards that ask over connections."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock

import msgspec

from stelae.assembly.catalogs import follow_catalog
from stelae.assembly.listening import note_failure
from stelae.assembly.processes import ProcessPorts, ProcessSettings, Served, introduce_process, make_peer
from stelae.master.desk import TableDesk
from stelae.master.leadership import MasterIdentity
from stelae.master.links import RemoteServerLink
from stelae.master.master import Master
from stelae.master.settings import MasterSettings
from stelae.master.terms import LeadingGate, Term, Terms
from stelae.model.errors import Deposed, Unavailable
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TabletId
from stelae.ports.transport import Listener as Listening
from stelae.registry.control_operations import MASTER_CONTROL, ClusterPlaces, ShardPlace, TabletsAtRest
from stelae.registry.incarnations import read_lives
from stelae.registry.known_tables import KnownTables
from stelae.registry.masters.guard import GuardedStore, HeldGuard, MasterGuard, read_guard
from stelae.registry.senders import Sender
from stelae.registry.store_mark import mark_store
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.table import TABLE_OPERATIONS
from stelae.tserver.serving.service import ServiceLimits
from stelae.tserver.visits import Visits

OPERATIONS = {**TABLE_OPERATIONS, **MASTER_CONTROL}
"""What a master is asked."""


@dataclass(frozen=True, slots=True)
class ClusterMasterSettings:
    """`id`: lies in the directory of the master, which one process at a time has; its name if none is given. `away_s`:
    so long is a shard that is away waited for with a change that it has to follow. `lease_s`: so long does no other
    master take its place when it is silent."""

    name: str
    id: str = ""
    master: MasterSettings = field(default_factory=MasterSettings)
    release: str = ""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    away_s: float = 5.0
    lease_s: float = 9.0

    @property
    def process(self) -> ProcessSettings:
        return ProcessSettings(self.name, self.release, self.limits)


class ClusterMaster:
    """Carries out what a master is asked (`OPERATIONS`), as long as it leads; where the shards are, and who leads, it
    says at any time. Blocking: made and asked by threads that are not the loop's. `tend` is to be called every minute
    or so."""

    def __init__(self, ports: ProcessPorts, settings: ClusterMasterSettings, listener: Listener = tell_nobody) -> None:
        self._ports = ports
        self._settings = settings
        self._run = run = ports.loop.run
        self._tell = Listeners(listener, on_failure=note_failure)
        self._time = HybridClock(ports.clock.wall_ms)
        self.mark = run(mark_store(ports.metastore, ports.rng, is_cluster=True))
        self._me = introduce_process(ports, settings.process, "master", self.mark.token)
        self.catalog = run(follow_catalog(ports.metastore, ports.clock, self._time, ports.rng, settings.name))
        tables = KnownTables(self.catalog)
        self._visits = Visits(f"master {settings.name}", tables.info)
        self._sender = Sender(settings.name, self._time)
        me = MasterIdentity(settings.id or settings.name, settings.name)
        self._terms = Terms(ports.metastore, ports.clock, ports.rng, me, settings.lease_s, self._make_term)
        terms, gate = self._terms, LeadingGate(self._visits, self._terms)
        self._desk = desk = TableDesk(terms.master, tables, ports.loop, gate, terms.choose_split, terms.look_at_sizes)
        self._closing = RLock()
        self._is_closed = False
        self._served: Served | None = None
        self.find, self.info, self.names = desk.find, desk.info, desk.names
        self.spaces, self.change_spaces = desk.spaces, desk.change_spaces
        self.create, self.alter, self.drop, self.recall = desk.create, desk.alter, desk.drop, desk.recall
        self.split, self.join = desk.split, desk.join

    def serve(self, listener: Listening) -> None:
        """Answer at the listener's address; lead, and say so in the metastore, if no other master does."""
        self._served = Served(
            self._ports, self._settings.process, self._me, self, OPERATIONS, listener, self._tell, self._sender
        )
        self._run(self._terms.start(str(listener.address)))

    @property
    def guard(self) -> MasterGuard | None:
        """What it leads with; None while it stands by."""
        return self._terms.guard

    def tend(self) -> None:
        """Do what time alone makes due, if this master leads."""
        if self._terms.guard is not None:
            with suppress(Deposed):
                self._desk.tend()

    def _make_term(self, held: HeldGuard) -> Term:
        number, ports, settings = held.guard.number, self._ports, self._settings
        self._sender.note_guard(number)

        def sign(request: Request) -> Request:
            return msgspec.structs.replace(self._sender.sign(request), guard=number)

        shard = make_peer(ports, "the shard", self._me, self._find_shard, sign)
        link = RemoteServerLink(shard, self.catalog, ports.loop, ports.clock, settings.away_s)
        store = GuardedStore(ports.metastore, held)
        return Term(held, Master(store, self.catalog, link, ports.clock, settings.master, self._tell), link, shard)

    async def _find_shard(self, _: Deadline | None) -> str:
        lives = await read_lives(self._ports.metastore)
        if not lives:
            raise Unavailable("no shard has been started yet")
        return lives[0].address

    # -- what shards and clients ask besides what the desk does

    def split_tablet(self, tablet: TabletId, at: Row, *, deadline: Deadline | None = None) -> None:
        with self._visits.visit():
            self._run(self._terms.master().split(tablet, at, deadline=deadline))

    def join_tablets(self, left: TabletId, right: TabletId, *, deadline: Deadline | None = None) -> None:
        with self._visits.visit():
            self._run(self._terms.master().join(left, right, deadline=deadline))

    def tablets_at_rest(self, *, deadline: Deadline | None = None) -> TabletsAtRest:  # noqa: ARG002 - changes end by themselves
        self._terms.check_tablets()
        master = self._terms.master()

        def look() -> TabletsAtRest:
            return TabletsAtRest(self.catalog.latest.version, master.maps.all())

        with self._visits.visit():
            return self._run(master.look_undisturbed(look))

    def places(self, *, deadline: Deadline | None = None) -> ClusterPlaces:  # noqa: ARG002 - the metastore's time
        self._visits.check()
        return self._run(self._read_places())

    async def _read_places(self) -> ClusterPlaces:
        lives = await read_lives(self._ports.metastore)
        guard = await read_guard(self._ports.metastore)
        shards = tuple(ShardPlace(life.name, life.address, life.incarnation) for life in lives)
        return ClusterPlaces(self.mark.token, shards, "" if guard is None else guard.address)

    # -- the end

    def close(self) -> None:
        """Changes under way are waited for. Closing twice is no error."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._terms.hurry()
            try:
                if self._served is not None:
                    self._served.close()
            finally:
                self._visits.end()
                try:
                    self._run(self._terms.close())
                finally:
                    self._run(self.catalog.close())
