"""Where threads ask a cluster's master for what changes many tablets at one txn: each call is run on the loop of the
master that leads, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.master.changes.loads import TableChanges
from stelae.master.desk import Gate
from stelae.model.ids import TableId, Txn
from stelae.ports.loop import Loop
from stelae.registry.changes.sessions import table_of_change
from stelae.service.deadlines import Deadline
from stelae.service.jobs import TTL_S_DEFAULT, check_job, check_ttl
from stelae.service.tickets import LoadedFile, LoadTicket


class ChangesDesk:
    """What of `Backend` and `BulkBackend` is about many servers. Safe for threads. A server that says nothing is waited
    for until the deadline; one that makes progress as long as it does."""

    def __init__(self, leading: Callable[[], TableChanges], loop: Loop, gate: Gate) -> None:
        """`leading` raises if no master is there to be asked."""
        self._leading = leading
        self._run = loop.run
        self._gate = gate

    def truncate(self, table: TableId, *, deadline: Deadline | None = None) -> Txn:
        with self._gate.visit(table):
            return self._run(self._leading().truncate(table, deadline))

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
        with self._gate.visit(table):
            return self._run(self._leading().begin_load(table, job, batch, check_ttl(ttl_s)))

    def commit_load(
        self,
        ticket: str,
        files: Sequence[LoadedFile],
        *,
        replaces: bool = False,
        deadline: Deadline | None = None,
    ) -> Txn:
        with self._gate.visit(table_of_change(ticket)):
            return self._run(self._leading().commit_load(ticket, files, replaces=replaces, deadline=deadline))

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None) -> None:  # noqa: ARG002 - it waits for the metastore alone
        with self._gate.visit(table_of_change(ticket)):
            self._run(self._leading().renew(ticket, check_ttl(ttl_s)))

    def release(self, ticket: str, *, deadline: Deadline | None = None) -> None:
        with self._gate.visit(table_of_change(ticket)):
            self._run(self._leading().release(ticket, deadline))
