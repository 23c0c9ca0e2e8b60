"""The master at work: it records what is to be, asks servers, and publishes what is.

One change of a table at a time, all on one event loop; changes of different tables do not wait for each other. What a
step has recorded is enough to go on from there after a crash: `start` brings records, catalog and servers in line
(`alignment`), and then does what is left (tablets still to be created, dropped tables still to be unloaded, those whose
grace period is over).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

from stelae.catalog.commands.spaces import CreateNamespace
from stelae.catalog.commands.tables import CreateTable, DropTable, ForgetTable, RecallTable, TableName, exists, found
from stelae.catalog.decide import Command, decide_batch
from stelae.catalog.entries import TableCreated as CreatedEntry
from stelae.catalog.objects import Table
from stelae.catalog.value import Catalog
from stelae.master.alignment import NOT_NOW, Alignment
from stelae.master.assignment import Assignment
from stelae.master.descriptors import Descriptors
from stelae.master.garbage.history import ShortHistory
from stelae.master.plan import check_cuts, forgettable, prepared
from stelae.master.records import Records
from stelae.master.replication.choosing import check_zone
from stelae.master.replication.replication import Replication
from stelae.master.replication.resizing import Resizing
from stelae.master.servers import Servers
from stelae.master.settings import MasterSettings
from stelae.master.tables.outcomes import made_already
from stelae.master.tables.room import check_room
from stelae.master.tables.telling import Telling
from stelae.master.tables.turns import CATALOG, Turns
from stelae.model.errors import (
    AlreadyExists,
    InvalidArgument,
    InvalidSchema,
    NotFound,
    Retryable,
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
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.alterations import commands_of
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control import (
    AlterTable,
    LoadTable,
    ProveTable,
    UnloadTable,
    cut_ranges,
)
from stelae.registry.masters.guard import GuardedStore
from stelae.registry.spaces import space_commands
from stelae.registry.tablet_records import TabletPhase, TabletRecord, take_tablet_ids
from stelae.service.deadlines import Deadline
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
        servers: Servers,
        clock: Clock,
        settings: MasterSettings,
        tell: Listener = tell_nobody,
        descriptors: Descriptors | None = None,
    ) -> None:
        """`tell` hears what happens to tables. `descriptors`: what is heard of the shards of a cluster, whose tablets
        may have several replicas."""
        self._tell = tell
        self._store = store
        self._catalog = catalog
        self._servers = servers
        self._clock = clock
        self._settings = settings
        self._records = Records(store)
        self._turns = Turns()
        self.replication: Replication | None = None
        if descriptors is not None and isinstance(store, GuardedStore):
            self.replication = Replication(store, catalog, self._records, servers, descriptors, clock, tell)
        self._assignment = Assignment(store, self._records, servers, clock, settings, self.replication)
        self._resizing = Resizing(store, self._records, servers, clock, self.replication)
        self._alignment = Alignment(catalog, self._records, servers, self._assignment, self._turns, clock, settings)
        self._telling = Telling(self._records, servers, self._alignment, clock)
        self.history = ShortHistory(catalog, settings.history, tell)
        self._beginning = asyncio.Lock()
        self._has_begun = False
        self.knows_tables = self.knows_tablets = False  # until all has been read that was there before
        self.maps = self._records.maps

    @property
    def has_work(self) -> bool:
        """Whether `tend` may find something to do."""
        is_settled = all(record.phase is TabletPhase.RUNNING for record in self.maps.all())
        is_late = self._alignment.has_work or not self._has_begun
        return is_late or not is_settled or bool(self._catalog.latest.dropped)

    async def start(self) -> None:
        """Everything as it is recorded, and what was under way brought to its end, as far as servers are there."""
        await self._begin()
        with suppress(*NOT_NOW):
            await self.clean()

    def note_back(self, server: str) -> None:
        """A server has begun anew: what it has is looked at when this is tended next."""
        self._alignment.note_back(server)

    async def replace_lost(self) -> None:
        """Servers were taken out of the store: others, without rows, take the place of the tablets that they had."""
        await self._begin()
        await self._alignment.note_gone()
        await self._alignment.replace_lost()

    async def _begin(self, deadline: Deadline | None = None) -> None:
        """Once: the newest catalog, the records as they are, and all servers lined up that answer."""
        if self._has_begun:
            return
        async with self._beginning:
            if self.knows_tablets:
                return  # somebody else has done it meanwhile
            await self._execute(deadline=deadline)
            self.knows_tables = True
            await self._alignment.note_servers()
            await self._records.read()
            self._alignment.doubt(CATALOG)
            self.knows_tablets = self._has_begun = True
        await self._put_right()

    async def _put_right(self) -> None:
        await self._alignment.line_up_servers()
        await self._alignment.settle_all()
        await self._alignment.settle_all()  # what the first one has found to be in doubt
        await self._alignment.replace_lost()

    async def _execute(self, *commands: Command, deadline: Deadline | None = None) -> Catalog:
        """Commands go through this master's own store, which knows whether it leads."""
        return await self._catalog.execute(*commands, deadline=deadline, through=self._store)

    @asynccontextmanager
    async def _change(self, table: TableId, deadline: Deadline | None = None) -> AsyncIterator[None]:
        """One change of a table at a time. One that failed half-way leaves this master in doubt about what is, as a
        lost answer does: it looks again before it changes the table again."""
        await self._begin(deadline)
        async with self._turns.turn(table, deadline):
            await self._alignment.settle(table, deadline)
            try:
                yield
            except _REFUSED:
                raise
            except BaseException:
                self._alignment.doubt(table)
                raise

    @asynccontextmanager
    async def _change_named(self, name: TableName, deadline: Deadline | None) -> AsyncIterator[Table]:
        """The table that has the name when its turn comes."""
        await self._begin(deadline)
        if self._alignment.has_doubts:
            await self._execute(deadline=deadline)
        while True:
            id_ = found(self._catalog.latest, name).id
            async with self._change(id_, deadline):
                table = found(self._catalog.latest, name)
                if table.id == id_:
                    yield table
                    return

    # -- creating

    async def create(self, command: CreateTable, cuts: Sequence[Row], *, deadline: Deadline | None = None) -> Table:
        begun_s, is_created = self._clock.monotonic_s(), f"table {str(command.table)!r} is created"
        async with AsyncExitStack() as table_turn:
            while True:
                async with self._change(CATALOG, deadline):
                    check_cuts(command.table, cuts, self._settings.tablets_per_table_max)
                    catalog = self._catalog.latest
                    # A name that begins with a namespace makes it, if it is not there.
                    commands = (CreateNamespace(command.table.namespace, if_not_exists=True), command)
                    decided = decide_batch(catalog, commands)
                    created = [entry.table for entry in decided if isinstance(entry, CreatedEntry)]
                    if created:
                        if self.replication is not None:
                            await check_room(self._store, self.replication, catalog.zones[created[0].zone])
                        made, records = await self._make(command.table, commands, created[0].id, cuts, deadline)
                        with made_already(is_created):
                            await table_turn.enter_async_context(self._change(made.id, deadline))
                        break
                # It is there already, and is waited for with all its tablets: others make theirs meanwhile.
                with suppress(NotFound):
                    async with self._change_named(command.table, deadline) as there:
                        return there
            with made_already(is_created):
                await self._assignment.create(records, deadline)
        self._tell(TableCreated(made.id, self._name(made), len(records), self._clock.monotonic_s() - begun_s))
        return made

    async def _make(
        self,
        name: TableName,
        commands: Sequence[Command],
        table: TableId,
        cuts: Sequence[Row],
        deadline: Deadline | None,
    ) -> tuple[Table, list[TabletRecord]]:
        """The table in the catalog, and its tablets, recorded before. `table`: the id that it will probably have."""
        ids = await take_tablet_ids(self._store, len(cuts) + 1)
        records = prepared(ids, table, cut_ranges(cuts), self._clock.wall_ms())
        await self._records.write(records)
        try:
            made = found(await self._execute(*commands, deadline=deadline), name)
        except (*_REFUSED, Retryable):
            await self._records.write((), records)
            raise  # after all else the table may be there: its tablets are settled before the next change or at a start
        if made.id != table:
            # Another process changed the catalog in between.
            with made_already(f"table {str(name)!r} is created"):
                others, records = records, prepared(ids, made.id, cut_ranges(cuts), self._clock.wall_ms())
                await self._records.write(records, others)
        return made, records

    async def settle(self, table: TableId, *, deadline: Deadline | None = None) -> None:
        """What was begun about a table and not brought to its end, as far as it can be done now."""
        if self._alignment.has_doubts:
            async with self._change(CATALOG, deadline):
                pass  # its tablets may be recorded, and nobody has looked for a server for them yet
        async with self._change(table, deadline):
            return

    def _name(self, table: Table) -> str:
        return self._catalog.latest.qualified_name(table)

    async def tend(self) -> None:
        """What time alone makes due: servers that came back, tables in doubt, tablets that were asked for long ago,
        dropped tables past their grace."""
        await self._begin()
        self._alignment.note_replaced()
        await self._put_right()
        await self._alignment.replace_overdue()
        await self.clean()

    # -- changing

    async def alter(self, name: TableName, changes: AlterAsk, *, deadline: Deadline | None = None) -> Table:
        begun_s = self._clock.monotonic_s()
        async with self._change_named(name, deadline) as before:
            commands = commands_of(name, changes)
            if not commands:
                return before
            catalog = await self._execute(*commands, deadline=deadline)
            after = catalog.tables[before.id]
            if after.schema.version != before.schema.version:
                with made_already(f"table {str(name)!r} is altered"):
                    await self._telling.ask(before.id, AlterTable(before.id), deadline)
        seconds = self._clock.monotonic_s() - begun_s
        self._tell(TableAltered(after.id, self._name(after), after.schema.version, seconds))
        return after

    async def drop(self, name: TableName, *, if_exists: bool, deadline: Deadline | None = None) -> None:
        begun_s = self._clock.monotonic_s()
        await self._begin(deadline)
        try:
            async with self._change_named(name, deadline) as table:
                await self._execute(DropTable(name), deadline=deadline)
                await self._telling.tell(table.id, UnloadTable(table.id), deadline)
        except NotFound:
            if if_exists and not exists(self._catalog.latest, name):
                return
            raise
        self._tell(TableDropped(table.id, str(name), self._clock.monotonic_s() - begun_s))
        with suppress(Retryable, UnknownOutcome):  # this one is dropped; what else is due is done at the next look
            await self.clean(deadline=self._telling.soon(deadline))

    async def recall(self, name: TableName, new_name: str | None, *, deadline: Deadline | None = None) -> Table:
        begun_s = self._clock.monotonic_s()
        await self._begin(deadline)
        if self._alignment.has_doubts:
            await self._execute(deadline=deadline)
        command = RecallTable(name, new_name)
        (entry,) = command.decide(self._catalog.latest)
        async with self._change(entry.table, deadline):
            await self._telling.ask(entry.table, ProveTable(entry.table), deadline)
            catalog = await self._execute(command, deadline=deadline)
            with made_already(f"table {str(name)!r} is recalled"):
                await self._telling.ask(entry.table, LoadTable(entry.table), deadline)
                if self.replication is not None:
                    await self.replication.lead_again(entry.table, deadline)
        made = catalog.tables[entry.table]
        self._tell(TableRecalled(made.id, self._name(made), self._clock.monotonic_s() - begun_s))
        return made

    async def clean(self, *, deadline: Deadline | None = None) -> tuple[TableId, ...]:
        """Forget the dropped tables whose grace period is over, with all that was theirs."""
        await self._begin(deadline)
        gone: list[TableForgotten] = []
        over = forgettable(self._catalog.latest, self._clock.wall_ms(), int(self._settings.grace_s * 1_000))
        try:
            for table in over:
                async with self._change(table, deadline):
                    await self._execute(ForgetTable(table), deadline=deadline)
                    gone.append(TableForgotten(table, await self._telling.forget(table, deadline)))
            return over
        finally:
            for event in gone:
                self._tell(event)

    async def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> Catalog:
        """Namespaces and zones. No tablet changes by it: sizes are judged by what the catalog then says."""
        if isinstance(ask, CreateZoneAsk | AlterZoneAsk) and (ask.replicas or 1) > 1 and self.replication is None:
            raise InvalidArgument(
                f"zone {ask.name!r}: replicas {ask.replicas}: a store of one process has one replica of each tablet; "
                "a cluster has more"
            )
        async with self._change(CATALOG, deadline):  # ids are given out one after another, to tables too
            check_zone(ask, await self._execute(deadline=deadline))
            return await self._execute(*space_commands(ask), deadline=deadline)

    # -- sizes

    async def split(
        self, tablet: TabletId, at: Row, *, is_asked: bool = False, deadline: Deadline | None = None
    ) -> None:
        """`is_asked`: by a user, not because of its size."""
        await self._begin(deadline)
        async with self._change(self.maps.tablet(tablet).table, deadline):
            record = self.maps.tablet(tablet)
            if at not in record.rows or at == record.rows.start:
                raise InvalidArgument(f"tablet {tablet} holds {record.rows}: it cannot be split at row {at!r}")
            await self._resizing.split(record, at, is_asked, deadline)

    async def join(
        self, left: TabletId, right: TabletId, *, is_asked: bool = False, deadline: Deadline | None = None
    ) -> None:
        """Make one tablet of two neighbours. Unless a user asks for it (`is_asked`), tablets that a user has split are
        left as they are."""
        await self._begin(deadline)
        async with self._change(self.maps.tablet(left).table, deadline):
            records = [self.maps.tablet(left), self.maps.tablet(right)]
            if records[0].table != records[1].table or records[0].rows.stop != records[1].rows.start:
                raise InvalidArgument(f"tablets {left} and {right} are no neighbours")
            if records[0].server != records[1].server:
                raise InvalidArgument(
                    f"tablets {left} and {right} are on two shards, {records[0].server} and {records[1].server}: only "
                    "tablets of one shard are joined"
                )
            if not is_asked and any(record.is_asked for record in records):
                return
            await self._resizing.join(records, deadline)

    async def look_undisturbed(self, look: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Let somebody look while no table or tablet is being changed."""
        await self._turns.wait_idle(deadline)
        return look()
