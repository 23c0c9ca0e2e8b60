"""Tickets of jobs over several shards: one ticket, which each shard of the table has its part of; but for loads, which
the master that leads has them take part in.

A hold is taken at one snapshot that is pinned on all of them meanwhile. A compaction's works are numbered through; each
is adopted by the shard whose files it is of. Where the shards of a ticket are not known here, because another program
was given it, all are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from threading import Lock
from typing import TypeVar

import msgspec

from stelae.client.remote.asking import Asker
from stelae.client.remote.cluster.pins import ClusterPins
from stelae.client.remote.cluster.routing import Routing, all_of
from stelae.client.remote.tablets import RemoteTablets
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import NotFound, Unavailable
from stelae.model.ids import TableId, Txn
from stelae.model.ranges import does_cover
from stelae.ports.rng import Rng
from stelae.registry.control_operations import COLLECT
from stelae.service import job_operations as bulk
from stelae.service import operations as ops
from stelae.service.deadlines import Deadline
from stelae.service.jobs import COMPACTION_TICKET, HOLD_TICKET, LOAD_TICKET, TTL_S_DEFAULT
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.tablet.config_bytes import rows_of_config

R = TypeVar("R")

_GIVEN_MAX = 10_000
"""Of so many tickets the shards are known; then those that were given first are forgotten."""


class ClusterJobs:
    """What a cluster does for jobs (`BulkBackend`). Safe for threads."""

    def __init__(self, routing: Routing, leading: Asker, pins: ClusterPins, rng: Rng) -> None:
        """`leading` asks the master that leads."""
        self._routing = routing
        self._leading = leading
        self._pins = pins
        self._rng = rng
        self._given = _Given()

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
        routing, until = self._routing, self._routing.until(deadline)
        ticket = ticket or self._ticket(HOLD_TICKET)
        routing.refresh(table, until)
        shards = routing.find_shards(table, until)
        with ExitStack() as pinned:
            if len(shards) > 1:
                at = pinned.enter_context(closing(self._pins.pin(at, table, until))).txn
            try:
                parts = routing.ask_table(
                    table, until, lambda shard: shard.hold(table, at, ttl_s, ticket, deadline=until)
                )
                return self._given.note(ticket, tuple(parts), _unite_held(list(parts.values())))
            except BaseException:
                self._let_go(ticket, shards, until)
                raise

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
        routing, until = self._routing, self._routing.until(deadline)
        ticket = ticket or self._ticket(COMPACTION_TICKET)
        routing.refresh(table, until)
        shards = routing.find_shards(table, until)

        def begin(shard: RemoteTablets) -> CompactionTicket:
            return shard.begin_compaction(
                table, full=full, erase_now=erase_now, ttl_s=ttl_s, ticket=ticket, deadline=until
            )

        try:
            with routing.changes.counted():
                parts = routing.ask_table(table, until, begin)
            whole = _unite_compactions(list(parts.values()))
            return self._given.note(ticket, tuple(parts), whole, erases=erase_now)
        except BaseException:
            self._let_go(ticket, shards, until)
            raise

    def adopt(self, ticket: str, number: int, file: FragmentFile | None, *, deadline: Deadline | None = None) -> bool:
        shards = self._given.shards_of(ticket)
        if shards is None:
            raise NotFound(f"compaction {ticket!r} was not begun by this program, or long ago")
        own, place = divmod(number, len(shards))
        with self._routing.changes.counted():
            shard = self._routing.shards.get(shards[place])
            return shard.adopt(ticket, own, file, deadline=self._routing.until(deadline))

    def collect(self, deadline: Deadline) -> None:
        """What shards have erased is in files until the master removes those, which only it may."""
        with self._routing.changes.counted():
            self._leading.ask(COLLECT, deadline, True)

    # -- loads, which the master leads

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        with self._routing.changes.counted():
            return self._routing.seen.note(self._leading.ask(ops.TRUNCATE, deadline, table))

    def begin_load(
        self,
        table: TableId,
        job: str,
        batch: int = 0,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,
    ) -> LoadTicket:
        with self._routing.changes.counted():
            return self._leading.ask(bulk.BEGIN_LOAD, deadline, table, job, batch, ttl_s)

    def commit_load(
        self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False, deadline: Deadline | None = None
    ) -> Txn:
        with self._routing.changes.counted():
            return self._routing.seen.note(self._leading.ask(bulk.COMMIT_LOAD, deadline, ticket, files, replaces))

    # -- all of them

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None) -> None:
        if ticket.startswith(LOAD_TICKET):
            self._routing.changes.check()
            self._leading.ask(bulk.RENEW, deadline, ticket, ttl_s)
            return
        until = self._routing.until(deadline)
        shards = self._given.shards_of(ticket)
        if shards is None:
            self._ask_holders(self._routing.find_all(until), lambda shard: shard.renew(ticket, ttl_s, deadline=until))
        else:
            self._routing.ask_these(shards, lambda shard: shard.renew(ticket, ttl_s, deadline=until))

    def release(self, ticket: str, *, deadline: Deadline | None = None) -> None:
        if ticket.startswith(LOAD_TICKET):
            self._routing.changes.check()
            self._leading.ask(bulk.RELEASE, deadline, ticket)
            return
        until = self._routing.until(deadline)
        shards = self._given.shards_of(ticket) or self._routing.find_all(until)
        self._routing.ask_these(shards, lambda shard: shard.release(ticket, deadline=until))
        if self._given.erases(ticket):
            self.collect(until)
        self._given.forget(ticket)

    def _ask_holders(self, shards: Sequence[str], job: Callable[[RemoteTablets], R]) -> list[R]:
        """What those said that have something of a ticket; NotFound if none has."""
        outcomes = self._routing.shards.ask_each(shards, lambda shard: job(self._routing.shards.get(shard)))
        missing = [each for each in outcomes.values() if isinstance(each, NotFound)]
        if len(missing) == len(outcomes):
            raise missing[0]
        return list(all_of({name: each for name, each in outcomes.items() if not isinstance(each, NotFound)}).values())

    def _let_go(self, ticket: str, shards: Sequence[str], until: Deadline) -> None:
        """What a failure leaves behind at some shards; what cannot be let go of now expires."""
        self._routing.shards.ask_each(
            shards, lambda shard: self._routing.shards.get(shard).release(ticket, deadline=until)
        )

    def _ticket(self, kind: str) -> str:
        return kind + self._rng.token(12).hex()


class _Given:
    """Which shards have something of a ticket, as far as this program knows, and whether it is to erase something. Safe
    for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, tuple[tuple[str, ...], bool]] = {}

    def note(self, ticket: str, shards: tuple[str, ...], given: R, *, erases: bool = False) -> R:
        """What was given for it."""
        with self._lock:
            self._known[ticket] = shards, erases
            while len(self._known) > _GIVEN_MAX:
                del self._known[next(iter(self._known))]
        return given

    def shards_of(self, ticket: str) -> tuple[str, ...] | None:
        known = self._known.get(ticket)
        return None if known is None else known[0]

    def erases(self, ticket: str) -> bool:
        known = self._known.get(ticket)
        return known is not None and known[1]

    def forget(self, ticket: str) -> None:
        with self._lock:
            self._known.pop(ticket, None)


