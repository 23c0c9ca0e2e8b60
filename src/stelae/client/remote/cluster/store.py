"""A store that several shards have: a `Backend` over connections to its masters and to all of its shards.

What is asked of tables as a whole goes to the master that leads, what is asked of a row to the shard that has it
(`routing`), the rest to all shards concerned at once. One snapshot is the same on all of them: each request carries the
greatest txn that this program has seen (`seen`), and a shard that is asked at a snapshot gives out no txn below it any
more. The newest snapshot of several shards is therefore the largest of what they call so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from typing import Any

import pyarrow as pa

from stelae.client.remote.asking import Asker
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.cluster.jobs import ClusterJobs
from stelae.client.remote.cluster.locations import Locations
from stelae.client.remote.cluster.looks import TableLook, look_at
from stelae.client.remote.cluster.masters import SERVER_LINES
from stelae.client.remote.cluster.on_loop import ClusterRowsOnLoop
from stelae.client.remote.cluster.pins import ClusterPin, ClusterPins
from stelae.client.remote.cluster.reads import ManyRows, ask_snapshots
from stelae.client.remote.cluster.routing import Routing, Shards
from stelae.client.remote.cluster.scans import ClusterScan
from stelae.client.remote.cluster.sums import SummedProgress, sum_metrics, sum_stats, unite_reports, with_unneeded
from stelae.client.remote.cluster.writes import newest_written
from stelae.client.remote.lines import Lines
from stelae.client.remote.tables import RemoteTables
from stelae.client.remote.tablets import RemoteTablets
from stelae.model.errors import NotCached, StelaeError, Unavailable
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.ports.blocking import BlockingConnector
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.rng import Rng
from stelae.registry.control_operations import LOCATE, PLACES, TableLocation
from stelae.registry.masters.unneeded import UNNEEDED
from stelae.registry.peers import Peer, Sign
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.tables import TableInfo, TableStats, TabletInfo
from stelae.storage.read.asking import Version
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello

OpenPeer = Callable[[str, Sign], Peer]
"""Connects the running event loop to a shard, by its name."""


class ClusterStore(RemoteTables):
    """A `Backend`. `masters` asks any master, `leading` the one that leads. `connect`: makes a connector to a shard, by
    its name, which looks for it whenever it connects. `writers` runs what is submitted; `callers` asks several shards
    at once, and waits for nobody of `writers`. Safe for threads; not after a fork: connect again in the child."""

    is_local = False
    quick = None

    def __init__(
        self,
        place: str,
        masters: Asker,
        leading: Asker,
        connect: Callable[[str], BlockingConnector],
        hello: Hello | Introduction,
        clock: Clock,
        rng: Rng,
        writers: Executor,
        callers: Executor,
        *,
        open_peer: OpenPeer | None = None,
        pause: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        super().__init__(leading, ChangesUnderWay(place))
        self.place = place
        self._masters, self._until = masters, masters.until
        self._rng = rng
        self._writers = writers
        self._open_peer = open_peer

        def make_shard(name: str) -> RemoteTablets:
            routing = self._routing

            def has_moved(_: str, deadline: Deadline) -> bool:
                return routing.has_moved(name, deadline)

            return RemoteTablets(connect(name), hello, clock, SERVER_LINES, routing.seen.sign, has_moved)

        self._shards = Shards(make_shard, callers)
        self._routing = Routing(
            Locations(self._locate),
            self._shards,
            lambda until: masters.ask(PLACES, until),
            self._changes,
            self._until,
            pause,
        )
        # A change of tables comes after all that this program has seen: shards' clocks may be ahead of a master's.
        leading.sign_by(self._routing.seen.sign)
        self._pins = ClusterPins(self._routing)
        self._reads = ManyRows(self._routing, self._pins)
        self._jobs = jobs = ClusterJobs(self._routing, leading, self._pins, rng)
        self.hold, self.renew, self.release = jobs.hold, jobs.renew, jobs.release
        self.begin_load, self.commit_load, self.truncate = jobs.begin_load, jobs.commit_load, jobs.truncate
        self.begin_compaction, self.adopt = jobs.begin_compaction, jobs.adopt

    def _locate(self, table: TableId, deadline: Deadline) -> TableLocation:
        """As any master says; the one that leads may know more of a table that is being created, and brings that to its
        end."""
        try:
            return self._masters.ask(LOCATE, deadline, table)
        except Unavailable as error:
            if type(error) is not Unavailable:
                raise
        return self._tables.ask(LOCATE, deadline, table)

    @property
    def connections(self) -> int:
        """How many connections to masters and shards are open now."""
        return sum(lines.count for lines in self._all_lines())

    @property
    def connections_made(self) -> int:
        """How many connections were opened since this object was made."""
        return sum(lines.made for lines in self._all_lines())

    def attach(self, deadline: Deadline | None = None) -> None:
        """Connect to one shard, whichever answers: ConnectionLost, or whatever the last one said, if none does."""
        until = self._until(deadline)
        *others, last = self._routing.find_all(until)
        for place, name in enumerate(others):
            with suppress(Unavailable):
                return self._shards.get(name).attach(until.within(until.left_s / (len(others) + 1 - place)))
        return self._shards.get(last).attach(until)

    def _all_lines(self) -> list[Lines]:
        return [self._masters.lines, self._tables.lines, *(shard.lines for shard in self._shards.met())]

    def abandon(self, why: str) -> None:
        """From here on everything raises Closed with these words, and nothing of it is touched: for a forked child."""
        self._changes.abandoned = why
        for shard in self._shards.met():
            shard.abandon(why)
        for lines in self._all_lines():
            lines.abandon()

    def close(self) -> None:
        if self._changes.abandoned is not None:
            return
        self._changes.close()
        for shard in self._shards.met():
            shard.close()
        for lines in self._all_lines():
            lines.close()

    def open_rows(self) -> ClusterRowsOnLoop | None:
        """For the tasks of the running event loop; None if it has no way to the store but threads."""
        if self._open_peer is None:
            return None
        return ClusterRowsOnLoop(self._routing, self._open_peer)

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:
        """As a shard that has rows of it knows it: its tablets are at that schema, or will be soon."""
        until = self._until(deadline)
        for shard in self._routing.find_shards(table, until):
            with suppress(Unavailable):
                return self._shards.get(shard).info(table, deadline=until)
        return self._ask_tables(ops.INFO, until, table)

    # -- writing

    def write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Txn:
        with self._changes.counted():
            return self._write(table, blocks, max_txn, must_show, self._until(deadline))

    def _write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None,
        must_show: bool,
        deadline: Deadline,
    ) -> Txn:
        routing = self._routing
        routes = routing.locations.find(table, deadline)

        def send_part(name: str, part: Sequence[OrderedBlock]) -> Txn:
            return routing.ask_shard(
                table,
                routes,
                name,
                lambda shard: shard.write(table, part, max_txn, must_show=must_show, deadline=deadline),
            )

        parts = routes.cut_blocks(blocks)
        if len(parts) == 1:
            ((name, part),) = parts.items()
            return routing.seen.note(send_part(name, part))
        outcomes = self._shards.ask_each(list(parts), lambda name: send_part(name, parts[name]))
        return newest_written(parts, outcomes, routing.seen)

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        self._changes.begin()
        try:
            future = self._writers.submit(self._write, table, blocks, max_txn, must_show, self._until(deadline))
        except BaseException:
            self._changes.end()
            raise
        future.add_done_callback(lambda _: self._changes.end())
        return future

    def wait_for_room(self, seconds: float) -> None:
        """How the shards fare is not known here: they are asked again after that time."""
        self._changes.ended.wait(seconds)

    # -- reading

    def now(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> Txn:
        """The largest of what the shards call so. Those that named a smaller one are told it before this returns: what
        they let in from then on is above it, whoever asks."""
        self._changes.check()
        until = self._until(deadline)
        shards = self._routing.find_shards(table, until)
        with self._routing.doubting(table):
            said = ask_snapshots(self._routing, shards, until)
            newest = max(said.values())
            if behind := [shard for shard, txn in said.items() if txn < newest]:
                ask_snapshots(self._routing, behind, until)
        return newest

    def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None = None, *, deadline: Deadline | None = None
    ) -> tuple[Txn, Values | None]:
        until = self._until(deadline)
        found = self._routing.ask_row(
            table, row, until, lambda shard: shard.newest(table, row, columns, at, deadline=until)
        )
        self._routing.seen.note(found[0])
        return found

    def newest_cached(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,  # noqa: ARG002 - the interface's
        at: Txn | None = None,  # noqa: ARG002
    ) -> tuple[Txn, Values | None]:
        raise NotCached(f"row {row!r} of table {table}: nothing is cached of {self.place}: other processes have it")

    def newest_many(
        self,
        table: TableId,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> tuple[Txn, list[Values | None]]:
        self._changes.check()
        return self._reads.read_many(table, rows, columns, at, self._until(deadline))

    def history(
        self,
        table: TableId,
        row: Row,
        columns: Selectors,
        limit: int,
        at: Txn | None = None,
        time: TimeRange = ALL_TIME,
        *,
        deadline: Deadline | None = None,
    ) -> dict[str, tuple[Version, ...]] | None:
        until = self._until(deadline)
        return self._routing.ask_row(
            table, row, until, lambda shard: shard.history(table, row, columns, limit, at, time, deadline=until)
        )

    def scan(self, table: TableId, ask: ScanAsk, *, deadline: Deadline | None = None) -> Iterator[pa.RecordBatch]:
        self._changes.check()
        until = self._until(deadline)
        return ClusterScan(self._routing, table, self._routing.locations.find(table, until), ask, until)

    def pin(
        self, at: Txn | None = None, table: TableId | None = None, *, deadline: Deadline | None = None
    ) -> ClusterPin:
        """At every shard that has rows of the table, or at all."""
        self._changes.check()
        return self._pins.pin(at, table, self._until(deadline))

    # -- upkeep

    def flush(self, table: TableId, *, deadline: Deadline | None = None) -> None:
        until = self._until(deadline)
        with self._changes.counted():
            self._routing.ask_table_anew(table, until, lambda shard: shard.flush(table, deadline=until))

    def compact(
        self,
        table: TableId,
        *,
        erase_now: bool = False,
        progress: Progress | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[str, ...]:
        until, told = self._until(deadline), SummedProgress(progress)
        with self._changes.counted():
            kept = self._routing.ask_table_anew(
                table,
                until,
                lambda shard: shard.compact(table, erase_now=erase_now, progress=told.part(), deadline=until),
            )
            if erase_now:
                self._jobs.collect(until)
        return tuple(dict.fromkeys(words for each in kept.values() for words in each))

    def tablets(self, table: TableId, *, deadline: Deadline | None = None) -> tuple[TabletInfo, ...]:
        until = self._until(deadline)
        found = self._routing.ask_table_anew(table, until, lambda shard: shard.tablets(table, deadline=until))
        return tuple(sorted((tablet for each in found.values() for tablet in each), key=lambda tablet: tablet.start))

    def stats(self, table: TableId, *, deadline: Deadline | None = None) -> TableStats:
        until = self._until(deadline)
        found = self._routing.ask_table_anew(table, until, lambda shard: shard.stats(table, deadline=until))
        return sum_stats(list(found.values()))

    def metrics(self, *, deadline: Deadline | None = None) -> Mapping[str, Any]:
        """Of all shards together; if there are several, each one's under its name, too. Those that do not answer are
        named."""
        found, away = self._routing.ask_some(
            self._until(deadline), self._rng, lambda shard, until: shard.metrics(deadline=until)
        )
        return sum_metrics(found, away)

    def check(self, progress: Progress | None = None, *, deadline: Deadline | None = None) -> CheckReport:
        """Shards that do not answer are a problem."""
        told, until = SummedProgress(progress), self._until(deadline)
        found, away = self._routing.ask_some(
            until, self._rng, lambda shard, until: shard.check(told.part(), deadline=until)
        )
        report = unite_reports(found, away)
        if away:
            return report  # what those need is not known, so no file is known to be needed by nobody
        try:
            return with_unneeded(report, self._tables.ask(UNNEEDED, until.anew()))
        except StelaeError as error:
            return with_unneeded(report, error)

    def look_at(self, table: TableId, away: dict[str, StelaeError], *, deadline: Deadline | None = None) -> TableLook:
        """At a table, though some shards may be away: see `looks`."""
        until = self._until(deadline)
        return look_at(self._routing, self._locate(table, until), away, self._rng, until)
