"""A server that does what a script says: carries a request out or not, and answers or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stelae.catalog.commands.tables import CreateTable, TableName
from stelae.master.master import Master
from stelae.master.servers import OneServer
from stelae.master.settings import MasterSettings
from stelae.model.declare import columns, declare
from stelae.model.errors import InvalidArgument, StelaeError, Unavailable
from stelae.model.events import Event
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, SchemaVersion, TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import CatalogSettings
from stelae.registry.control import (
    SERVING,
    AddReplicas,
    AlterTable,
    ControlRequest,
    CreateTablets,
    DeleteTablets,
    HostReplicas,
    HostTablets,
    JoinTablets,
    LeadTablets,
    LoadTable,
    ProveTable,
    ReportedTablet,
    ResignTablets,
    SplitTablet,
    TabletReport,
    UnloadTable,
)
from stelae.service.deadlines import Deadline
from stelae.sim.effects import Effects
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.metastore_state import MetastoreState
from stelae.sim.rng import SimRng
from tests.machines import OneThread, PlainMetastore

T = TypeVar("T")

SCHEMA = declare({"id": "binary"}, [columns("data", {"a": "int32"})])
SILENCE_S = 15.0
SETTINGS = MasterSettings(assignment_timeout_s=5.0, attempts_max=3, grace_s=100.0)


def named(name: str) -> CreateTable:
    return CreateTable(TableName.parse(name), SCHEMA)


class ScriptedServer:
    """`moods` are taken one by one by the requests that `minds` chooses: "lost" (never came), "unanswered" (done, and
    nobody was told), "silent" (done, and the answer names no tablet), "hung" (done, and no answer ever comes)."""

    def __init__(self, newest: Callable[[TableId], int], server: str = "s1") -> None:
        self.server = server
        self.is_stopped = False
        """It answers nothing, and says nothing of what it does: it is waited for so long, and given up."""
        self.mistake: StelaeError | None = None
        """What it answers to each request of the kinds in `mistakes_at`, and if None is among them to whoever wants to
        know what it has; `mistake_s` later."""
        self.mistakes_at: tuple[type | None, ...] = (None,)
        self.mistake_s = 0.0
        self._newest = newest
        self.tablets: dict[TabletId, ReportedTablet] = {}
        self.unloaded: dict[TabletId, ReportedTablet] = {}
        self.asked: list[ControlRequest] = []
        self.moods: list[str] = []
        self.minds: type = CreateTablets

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:
        await self._answer_if_it_lives(None)
        found = [each for each in self.tablets.values() if table in (None, each.table)]
        return TabletReport(self.server, tuple(found), is_full=table is None)

    async def ask(self, request: ControlRequest, deadline: Deadline | None = None) -> TabletReport:
        self.asked.append(request)
        await self._answer_if_it_lives(type(request))
        mood = self.moods.pop(0) if self.moods and isinstance(request, self.minds) else ""
        if mood == "lost":
            raise Unavailable("the request was lost")
        done = self._done(request)
        if mood == "unanswered":
            raise Unavailable("the answer was lost")
        if mood == "hung":
            await asyncio.sleep(10_000)
        return TabletReport(self.server, () if mood == "silent" else tuple(done))

    async def _answer_if_it_lives(self, kind: type | None) -> None:
        if self.is_stopped:
            await asyncio.sleep(SILENCE_S)
            raise Unavailable("it does not answer")
        if self.mistake is not None and kind in self.mistakes_at:
            await asyncio.sleep(self.mistake_s)
            raise self.mistake

    def _done(self, request: ControlRequest) -> list[ReportedTablet]:
        made: list[ReportedTablet] = []
        match request:
            case CreateTablets(tablets):
                made = [self.fresh(each.tablet, each.table, each.rows) for each in tablets]
            case AlterTable(table):
                mine = [each for each in self.tablets.values() if each.table == table]
                made = [self.fresh(each.tablet, table, each.rows) for each in mine]
            case UnloadTable(table):
                mine = [each for each in self.tablets.values() if each.table == table]
                self.unloaded |= {each.tablet: self.tablets.pop(each.tablet) for each in mine}
                return []
            case ProveTable():
                return []
            case LoadTable(table):
                made = [self.unloaded.pop(each.tablet) for each in [*self.unloaded.values()] if each.table == table]
            case DeleteTablets(ids):
                for tablet in ids:
                    self.tablets.pop(tablet, None)
                    self.unloaded.pop(tablet, None)
                return []
            case SplitTablet(tablet, at, left, right):
                old = self.tablets.pop(tablet)
                low, high = old.rows.split(at)
                made = [self.fresh(left, old.table, low), self.fresh(right, old.table, high)]
            case HostTablets() | HostReplicas() | LeadTablets() | AddReplicas() | ResignTablets():
                raise AssertionError("a server that is alone is not asked for replicas")
            case JoinTablets(left, right, into):
                both = self.tablets.pop(left), self.tablets.pop(right)
                made = [self.fresh(into, both[0].table, both[0].rows.join(both[1].rows))]
        for each in made:
            for other in self.tablets.values():
                if other.tablet != each.tablet and other.table == each.table and other.rows.overlaps(each.rows):
                    raise InvalidArgument(f"tablets {other.tablet} and {each.tablet} overlap")
            self.tablets[each.tablet] = each
        return made

    def fresh(self, tablet: TabletId, table: TableId, rows: RowRange) -> ReportedTablet:
        return ReportedTablet(tablet, table, rows, SERVING, SchemaVersion(self._newest(table)))


class ScriptedServers:
    """`Servers`: several of them. `silent`: those that were to be heard of, and were not. `taken_out`: for good."""

    patience_s: float | None = 3.0

    def __init__(self, servers: Sequence[ScriptedServer]) -> None:
        self._servers = {each.server: each for each in servers}
        self.silent: set[str] = set()
        self.taken_out: tuple[str, ...] = ()

    async def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._servers if name not in self.taken_out)

    async def placeable(self) -> tuple[str, ...]:
        return tuple(name for name in await self.names() if name not in self.silent)

    async def gone(self) -> tuple[str, ...]:
        return self.taken_out

    def is_silent(self, server: str) -> bool:
        return server in self.silent

    def link(self, server: str) -> ScriptedServer:
        return self._servers[server]


class Office:
    """A master with its metastore, which outlives it, and its server, or several (`count`)."""

    def __init__(self, count: int = 1) -> None:
        self._state = MetastoreState()
        self.told: list[Event] = []
        self.loop = OneThread(1)
        self.clock = SkewedClock(self.loop.loop)
        self.all = [ScriptedServer(self._newest, f"s{number}") for number in range(1, count + 1)]
        self.server = self.all[0]
        self.servers: OneServer | ScriptedServers
        self.servers = OneServer(self.server) if count == 1 else ScriptedServers(self.all)
        self.begin()

    def _newest(self, table: TableId) -> int:
        return self.catalog.schemas.of(table)[-1].version

    def begin(self) -> None:
        """As after a restart of the master alone."""
        self.store = PlainMetastore(self._state, Effects())
        self.catalog = CatalogService(
            self.store, self.clock, HybridClock(self.clock.wall_ms), SimRng(1), CatalogSettings(attempts_max=2)
        )
        self.run(self.catalog.start())
        self.master = Master(self.store, self.catalog, self.servers, self.clock, SETTINGS, self.told.append)

    def start(self) -> Office:
        self.run(self.master.start())
        return self

    def restart(self) -> None:
        self.run(self.catalog.close())
        self.begin()
        self.start()

    def run(self, job: Awaitable[T]) -> T:
        return self.loop.run(job)

    def create(self, name: str, *cuts: bytes) -> TableId:
        return self.run(self.master.create(named(name), [Row(cut) for cut in cuts])).id

    def close(self) -> None:
        self.run(self.catalog.close())
        self.loop.drop()
