"""Records, catalog and servers, brought in line: when a master begins, when a server comes back, and before a table is
changed whose last change failed half-way or lost its answer.

A server is asked what it has without anybody's turn; what differs from the records is looked at again, table by table,
with the table's turn, and only then put right. Servers and tables do not wait for each other: one that is slow is
waited for briefly, and one that is silent not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from stelae.catalog.value import Catalog
from stelae.master.assignment import Assignment
from stelae.master.beside import Beside, Key, Work
from stelae.master.plan import Corrections, behind, corrections, overdue, unplaced
from stelae.master.records import Records
from stelae.master.servers import Servers
from stelae.master.settings import MasterSettings
from stelae.master.tables.turns import CATALOG, Turns
from stelae.model.errors import PermissionDenied, Retryable, UnknownOutcome
from stelae.model.ids import SchemaVersion, TableId
from stelae.ports.clock import Clock
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import AlterTable, DeleteTablets, LoadTable, TabletReport, UnloadTable
from stelae.registry.tablet_records import TabletPhase, TabletRecord, is_only_on
from stelae.service.deadlines import Deadline

NOT_NOW = (Retryable, UnknownOutcome, PermissionDenied)
"""What keeps something from being put right now: it is tried again. A full disk, or one that must not be written, keeps
nobody from reading."""


class Alignment:
    """For the tasks of one event loop."""

    def __init__(
        self,
        catalog: CatalogService,
        records: Records,
        servers: Servers,
        assignment: Assignment,
        turns: Turns,
        clock: Clock,
        settings: MasterSettings,
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._servers = servers
        self._assignment = assignment
        self._turns = turns
        self._clock = clock
        self._settings = settings
        self._late: dict[str, object] = {}
        self._doubted: dict[TableId, object] = {}
        """With each what it was noted as: who is noted again while it is looked at is looked at once more."""
        self._gone: dict[str, None] = {}
        self._has_lost = False
        self._beside = Beside()

    @property
    def has_work(self) -> bool:
        return bool(self._late or self._doubted or self._has_lost)

    @property
    def has_doubts(self) -> bool:
        return bool(self._doubted)

    def doubt(self, table: TableId) -> None:
        """A change of the table failed half-way, or its answer was lost."""
        self._doubted[table] = object()

    def note_back(self, server: str) -> None:
        """A server has begun anew, or was not heard of for a while: it is lined up when time allows."""
        self._late[server] = object()

    def note_replaced(self) -> None:
        """Servers that were asked for tablets in whose place others are by now: until they have heard that these are to
        be deleted, they may make them."""
        phase = TabletPhase.REPLACED
        servers = {record.server for record in self._records.maps.all() if record.phase is phase}
        for server in sorted(servers.difference(self._gone)):
            self.note_back(server)

    async def note_servers(self) -> None:
        """All servers are to be lined up; what those had that were taken out has to be replaced."""
        for server in await self._servers.names():
            self.note_back(server)
        await self.note_gone()

    async def note_gone(self) -> None:
        """Servers were taken out of the store: they are waited for no more."""
        self._gone = dict.fromkeys(await self._servers.gone())
        self._late = {server: each for server, each in self._late.items() if server not in self._gone}
        self._has_lost = bool(self._gone)

    async def line_up_servers(self) -> None:
        """All that are late, at once; one that does not answer stays late."""
        await self._do("line up", {server: partial(self._try_server, server) for server in self._late})

    async def _do(self, what: str, works: Mapping[str, Work] | Mapping[TableId, Work]) -> None:
        found: dict[Key, Work] = {(what, each): work for each, work in works.items()}
        await self._beside.do(found, self._servers.patience_s)

    async def _try_server(self, server: str) -> None:
        if self._servers.is_silent(server):
            return
        noted = self._late.get(server)
        with suppress(*NOT_NOW):
            await self._line_up_server(server)
            if self._late.get(server) is noted:
                self._late.pop(server, None)

    async def _line_up_server(self, server: str) -> None:
        report = await self._servers.link(server).report()
        tables = self._tables_of(self._look(report, None), report)
        for table in sorted(tables, key=self._turns.is_taken):
            async with self._turns.turn(table):
                await self._line_up(server, table)

    def _look(self, report: TabletReport, table: TableId | None) -> Corrections:
        maps = self._records.maps
        records = maps.all() if table is None else maps.with_replaced(table)
        return corrections(records, report, self._catalog.latest, self._clock.wall_ms())

    def _tables_of(self, changes: Corrections, report: TabletReport) -> list[TableId]:
        """Those that something is to be put right of."""
        unwanted = {each.table for each in report.tablets if each.tablet in changes.unwanted}
        recorded = {record.table for record in (*changes.puts, *changes.removed, *changes.missing)}
        late = behind(report, _newest(self._catalog.latest))
        return sorted({*unwanted, *recorded, *changes.unserved, *changes.dropped, *late})

    async def settle(self, table: TableId, deadline: Deadline | None = None) -> None:
        """Bring a table that is in doubt in line, on all servers; the caller has its turn."""
        noted = self._doubted.get(table)
        if noted is None:
            return
        if table == CATALOG:
            await self._records.read()
            await self._remove_leftovers(self._records.maps.all())
            for record in self._records.maps.all():  # what was left of others is settled in their turn
                if not record.server:
                    self.doubt(record.table)
        else:
            await self._records.read(table)
            servers = {record.server for record in self._records.maps.with_replaced(table) if record.server}
            for server in sorted(servers):
                await self._line_up(server, table, deadline)
            waiting = await self._remove_leftovers(self._records.maps.with_replaced(table))
            await self._assignment.create(waiting, deadline)
        if self._doubted.get(table) is noted:
            self._doubted.pop(table, None)

    async def _remove_leftovers(self, records: Sequence[TabletRecord]) -> list[TabletRecord]:
        """Remove the records of tablets that nobody will ask for; those still to be created. That a table is not there
        is believed only when it cannot be made any more: the answer to its creation may have been lost, or be late."""
        waiting, gone = unplaced(records, self._catalog.latest)
        if gone:
            waiting, gone = unplaced(records, await self._catalog.end_doubts())
            await self._records.write((), gone)
        return waiting

    async def settle_all(self) -> None:
        """Whatever is in doubt, as far as it can be settled now."""
        await self._do("settle", {table: partial(self._try_to_settle, table) for table in sorted(self._doubted)})

    async def _try_to_settle(self, table: TableId) -> None:
        mine = self._records.maps.with_replaced(table)
        if any(self._servers.is_silent(record.server) for record in mine if record.server):
            return
        with suppress(*NOT_NOW):
            async with self._turns.turn(table):
                await self.settle(table)

    async def replace_overdue(self) -> None:
        """Tablets that were asked for long ago and not reported."""
        tables = sorted({record.table for record in self._overdue(self._records.maps.all())})
        await self._do("replace overdue", {table: partial(self._replace_overdue, table) for table in tables})

    def _overdue(self, records: Sequence[TabletRecord]) -> list[TabletRecord]:
        return overdue(records, self._clock.wall_ms(), int(self._settings.assignment_timeout_s * 1_000))

    async def _replace_overdue(self, table: TableId) -> None:
        with suppress(*NOT_NOW):
            async with self._turns.turn(table):
                late = self._overdue(self._records.maps.with_replaced(table))
                await self._assignment.create(await self._assignment.replace(late))

    async def replace_lost(self) -> None:
        """Others, without rows, in the place of tablets that only a server had that was taken out. Those of a dropped
        table stay as they are: it cannot be recalled any more, and is forgotten in its time."""
        if not self._has_lost:
            return
        tables, self._has_lost = self._catalog.latest.tables, False
        found = {record.table for record in self._records.maps.all() if is_only_on(record, self._gone)}
        lost = sorted(each for each in found if each in tables)
        self._has_lost = bool(lost)
        await self._do("replace lost", {table: partial(self._replace_lost, table) for table in lost})

    async def _replace_lost(self, table: TableId) -> None:
        with suppress(*NOT_NOW):
            async with self._turns.turn(table):
                mine = self._records.maps.with_replaced(table)
                await self._assignment.make_anew([record for record in mine if is_only_on(record, self._gone)])

    async def _line_up(self, server: str, table: TableId, deadline: Deadline | None = None) -> None:
        """Of one server and table; the caller has its turn."""
        link, catalog = self._servers.link(server), self._catalog.latest
        report = await link.report(table, deadline)
        changes = self._look(report, table)
        if changes.unwanted:
            await link.ask(DeleteTablets(changes.unwanted), deadline)
        await self._records.write(changes.puts, changes.removed)
        await self._assignment.create(changes.missing, deadline)
        if behind(report, _newest(catalog)):
            await link.ask(AlterTable(table), deadline)
        if changes.unserved:
            await link.ask(LoadTable(table), deadline)
        if changes.dropped:
            await link.ask(UnloadTable(table), deadline)


def _newest(catalog: Catalog) -> dict[TableId, SchemaVersion]:
    return {id_: table.schema.version for id_, table in catalog.tables.items()}
