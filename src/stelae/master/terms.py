"""A master's terms. In each it leads with one guard, and has a `Master` that writes and asks with that guard alone:
what was begun in one term is never gone on with in another, although the same process leads again.

A master may be unable to begin, and no waiting mends it: the catalog is of a newer release, a record is damaged. Its
process does not end, and tells why to whoever asks for what it cannot do. If it does not even know which tables there
are it is of no use, and gives the lead up: another master may know more. If it knows them it keeps the lead: programs
find tables by it, and rows by what is recorded of each table, so only those are away whose own record is damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from stelae.master.changes.loads import TableChanges
from stelae.master.desk import Gate
from stelae.master.failures import Failures, words_of
from stelae.master.leadership import Leadership, MasterIdentity
from stelae.master.links import ShardServers
from stelae.master.master import Master
from stelae.master.removal import Removal
from stelae.master.replication.draining import Draining
from stelae.master.replication.replication import Replication
from stelae.model.errors import Retryable, StelaeError, Unavailable, UnknownOutcome
from stelae.model.events import Listener, MasterFollowed, MasterLeads
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.masters.guard import HeldGuard, MasterGuard
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline

_PAUSE_S = 1.0
_CHANGES_S = 2.0
_REPLICAS_S = 0.5


class Term:
    def __init__(
        self,
        held: HeldGuard,
        master: Master,
        servers: ShardServers,
        changes: TableChanges,
        removal: Removal,
        draining: Draining,
        tell: Listener,
    ) -> None:
        self.held = held
        self.master = master
        self.servers = servers
        self.changes = changes
        self.removal = removal
        self.draining = draining
        self._failures = Failures(tell)
        self._is_over = False
        self.trouble = ""
        """Why it has not begun."""
        self.tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has begun, or failed to, once."""

    async def begin(self) -> bool:
        """Until all is known that there is: which tables and which tablets, as they are recorded. What is left to be
        done then, with shards that are away perhaps, is done before the next change, or when it is tended. False: this
        master cannot even say which tables there are, and waiting does not mend it."""
        try:
            while not self._is_over:
                is_of_use = await self._try_to_begin()
                if not self.tried.done():
                    self.tried.set_result(None)
                if self.master.knows_tablets or not is_of_use:
                    return is_of_use
                await asyncio.sleep(_PAUSE_S)
        except BaseException as error:
            if not self.tried.done():
                self.tried.set_exception(error)
            raise
        return True

    async def _try_to_begin(self) -> bool:
        """Whether this master is of use: it knows the tables, or may when it is tried again."""
        try:
            await self.master.start()
        except StelaeError as error:
            self.trouble = words_of(error)
            self._note_failed("beginning", error)
            return _may_pass(error) or self.master.knows_tables or self._is_over
        return True

    def check_knows(self, what: str, *, knows: bool) -> None:
        """Unavailable, with the reason, if this master does not know yet what there is."""
        if not knows:
            begun = f"could not begin ({self.trouble})" if self.trouble else "has just begun"
            raise Unavailable(f"the master that leads {begun}, and has not read yet which {what} there are")

    async def lead_changes(self) -> None:
        """Bring changes of many tablets to their end that whoever began them left, this master or one before it."""
        while not self._is_over:
            if self.master.knows_tables:
                with self._until_later("changes of many tablets"):
                    await self.changes.tend()
            await asyncio.sleep(_CHANGES_S)

    async def lead_replicas(self) -> None:
        """See to it that every tablet with several replicas has a leader, and as many of them as it should have. What
        leaders hand over is done beside that: it takes long."""
        handing_over: asyncio.Task[None] | None = None
        try:
            while not self._is_over:
                if self.master.knows_tablets and self.master.replication is not None:
                    with self._until_later("replicas"):
                        await self.master.replication.tend()
                    if self.master.replication.has_leaving and (handing_over is None or handing_over.done()):
                        handing_over = asyncio.create_task(self._hand_over(self.master.replication), name="term")
                await asyncio.sleep(_REPLICAS_S)
        finally:
            if handing_over is not None:
                handing_over.cancel()
                await asyncio.gather(handing_over, return_exceptions=True)

    async def _hand_over(self, replication: Replication) -> None:
        with self._until_later("handing over"):
            await replication.hand_over()

    @contextmanager
    def _until_later(self, part: str) -> Iterator[None]:
        """What cannot be done now is tried again. What waiting does not mend is told, and tried again all the same: it
        may be of one shard or one table, and who stops here leaves all others without. When the term is over its
        connections are closed, whoever is at it."""
        try:
            yield
        except StelaeError as error:
            self._note_failed(part, error)
        else:
            self._failures.note_well(part)

    def _note_failed(self, part: str, error: StelaeError) -> None:
        if not self._is_over and not _may_pass(error):
            self._failures.note(part, error)

    async def shorten_catalog(self) -> None:
        """Put versions of the catalog together when there are many, as far as nobody needs them."""
        while not self._is_over:
            await asyncio.sleep(self.master.history.look_s)
            with self._until_later("the catalog's history"):
                await self.master.history.shorten()

    async def watch_leases(self) -> None:
        """See which shards renew their leases: beside all else, since who looks too seldom may call nobody silent."""
        while not self._is_over:
            if self.master.replication is not None:
                with self._until_later("leases"):
                    await self.master.replication.watch()
            await asyncio.sleep(_REPLICAS_S)

    async def end(self) -> None:
        """Changes under way end by themselves: what they write and ask is refused, and nobody is waited for."""
        self._is_over = True
        self.servers.end()
        await self.master.look_undisturbed(lambda: None)
        await self.servers.close()


