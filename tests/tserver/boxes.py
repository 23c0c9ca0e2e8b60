"""A server by itself on a simulated machine: no master, no assembly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stelae.catalog.objects import NamespaceId, Table, ZoneId
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.model.declare import columns, declare
from stelae.model.errors import NotFound, Unavailable
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TableId, TabletId
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.schema import TableSchema
from stelae.registry.known_tables import TableRules
from stelae.registry.meta import META0, META1, META_SCHEMA
from stelae.registry.tablet_records import TabletRecord
from stelae.registry.views.own import OwnWhole
from stelae.service.backend import TabletService
from stelae.service.scans import ScanAsk
from stelae.service.tables import TableInfo
from stelae.sim.rng import SimRng
from stelae.storage.shard import ShardSettings
from stelae.tserver.server import TabletServer
from stelae.tserver.surroundings import ServerPorts, ServerSettings
from tests.machines import SimMachine

SCHEMA = declare({"id": "int64"}, [columns("data", {"a": "int32"})])


def row(key: int) -> Row:
    return key_of(SCHEMA, key)


class FewTables:
    """A `Tables` of what a test says."""

    def __init__(self, *names: str) -> None:
        self.named = {TableId(100 + at): name for at, name in enumerate(names)}

    def info(self, table: TableId) -> TableInfo:
        if table not in self.named:
            raise NotFound(f"table {table} was dropped")
        made = Table(table, NamespaceId(1), self.named[table], ZoneId(1), SCHEMA)
        return TableInfo(made, self.named[table], "default")

    def ids(self) -> Collection[TableId]:
        return self.named.keys()

    def kept(self) -> Collection[TableId]:
        return self.named.keys()

    def is_known(self, table: TableId) -> bool:
        return True

    def schemas_of(self, table: TableId) -> Sequence[TableSchema]:
        return [META_SCHEMA] if table in (META0, META1) else [SCHEMA]

    def rules(self, table: TableId) -> TableRules | None:
        return TableRules(0, 2**30) if table in self.named else None


class NoMaster:
    """A `MasterLink` to nobody: whatever is asked of it stays undone."""

    def split(self, tablet: TabletId, at: Row) -> None:
        raise Unavailable("there is no master")

    def join(self, left: TabletId, right: TabletId) -> None:
        raise Unavailable("there is no master")

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        return {}


class Box:
    """One machine with one server."""

    def __init__(self, name: str, machine: SimMachine, *tables: str) -> None:
        self.name = name
        self.machine = machine
        self.tables = FewTables(*tables)
        self.server = self.open()

    def open(self) -> TabletServer:
        loop, machine = self.machine.start(), self.machine
        time, rng = HybridClock(machine.clock.wall_ms), SimRng(machine.lives)
        ports = ServerPorts(machine.disk, machine.blobs, OwnWhole(machine.metastore), machine.clock, time, rng, loop)
        settings = ServerSettings(self.name, f"the box of {self.name}", shard=ShardSettings(cache_bytes=2**20))
        return TabletServer.open(ports, self.tables, NoMaster(), settings)

    def reopen(self, how: str) -> None:
        if how == "closed":
            self.server.close()
        self.machine.end(how)
        self.server = self.open()

    def end(self) -> None:
        self.server.close()
        self.machine.end("closed")

    def put(self, table: TableId, *keys: int, a: int) -> None:
        self.server.write(table, blocks_of(SCHEMA, [{"id": key, "a": a} for key in keys]))

    def rows(self, table: TableId) -> dict[int, int]:
        service: TabletService = self.server
        pin = service.pin()
        found: dict[int, int] = {}
        for batch in service.scan(table, ScanAsk(ScanPredicate(), pin.txn)):
            found.update(zip(batch.column("id").to_pylist(), batch.column("a").to_pylist(), strict=True))
        pin.close()
        for key, value in found.items():
            assert service.newest(table, row(key), ALL_COLUMNS)[1] == {"a": value}
        return found
