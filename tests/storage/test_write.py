"""A single put takes a short way into memory: it leaves there what the long way through `lower` leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.block import SmallBlock
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import StelaeError
from stelae.model.hybrid import micros_of, pack
from stelae.model.ids import ColumnId, Micros, Row, Txn
from stelae.model.mutation import Put
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.record import lower
from stelae.storage.memory.columns import ColumnsVersion, MemoryOfColumns
from stelae.storage.memory.insertion import insert
from stelae.storage.memory.memory import Memory
from tests.effort import examples

SCHEMA = declare(
    {"id": "binary"}, [columns("c", {"a": "int32", "b": "int32"}), columns("d", {"e": "int32"}), cells("f", ["click"])]
)
A, B, E = (SCHEMA.column(name)[1].id for name in ("a", "b", "e"))
TXNS = [pack(1_000 + ms, 0) for ms in range(8)]


def versions(memory: Memory, row: Row) -> dict[int, list[ColumnsVersion]]:
    groups = {id_: group for id_, group in memory.groups.items() if isinstance(group, MemoryOfColumns)}
    return {id_: list(group.versions_of(row)) for id_, group in groups.items()}


def put_at_length(memory: Memory, put: Put, txn: Txn) -> None:
    for id_, records in lower(SCHEMA, (put,), micros_of(txn)).items():
        memory.groups[id_].add(records, txn)  # type: ignore[arg-type]


rows = st.sampled_from([Row(b"a"), Row(b"b"), Row(b"m")])
values = st.lists(st.tuples(st.sampled_from([A, B, E]), st.sampled_from([1, 2, None])), max_size=4)
puts = st.builds(Put, rows, values.map(tuple), st.sampled_from([None, Micros(5), Micros(2_000_000)]))


@given(st.lists(puts, max_size=len(TXNS)), st.sampled_from([ALL_ROWS, RowRange(b"b", None), RowRange(b"", b"b")]))
@settings(max_examples=examples(100))
def test_the_short_way_leaves_what_the_long_way_leaves(some: list[Put], mine: RowRange) -> None:
    short, long = Memory(SCHEMA, mine), Memory(SCHEMA, mine)
    for put, txn in zip(some, TXNS, strict=False):
        took = insert(short, SmallBlock(SCHEMA.version, (put,)), txn, 100)
        assert took == (put.row in mine)
        if put.row in mine:
            put_at_length(long, put, txn)
    assert short.txns == [txn for put, txn in zip(some, TXNS, strict=False) if put.row in mine]
    for row in {put.row for put in some}:
        assert versions(short, row) == versions(long, row)
        assert short.last_txn(row) == long.last_txn(row)
        for id_, group in short.groups.items():
            other = long.groups[id_]
            if isinstance(group, MemoryOfColumns) and isinstance(other, MemoryOfColumns):
                assert group.newest_of(row) == other.newest_of(row)
                assert group.is_complete == other.is_complete


def test_a_column_that_is_not_there_is_refused() -> None:
    memory = Memory(SCHEMA, ALL_ROWS)
    with pytest.raises(StelaeError, match="99"):
        insert(memory, SmallBlock(SCHEMA.version, (Put(Row(b"a"), ((A, 1), (ColumnId(99), 1))),)), TXNS[0], 100)
    assert memory.is_empty


def test_what_is_taken_back_leaves_the_others_as_they_were() -> None:
    """One of one, one of two, one of three: a row that was written once is kept otherwise than one that was not."""
    memory = Memory(SCHEMA, ALL_ROWS)
    for number, row in enumerate([b"a", b"b", b"b", b"m", b"m", b"m"]):
        insert(memory, SmallBlock(SCHEMA.version, (Put(Row(row), ((A, number),)),)), TXNS[number], 100)
    memory.remove({TXNS[0], TXNS[2], TXNS[4]})
    found = {row: [v.values[A] for v in versions(memory, Row(row))[SCHEMA.groups[0].id]] for row in (b"a", b"b", b"m")}
    assert found == {b"a": [], b"b": [1], b"m": [3, 5]}
    group = memory.groups[SCHEMA.groups[0].id]
    assert isinstance(group, MemoryOfColumns)
    assert [group.newest_of(Row(row))[1] for row in (b"a", b"b", b"m")] == [True, True, True]


@pytest.mark.parametrize(("times", "is_plain"), [([5], True), ([5, 5], True), ([5, 4], False), ([4, 6, 5], False)])
def test_a_row_knows_whether_its_times_came_in_order(times: list[int], is_plain: bool) -> None:
    memory = Memory(SCHEMA, ALL_ROWS)
    for ts, txn in zip(times, TXNS, strict=False):
        insert(memory, SmallBlock(SCHEMA.version, (Put(Row(b"a"), ((A, 1),), Micros(ts)),)), txn, 100)
    group = memory.groups[SCHEMA.groups[0].id]
    assert isinstance(group, MemoryOfColumns)
    records, found = group.newest_of(Row(b"a"))
    assert [record.ts for record in records] == times
    assert found is is_plain
