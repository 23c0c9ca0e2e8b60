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
        self.maps = TabletMaps()

    async def write(self, puts: Sequence[TabletRecord], removed: Sequence[TabletRecord] = ()) -> None:
        if puts or removed:
            await write_tablets(self._store, puts, removed)
            self.maps.publish(puts, [record.tablet for record in removed])

    async def read(self, table: TableId | None = None) -> None:
        """All of them, or a table's, as they are."""
        found = await read_tablets(self._store, table)
        before = self.maps.all() if table is None else self.maps.with_replaced(table)
        self.maps.publish(found, [record.tablet for record in before])