def _may_pass(error: StelaeError) -> bool:
    return isinstance(error, Retryable | UnknownOutcome)


class Terms:
    """For the tasks of one event loop; `current` may be asked from anywhere."""

    def __init__(
        self,
        store: Metastore,
        clock: Clock,
        rng: Rng,
        me: MasterIdentity,
        lease_s: float,
        make: Callable[[HeldGuard], Term],
        loop: Loop,
        tell: Listener,
    ) -> None:
        self._run, self._tell, self._name = loop.run, tell, me.name
        self._leadership = Leadership(store, clock, rng, me, lease_s, self._change)
        self._make = make
        self._term: Term | None = None
        self._work: dict[asyncio.Task[None], None] = {}

    async def start(self, address: str) -> None:
        """Serving at that address, lead if nobody else does. Returns when what there is to be done first was tried."""
        await self._leadership.start(address)
        if self._term is not None:
            await self._term.tried

    async def close(self) -> None:
        """Another master may lead from now on."""
        await self._leadership.close()
        for task in self._work:
            task.cancel()
        self._change(None)
        await asyncio.gather(*self._work, return_exceptions=True)

    def hurry(self) -> None:
        """From now on a shard that is away is not waited for."""
        if self._term is not None:
            self._term.servers.end()

    @property
    def guard(self) -> MasterGuard | None:
        """What this master leads with; None while it does not."""
        held = self._leadership.held
        return None if held is None else held.guard

    def current(self) -> Term:
        """Deposed if this master does not lead, or does not know whether it does."""
        term = self._term
        if term is None:
            raise self._leadership.refusal()
        self._leadership.check(term.held)
        return term

    def master(self) -> Master:
        return self.current().master

    def changes(self) -> TableChanges:
        return self.current().changes

    def check_tables(self) -> None:
        """Raise unless this master leads, and knows which tables there are."""
        term = self.current()
        term.check_knows("tables", knows=term.master.knows_tables)

    def check_tablets(self) -> None:
        """Raise unless this master leads, and knows which tablets there are."""
        term = self.current()
        term.check_knows("tablets", knows=term.master.knows_tablets)

    def tablets_of(self, table: TableId) -> tuple[TabletRecord, ...] | None:
        """The tablets of a table, if this master leads and knows them; None: what is recorded says more."""
        with suppress(Unavailable):
            self.check_tablets()
            return self.master().maps.of_table(table)
        return None

    def choose_split(
        self, table: TableId, at: Row | None, tablet: int | None, deadline: Deadline | None = None
    ) -> tuple[TabletId, Row]:
        """Where the tablet of a row is to be cut: see `ShardServers.choose_split`. Blocking."""
        term = self.current()
        return self._run(term.servers.choose_split(term.master.maps, table, at, tablet, deadline))

    def look_at_sizes(self) -> None:
        """Have all shards do that, which nobody waits for: whoever leads next, or a shard that begins, does it
        besides. Blocking."""
        with suppress(Unavailable):
            self._run(self._go_on_with(self.current().servers.look_at_sizes()))

    async def _go_on_with(self, work: Coroutine[Any, Any, None]) -> None:
        self._begin_work(work)

    def _change(self, held: HeldGuard | None) -> None:
        before, self._term = self._term, None
        if before is not None:
            self._begin_work(before.end())
            self._tell(MasterFollowed(self._name))
        if held is not None:
            self._tell(MasterLeads(self._name, held.guard.number))
            self._term = self._make(held)
            self._begin_work(self._begin(self._term))
            self._begin_work(self._term.lead_changes())
            self._begin_work(self._term.watch_leases())
            self._begin_work(self._term.shorten_catalog())
            self._begin_work(self._term.lead_replicas())

    async def _begin(self, term: Term) -> None:
        try:
            is_of_use = await term.begin()
        except Exception as error:
            self._leadership.give_up(term.held, f"it could not begin: {words_of(error)}")
            raise
        if not is_of_use:
            self._leadership.give_up(term.held, f"it could not begin: {term.trouble}")

    def _begin_work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="term")
        self._work[task] = None
        task.add_done_callback(lambda done: self._work.pop(done, None))


class LeadingGate:
    """A `Gate`: lets those in whom the process lets in, while it leads."""

    def __init__(self, gate: Gate, terms: Terms) -> None:
        self._gate = gate
        self._terms = terms

    def check(self) -> None:
        self._gate.check()
        self._terms.check_tables()

    def visit(self, table: TableId | None = None) -> AbstractContextManager[None]:
        if table is not None:
            self._terms.check_tablets()
        return self._gate.visit(table)
