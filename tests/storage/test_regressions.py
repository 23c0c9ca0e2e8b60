"""Cases that once went wrong, each as small as it could be made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from stelae.format.block import SmallBlock
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import DiskFailed, InvalidArgument, Overloaded, SchemaChanged, StaleSchema
from stelae.model.ids import Micros, Row, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Erase, Mutation, Put, PutCell, WholeRow
from stelae.model.predicate.build import col
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.purge import parse_purge
from stelae.model.ranges import EVERYTHING
from stelae.model.schema import Column, ColumnsGroup, TableSchema
from stelae.storage.memory import rows as memory_rows
from stelae.storage.merge.rule import Erased, Written, survivors
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import ScanRequest
from stelae.storage.read.scans.tables import TableScan
from stelae.storage.tablet.changes import Loaded
from stelae.storage.upkeep.preloading import Preloading
from stelae.storage.upkeep.serializer import MemoryInfo, SerializerSettings, choose_memory
from tests.storage.engine import TABLE, Engine, selectors

FIRST = TabletId(1)


def table(*, in_memory: bool = False) -> TableSchema:
    return declare({"id": "string"}, [columns("g", {"n": "int64", "k": "int64"}, in_memory=in_memory)])


def put(engine: Engine, key: str, **values: int) -> list[Mutation]:
    ids = {name: engine.schema.column(name)[1].id for name in values}
    return [Put(Row(key.encode()), tuple((ids[name], value) for name, value in values.items()))]


def read_ahead(preloading: Preloading) -> None:
    while preloading.step():
        pass


def found(engine: Engine) -> dict[str, object]:
    return {row.decode(): values["n"] for row, values in engine.scan(engine.shard.visible).items()}


def altered_column(schema: TableSchema, column: str, **changes: object) -> TableSchema:
    groups = []
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            changed: tuple[Column, ...] = tuple(
                structs.replace(c, **changes) if c.name == column else c for c in group.columns
            )
            groups.append(structs.replace(group, columns=changed))
    return structs.replace(schema, version=SchemaVersion(schema.version + 1), groups=tuple(groups))


def test_memories_that_overlap_in_a_chain_are_flushed_oldest_first() -> None:
    """The largest overlapped the middle one, the middle one the oldest, and the middle one went first."""
    engine = Engine(table())
    engine.split(FIRST, Row(b"m"))
    engine.upkeep.save()
    engine.write(put(engine, "b", n=1))
    left, right = sorted(engine.shard.tablets())
    engine.join(left, right)
    engine.write(put(engine, "b2", n=2) + put(engine, "r", n=2))
    (whole,) = engine.shard.tablets()
    engine.split(whole, Row(b"p"))
    for _ in range(30):
        engine.write(put(engine, "r", n=3))
    engine.upkeep.save()
    memories = sorted((m for m in engine.shard.memories() if not m.is_empty), key=lambda m: m.txn_min)
    infos = [MemoryInfo(m.size_bytes, m.txn_min, m.rows, True) for m in memories]
    assert max(range(3), key=lambda at: infos[at].size_bytes) == 2
    assert choose_memory(infos, (), SerializerSettings()) == 0
    engine.upkeep.seal(max(engine.shard.tablets()))
    with pytest.raises(InvalidArgument, match="older memory"):
        engine.upkeep.flush(memories[2])
    assert choose_memory(infos[1:], (), SerializerSettings()) == 0
    engine.restart("crash")
    assert found(engine) == {"b": 1, "b2": 2, "r": 3}


def test_a_log_write_that_fails_beside_a_scan_takes_no_other_row_along(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(table())
    engine.write(put(engine, "a", n=1))
    for key in "xyz":
        engine.apply(FIRST, put(engine, key, n=2))
    engine.disk.fail("sync", DiskFailed)
    failed: list[bool] = []

    def sorting(rows: list[Row]) -> list[Row]:
        if not failed:
            failed.append(True)
            engine.shard.drain()
        return sorted(rows)

    monkeypatch.setattr(memory_rows, "sorted", sorting, raising=False)
    assert found(engine) == {"a": 1}
    assert failed
    for key in "pxyz":
        engine.write(put(engine, key, n=3))
    wanted = {"a": 1, "p": 3, "x": 3, "y": 3, "z": 3}
    assert found(engine) == wanted
    engine.flush(FIRST)
    assert found(engine) == wanted


def test_what_the_log_changed_since_the_last_save_is_saved_before_the_log_goes() -> None:
    engine = Engine(table())
    engine.write(put(engine, "a", n=1))
    engine.flush(FIRST)
    engine.tidy()
    engine.prepare_load("job", put(engine, "b", n=2, k=2))
    engine.change(Loaded("job", replaces=True))
    for _ in range(3):
        engine.restart("crash")
        assert found(engine) == {"b": 2}
        engine.tidy()


@pytest.mark.parametrize("change", [{"name": "m"}, {"default": 7}], ids=["renamed", "another default"])
def test_a_scan_under_which_a_column_changes_says_so(change: dict[str, object]) -> None:
    engine = Engine(table())
    for key in "amz":
        engine.write(put(engine, key, n=1))
    engine.split(FIRST, Row(b"m"))
    request = ScanRequest(EVERYTHING, ALL_COLUMNS, Asking(engine.shard.visible, Txn(0), Micros(0)))
    scan = iter(TableScan(engine.shard, TABLE, engine.schema, request))
    assert next(scan).batch.num_rows == 1
    engine.alter(altered_column(engine.schema, "n", **change))
    with pytest.raises(SchemaChanged, match="version 1 to 2"):
        list(scan)


def test_a_scan_goes_on_when_another_column_changes() -> None:
    engine = Engine(table())
    for key in "amz":
        engine.write(put(engine, key, n=1))
    engine.split(FIRST, Row(b"m"))
    asking = Asking(engine.shard.visible, Txn(0), Micros(0))
    request = ScanRequest(EVERYTHING, selectors(["n"]), asking, where=col("n") == 1)
    scan = iter(TableScan(engine.shard, TABLE, engine.schema, request))
    next(scan)
    engine.alter(altered_column(engine.schema, "k", name="other"))
    assert sum(batch.batch.num_rows for batch in scan) == 2


def test_a_predicate_on_a_cell_of_one_group_is_not_lost_in_another() -> None:
    engine = Engine(declare({"id": "string"}, [cells("g", families=["f"]), cells("h", families=["h"])]))
    row = Row(b"a")
    engine.write([PutCell(row, "f", "q", b"x"), PutCell(row, "h", "q", b"y")])
    for name, value in (("f:q", b"x"), ("h:q", b"y")):
        asking = Asking(engine.shard.visible, Txn(0), Micros(0))
        request = ScanRequest(EVERYTHING, ALL_COLUMNS, asking, where=col(name) == value)
        assert [batch.rows.to_pylist() for batch in TableScan(engine.shard, TABLE, engine.schema, request)] == [[row]]


def test_blocks_of_a_load_read_before_its_commit_do_not_stay_without_a_txn() -> None:
    engine = Engine(table(in_memory=True))
    engine.write(put(engine, "a", n=1))
    before = engine.shard.visible
    engine.prepare_load("job", put(engine, "a", n=2, k=2) + put(engine, "b", n=2, k=2))
    preloading = Preloading(engine.shard)
    while preloading.step():
        pass
    engine.change(Loaded("job"))
    while preloading.step():
        pass
    rows = [Row(b"a"), Row(b"b")]
    assert {row: values["n"] for row, values in engine.newest_values(rows, before).items()} == {b"a": 1}
    assert {row: values["n"] for row, values in engine.newest_values(rows, engine.shard.visible).items()} == {
        b"a": 2,
        b"b": 2,
    }


def test_a_block_of_another_schema_version_is_refused() -> None:
    engine = Engine(table())
    block = SmallBlock(engine.schema.version, tuple(put(engine, "a", n=1)))
    engine.alter(altered_column(engine.schema, "n", name="m"))
    with pytest.raises(StaleSchema, match="schema version 2"):
        engine.shard.apply(FIRST, block)


def test_compaction_does_not_pick_what_it_cannot_make_smaller() -> None:
    engine = Engine(table())
    engine.split(FIRST, Row(b"m"))
    engine.write(put(engine, "a", n=1))
    for key in "rst":
        engine.write(put(engine, key, n=1))
        engine.write([Erase(Row(key.encode()), WholeRow())])
    left, right = sorted(engine.shard.tablets())
    engine.flush(right)
    engine.join(left, right)
    (whole,) = engine.shard.tablets()
    engine.shard.advance_horizon(TABLE, engine.shard.visible)
    picks = 0
    while engine.compact(whole, whole_group=False):
        picks += 1
        assert picks < 5
    assert found(engine) == {"a": 1}


def test_writers_that_wait_for_room_are_woken_when_what_filled_it_failed() -> None:
    engine = Engine(table())
    shard = engine.shard
    shard.settings = replace(shard.settings, unflushed_bytes_max=5_000, reserve_bytes=0)
    with pytest.raises(Overloaded):  # noqa: PT012
        for number in range(100):
            engine.apply(FIRST, put(engine, f"{number}", n=1))
    waiting = shard.when_room()
    engine.disk.fail("sync", DiskFailed)
    shard.drain()
    assert shard.unflushed_bytes() == 0
    assert waiting.done()


@pytest.mark.parametrize("policy", [None, "max-history=5000 and max-age=1d", "max-age=1d"])
def test_the_rule_takes_many_versions_and_erasures(policy: str | None) -> None:
    """A quadratic rule took minutes here."""
    count = 20_000
    puts = [Written(Micros(n), Txn(2 * n), n) for n in range(count)]
    erased = [Erased(Micros(n), Txn(2 * n + 1), is_exact=True) for n in range(0, count, 2)]
    kept = survivors(puts, erased, None if policy is None else parse_purge(policy), Micros(count))
    assert [put.held for put in kept] == list(range(count - 1, 0, -2))
