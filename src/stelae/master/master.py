"""The master at work: it records what is to be, asks servers, and publishes what is.

One change at a time, all on one event loop. What a step has recorded is enough to go on from there after a crash:
`start` brings records, catalog and servers in line, and then does what is left (tablets still to be created, dropped
tables still to be unloaded, those whose grace period is over).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from stelae.catalog.commands.spaces import CreateNamespace
from stelae.catalog.commands.tables import CreateTable, DropTable, ForgetTable, RecallTable, TableName, exists, found
from stelae.catalog.decide import Command, decide_batch
from stelae.catalog.entries import TableCreated as CreatedEntry
from stelae.catalog.objects import Table
from stelae.catalog.value import Catalog
from stelae.master.maps import TabletMaps
from stelae.master.outcomes import made_already
from stelae.master.plan import behind, check_cuts, corrections, forgettable, in_phase, overdue, prepared
from stelae.master.settings import MasterSettings
from stelae.model.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Deposed,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    InvalidSchema,
    NotFound,
    PermissionDenied,
    Retryable,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.events import (
    Listener,
    TableAltered,
    TableCreated,
    TableDropped,
    TableForgotten,
    TableRecalled,
    tell_nobody,
)
from stelae.model.ids import Row, TableId, TabletId
from stelae.model.words import counted
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.alterations import commands_of
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import (
    AlterTable,
    CreateTablets,
    DeleteTablets,
    JoinTablets,
    LoadTable,
    NewTablet,
    ProveTable,
    ServerLink,
    SplitTablet,
    TabletReport,
    UnloadTable,
    cut_ranges,
    reported_ids,
)
from stelae.registry.spaces import space_commands
from stelae.registry.tablet_records import (
    TabletPhase,
    TabletRecord,
    read_tablets,
    take_tablet_ids,
    write_tablets,
)
from stelae.service.deadlines import Deadline, left_of
from stelae.service.spaces import AlterZoneAsk, CreateZoneAsk, SpacesAsk
from stelae.service.tables import AlterAsk

T = TypeVar("T")

_REFUSED = (AlreadyExists, InvalidArgument, InvalidSchema, NotFound)
"""What a change raises that was refused before anything of it was done."""


class Master:
    """For the tasks of one event loop. `maps` may be read from anywhere."""

    def __init__(
        self,
        store: Metastore,
        catalog: CatalogService,
        link: ServerLink,
        clock: Clock,
        settings: MasterSettings,
        tell: Listener = tell_nobody,
    ) -> None:
        """`tell` hears what happens to tables."""
        self._tell = tell
        self._store = store
        self._catalog = catalog
        self._link = link
        self._clock = clock
        self._settings = settings
        self._changing = asyncio.Lock()
        self._in_doubt = False
        self.knows_tables = self.knows_tablets = False  # until all has been read that was there before
        self.maps = TabletMaps()

    @property
    def has_work(self) -> bool:
        """Whether `tend` may find something to do."""
        is_settled = all(record.phase is TabletPhase.RUNNING for record in self.maps.all())
        return self._in_doubt or not is_settled or bool(self._catalog.latest.dropped)

    async def start(self) -> None:
        """Everything as it is recorded, and what was under way brought to its end."""
        async with self._changing:
            self._in_doubt = True
            report = await self._reload()
            # A full disk, or one that must not be written, keeps nobody from reading; the next change does the rest.
            with suppress(Retryable, UnknownOutcome, PermissionDenied):
                await self._line_up(report)
        if not self._in_doubt:
            await self.clean()

    async def _reload(self, deadline: Deadline | None = None) -> TabletReport:
        """The newest catalog, the records as they are, and what the server has."""
        await self._execute(deadline=deadline)
        self.knows_tables = True
        report = await self._link.report()
        records = await read_tablets(self._store)
        self.maps.publish(records, [record.tablet for record in self.maps.all()])
        self.knows_tablets = True
        return report

    async def _line_up(self, report: TabletReport, deadline: Deadline | None = None) -> None:
        """Bring records, catalog and server in line."""
        catalog = self._catalog.latest
        changes = corrections(self.maps.all(), report, catalog, self._clock.wall_ms())
        if changes.unwanted:
            await self._link.ask(DeleteTablets(changes.unwanted))
        await self._record(changes.puts, changes.removed)
        await self._assign(changes.missing, deadline)
        await self._bring_up(report)
        for table in changes.unserved:
            await self._link.ask(LoadTable(table))
        for table in catalog.dropped:
            await self._link.ask(UnloadTable(table))
        self._in_doubt = False

    async def _bring_up(self, report: TabletReport) -> None:
        newest = {id_: table.schema.version for id_, table in self._catalog.latest.tables.items()}
        for table in behind(report, newest):
            await self._link.ask(AlterTable(table))

    async def _execute(self, *commands: Command, deadline: Deadline | None = None) -> Catalog:
        """Commands go through this master's own store, which knows whether it leads."""
        return await self._catalog.execute(*commands, deadline=deadline, through=self._store)

    @asynccontextmanager
    async def _change(self, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """One change at a time. One that failed half-way leaves this master in doubt about what is, as a lost answer
        does: it looks again before it changes anything else."""
        async with self._turn(deadline):
            if self._in_doubt:
                await self._line_up(await self._reload(deadline), deadline)
            try:
                yield
            except _REFUSED:
                raise
            except BaseException:
                self._in_doubt = True
                raise

    @asynccontextmanager
    async def _turn(self, deadline: Deadline | None) -> AsyncIterator[None]:
        """DeadlineExceeded if another change is under way for so long."""
        try:
            async with asyncio.timeout(left_of(deadline)):
                await self._changing.acquire()
        except TimeoutError:
            raise DeadlineExceeded("another change of tables is still under way; try again") from None
        try:
            yield
        finally:
            self._changing.release()

    async def _record(self, puts: Sequence[TabletRecord], removed: Sequence[TabletRecord] = ()) -> None:
        """Write, then publish."""
        if puts or removed:
            await write_tablets(self._store, puts, removed)
            self.maps.publish(puts, [record.tablet for record in removed])

    # -- creating

    async def create(self, command: CreateTable, cuts: Sequence[Row], *, deadline: Deadline | None = None) -> Table:
        begun_s = self._clock.monotonic_s()
        async with self._change(deadline):
            check_cuts(command.table, cuts, self._settings.tablets_per_table_max)
            catalog = self._catalog.latest
            # A name that begins with a namespace makes it, if it is not there.
            commands = (CreateNamespace(command.table.namespace, if_not_exists=True), command)
            created = [entry.table for entry in decide_batch(catalog, commands) if isinstance(entry, CreatedEntry)]
            if not created:
                return found(catalog, command.table)
            ids = await take_tablet_ids(self._store, len(cuts) + 1)
            table = created[0].id
            records = prepared(ids, table, cut_ranges(cuts), self._clock.wall_ms())
            await self._record(records)
            try:
                made = found(await self._execute(*commands, deadline=deadline), command.table)
            except (UnknownOutcome, asyncio.CancelledError):
                raise  # the table may be there: its tablets are settled before the next change, or at the next start
            except BaseException:
                await self._record((), records)
                raise
            with made_already(f"table {str(command.table)!r} is created"):
                if made.id != table:
                    # Another process changed the catalog in between.
                    others, records = records, prepared(ids, made.id, cut_ranges(cuts), self._clock.wall_ms())
                    await self._record(records, others)
                await self._assign(records, deadline)
        self._tell(TableCreated(made.id, self._name(made), len(records), self._clock.monotonic_s() - begun_s))
        return made

    def _name(self, table: Table) -> str:
        return self._catalog.latest.qualified_name(table)

    async def _assign(self, records: Sequence[TabletRecord], deadline: Deadline | None = None) -> None:
        """Create tablets on the server; those that are not reported in time are replaced by others."""
        waiting = list(records)
        refused: DiskFailed | None = None
        for attempt in range(self._settings.attempts_max):
            if not waiting:
                return
            creating = in_phase(waiting, TabletPhase.CREATING, self._clock.wall_ms(), self._link.server)
            await self._record(creating)
            request = CreateTablets(tuple(NewTablet(r.tablet, r.table, r.rows) for r in creating))
            try:
                async with asyncio.timeout(self._settings.assignment_timeout_s):
                    report = await self._link.ask(request)
            except Deposed:
                raise
            except DiskFull as error:  # other tablets would meet the same disk
                count = counted(len(creating), "tablet is", "tablets are")
                raise DiskFull(f"{count} recorded, and made before the next change of tables: {error}") from error
            except (Retryable, UnknownOutcome, TimeoutError) as error:
                refused = error if isinstance(error, DiskFailed) else None
                report = TabletReport(self._link.server, ())
            here = reported_ids(report)
            running = [record for record in creating if record.tablet in here]
            await self._record(in_phase(running, TabletPhase.RUNNING, self._clock.wall_ms(), report.server))
            late = [record for record in creating if record.tablet not in here]
            is_over = deadline is not None and deadline.is_over
            if late and (is_over or attempt + 1 == self._settings.attempts_max):
                count = f"{counted(len(late), 'tablet is', 'tablets are')} not running yet"
                if refused is not None:
                    raise DiskFailed(f"{count}: {refused}") from refused
                raise Unavailable(f"{count}: server {self._link.server} does not report them")
            waiting = await self._replace(late)

    async def _replace(self, late: Sequence[TabletRecord]) -> list[TabletRecord]:
        """Others in their place. The old ones are remembered: whoever reports one deletes it."""
        if not late:
            return []
        now_ms = self._clock.wall_ms()
        ids = await take_tablet_ids(self._store, len(late))
        replaced = in_phase(late, TabletPhase.REPLACED, now_ms, self._link.server)
        following = [prepared([id_], old.table, [old.rows], now_ms)[0] for id_, old in zip(ids, late, strict=True)]
        # Side by side: what is written in pieces has both of a pair or none.
        await self._record([record for pair in zip(replaced, following, strict=True) for record in pair])
        with suppress(Retryable, UnknownOutcome):  # it is deleted when it is reported, at the latest
            await self._link.ask(DeleteTablets(tuple(record.tablet for record in late)))
        return following

    async def tend(self) -> None:
        """What time alone makes due: tablets that were asked for long ago, dropped tables past their grace."""
        async with self._change():
            late = overdue(self.maps.all(), self._clock.wall_ms(), int(self._settings.assignment_timeout_s * 1_000))
            await self._assign(await self._replace(late))
        await self.clean()

    # -- changing

    async def alter(self, name: TableName, changes: AlterAsk, *, deadline: Deadline | None = None) -> Table:
        begun_s = self._clock.monotonic_s()
        async with self._change(deadline):
            before = found(self._catalog.latest, name)
            commands = commands_of(name, changes)
            if not commands:
                return before
            catalog = await self._execute(*commands, deadline=deadline)
            after = catalog.tables[before.id]
            if after.schema.version != before.schema.version:
                with made_already(f"table {str(name)!r} is altered"):
                    await self._link.ask(AlterTable(before.id))
        seconds = self._clock.monotonic_s() - begun_s
        self._tell(TableAltered(after.id, self._name(after), after.schema.version, seconds))
        return after

    async def drop(self, name: TableName, *, if_exists: bool, deadline: Deadline | None = None) -> None:
        begun_s = self._clock.monotonic_s()
        async with self._change(deadline):
            catalog = self._catalog.latest
            if if_exists and not exists(catalog, name):
                return
            table = found(catalog, name)
            await self._execute(DropTable(name), deadline=deadline)
            with made_already(f"table {str(name)!r} is dropped"):
                await self._link.ask(UnloadTable(table.id))
        self._tell(TableDropped(table.id, str(name), self._clock.monotonic_s() - begun_s))
        with suppress(Retryable, UnknownOutcome):  # this one is dropped; what else is due is done at the next look
            await self.clean(deadline=deadline)

    async def recall(self, name: TableName, new_name: str | None, *, deadline: Deadline | None = None) -> Table:
        begun_s = self._clock.monotonic_s()
        async with self._change(deadline):
            before, command = self._catalog.latest, RecallTable(name, new_name)
            for entry in command.decide(before):
                await self._link.ask(ProveTable(entry.table))
            catalog = await self._execute(command, deadline=deadline)
            (id_,) = [id_ for id_ in catalog.tables if id_ not in before.tables]
            with made_already(f"table {str(name)!r} is recalled"):
                await self._link.ask(LoadTable(id_))
        made = catalog.tables[id_]
        self._tell(TableRecalled(id_, self._name(made), self._clock.monotonic_s() - begun_s))
        return made

    async def clean(self, *, deadline: Deadline | None = None) -> tuple[TableId, ...]:
        """Forget the dropped tables whose grace period is over, with all that was theirs."""
        gone: list[TableForgotten] = []
        try:
            async with self._change(deadline):
                over = forgettable(self._catalog.latest, self._clock.wall_ms(), int(self._settings.grace_s * 1_000))
                for table in over:
                    await self._execute(ForgetTable(table), deadline=deadline)
                    records = [record for record in self.maps.all() if record.table == table]
                    await self._link.ask(DeleteTablets(tuple(record.tablet for record in records)))
                    await self._record((), records)
                    gone.append(TableForgotten(table, len(records)))
                return over
        finally:
            for event in gone:
                self._tell(event)

    async def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> Catalog:
        """Namespaces and zones. No tablet changes by it: sizes are judged by what the catalog then says."""
        if isinstance(ask, CreateZoneAsk | AlterZoneAsk) and (ask.replicas or 1) > 1:
            raise InvalidArgument(
                f"zone {ask.name!r}: replicas {ask.replicas}: this store has one server, and so one replica of each "
                "tablet; more need a cluster, which comes later"
            )
        async with self._change(deadline):
            return await self._execute(*space_commands(ask), deadline=deadline)

    # -- sizes

    async def split(
        self, tablet: TabletId, at: Row, *, is_asked: bool = False, deadline: Deadline | None = None
    ) -> None:
        """`is_asked`: by a user, not because of its size."""
        async with self._change(deadline):
            record = self.maps.tablet(tablet)
            if at not in record.rows or at == record.rows.start:
                raise InvalidArgument(f"tablet {tablet} holds {record.rows}: it cannot be split at row {at!r}")
            left, right = await take_tablet_ids(self._store, 2)
            report = await self._link.ask(SplitTablet(tablet, at, left, right))
            with made_already(f"tablet {tablet} is split"):
                await self._record_resize([record], report, is_asked)

    async def join(
        self, left: TabletId, right: TabletId, *, is_asked: bool = False, deadline: Deadline | None = None
    ) -> None:
        """Make one tablet of two neighbours. Unless a user asks for it (`is_asked`), tablets that a user has split are
        left as they are."""
        async with self._change(deadline):
            records = [self.maps.tablet(left), self.maps.tablet(right)]
            if records[0].table != records[1].table or records[0].rows.stop != records[1].rows.start:
                raise InvalidArgument(f"tablets {left} and {right} are no neighbours")
            if not is_asked and any(record.is_asked for record in records):
                return
            (into,) = await take_tablet_ids(self._store, 1)
            report = await self._link.ask(JoinTablets(left, right, into))
            with made_already(f"tablets {left} and {right} are joined"):
                await self._record_resize(records, report)

    async def _record_resize(self, old: Sequence[TabletRecord], report: TabletReport, is_asked: bool = False) -> None:
        now_ms = self._clock.wall_ms()
        new = [
            TabletRecord(each.tablet, each.table, each.rows, TabletPhase.RUNNING, report.server, now_ms, is_asked)
            for each in report.tablets
        ]
        await self._record(new, old)

    async def look_undisturbed(self, look: Callable[[], T]) -> T:
        """Let somebody look while no table or tablet is being changed."""
        async with self._changing:
            return look()
