"""How a shard of a cluster reaches its master."""

from __future__ import annotations

from collections.abc import Mapping

from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.registry.control_operations import ANSWER_S, JOIN_TABLETS, SPLIT_TABLET, TABLETS_AT_REST, TabletsAtRest
from stelae.registry.peers import Peer
from stelae.registry.tablet_records import TabletRecord, read_tablets
from stelae.service.deadlines import Deadline


class RemoteMasterLink:
    """A `MasterLink` over connections; what is recorded is read from the metastore, whoever leads."""

    def __init__(self, master: Peer, metastore: Metastore, loop: Loop, clock: Clock) -> None:
        self._master = master
        self._metastore = metastore
        self._loop = loop
        self._clock = clock

    def split(self, tablet: TabletId, at: Row) -> None:
        self._loop.run(self._master.ask(SPLIT_TABLET, self._until(), tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        self._loop.run(self._master.ask(JOIN_TABLETS, self._until(), left, right))

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        return {record.tablet: record for record in self._loop.run(read_tablets(self._metastore, table))}

    def tablets_at_rest(self) -> TabletsAtRest:
        """What the master has recorded while it changes nothing."""
        return self._loop.run(self._master.ask(TABLETS_AT_REST, self._until()))

    def _until(self) -> Deadline:
        return Deadline(self._clock, ANSWER_S)
