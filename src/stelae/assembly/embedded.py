"""An embedded store: a master's desk and one server in the process of their user, as one `Backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

import msgspec

from stelae.assembly.world import StoreSettings, World
from stelae.master.desk import TableDesk
from stelae.master.links import LocalServerLink
from stelae.master.master import Master
from stelae.master.servers import OneServer
from stelae.model.events import Listener, Listeners, tell_nobody
from stelae.model.hybrid import AHEAD_MS_MAX_ALONE, HybridClock
from stelae.registry.catalog.following import compaction_due, follow_catalog
from stelae.registry.catalog.service import CatalogService
from stelae.registry.known_tables import KnownTables
from stelae.registry.store_mark import StoreMark, mark_store
from stelae.registry.telling.counts import IN_STORES, EventCounts, note_failure
from stelae.registry.views.own import OwnWhole
from stelae.service.deadlines import Deadline
from stelae.service.reports import CheckReport, Progress
from stelae.tserver.links import LocalMasterLink
from stelae.tserver.server import TabletServer
from stelae.tserver.surroundings import ServerPorts, ServerSettings
from stelae.tserver.visits import Visits

EMBEDDED = "embedded"


class EmbeddedStore:
    """A `Backend`: tables are asked of the desk, rows and files of the server, without a call in between."""

    is_local = True

    def __init__(
        self,
        world: World,
        settings: StoreSettings,
        place: str,
        proved: Callable[[], None] | None = None,
        listener: Listener = tell_nobody,
        *,
        fragments: str = "",
    ) -> None:
        """From what lies on the world's metastore, log and files, or from nothing. Blocking: for a thread that is not
        the loop's. `place`: where the store is, for messages. `proved` is called when all that was found has proved
        good, before anything is changed. `listener` hears what happens in the store. `fragments`: the URL under which
        jobs find its files."""
        self.count = EventCounts(IN_STORES)
        tell = Listeners(self.count, listener, on_failure=note_failure)
        made = _open_parts(world, settings, place, fragments, proved, tell)
        self.world = world
        self.place = place
        self.mark = made.mark
        self.catalog = made.catalog
        self.master = made.master
        self.desk = desk = made.desk
        self.server = server = made.server
        self.wakes = server.wakes
        self._closing = RLock()
        self._is_closed = False
        self.find, self.info, self.names = desk.find, desk.info, desk.names
        self.spaces, self.change_spaces = desk.spaces, desk.change_spaces
        self.create, self.alter, self.drop, self.recall = desk.create, desk.alter, desk.drop, desk.recall
        self.split, self.join = desk.split, desk.join
        self.write, self.submit, self.wait_for_room = server.write, server.submit, server.wait_for_room
        self.newest, self.newest_cached, self.newest_many = server.newest, server.newest_cached, server.newest_many
        self.quick, self.history = server.quick, server.history
        self.scan, self.now, self.pin = server.scan, server.now, server.pin
        self.truncate, self.flush, self.compact = server.truncate, server.flush, server.compact
        self.tablets, self.stats = server.tablets, server.stats
        self.hold, self.renew, self.release = server.hold, server.renew, server.release
        self.begin_load, self.commit_load = server.begin_load, server.commit_load
        self.begin_compaction, self.adopt = server.begin_compaction, server.adopt
        self.flush_step, self.log_step = server.flush_step, server.log_step

    def compact_step(self) -> bool:
        """The server's, and what the master has to do when there is nothing else."""
        if self.server.compact_step():
            return True
        self.desk.tend()
        return False

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - it never waits
        numbers, catalog = self.server.metrics(), self.catalog.latest
        tables = {"tables": len(catalog.tables), "tablets": numbers["tablets"], "catalog_version": catalog.version}
        return {**tables, **numbers, **self.count.numbers()}

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:  # noqa: ARG002
        return self.server.check(self.desk.tables_at_rest, progress)

    @property
    def is_usable(self) -> bool:
        return not self.server.visits.is_over

    def close(self) -> None:
        """All in files, so that opening it again reads no log. What cannot be written stays in the log."""
        self._end(lambda: self.server.close(compaction_due(self.catalog, self.world.loop)))

    def abandon(self) -> None:
        """Close without putting anything in order."""
        self._end(self.server.abandon)

    def _end(self, end_server: Callable[[], None]) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                try:
                    end_server()
                finally:
                    self.world.loop.run(self.catalog.close())


class _Parts(msgspec.Struct, frozen=True):
    mark: StoreMark
    catalog: CatalogService
    master: Master
    desk: TableDesk
    server: TabletServer


def _open_parts(
    world: World,
    settings: StoreSettings,
    place: str,
    fragments: str,
    proved: Callable[[], None] | None,
    tell: Listener,
) -> _Parts:
    """All of them, or none: what was opened before something failed is closed again."""
    run, time = world.loop.run, HybridClock(world.clock.wall_ms, AHEAD_MS_MAX_ALONE)
    mark = run(mark_store(world.metastore, world.rng))
    catalog = run(follow_catalog(world.metastore, world.clock, time, world.rng, settings.author))
    try:
        tables = KnownTables(catalog)
        visits = Visits(place, tables.info)
        ports = ServerPorts(
            world.logs, world.blobs, OwnWhole(world.metastore), world.clock, time, world.rng, world.loop, world.reading
        )
        server_settings = ServerSettings(EMBEDDED, place, fragments, mark.token, settings.shard, settings.pins_wait_s)
        to_master = LocalMasterLink(world.loop)
        server = TabletServer.open(ports, tables, to_master, server_settings, visits, proved, tell)
        try:
            to_server = LocalServerLink(server, world.aside)
            master = Master(world.metastore, catalog, OneServer(to_server), world.clock, settings.master, tell)
            to_master.connect(master, master.maps.of_table)
            run(master.start())
        except BaseException:
            server.abandon()
            raise
    except BaseException:
        run(catalog.close())
        raise
    desk = TableDesk(lambda: master, tables, world.loop, visits, server.choose_split, server.look_at_sizes)
    return _Parts(mark, catalog, master, desk, server)
