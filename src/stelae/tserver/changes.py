"""Changes of tables that have tablets on other servers too: prepared, adopted and dropped here, decided elsewhere.

The protocol, and why nobody sees half of a change, is in `registry/changes`. What this server owes to it:
- It answers that a change is prepared when the configs that say so are saved, and not before.
- While one is prepared, nobody reads, or writes on a condition, above its floor before `settle` has found out more.
- What was decided is the record's to say: it is applied as it stands there, whoever learns of it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from stelae.model.errors import (
    Corruption,
    DeadlineExceeded,
    InvalidArgument,
    NotCached,
    NotFound,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.hybrid import pack
from stelae.model.ids import TableId, Txn
from stelae.registry.changes.asking import AdoptChange, ChangeReport, ChangeRequest, DropChange, PrepareChange
from stelae.registry.changes.sessions import ChangeSession, ChangeState, change_key, learn, read_session
from stelae.service.deadlines import Deadline, left_of
from stelae.service.tickets import LoadedFile
from stelae.storage.files.handles import is_only_cached
from stelae.storage.shard import Shard
from stelae.storage.tablet.changes import Loaded
from stelae.storage.tablet.state import TabletState, without_prepared
from stelae.storage.turns import Turn
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.control import TabletControl
from stelae.tserver.jobs.preparing import check_loaded, prepare_tablets
from stelae.tserver.keeper import Keeper
from stelae.tserver.lives import Life
from stelae.tserver.surroundings import ServerPorts, ServerSettings, Tables
from stelae.tserver.writing import wait_durable

AHEAD_MS = 200
"""Whoever is in doubt raises the floor so far ahead of now: so a busy table asks the metastore five times a second."""

ADOPT_S = 10.0
"""So long is waited, with the turn, until a change that was decided is on the disks of all replicas."""

_LOOK_EVERY_MS = 1_000


class ShardChanges:
    """A server's part in changes that others decide; nothing to do where its own log decides. Safe for threads."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        keeper: Keeper,
        control: TabletControl,
        tables: Tables,
        ports: ServerPorts,
        settings: ServerSettings,
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._keeper = keeper
        self._control = control
        self._tables = tables
        self._store = ports.records
        self._run = ports.loop.run
        self._clock = ports.clock
        self._now_ms = ports.clock.wall_ms
        self._looked_ms = 0
        self._turns: dict[TableId, Turn] = {}
        shard.doubts.is_decided_here = settings.is_alone

    # -- what the master asks

    def answer(
        self, request: ChangeRequest, files: Sequence[LoadedFile], check: Callable[[], None] | None = None
    ) -> ChangeReport:
        """`check` raises if nothing may be done any more when its turn comes."""
        if self._shard.doubts.is_decided_here:
            raise InvalidArgument("this server decides itself how its tables change: it takes part in nothing else")
        with self._turn(request.table):
            if check is not None:
                check()
            match request:
                case PrepareChange():
                    return self._prepare(request, files)
                case AdoptChange(table, id_, txn, replaces):
                    self._adopt(table, id_, txn, replaces=replaces)
                case DropChange(table, id_):
                    self._drop(table, id_)
            self._upkeep.save()
            return ChangeReport(self._shard.name, request.id in self._control.prepared_loads(request.table))

    def _turn(self, table: TableId) -> Turn:
        """Changes of one table are prepared, adopted and dropped one after the other: what was read of a record is
        true until what follows from it is done."""
        return self._turns.setdefault(table, Turn())

    def _prepare(self, request: PrepareChange, files: Sequence[LoadedFile]) -> ChangeReport:
        """A request that comes late finds a record that is decided, gone, or at another attempt."""
        shard, id_, table = self._shard, request.id, request.table
        held = self._run(read_session(self._store, table, id_))
        session = None if held is None else held.session
        if session is None or not session.is_open or session.attempt != request.attempt:
            found = "gone" if session is None else f"{session.state.value}, at attempt {session.attempt}"
            raise Unavailable(f"change {id_!r} is {found}: it is not prepared for attempt {request.attempt} any more")
        check_loaded(shard.blobs, session.prefix, files)
        with shard.lock:
            states = shard.of_table(table)
            if not states and table not in self._tables.ids():
                raise NotFound(f"the table (id {table}) was dropped: nothing of change {id_!r} happens")
            ready = [each for each in states if not each.is_frozen and self._control.life(each.tablet) is Life.ACTIVE]
            if not ready or len(ready) < len(states):
                raise TabletAway(f"not all tablets of table {table} that {shard.name} has take writes now; try again")
            at = shard.clock.tick()
            prepare_tablets(self._upkeep, ready, self._tables.schemas_of(table), id_, session.schema_version, files)
            shard.doubts.note_floor(id_, session.floor)
        self._upkeep.save([state.tablet for state in ready])
        self._check_led(ready)
        return ChangeReport(shard.name, True, tuple(state.rows for state in ready), at)

    def _check_led(self, prepared: Sequence[TabletState]) -> None:
        """Tablets that were given up before their configs were logged are not saved, though nothing failed; and what
        leads them now, here again perhaps, knows nothing of the change."""
        with self._shard.lock:
            here = self._shard.tablets()
            for state in prepared:
                led = here.get(state.tablet)
                if state.commits.quorum is not None and (led is None or led.commits is not state.commits):
                    raise TabletAway(f"tablet {state.tablet} was to be led anew meanwhile; try again")

    def _adopt(self, table: TableId, id_: str, txn: Txn, deadline: Deadline | None = None, *, replaces: bool) -> None:
        """Unavailable if it is not on all disks in time: it counts, and is seen as soon as it is."""
        shard = self._shard
        with shard.lock:
            if id_ not in shard.unsettled.get(table, ()):
                return
            commit = self._upkeep.commit(table, Loaded(id_, replaces), txn)
            shard.doubts.forget(id_)
        until = Deadline(self._clock, ADOPT_S) if deadline is None else deadline.within(ADOPT_S)
        shard.drain(until)
        try:
            wait_durable(commit.durable, until)
        except UnknownOutcome as error:
            raise Unavailable(f"change {id_!r} has happened, and is not on all disks yet: {error}") from error
        self._keeper.note_growth(state.tablet for state in shard.of_table(table))
        self._keeper.note_garbage()

    def _drop(self, table: TableId, id_: str) -> None:
        with self._shard.lock:
            for state in self._shard.of_table(table):
                if any(load.load == id_ for load in state.prepared):
                    self._upkeep.change(state.tablet, partial(without_prepared, load=id_))
            self._shard.doubts.forget(id_)
        self._keeper.note_garbage()

    # -- in doubt

    def settle(self, table: TableId, at: Txn, deadline: Deadline | None) -> None:
        """When it returns, whatever happens to the table at or below the txn has happened here. Waits for the metastore
        and for what is to be on disks, never for whoever began a change. NotCached where nothing may be waited for."""
        for id_ in self._shard.doubts.about(table, at):
            if is_only_cached():
                raise NotCached("whether a change of the table has happened is to be found out first")
            session = self._learn(table, id_, at, deadline)
            self._apply(table, id_, session, deadline)

    def _learn(self, table: TableId, id_: str, at: Txn, deadline: Deadline | None) -> ChangeSession | None:
        async def ask() -> ChangeSession | None:
            async with asyncio.timeout(left_of(deadline)):
                return await learn(self._store, table, id_, at, pack(self._now_ms() + AHEAD_MS))

        try:
            return self._run(ask())
        except TimeoutError:
            raise DeadlineExceeded(
                f"whether change {id_!r} of the table has happened was not learned in time"
            ) from None
        except Unavailable as error:
            raise Unavailable(f"whether change {id_!r} of the table has happened cannot be learned: {error}") from error

    def _apply(self, table: TableId, id_: str, session: ChangeSession | None, deadline: Deadline | None = None) -> None:
        """What a record says about a change that was prepared here when it was read."""
        if session is not None and session.is_open:
            with self._shard.lock:
                if id_ in self._shard.unsettled.get(table, ()):
                    self._shard.doubts.note_floor(id_, session.floor)
            return
        with self._turn(table):
            if id_ not in self._shard.unsettled.get(table, ()):
                return
            if session is None:
                raise Corruption(
                    f"it is gone, and {self._shard.name} has the change prepared: was the metastore lost in part? "
                    "Bring it back; the data was left as it is",
                    change_key(table, id_),
                )
            if session.state is ChangeState.COMMITTED:
                self._adopt(table, id_, session.txn, deadline, replaces=session.replaces)
            else:
                self._drop(table, id_)

    def tend(self) -> None:
        """Apply what was decided and not heard of: after a restart, or when the master's request was lost."""
        now_ms = self._now_ms()
        is_due = now_ms >= self._looked_ms + _LOOK_EVERY_MS
        if not is_due or not self._shard.unsettled or self._shard.doubts.is_decided_here:
            return
        self._looked_ms = now_ms
        for table, changes in list(self._shard.unsettled.items()):
            for id_ in changes:
                held = self._run(read_session(self._store, table, id_))
                self._apply(table, id_, None if held is None else held.session)
        self._upkeep.save()
