"""What a server needs around it: the world's ports, what is known of tables, and its master. All of it is handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from stelae.model.hybrid import HybridClock
from stelae.model.ids import TableId, TabletId
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.registry.known_tables import TableRules
from stelae.registry.replication.members import replica_id
from stelae.registry.tablet_records import TabletRecord
from stelae.registry.views.own import OwnStore
from stelae.service.tables import TableInfo
from stelae.storage.shard import ShardSettings
from stelae.tserver.keeper import Resizing


class ServerPorts(msgspec.Struct, frozen=True):
    """`time` gives out txns. The metastore is asked on `loop`: what the server keeps for itself is in `metastore`, what
    the master has recorded in `shared`; None: they are one. Scans work ahead on `reading`, if there is one."""

    logs: LogFiles
    blobs: BlobStore
    metastore: OwnStore
    clock: Clock
    time: HybridClock
    rng: Rng
    loop: Loop
    reading: Executor | None = None
    shared: Metastore | None = None

    @property
    def records(self) -> Metastore:
        """Where the master records tablets."""
        return self.metastore if self.shared is None else self.shared


class ServerSettings(msgspec.Struct, frozen=True):
    """`name`: what the server is called by its master. `place`: where the store is, for messages. `fragments`: the URL
    under which jobs find its files. `token`: which store it is. `pins_wait_s`: after a server was killed its successor
    keeps history for so long, in which whoever holds a snapshot of it can say so. `is_alone`: all tablets and files of
    the store are this server's. One of several removes no file by what it knows itself: others may need it.
    Loads and truncations of one that is alone are committed by its own log; of others, by the master of the cluster.
    `log`: the id of its log."""

    name: str
    place: str
    fragments: str = ""
    token: str = ""
    shard: ShardSettings = msgspec.field(default_factory=ShardSettings)
    pins_wait_s: float = 5.0
    is_alone: bool = True
    log: str = ""

    @property
    def replica(self) -> str:
        """What the server's replicas are known by."""
        return replica_id(self.name, self.log)


class Tables(Protocol):
    """What the catalog says about tables now. Safe for threads, and never waits."""

    def info(self, table: TableId) -> TableInfo:
        """NotFound once the table is dropped."""
        ...

    def ids(self) -> Collection[TableId]:
        """The tables that are there now."""
        ...

    def kept(self) -> Collection[TableId]:
        """The tables whose data stays: those that are there, and those that were dropped and can be recalled."""
        ...

    def is_known(self, table: TableId) -> bool:
        """Whether there ever was such a table; of META tables too. No other can have data."""
        ...

    def schemas_of(self, table: TableId) -> Sequence[TableSchema]:
        """The schemas the table has had, oldest first; of META tables too."""
        ...

    def rules(self, table: TableId) -> TableRules | None:
        """The table's retention, and how large its tablets grow; None once the table is dropped."""
        ...


class MasterLink(Resizing, Protocol):
    """How a server reaches its master. Blocking, and safe for threads."""

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        """What the master has recorded of a table's tablets; of some perhaps nothing."""
        ...


def _nothing() -> None:
    return


class Wakeups(msgspec.Struct):
    """Called when a step of the server has something to do: `full` for `flush_step`, `grown` for `compact_step`, `log`
    for `log_step`; `streams` when there is something to send to other shards. Set by whoever runs the steps; until then
    nobody is called."""

    full: Callable[[], None] = _nothing
    grown: Callable[[], None] = _nothing
    log: Callable[[], None] = _nothing
    streams: Callable[[], None] = _nothing
