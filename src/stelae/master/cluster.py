"""A master in a process of its own, which the cluster's clients and shards ask over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, Protocol

import msgspec

from stelae.master.changes.desk import ChangesDesk
from stelae.master.desk import Gate, TableDesk
from stelae.master.garbage.collection import Collection
from stelae.master.garbage.rounds import CollectionRounds
from stelae.master.locating import Locator
from stelae.master.lookout import Lookout
from stelae.master.terms import Terms
from stelae.model.errors import DeadlineExceeded, Deposed, Retryable, Unavailable
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.transport import Listener
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control_operations import MASTER_CONTROL, ClusterPlaces, ShardPlace, TableLocation, TabletsAtRest
from stelae.registry.incarnations import read_lives
from stelae.registry.masters.draining import DrainedServers
from stelae.registry.masters.guard import MasterGuard, read_guard
from stelae.registry.masters.heartbeats import Heartbeat, HeartbeatAnswer
from stelae.registry.masters.overview import ClusterOverview, Heard, Late, collection_put_off, led_by_nobody, with_late
from stelae.registry.masters.removing import RemovedServers
from stelae.registry.masters.unneeded import UnneededFiles
from stelae.registry.replication.members import CHANGE_MEMBERS, MembersNow, MembersWanted
from stelae.registry.store_mark import StoreMark
from stelae.service.deadlines import Deadline, left_of
from stelae.service.operations import METRICS
from stelae.service.table import MASTER_OPERATIONS

OPERATIONS = {
    **MASTER_OPERATIONS,
    METRICS.name: METRICS,
    **MASTER_CONTROL,
    CHANGE_MEMBERS.name: CHANGE_MEMBERS,
}
"""What a master is asked."""


class ClosingGate(Gate, Protocol):
    def end(self) -> None:
        """Let nobody in any more, and wait until those inside are done."""
        ...


class Service(Protocol):
    """Has what comes in at a listener carried out."""

    def close(self) -> None:
        """Requests under way are answered first, if they do not take long."""
        ...

    def numbers(self) -> Mapping[str, int]:
        """For metrics: connections, and how many were not let in."""
        ...


class MasterParts(msgspec.Struct, frozen=True):
    """What a master is made of, all opened already. `gate`: who is let into the process, whether or not it leads.
    `counted`: how often each kind of event has happened."""

    metastore: Metastore
    loop: Loop
    clock: Clock
    mark: StoreMark
    catalog: CatalogService
    gate: ClosingGate
    terms: Terms
    desk: TableDesk
    changes: ChangesDesk
    lookout: Lookout
    rounds: CollectionRounds
    counted: Callable[[], Mapping[str, int | float]]
    collection: Collection | None = None


class ClusterMaster:
    """Carries out what a master is asked (`OPERATIONS`), as long as it leads; where the shards are, and who leads, it
    says at any time. Blocking: made and asked by threads that are not the loop's. `tend` is to be called every second
    or so."""

    def __init__(
        self,
        parts: MasterParts,
        serve: Callable[[ClusterMaster, Listener], Service],
    ) -> None:
        """`serve` has what comes in at a listener carried out by it."""
        self._metastore = parts.metastore
        self._run = parts.loop.run
        self._clock = parts.clock
        self._gate = parts.gate
        self._terms = parts.terms
        self._lookout = parts.lookout
        self._start_serving = serve
        self.mark = parts.mark
        self.catalog = parts.catalog
        self._desk = desk = parts.desk
        self._collection = parts.collection
        self._collecting = RLock()
        self._rounds = parts.rounds
        self._counted = parts.counted
        self._locator = Locator(parts.metastore, parts.catalog, parts.terms)
        self._closing = RLock()
        self._is_closed = False
        self._served: Service | None = None
        self.find, self.info, self.names = desk.find, desk.info, desk.names
        self.spaces, self.change_spaces = desk.spaces, desk.change_spaces
        self.create, self.alter, self.drop, self.recall = desk.create, desk.alter, desk.drop, desk.recall
        self.split, self.join = desk.split, desk.join
        changes = parts.changes
        self.truncate, self.begin_load, self.commit_load = changes.truncate, changes.begin_load, changes.commit_load
        self.renew, self.release = changes.renew, changes.release

    def serve(self, listener: Listener) -> None:
        """Answer at the listener's address; lead, and say so in the metastore, if no other master does."""
        self._served = self._start_serving(self, listener)
        self._run(self._lookout.appear(str(listener.address)))
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
                self._rounds.collect_if_due(self.collect, self._is_whole)

    def _is_whole(self) -> bool:
        """Whether all shards of the cluster are heard."""
        with suppress(Retryable):
            return self._run(self._terms.current().servers.is_whole())
        return False

    def collect(self, *, for_good: bool = False, deadline: Deadline | None = None) -> tuple[int, int]:
        """Remove the files that nobody needs: how many, and their bytes. Unavailable if a shard does not answer."""
        if self._collection is None:
            raise Unavailable("this master was started without the store that the files lie on")
        with self._gate.visit(), self._collect_alone(deadline):
            return self._collection.collect(self._terms.current().servers, for_good=for_good, deadline=deadline)

    def unneeded_files(self, *, deadline: Deadline | None = None) -> UnneededFiles:
        """What lies on the store and no shard needs, and why it was not removed if that was tried."""
        if self._collection is None:
            raise Unavailable("this master was started without the store that the files lie on")
        with self._gate.visit():
            count, size_bytes = self._collection.unneeded(self._terms.current().servers, deadline)
        put_off = self._rounds.put_off
        if put_off is None:
            return UnneededFiles(count, size_bytes)
        return UnneededFiles(count, size_bytes, put_off.words, self._clock.monotonic_s() - put_off.since_s)

    @contextmanager
    def _collect_alone(self, deadline: Deadline | None) -> Iterator[None]:
        if not self._collecting.acquire(timeout=-1 if deadline is None else deadline.left_s):
            raise DeadlineExceeded("files are being collected, and that is not done yet; try again")
        try:
            yield
        finally:
            self._collecting.release()

    # -- what shards and clients ask besides what the desk does

    def split_tablet(self, tablet: TabletId, at: Row, *, deadline: Deadline | None = None) -> None:
        with self._gate.visit():
            self._run(self._terms.master().split(tablet, at, deadline=deadline))

    def join_tablets(self, left: TabletId, right: TabletId, *, deadline: Deadline | None = None) -> None:
        with self._gate.visit():
            self._run(self._terms.master().join(left, right, deadline=deadline))

    def remove_servers(self, name: str, *, accepts_loss: bool, deadline: Deadline | None = None) -> RemovedServers:  # noqa: ARG002 - it takes a lease's time
        """Take a node, or one shard, out of the cluster for good."""
        with self._gate.visit():
            self._terms.check_tablets()
            return self._run(self._terms.current().removal.remove(name, accepts_loss=accepts_loss))

    def drain_servers(self, name: str, *, deadline: Deadline | None = None) -> DrainedServers:  # noqa: ARG002 - its own
        """Have others lead what a node, or one shard, leads, so that it can be stopped."""
        with self._gate.visit():
            self._terms.check_tablets()
            return self._run(self._terms.current().draining.drain(name))

    def tablets_at_rest(self, *, deadline: Deadline | None = None) -> TabletsAtRest:
        self._terms.check_tablets()
        master = self._terms.master()

        def look() -> TabletsAtRest:
            return TabletsAtRest(self.catalog.latest.version, master.maps.all())

        with self._gate.visit():
            return self._run(master.look_undisturbed(look, deadline))

    def change_members(
        self, wanted: Sequence[MembersWanted], *, deadline: Deadline | None = None
    ) -> tuple[MembersNow, ...]:
        """What leaders of tablets wish for."""
        self._terms.check_tablets()
        replication = self._terms.master().replication
        if replication is None:
            raise Unavailable("this master has no tablets with several replicas")

        async def change() -> tuple[MembersNow, ...]:
            async with asyncio.timeout(left_of(deadline)):
                return await replication.change_members(wanted)

        with self._gate.visit():
            try:
                return self._run(change())
            except TimeoutError:
                raise Unavailable("who the members of tablets are was not written in time") from None

    def heartbeat(self, beat: Heartbeat, *, deadline: Deadline | None = None) -> HeartbeatAnswer:  # noqa: ARG002 - it never waits
        self._gate.check()
        return self._run(self._take_heartbeat(beat))

    async def _take_heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """On the loop: one after the other."""
        term = self._terms.current()
        now_s, wall_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        answer, is_back = term.servers.descriptors.take(beat, now_s, wall_ms)
        if is_back:
            term.master.note_back(beat.server)
        return answer

    def places(self, *, deadline: Deadline | None = None) -> ClusterPlaces:  # noqa: ARG002 - the metastore's time
        self._gate.check()
        return self._run(self._read_places())

    async def _read_places(self) -> ClusterPlaces:
        lives = await read_lives(self._metastore)
        guard = await read_guard(self._metastore)
        shards = tuple(ShardPlace(life.name, life.address, life.incarnation) for life in lives)
        address = "" if guard is None else guard.address
        return ClusterPlaces(self.mark.token, shards, address, self._clock.wall_ms())

    def locate(self, table: TableId, *, deadline: Deadline | None = None) -> TableLocation:
        """Where the rows of a table are."""
        self._gate.check()
        return self._run(self._locator.locate(table, deadline))

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:  # noqa: ARG002 - it never waits
        guard, catalog = self._terms.guard, self.catalog.latest
        led = {"leading": int(guard is not None), "guard_number": 0 if guard is None else guard.number}
        served = {} if self._served is None else self._served.numbers()
        tables = {"tables": len(catalog.tables), "catalog_version": catalog.version}
        return {**tables, **led, **self._late_numbers(), **self._counted(), **served}

    def _late_numbers(self) -> Mapping[str, float]:
        """What is late in the cluster, as far as the master that leads knows; of another one noughts."""
        late = {"silent_shards": 0.0, "tablets_not_running": 0.0, "collection_put_off_seconds": 0.0}
        with suppress(Deposed, Unavailable):
            term, now_s = self._terms.current(), self._clock.monotonic_s()
            late["silent_shards"] = term.servers.descriptors.silent(now_s)
            late["tablets_not_running"] = term.master.maps.not_running()
            if (put_off := self._rounds.put_off) is not None:
                late["collection_put_off_seconds"] = now_s - put_off.since_s
        return late

    def overview(self, *, deadline: Deadline | None = None) -> ClusterOverview:  # noqa: ARG002 - others have 5 s
        self._gate.check()
        return self._run(self._look())

    async def _look(self) -> ClusterOverview:
        heard: Mapping[str, Heard] = {}
        late: list[Late] = []
        with suppress(Deposed, Unavailable):  # whoever does not lead has heard nothing
            term = self._terms.current()
            heard = term.servers.descriptors.heard(self._clock.monotonic_s())
            if term.master.replication is not None:
                late = [led_by_nobody(each) for each in term.master.replication.refused]
        found = with_late(await self._lookout.look(dict(self.metrics()), self.catalog.latest, heard), *late)
        put_off = self._rounds.put_off
        if put_off is None or self._terms.guard is None:
            return found
        return with_late(found, collection_put_off(put_off.words, self._clock.monotonic_s() - put_off.since_s))

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
                self._gate.end()
                try:
                    self._run(self._terms.close())
                    self._run(self._lookout.vanish())
                finally:
                    self._run(self.catalog.close())
