"""The records of tablets as a master writes them: first written, then published."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.master.maps import TabletMaps
from stelae.model.ids import TableId
from stelae.ports.metastore import Metastore
from stelae.registry.tablet_records import TabletRecord, read_tablets, write_tablets


class Records:
    """For the tasks of one event loop. `maps` may be read from anywhere."""

    def __init__(self, store: Metastore) -> None:
        self._store = store
        self._writes = 0
        """How many writes have begun, and how many have ended, together."""
        self.maps = TabletMaps()

    async def write(self, puts: Sequence[TabletRecord], removed: Sequence[TabletRecord] = ()) -> None:
        if puts or removed:
            self._writes += 1
            try:
                await write_tablets(self._store, puts, removed)
                self.maps.publish(puts, [record.tablet for record in removed])
            finally:
                self._writes += 1

    async def read(self, table: TableId | None = None) -> None:
        """All of them, or a table's, as they are. What is written meanwhile is not undone here: a leader that was just
        elected would be forgotten, and another elected in the same epoch."""
        while True:
            writes = self._writes
            found = await read_tablets(self._store, table)
            if self._writes == writes:
                break
        before = self.maps.all() if table is None else self.maps.with_replaced(table)
        self.maps.publish(found, [record.tablet for record in before])
