"""Tablets' records, schema versions and alterations: what processes know together about tables, in small pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from stelae.catalog.commands.tables import CreateTable, DropTable, ForgetTable, RecallTable, RenameTable, TableName
from stelae.catalog.decide import Command, decide_batch
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model.declare import columns, declare
from stelae.model.errors import Corruption, NotFound
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.ranges import RowRange, check_cover
from stelae.ports.metastore import PutKey, Revision
from stelae.registry import tablet_records
from stelae.registry.alterations import commands_of
from stelae.registry.control import cut_ranges
from stelae.registry.schema_versions import SchemaVersions
from stelae.registry.tablet_records import (
    TabletPhase,
    TabletRecord,
    read_tablets,
    tablet_key,
    take_tablet_ids,
    write_tablets,
)
from stelae.service.tables import AlterAsk
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import MetastoreFaults, SimMetastore, SimMetastoreServer
from stelae.sim.rng import SimRng

SCHEMA = declare({"id": "binary"}, [columns("data", {"a": "int32", "b": "string"})])
T = TableName.parse("t")


def with_store(job: object, faults: MetastoreFaults | None = None) -> None:
    async def world(loop: SimLoop) -> None:
        store = SimMetastoreServer(loop, SimRng(1), faults or MetastoreFaults()).client("one")
        await job(store)  # type: ignore[operator]

    simulate(world, 1)


def record(tablet: int, table: int = 20) -> TabletRecord:
    return TabletRecord(
        TabletId(tablet), TableId(table), RowRange(b"\x00\xff", None), TabletPhase.RUNNING, "s1", 5, True
    )


def test_records_are_read_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pages and pieces, whatever their number."""
    monkeypatch.setattr(tablet_records, "_PAGE", 7)
    monkeypatch.setattr(tablet_records, "_CHANGES_MAX", 5)

    async def job(store: SimMetastore) -> None:
        many = [record(tablet, table) for table in (20, 300) for tablet in range(1, 20)]
        known: dict[str, Revision] = {}
        await write_tablets(store, known, many)
        assert await read_tablets(store) == many
        await write_tablets(store, known, [], many[::2])
        assert await read_tablets(store) == many[1::2]
        await write_tablets(store, known, [], many)
        assert await read_tablets(store) == []

    with_store(job)


def test_a_record_that_cannot_be_read_names_its_key() -> None:
    async def job(store: SimMetastore) -> None:
        key = tablet_key(TableId(20), TabletId(1))
        await store.txn([], [PutKey(key, b"\xc1")])
        with pytest.raises(Corruption, match=key):
            await read_tablets(store)

    with_store(job)


def test_ids_are_given_out_once() -> None:
    async def job(store: SimMetastore) -> None:
        async def take(count: int) -> list[TabletId]:
            return await take_tablet_ids(store, count)

        jobs: list[Awaitable[list[TabletId]]] = [take(1 + number % 3) for number in range(12)]
        taken = [id_ for ids in await asyncio.gather(*jobs) for id_ in ids]
        assert len(taken) == len(set(taken)) == 24
        assert min(taken) >= 16, "the first ones are those of the META tables"

    with_store(job, MetastoreFaults(delay_s_max=0.5))


def test_cut_ranges_cover_all_rows() -> None:
    assert cut_ranges([]) == [RowRange(b"", None)]
    check_cover(cut_ranges([b"a", b"b", b"c"]))  # type: ignore[list-item]


class Told:
    """A catalog, and the schemas of its tables as they are followed."""

    def __init__(self) -> None:
        self.catalog: Catalog = empty_catalog()
        self.schemas = SchemaVersions()
        self.schemas.begin(self.catalog)

    def do(self, *commands: Command) -> None:
        entries = decide_batch(self.catalog, commands)
        version = CatalogVersion(self.catalog.version + 1)
        update = Update(version, Txn(self.catalog.activation + 1), b"", "", entries)
        self.catalog = apply_update(self.catalog, update)
        self.schemas.follow(self.catalog, update)

    def versions(self, table: TableId) -> list[int]:
        return [schema.version for schema in self.schemas.of(table)]


def test_schemas_are_kept_oldest_first_until_the_table_is_forgotten() -> None:
    told = Told()
    told.do(CreateTable(T, SCHEMA))
    (table,) = told.catalog.tables
    first = told.versions(table)
    assert len(first) == 1
    told.do(*commands_of(T, AlterAsk(add={"data": {"c": "int32"}})))
    told.do(*commands_of(T, AlterAsk(properties={"comment": "no new schema"})))
    told.do(RenameTable(T, TableName.parse("u")))
    told.do(*commands_of(TableName.parse("u"), AlterAsk(drop=("a",))))
    assert told.versions(table) == sorted(told.versions(table))
    assert len(told.versions(table)) == 3
    assert told.schemas.of(table)[-1] == told.catalog.tables[table].schema
    told.do(DropTable(TableName.parse("u")))
    assert len(told.versions(table)) == 3
    again = SchemaVersions()
    again.begin(told.catalog)
    assert again.of(table) == told.schemas.of(table)[-1:], "a snapshot knows the newest alone, of dropped ones too"
    told.do(RecallTable(TableName.parse("u")))
    assert len(told.versions(table)) == 3
    told.do(DropTable(TableName.parse("u")))
    told.do(ForgetTable(table))
    assert table not in told.schemas
    with pytest.raises(NotFound, match="nothing is known of a table"):
        told.schemas.of(table)


def test_changes_of_one_call_happen_together_and_in_order() -> None:
    """A name that is given up can be taken in the same call."""
    told = Told()
    told.do(CreateTable(T, SCHEMA))
    (table,) = told.catalog.tables
    ask = AlterAsk(
        drop=("b",),
        rename_columns={"a": "b"},
        widen={"b": "int64"},
        add={"data": {"a": "string"}},
        properties={"comment": "words", "retention": "2h"},
        purge={"data": "max-history=3"},
        rename="u",
    )
    before = told.catalog.version
    told.do(*commands_of(T, ask))
    assert told.catalog.version == before + 1
    found = told.catalog.tables[table]
    group = found.schema.groups[0]
    assert [(c.name, str(c.type)) for c in group.columns] == [("b", "int64"), ("a", "string")]  # type: ignore[union-attr]
    assert (found.name, found.properties.comment) == ("u", "words")
    assert group.options.purge is not None


def test_nothing_to_change_is_no_command() -> None:
    assert commands_of(T, AlterAsk()) == []
    other = replace(T, namespace="other")
    (renamed,) = commands_of(other, AlterAsk(rename="u"))
    assert renamed == RenameTable(other, TableName("other", "u"))
    (moved,) = commands_of(other, AlterAsk(rename="third.u"))
    assert moved == RenameTable(other, TableName("third", "u"))