def _unite_held(parts: Sequence[HeldTable]) -> HeldTable:
    """The parts of one table, each of which a shard holds. Unavailable if they do not make one, because the table was
    altered, or tablets were cut anew or are led by others meanwhile: hold it again."""
    first = parts[0]
    found = sorted(
        ((rows_of_config(config, first.name), config) for part in parts for config in part.configs),
        key=lambda each: each[0].start,
    )
    if any(part.table != first.table for part in parts) or not does_cover(rows for rows, _ in found):
        raise Unavailable(
            f"table {first.name!r} was altered or moved while it was held: its shards do not make one table"
        )
    return msgspec.structs.replace(
        first, horizon=max(part.horizon for part in parts), configs=tuple(config for _, config in found)
    )


def _unite_compactions(parts: Sequence[CompactionTicket]) -> CompactionTicket:
    """The works of all shards, numbered through: each says which shard it is of, and which of its works."""
    first, count = parts[0], len(parts)
    if any(part.table_bytes != first.table_bytes for part in parts):
        raise Unavailable(f"table {first.table} was altered meanwhile: begin again")
    works = [
        msgspec.structs.replace(work, number=work.number * count + place, prefix=part.prefix)
        for place, part in enumerate(parts)
        for work in part.works
    ]
    kept_by = dict.fromkeys(words for part in parts for words in part.kept_by)
    return msgspec.structs.replace(first, works=tuple(works), kept_by=tuple(kept_by))
