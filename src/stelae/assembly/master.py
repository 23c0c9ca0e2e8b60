"""A master in a process of its own: tables' lives, for clients and shards that ask over connections."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock

from stelae.assembly.catalogs import follow_catalog
from stelae.assembly.links import RemoteServerLink
from stelae.assembly.listening import note_failure
from stelae.assembly.processes import ProcessPorts, ProcessSettings, Served, introduce_process, make_peer
from stelae.master.desk import TableDesk
from stelae.master.master import Master, MasterSettings
from stelae.model.errors import Retryable, Unavailable, UnknownOutcome
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TabletId
from stelae.ports.transport import Listener as Listening
from stelae.registry.control_operations import MASTER_CONTROL, ClusterPlaces, ShardPlace, TabletsAtRest
from stelae.registry.incarnations import read_lives
from stelae.registry.known_tables import KnownTables
from stelae.registry.master_guard import MasterGuard, take_guard
from stelae.registry.senders import Sender
from stelae.registry.store_mark import mark_store
from stelae.service.deadlines import Deadline
from stelae.service.table import TABLE_OPERATIONS
from stelae.tserver.serving.service import ServiceLimits
from stelae.tserver.visits import Visits

OPERATIONS = {**TABLE_OPERATIONS, **MASTER_CONTROL}
"""What a master is asked."""


@dataclass(frozen=True, slots=True)
class ClusterMasterSettings:
    """`away_s`: so long is a shard that is away waited for with a change that it has to follow."""

    name: str
    master: MasterSettings = field(default_factory=MasterSettings)
    release: str = ""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    away_s: float = 5.0

    @property
    def process(self) -> ProcessSettings:
        return ProcessSettings(self.name, self.release, self.limits)


class ClusterMaster:
    """Carries out what a master is asked (`OPERATIONS`). Blocking: made and asked by threads that are not the loop's.
    `tend` is to be called every minute or so."""

    def __init__(self, ports: ProcessPorts, settings: ClusterMasterSettings, listener: Listener = tell_nobody) -> None:
        self._ports = ports
        self._settings = settings
        self._run = run = ports.loop.run
        self._tell = tell = Listeners(listener, on_failure=note_failure)
        time = HybridClock(ports.clock.wall_ms)
        self.mark = run(mark_store(ports.metastore, ports.rng, is_cluster=True))
        self._me = introduce_process(ports, settings.process, "master", self.mark.token)
        self.catalog = run(follow_catalog(ports.metastore, ports.clock, time, ports.rng, settings.name))
        tables = KnownTables(self.catalog)
        self._visits = Visits(f"master {settings.name}", tables.info)
        self._sender = Sender(settings.name, time)
        self._shard = make_peer(ports, "the shard", self._me, self._find_shard, self._sender)
        self._link = link = RemoteServerLink(self._shard, self.catalog, ports.loop, ports.clock, settings.away_s)
        self.master = Master(ports.metastore, self.catalog, link, ports.clock, settings.master, tell)
        desk = TableDesk(self.master, tables, ports.loop, self._visits, link.choose_split, link.look_at_sizes)
        self._closing = RLock()
        self._is_closed = False
        self._served: Served | None = None
        self.find, self.info, self.names = desk.find, desk.info, desk.names
        self.spaces, self.change_spaces = desk.spaces, desk.change_spaces
        self.create, self.alter, self.drop, self.recall = desk.create, desk.alter, desk.drop, desk.recall
        self.split, self.join, self.tend = desk.split, desk.join, desk.tend

    def serve(self, listener: Listening) -> MasterGuard:
        """Say in the metastore that this process leads, and where; from then on it is asked."""
        guard = self._run(take_guard(self._ports.metastore, self._settings.name, str(listener.address)))
        self._sender.note_guard(guard.number)
        self._served = Served(
            self._ports, self._settings.process, self._me, self, OPERATIONS, listener, self._tell, self._sender
        )
        # What is left undone because no shard is there yet is done before the next change, or when it is tended.
        with suppress(Retryable, UnknownOutcome):
            self._run(self.master.start())
        return guard

    async def _find_shard(self, _: Deadline | None) -> str:
        lives = await read_lives(self._ports.metastore)
        if not lives:
            raise Unavailable("no shard has been started yet")
        return lives[0].address

    # -- what shards and clients ask besides what the desk does

    def split_tablet(self, tablet: TabletId, at: Row, *, deadline: Deadline | None = None) -> None:
        with self._visits.visit():
            self._run(self.master.split(tablet, at, deadline=deadline))

    def join_tablets(self, left: TabletId, right: TabletId, *, deadline: Deadline | None = None) -> None:
        with self._visits.visit():
            self._run(self.master.join(left, right, deadline=deadline))

    def tablets_at_rest(self, *, deadline: Deadline | None = None) -> TabletsAtRest:  # noqa: ARG002 - changes end by themselves
        def look() -> TabletsAtRest:
            return TabletsAtRest(self.catalog.latest.version, self.master.maps.all())

        with self._visits.visit():
            return self._run(self.master.look_undisturbed(look))

    def places(self, *, deadline: Deadline | None = None) -> ClusterPlaces:  # noqa: ARG002 - the metastore's time
        self._visits.check()
        lives = self._run(read_lives(self._ports.metastore))
        shards = tuple(ShardPlace(life.name, life.address, life.incarnation) for life in lives)
        return ClusterPlaces(self.mark.token, shards)

    # -- the end

    def close(self) -> None:
        """Changes under way are waited for. Closing twice is no error."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._link.end()
            try:
                if self._served is not None:
                    self._served.close()
            finally:
                self._visits.end()
                self._run(self._shard.close())
                self._run(self.catalog.close())
