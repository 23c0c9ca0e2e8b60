"""A table that is altered in the midst of a write of many rows: StaleSchema has the client make and write all of them
again, so it may be told only while none is durable. A row that was written, and changed by somebody else since, would
else be written a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import stelae
from stelae.client.calls.remainders import PartsLeft, Written, write_blocks
from stelae.client.calls.steps import Write
from stelae.client.intake.mutations import blocks_of
from stelae.client.remote.cluster.seen import SeenTime
from stelae.client.remote.cluster.writes import newest_written
from stelae.client.remote.writes import GroupsWritten, WriteGroup
from stelae.format.block import SmallBlock
from stelae.format.columnar import ColumnarBlock
from stelae.model.declare import columns, declare
from stelae.model.errors import NotFound, PartialWrite, StaleSchema, StelaeError, UnknownOutcome
from stelae.model.ids import Row, SchemaVersion, TableId, Txn
from stelae.model.mutation import Erase, WholeRow
from stelae.service.blocks import OrderedBlock, blocks_of_rows, cut_block
from stelae.service.messages import WriteMessage
from tests.client.plainly import mutations_in

STALE = StaleSchema("the table is at version 2")
TABLE = TableId(16)


def block(*rows: bytes) -> OrderedBlock:
    return OrderedBlock(SmallBlock(SchemaVersion(1), tuple(Erase(Row(row), WholeRow()) for row in rows)))


def group(*blocks: OrderedBlock) -> WriteGroup:
    return WriteGroup(WriteMessage(TABLE, None, (1,) * len(blocks)), b"", blocks)


def test_of_parts_on_several_shards() -> None:
    parts = {"a": [block(b"a")], "b": [block(b"x", b"y")]}
    with pytest.raises(StaleSchema):
        newest_written(parts, {"a": STALE, "b": STALE}, SeenTime())
    with pytest.raises(PartsLeft) as told:
        newest_written(parts, {"a": Txn(5), "b": STALE}, SeenTime())
    assert (told.value.cause, told.value.newest) == (STALE, 5)
    assert [each.first for each in told.value.left] == [b"x"]


def test_of_groups_on_one_connection() -> None:
    written = GroupsWritten()
    assert written.tell(STALE) is STALE
    written.take(group(block(b"a", b"b")), Txn(5))
    told = written.tell(STALE)
    assert isinstance(told, PartialWrite)
    assert told.durable == 2


def test_of_groups_one_of_which_is_durable_in_part_one_count_is_told() -> None:
    written = GroupsWritten()
    written.take(group(block(b"a", b"b")), Txn(5))
    told = written.tell(PartialWrite("3 rows are durable, the rest is not: it is full", 3, "it is full"))
    assert isinstance(told, PartialWrite)
    assert (str(told), told.durable) == ("the first 5 records are durable; then: it is full", 5)
    assert told.why == "it is full"


def _answered(written: Written, blocks: Sequence[OrderedBlock], *answers: StelaeError) -> list[int]:
    """How many records each write had, until the call has raised its error."""
    steps, counts = write_blocks(TABLE, blocks, None, False, written), []
    step = next(steps)
    for answer in answers:
        assert isinstance(step, Write)
        counts.append(sum(each.count for each in step.blocks))
        step = steps.throw(answer)
    return counts


def test_of_the_rest_of_a_write_that_found_no_room() -> None:
    """Only the rest of what is made anew is written."""
    blocks, written = [block(b"a", b"b"), block(b"c")], Written()
    with pytest.raises(StaleSchema):
        _answered(written, blocks, STALE)
    assert written.left is None
    with pytest.raises(StaleSchema):
        _answered(written, blocks, PartialWrite("no room", 2), STALE)
    assert written.rows_durable == 2
    step = next(write_blocks(TABLE, [block(b"a", b"b", b"c")], None, False, written))
    assert isinstance(step, Write)
    assert [each.first for each in step.blocks] == [b"c"]


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "columnar"])
def test_what_is_about_some_rows(is_large: bool) -> None:
    schema = declare({"id": "string"}, [columns("g", {"n": "int64"})])
    count = 1_000 if is_large else 5
    blocks = blocks_of(schema, [{"id": f"{n:03}", "n": n} for n in range(count)])
    assert isinstance(blocks[0].block, ColumnarBlock) == is_large
    (whole,) = blocks_of_rows(blocks, blocks[0].rows)
    assert whole is blocks[0]
    (some,) = blocks_of_rows(blocks, pa.array([b"001", b"003", b"zzz"], pa.binary()))
    assert some.rows.to_pylist() == [b"001", b"003"]
    assert mutations_in(schema, some.block) == [mutations_in(schema, whole.block)[n] for n in (1, 3)]
    assert blocks_of_rows(blocks, pa.array([b"zzz"], pa.binary())) == []


class Full:
    """A store that lets in some records of the first write of many rows, and then says what it is told to say. It
    counts records as stores do: of a row with cells there are several."""

    def __init__(self, behind: Any, durable: int, *then: StelaeError | Callable[[], object]) -> None:
        self._behind = behind
        self._durable = durable
        self._then = list(then)
        self.rows: list[list[bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    def write(self, table: TableId, blocks: Sequence[OrderedBlock], *given: Any, **named: Any) -> Txn:
        self.rows.append(sorted({row for each in blocks for row in each.rows.to_pylist()}))
        if len(self.rows) == 1:
            self._behind.write(table, [cut_block(blocks[0], self._durable)[0]], *given, **named)
            raise PartialWrite("full", self._durable)
        if self._then:
            answer = self._then.pop(0)
            if isinstance(answer, StelaeError):
                raise answer
            answer()
        txn: Txn = self._behind.write(table, blocks, *given, **named)
        return txn


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[stelae.Database, stelae.Database]]:
    with stelae.open(tmp_path, timeout_s=0.5) as db, stelae.open(tmp_path) as other:
        db.create_table("t", {"k": "string"}, [stelae.columns("g", {"v": "int64", "w": "int64"})])
        yield db, other


ROWS = [{"k": f"k{n}", "v": n, "w": n} for n in range(5)]


def test_a_write_that_goes_on_under_another_schema_is_whole(stores: tuple[stelae.Database, stelae.Database]) -> None:
    db, other = stores
    table = db.table("t")
    full = Full(db._session.backend, 2, lambda: other.alter_table("t", add={"g": {"x": "int64"}}))
    db._session.backend = cast(Any, full)
    table.put_many(ROWS)
    assert [len(rows) for rows in full.rows] == [5, 3, 3]
    assert list(table.scan()) == [{**row, "x": None} for row in ROWS]


@pytest.mark.parametrize("method", ["put_many", "erase_many"])
@pytest.mark.parametrize(
    ("then", "kind", "words"),
    [
        ([STALE] * 1_000, PartialWrite, "^2 of 5 rows are durable; then: the table is at version 2$"),
        ([NotFound("gone")], PartialWrite, "^2 of 5 rows are durable; then: gone$"),
        ([UnknownOutcome("lost")], UnknownOutcome, "^lost; 2 of 5 rows are durable, the others may be$"),
    ],
    ids=["late", "refused", "unknown"],
)
def test_whatever_ends_a_call_of_which_some_rows_are_durable_says_so(
    stores: tuple[stelae.Database, stelae.Database],
    method: str,
    then: list[StelaeError],
    kind: type[StelaeError],
    words: str,
) -> None:
    db, _ = stores
    table = db.table("t")
    db._session.backend = cast(Any, Full(db._session.backend, 2, *then))
    with pytest.raises(kind, match=words) as told:
        getattr(table, method)(ROWS if method == "put_many" else [row["k"] for row in ROWS])
    assert getattr(told.value, "durable", 2) == 2


def test_what_the_schema_takes_no_more_is_no_refusal_of_all_of_it(
    stores: tuple[stelae.Database, stelae.Database],
) -> None:
    """InvalidArgument says that nothing was written."""
    db, other = stores
    table = db.table("t")
    db._session.backend = cast(Any, Full(db._session.backend, 2, lambda: other.alter_table("t", drop=["v"])))
    with pytest.raises(PartialWrite, match=r"^2 of 5 rows are durable; then: .*'v'") as told:
        table.put_many(ROWS)
    assert told.value.durable == 2
    assert table.count() == 2


def test_rows_are_counted_and_not_records(tmp_path: Path) -> None:
    """The cut goes through the third row here, of which it is not said that it is durable."""
    with stelae.open(tmp_path) as db:
        table = db.create_table("t", {"k": "string"}, [stelae.cells("c", ["f"])])
        db._session.backend = cast(Any, Full(db._session.backend, 7, NotFound("gone")))
        with pytest.raises(PartialWrite, match=r"^2 of 3 rows are durable; then: gone$") as told:
            table.put_many([{"k": f"k{n}", "f:a": b"1", "f:b": b"2", "f:c": b"3"} for n in range(3)])
        assert told.value.durable == 2
