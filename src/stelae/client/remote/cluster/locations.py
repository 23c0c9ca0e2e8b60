"""Where the rows of tables are, as far as a program knows: asked of a master once, and again when it proved wrong.

What proved wrong is not thrown away before something better is known: a master that cannot be reached is no reason to
stop asking shards, which are where they were, most likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from stelae.client.remote.cluster.routes import TableRoutes, routes_of
from stelae.model.errors import DeadlineExceeded, Unavailable
from stelae.model.ids import TableId
from stelae.registry.control_operations import TableLocation
from stelae.service.deadlines import Deadline

_TABLES_MAX = 1_000
"""So many tables' routes are known at once; then those that were asked for first are forgotten."""

Locate = Callable[[TableId, Deadline], TableLocation]
"""Asks a master. Blocking."""


class Locations:
    """Safe for threads. Those who need the same table's routes wait for one answer."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._known: dict[TableId, TableRoutes] = {}
        self._doubted: dict[TableId, TableRoutes] = {}
        self._asking: dict[TableId, Lock] = {}
        self._lock = Lock()

    def known(self, table: TableId) -> TableRoutes | None:
        """Without asking: None if they are not known, or proved wrong."""
        return self._known.get(table)

    def find(self, table: TableId, deadline: Deadline) -> TableRoutes:
        """Asked for, if they are not known. NotFound if the table is gone; Unavailable if no master says where it is,
        and it was never known."""
        found = self._known.get(table)
        if found is not None:
            return found
        with self._alone(table, deadline):
            found = self._known.get(table)
            return found if found is not None else self._ask(table, deadline)

    def tables_of(self, shard: str) -> list[TableId]:
        """Those that have rows there, as far as is known."""
        with self._lock:
            known = self._doubted | self._known
        return [table for table, routes in known.items() if shard in routes.shards]

    def doubt(self, table: TableId, routes: TableRoutes) -> None:
        """These proved wrong, or a shard of them is away: ask again before they are used."""
        with self._lock:
            if self._known.get(table) is routes:
                del self._known[table]
                self._doubted[table] = routes

    def ask_again(self, table: TableId, deadline: Deadline) -> None:
        """Know where the table's rows are now, though nothing says that they are elsewhere. What is known stays if no
        master answers."""
        with self._alone(table, deadline), suppress(Unavailable):
            found = routes_of(self._locate(table, deadline))
            if found != self._known.get(table):
                self._note(table, found)

    def _ask(self, table: TableId, deadline: Deadline) -> TableRoutes:
        doubted = self._doubted.get(table)
        until = deadline if doubted is None else deadline.within(deadline.left_s / 2)
        try:
            found = routes_of(self._locate(table, until))
        except Unavailable:
            if doubted is None:
                raise
            return doubted
        self._note(table, found)
        return found

    def _note(self, table: TableId, found: TableRoutes) -> None:
        with self._lock:
            self._doubted.pop(table, None)
            self._known[table] = found
            for known in (self._known, self._doubted):
                while len(known) > _TABLES_MAX:
                    del known[next(iter(known))]

    @contextmanager
    def _alone(self, table: TableId, deadline: Deadline) -> Iterator[None]:
        with self._lock:
            asking = self._asking.setdefault(table, Lock())
        if not asking.acquire(timeout=deadline.left_s):
            raise DeadlineExceeded(f"table {table}: nobody said in time where its rows are")
        try:
            yield
        finally:
            asking.release()
            with self._lock:
                self._asking.pop(table, None)
