"""The tickets of jobs that move much data: given out, renewed, let go, and ended when nobody renews them in time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from stelae.catalog.describe import show_time
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, NotFound, Unavailable
from stelae.model.events import TicketExpired
from stelae.model.hybrid import micros_of, pack
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.registry.control_operations import FilesNeeded
from stelae.registry.leftovers import drop_staged
from stelae.service.deadlines import Deadline
from stelae.service.jobs import COMPACTION_TICKET, HOLD_TICKET, LOAD_TICKET, TTL_S_DEFAULT, check_job, check_ttl
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.checks.rules import shown_row
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.names import file_name_prefix
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import last_txn, reader_for
from stelae.storage.shard import Shard
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.jobs.compactions import Compactions
from stelae.tserver.jobs.holds import Holds
from stelae.tserver.jobs.loads import Loads
from stelae.tserver.keeper import Keeper
from stelae.tserver.reading import now
from stelae.tserver.surroundings import ServerPorts, ServerSettings, Tables, Wakeups
from stelae.tserver.upkeep import TableUpkeep
from stelae.tserver.visits import Visits

_SWEEP_EVERY_MS = 3_600 * 1_000
_HEX = re.compile("[0-9a-f]{8,64}")


class Tickets:
    """What a shard does for jobs (`BulkBackend`). Safe for threads.

    `ready` waits until all at or below a txn is decided."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        keeper: Keeper,
        visits: Visits,
        wakes: Wakeups,
        ports: ServerPorts,
        tables: Tables,
        settings: ServerSettings,
        ready: Callable[[TableId, Txn, Deadline | None], None],
        by_hand: TableUpkeep,
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = flushing = by_hand.flushing
        self._keeper = keeper
        self._visits = visits
        self._wakes = wakes
        self._rng = ports.rng
        self._ready = ready
        self._by_hand = by_hand
        self._now_ms = now_ms = ports.clock.wall_ms
        self._sweeps = settings.is_alone
        self._sweep_ms = 0
        root, store, loop = settings.fragments, ports.metastore, ports.loop
        self._holds = Holds(shard, flushing, store, loop, now_ms, root, settings.token)
        self._compactions = Compactions(shard, upkeep, keeper, now_ms, root)
        self._own_loads: Loads | None = None
        self._kinds: dict[str, Holds | Loads | Compactions] = {HOLD_TICKET: self._holds}
        if settings.is_alone:
            self._own_loads = self._kinds[LOAD_TICKET] = Loads(shard, upkeep, keeper, tables, store, loop, now_ms, root)
            keeper.gives_way = self._own_loads.is_under_way
        self._kinds[COMPACTION_TICKET] = self._compactions
        upkeep.keeps = self.keeps
        self._holds.recover()
        if self._own_loads is not None:
            self._own_loads.recover(by_hand.control.prepared_loads())

    def keeps(self, name: str) -> bool:
        """Whether some job needs a file."""
        return any(kind.keeps(name) for kind in self._kinds.values())

    @property
    def _loads(self) -> Loads:
        if self._own_loads is None:
            raise Unavailable("loads of a cluster are begun and committed by its master: ask that")
        return self._own_loads

    def files_needed(self) -> FilesNeeded:
        """All that tablets and jobs need. Jobs are looked at first: what they have written becomes a tablet's when they
        end, and so is found with the one or the other."""
        since, held = self._shard.clock.tick(), self._holds.kept()
        loading = () if self._own_loads is None else self._own_loads.prefixes()
        prefixes = (*loading, *self._compactions.prefixes())
        names = self._upkeep.needed_files().union(*held.values())
        return FilesNeeded(since, tuple(sorted(names)), prefixes, tuple(held))

    # -- snapshots

    def hold(
        self,
        table: TableId,
        at: Txn | None = None,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> HeldTable:
        with self._visits.visit(table):
            txn = now(self._shard, self._now_ms()) if at is None else at
            self._ready(table, txn, deadline)
            name = self._name(HOLD_TICKET, ticket)
            return self._holds.hold(self._visits.info(table), txn, name, check_ttl(ttl_s))

    # -- loads

    def begin_load(
        self,
        table: TableId,
        job: str,
        batch: int = 0,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - it waits for the metastore alone
    ) -> LoadTicket:
        check_job(job, batch)
        with self._visits.visit(table):
            info, ticket = self._visits.info(table), self._ticket(LOAD_TICKET)
            return self._loads.begin(info, job, batch, ticket, self._prefix(table), check_ttl(ttl_s))

    def commit_load(
        self,
        ticket: str,
        files: Sequence[LoadedFile],
        *,
        replaces: bool = False,
        deadline: Deadline | None = None,  # noqa: ARG002 - it takes as long as it takes
    ) -> Txn:
        with self._visits.visit():
            txn = self._loads.commit(ticket, files, replaces=replaces)
        self._wakes.grown()
        return txn

    # -- compactions

    def begin_compaction(
        self,
        table: TableId,
        *,
        full: bool = True,
        erase_now: bool = False,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        deadline: Deadline | None = None,
    ) -> CompactionTicket:
        with self._visits.visit(table):
            info = self._visits.info(table)
            boundaries = self.erased_boundaries(table) if erase_now else ()
            self._flushing.flush(table)
            self._by_hand.move_horizon(info, erase_now, deadline)
            name, prefix = self._name(COMPACTION_TICKET, ticket), self._prefix(table)
            kept_by: tuple[str, ...] = ()
            if erase_now:
                self._by_hand.empty_log()
                kept_by = (*self.kept_by(table), *boundaries)
            begun = self._compactions.begin(
                info, name, prefix, check_ttl(ttl_s), full=full or erase_now, must_drop=erase_now
            )
            return msgspec.structs.replace(begun, kept_by=kept_by)

    def kept_by(self, table: TableId) -> tuple[str, ...]:
        """Who still holds versions of a table that are to go, in words."""
        holds = [record for record in self._holds.records() if record.table == table]
        pins = Counter(self._shard.horizons.pins_below(self._shard.visible)) - Counter(each.txn for each in holds)
        return (
            *(f"the snapshot of {show_time(txn)} is open" for txn in sorted(pins.elements())),
            *(
                f"a job holds the snapshot of {show_time(each.txn)} ({each.ticket}); if it is gone, that ends by "
                f"itself at {show_time(pack(each.expires_ms))}"
                for each in holds
            ),
        )

    def erased_boundaries(self, table: TableId) -> tuple[str, ...]:
        """Tablets that begin at the key of a row which was erased or purged, in words: asked before its records
        are gone. The key stays where tablets are recorded."""
        shard, found = self._shard, []
        for state in shard.of_table(table):
            row, at = Row(state.rows.start), shard.visible
            if row and shard.look(state, partial(_is_gone, row=row, at=at)):
                found.append(
                    f"tablet {state.tablet} begins at the key of a row that is gone, "
                    f"{shown_row(state.schema.codec, row)}: it stays in the metastore until "
                    "`stelae tablet join` joins the tablet with the one before"
                )
        return tuple(found)

    def adopt(
        self,
        ticket: str,
        number: int,
        file: FragmentFile | None,
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - it waits for the metastore alone
    ) -> bool:
        with self._visits.visit():
            adopted = self._compactions.adopt(ticket, number, file)
        self._wakes.grown()
        return adopted

    # -- all of them

    def renew(
        self,
        ticket: str,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - it waits for the metastore alone
    ) -> None:
        with self._visits.visit():
            self._kind(ticket).renew(ticket, check_ttl(ttl_s))

    def release(
        self,
        ticket: str,
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - it waits for the metastore alone
    ) -> None:
        with self._visits.visit():
            self._kind(ticket).release(ticket)
        self._wakes.grown()

    def expire(self) -> None:
        """Let go of what nobody has renewed in time."""
        for prefix, kind in self._kinds.items():
            for ticket in kind.expire():
                self._keeper.note_garbage()
                self._upkeep.tell(TicketExpired(prefix.rstrip("-"), ticket))
        now_ms = self._now_ms()
        if self._sweeps and now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + _SWEEP_EVERY_MS
            drop_staged(self._shard.blobs, now_ms)
            self._holds.drop_overlays()

    def _kind(self, ticket: str) -> Holds | Loads | Compactions:
        for prefix, kind in self._kinds.items():
            if ticket.startswith(prefix):
                return kind
        raise NotFound(f"no ticket is called {ticket!r}")

    def _name(self, kind: str, given: str | None) -> str:
        """Of a new ticket. One that is given out again under the name that it was asked for with, because its answer
        was lost, takes the place of the one before."""
        if given is None:
            return self._ticket(kind)
        if not given.startswith(kind) or not _HEX.fullmatch(given, len(kind)):
            raise InvalidArgument(f"a ticket is called {kind!r} and 8 to 64 hex digits, not {given!r}")
        self._kind(given).release(given)
        return given

    def _ticket(self, kind: str) -> str:
        return kind + self._rng.token(12).hex()

    def _prefix(self, table: TableId) -> str:
        return file_name_prefix(table, self._shard.clock.tick(), self._rng.token(8).hex())


def _is_gone(state: TabletState, fragments: Fragments, row: Row, at: Txn) -> bool:
    """Whether there are records of the row, and all that they say is that it is not there."""
    if not last_txn(state, fragments, row, Txn(0)):
        return False
    asking = Asking(at, state.floor_at(at), micros_of(at))
    return reader_for(state, fragments, ALL_COLUMNS).newest(row, asking) is None
