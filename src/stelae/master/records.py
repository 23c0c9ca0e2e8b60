"""The records of tablets as a master writes them: first written, then published.

What is written compares that the records are as this master knows them. So a write whose answer was lost, and that
arrives late, changes nothing once the record was written by another; and whatever nobody knows the outcome of is
written once more, as it is found, before it is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence

from stelae.master.maps import TabletMaps
from stelae.model.ids import TableId
from stelae.ports.metastore import Metastore, Revision
from stelae.registry.tablet_records import RecordsChanged, TabletRecord, read_revisions, tablet_key, write_tablets


class Records:
    """For the tasks of one event loop. `maps` may be read from anywhere."""

    def __init__(self, store: Metastore) -> None:
        self._store = store
        self._writes = 0
        """How many writes have begun, and how many have ended, together."""
        self._revisions: dict[str, Revision] = {}
        """By key: which write the records are of, as they are known."""
        self._doubted: dict[str, TableId] = {}
        """Keys of which the outcome of a write is not known, with their tables."""
        self.maps = TabletMaps()

    def is_in_doubt(self, table: TableId) -> bool:
        """Whether a record of the table may be another by now than the maps have it."""
        return bool(self._doubted) and table in self._doubted.values()

    async def write(self, puts: Sequence[TabletRecord], removed: Sequence[TabletRecord] = ()) -> None:
        """RecordsChanged if one is not as it was known: it is read again."""
        if not (puts or removed):
            return
        self._writes += 1
        try:
            await write_tablets(self._store, self._revisions, puts, removed)
            self.maps.publish(puts, [record.tablet for record in removed])
        except BaseException:
            self._doubted |= {_key(each): each.table for each in (*puts, *removed)}
            raise
        finally:
            self._writes += 1

    async def settle(self) -> None:
        """Read the tables again of which a write's outcome is not known."""
        for table in sorted(set(self._doubted.values())):
            await self.read(table)

    async def read(self, table: TableId | None = None) -> None:
        """All of them, or a table's, as they are. What is written meanwhile is not undone here: a leader that was just
        elected would be forgotten, and another elected in the same epoch."""
        while True:
            writes = self._writes
            found = await read_revisions(self._store, table)
            if self._writes == writes:
                self._take(found, table)
                if await self._confirm([record for record, _ in found], table):
                    return

    def _take(self, found: Sequence[tuple[TabletRecord, Revision]], table: TableId | None) -> None:
        before = self.maps.all() if table is None else self.maps.with_replaced(table)
        for record in before:
            self._revisions.pop(_key(record), None)
        self._revisions |= {_key(record): revision for record, revision in found}
        self.maps.publish([record for record, _ in found], [record.tablet for record in before])

    async def _confirm(self, found: Sequence[TabletRecord], table: TableId | None) -> bool:
        """Write what is in doubt once more, as it was found: what was sent before changes it no more. False: something
        was written meanwhile."""
        doubted = {key for key, of in self._doubted.items() if table in (None, of)}
        self._writes += 1
        try:
            await write_tablets(self._store, self._revisions, [each for each in found if _key(each) in doubted])
        except RecordsChanged:
            return False
        finally:
            self._writes += 1
        for key in doubted:
            self._doubted.pop(key, None)
        return True


def _key(record: TabletRecord) -> str:
    return tablet_key(record.table, record.tablet)
