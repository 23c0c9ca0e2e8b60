"""Where the rows of a table are: what any master answers, the one that leads by what it knows, others by what it has
recorded."""

from __future__ import annotations

from contextlib import suppress

from stelae.master.terms import Terms
from stelae.model.errors import NotFound, Retryable, StelaeError, Unavailable, UnknownOutcome
from stelae.model.ids import Row, TableId
from stelae.model.ranges import does_cover
from stelae.ports.metastore import Metastore
from stelae.registry.catalog.service import CatalogService
from stelae.registry.control_operations import ShardPlace, TableLocation
from stelae.registry.incarnations import read_lives
from stelae.registry.tablet_records import TabletPhase, TabletRecord, read_tablets
from stelae.service.deadlines import Deadline


class Locator:
    """For the tasks of the master's event loop."""

    def __init__(self, store: Metastore, catalog: CatalogService, terms: Terms) -> None:
        self._store = store
        self._catalog = catalog
        self._terms = terms

    async def locate(self, table: TableId, deadline: Deadline | None = None) -> TableLocation:
        """Unavailable while not all of its tablets run: then the master that leads does first what is left to be done
        about that. NotFound once it is dropped, and its tablets are gone."""
        found = await self._find_running(table)
        if not found and self._terms.guard is not None and table in self._catalog.latest.tables:
            with suppress(Retryable, UnknownOutcome):
                await self._terms.master().settle(table, deadline=deadline)
            found = await self._find_running(table)
        if not found:
            raise self._explain(table)
        servers = {each.server for each in found}
        lives = [life for life in await read_lives(self._store) if life.name in servers]
        return TableLocation(
            table,
            tuple((Row(each.rows.start), each.server) for each in found),
            tuple(ShardPlace(life.name, life.address, life.incarnation) for life in lives),
        )

    async def _find_running(self, table: TableId) -> list[TabletRecord]:
        """All tablets of a table, in the order of their rows; none, unless all of them run."""
        known = self._terms.tablets_of(table)
        records = await read_tablets(self._store, table) if known is None else known
        running = (each for each in records if each.phase is TabletPhase.RUNNING)
        found = sorted(running, key=lambda each: each.rows.start)
        return found if does_cover(each.rows for each in found) else []

    def _explain(self, table: TableId) -> StelaeError:
        """Why not all tablets of a table run. A master that follows may not have heard of the table yet."""
        catalog = self._catalog.latest
        if (there := catalog.tables.get(table)) is not None:
            name = catalog.qualified_name(there)
            return Unavailable(f"table {name!r} is being created: not all of its tablets run yet")
        if table >= catalog.next_id:
            return Unavailable(f"table {table} is not known here yet: this master is behind the one that leads")
        dropped = catalog.dropped.get(table)
        return NotFound(f"table {table if dropped is None else dropped.table.name!r} was dropped")
