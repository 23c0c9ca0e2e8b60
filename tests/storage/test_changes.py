"""Emptying a table and committing a load go through the log: ordered among the blocks, durable, or never there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stelae.format.fragment.footer import FragmentFile, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.declare import columns, declare
from stelae.model.errors import Corruption, DiskFull, NotFound
from stelae.model.hybrid import micros_of
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.mutation import Put
from stelae.model.schema import TableSchema
from stelae.model.values import Value
from stelae.storage.shard import Commit
from stelae.storage.tablet.changes import Emptied, Loaded, TableChange, decode_change, encode_change
from stelae.storage.tablet.state import with_prepared
from tests.storage.engine import TABLE, Engine

FIRST = TabletId(1)


@pytest.fixture
def schema() -> TableSchema:
    return declare({"id": "string"}, [columns("data", {"number": "int64"})])


def put(engine: Engine, **values: int) -> Txn:
    id_ = engine.schema.column("number")[1].id
    done = engine.write([Put(Row(name.encode()), ((id_, value),)) for name, value in values.items()])
    return done[-1][0]


def numbers(engine: Engine, at: Txn | None = None) -> dict[str, Value]:
    found = engine.scan(engine.shard.visible if at is None else at)
    return {row.decode(): values["number"] for row, values in found.items()}


def file_of(engine: Engine, name: str, values: dict[str, int]) -> FragmentFile:
    """A finished file without txns, as a bulk load writes it."""
    group = engine.schema.groups[0]
    spec = spec_of(TABLE, engine.schema, group, nulls="written", has_ts=False, has_txn=False, has_kind=False)
    sink = engine.blobs.create(name)
    writer = FragmentWriter(sink, spec, group.options)
    arrays = [pa.array(sorted(values)), pa.array([values[key] for key in sorted(values)], pa.int64())]
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=spec.arrow_schema()))
    footer, seal = writer.close()
    sink.commit()
    return FragmentFile(name, seal, footer.stats)


def prepare(engine: Engine, load: str, files: dict[TabletId, FragmentFile]) -> None:
    group = engine.schema.groups[0].id
    for tablet, file in files.items():
        engine.upkeep.change(tablet, lambda state, file=file: with_prepared(state, load, {group: [file]}))  # type: ignore[misc]
    engine.upkeep.save()


def commit(engine: Engine, change: TableChange) -> Commit:
    made = engine.upkeep.commit(TABLE, change)
    engine.shard.drain()
    return made


@pytest.mark.parametrize("how", ["close", "kill", "crash"])
@pytest.mark.parametrize("saved", [False, True], ids=["from the log", "from the config"])
def test_an_emptied_table_stays_empty_and_its_past_readable(schema: TableSchema, how: str, saved: bool) -> None:
    engine = Engine(schema)
    before = put(engine, a=1, b=2)
    engine.flush(FIRST)
    put(engine, c=3)
    floor = commit(engine, Emptied()).txn
    after = put(engine, a=9)
    if saved:
        engine.upkeep.save()
        engine.upkeep.collect_log()
    for _ in range(2):
        assert numbers(engine) == {"a": 9}
        assert numbers(engine, before) == {"a": 1, "b": 2}
        assert numbers(engine, Txn(floor - 1)) == {"a": 1, "b": 2, "c": 3}
        assert numbers(engine, floor) == {}
        assert numbers(engine, after) == {"a": 9}
        engine.restart(how)


def test_a_table_that_could_not_be_emptied_is_as_it_was(schema: TableSchema) -> None:
    engine = Engine(schema)
    put(engine, a=1)
    engine.disk.fail("sync", DiskFull)
    made = commit(engine, Emptied())
    with pytest.raises(DiskFull):
        made.durable.result(timeout=0)
    assert numbers(engine) == {"a": 1}
    put(engine, b=2)
    assert numbers(engine) == {"a": 1, "b": 2}
    engine.restart("crash")
    assert numbers(engine) == {"a": 1, "b": 2}


def test_nobody_sees_a_change_before_it_is_durable(schema: TableSchema) -> None:
    engine = Engine(schema)
    put(engine, a=1)
    made = engine.upkeep.commit(TABLE, Emptied())
    assert numbers(engine) == {"a": 1}
    assert engine.shard.visible < made.txn
    engine.shard.drain()
    assert numbers(engine) == {}


def loading(schema: TableSchema) -> tuple[Engine, Txn]:
    """Two tablets with rows of their own, and a load prepared for both."""
    engine = Engine(schema)
    before = put(engine, a=1, n=2)
    engine.split(FIRST, Row(b"m"))
    engine.upkeep.save()
    low, high = sorted(engine.shard.tablets(), key=lambda tablet: engine.shard.state(tablet).rows.start)
    files = {
        low: file_of(engine, "fragments/load/low", {"a": 10, "b": 20}),
        high: file_of(engine, "fragments/load/high", {"n": 30, "z": 40}),
    }
    prepare(engine, "job", files)
    return engine, before


@pytest.mark.parametrize("replaces", [False, True], ids=["added", "in place of all"])
@pytest.mark.parametrize("how", ["close", "kill", "crash"])
@pytest.mark.parametrize("saved", [False, True], ids=["from the log", "from the config"])
def test_a_load_appears_in_all_tablets_at_one_txn(schema: TableSchema, replaces: bool, how: str, saved: bool) -> None:
    engine, before = loading(schema)
    put(engine, c=3)
    assert numbers(engine) == {"a": 1, "c": 3, "n": 2}
    made = commit(engine, Loaded("job", replaces))
    if saved:
        engine.tidy()
    put(engine, b=21)
    kept = {} if replaces else {"c": 3}
    for _ in range(2):
        assert numbers(engine, before) == {"a": 1, "n": 2}
        assert numbers(engine, Txn(made.txn - 1)) == {"a": 1, "c": 3, "n": 2}
        assert numbers(engine, made.txn) == {"a": 10, "b": 20, "n": 30, "z": 40, **kept}
        assert numbers(engine) == {"a": 10, "b": 21, "n": 30, "z": 40, **kept}
        versions = engine.history([Row(b"b")], engine.shard.visible, limit=3)[Row(b"b")].versions["number"]
        assert [(v.value, v.txn, v.ts) for v in versions][1] == (20, made.txn, micros_of(made.txn))
        assert not any(state.prepared for state in engine.shard.tablets().values())
        engine.restart(how)
        engine.tidy()


def test_a_load_that_could_not_commit_is_still_prepared_and_can_commit_later(schema: TableSchema) -> None:
    engine, _ = loading(schema)
    engine.disk.fail("append", DiskFull)
    made = commit(engine, Loaded("job", replaces=True))
    with pytest.raises(DiskFull):
        made.durable.result(timeout=0)
    assert numbers(engine) == {"a": 1, "n": 2}
    assert all(len(state.prepared) == 1 for state in engine.shard.tablets().values())
    engine.restart("crash")
    assert numbers(engine) == {"a": 1, "n": 2}
    engine.upkeep.collect_files()
    commit(engine, Loaded("job", replaces=True)).durable.result(timeout=0)
    assert numbers(engine) == {"a": 10, "b": 20, "n": 30, "z": 40}


def test_committing_twice_changes_nothing(schema: TableSchema) -> None:
    engine, _ = loading(schema)
    commit(engine, Loaded("job", replaces=True))
    put(engine, a=11)
    for load in ("job", "unknown"):
        with pytest.raises(NotFound, match=load):
            commit(engine, Loaded(load, replaces=True))
    assert numbers(engine) == {"a": 11, "b": 20, "n": 30, "z": 40}


def test_a_load_in_place_of_all_empties_tablets_it_has_no_rows_for(schema: TableSchema) -> None:
    engine = Engine(schema)
    put(engine, a=1, z=2)
    engine.split(FIRST, Row(b"m"))
    low = min(engine.shard.tablets(), key=lambda tablet: engine.shard.state(tablet).rows.start)
    prepare(engine, "job", {low: file_of(engine, "fragments/load/low", {"b": 20})})
    commit(engine, Loaded("job", replaces=True))
    assert numbers(engine) == {"b": 20}
    engine.restart("crash")
    engine.tidy()
    engine.restart("crash")
    assert numbers(engine) == {"b": 20}


def test_what_is_not_durable_yet_is_saved_in_no_config(schema: TableSchema) -> None:
    engine = Engine(schema)
    put(engine, a=1)
    engine.upkeep.commit(TABLE, Emptied())
    engine.disk.fail("sync", DiskFull)
    engine.upkeep.save()
    assert numbers(engine) == {"a": 1}
    engine.restart("crash")
    assert numbers(engine) == {"a": 1}


def test_changes_have_bytes_that_are_checked() -> None:
    for change in (Emptied(), Loaded("x", True)):
        assert decode_change(encode_change(change), Txn(1)) == change
    with pytest.raises(Corruption, match="txn 7"):
        decode_change(b"\xc1", Txn(7))
