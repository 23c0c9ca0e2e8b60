"""Servers by themselves: no master, no assembly, two of them in one process."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from stelae.catalog.objects import NamespaceId, Table, ZoneId
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.model.declare import columns, declare
from stelae.model.errors import Closed, NotFound, TabletAway
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Row, TableId, TabletId
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.schema import TableSchema
from stelae.registry.control import CreateTablets, DeleteTablets, NewTablet, SplitTablet, reported_ids
from stelae.registry.known_tables import TableRules
from stelae.registry.meta import META0, META1, META_SCHEMA
from stelae.registry.tablet_records import TabletRecord
from stelae.service.backend import TabletService
from stelae.service.scans import ScanAsk
from stelae.service.tables import TableInfo
from stelae.sim.rng import SimRng
from stelae.storage.shard import ShardSettings
from stelae.tserver.lives import Life
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

    def schemas_of(self, table: TableId) -> Sequence[TableSchema]:
        return [META_SCHEMA] if table in (META0, META1) else [SCHEMA]

    def rules(self, table: TableId) -> TableRules | None:
        return TableRules(0, 2**30) if table in self.named else None


class NoMaster:
    """A `MasterLink` to nobody."""

    def split(self, tablet: TabletId, at: Row) -> None:
        raise AssertionError("nothing here is large enough")

    def join(self, left: TabletId, right: TabletId) -> None:
        raise AssertionError("nothing here was ever split by its size")

    def record(self, tablet: TabletId) -> TabletRecord | None:
        return None


class Box:
    """One machine with one server."""

    def __init__(self, name: str, seed: int, *tables: str) -> None:
        self.name = name
        self.machine = SimMachine(seed)
        self.tables = FewTables(*tables)
        self.server = self.open()

    def open(self) -> TabletServer:
        loop, machine = self.machine.start(), self.machine
        time, rng = HybridClock(machine.clock.wall_ms), SimRng(machine.lives)
        ports = ServerPorts(machine.disk, machine.blobs, machine.metastore, machine.clock, time, rng, loop)
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
            assert service.newest(table, row(key), ALL_COLUMNS) == {"a": value}
        return found


T, U = TableId(100), TableId(101)


@pytest.mark.parametrize("how", ["closed", "kill", "power"])
def test_two_servers_in_one_process(how: str) -> None:
    one, two = Box("one", 1, "t", "u"), Box("two", 2, "t")
    halves = (NewTablet(TabletId(10), T, RowRange(b"", row(5))), NewTablet(TabletId(11), T, RowRange(row(5), None)))
    assert reported_ids(one.server.ask(CreateTablets((*halves, NewTablet(TabletId(12), U, ALL_ROWS))))) == {10, 11, 12}
    assert reported_ids(two.server.ask(CreateTablets((NewTablet(TabletId(10), T, ALL_ROWS),)))) == {10}
    one.put(T, *range(10), a=1)
    one.put(U, 3, a=2)
    two.put(T, 1, 7, a=3)
    one.server.flush(T)
    one.put(T, 4, 6, a=4)

    def as_written() -> None:
        assert one.rows(T) == dict.fromkeys(range(10), 1) | {4: 4, 6: 4}
        assert one.rows(U) == {3: 2}
        assert two.rows(T) == {1: 3, 7: 3}

    as_written()
    one.reopen(how)
    as_written()
    assert {each.tablet: each.life for each in one.server.tablets(T)} == {10: "ACTIVE", 11: "ACTIVE"}
    assert {each.phase for each in one.server.tablets(T)} == {"unknown"}, "no master has recorded it"
    one.server.ask(SplitTablet(TabletId(11), row(8), TabletId(13), TabletId(14)))
    one.put(T, 8, a=5)
    assert one.rows(T)[8] == 5
    assert two.rows(T) == {1: 3, 7: 3}, "the other goes on"
    one.end()
    with pytest.raises(Closed, match="the box of one is closed"):
        one.put(T, 1, a=1)
    two.put(T, 2, a=6)
    two.end()


def test_a_deleted_tablet_leaves_nothing_but_its_name() -> None:
    box = Box("one", 3, "t")
    box.server.ask(CreateTablets((NewTablet(TabletId(10), T, ALL_ROWS),)))
    box.put(T, 1, a=1)
    box.server.flush(T)
    box.server.ask(DeleteTablets((TabletId(10),)))
    assert box.server.life(TabletId(10)) is Life.UNKNOWN
    with pytest.raises(TabletAway):
        box.rows(T)
    while box.server.compact_step():
        pass
    assert box.machine.files() == set()
    del box.tables.named[T]
    with pytest.raises(NotFound, match="was dropped"):
        box.rows(T)
    box.end()
