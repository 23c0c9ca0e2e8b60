"""A table that is altered in the midst of a write of many rows: StaleSchema has the client make and write all of them
again, so it may be told only while none is durable. A row that was written, and changed by somebody else since, would
else be written a second time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stelae.client.calls.remainders import Written, write_blocks
from stelae.client.calls.steps import Write
from stelae.client.remote.cluster.writes import PartsWritten
from stelae.client.remote.writes import GroupsWritten, WriteGroup
from stelae.format.block import SmallBlock
from stelae.model.errors import PartialWrite, StaleSchema, StelaeError, UnknownOutcome
from stelae.model.ids import Row, SchemaVersion, TableId, Txn
from stelae.model.mutation import Erase, WholeRow
from stelae.service.blocks import OrderedBlock
from stelae.service.messages import WriteMessage

STALE = StaleSchema("the table is at version 2")
TABLE = TableId(16)


def block(*rows: bytes) -> OrderedBlock:
    return OrderedBlock(SmallBlock(SchemaVersion(1), tuple(Erase(Row(row), WholeRow()) for row in rows)))


def group(*blocks: OrderedBlock) -> WriteGroup:
    return WriteGroup(WriteMessage(TABLE, None, (1,) * len(blocks)), b"", blocks)


def test_of_parts_on_several_shards() -> None:
    parts = {"a": [block(b"a")], "b": [block(b"x", b"y")]}
    written = PartsWritten([*parts["a"], *parts["b"]])
    assert written.take(parts, {"a": STALE, "b": STALE}) is STALE
    assert written.tell(STALE) is STALE
    assert written.take(parts, {"a": Txn(5), "b": STALE}) is STALE
    told = written.tell(STALE)
    assert isinstance(told, UnknownOutcome)
    assert "1 of 3 records are durable" in str(told)


def test_of_groups_on_one_connection() -> None:
    written = GroupsWritten()
    assert written.tell(STALE) is STALE
    written.take(group(block(b"a", b"b")), Txn(5))
    told = written.tell(STALE)
    assert isinstance(told, PartialWrite)
    assert told.durable == 2


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
    assert written.durable == 0
    with pytest.raises(StaleSchema):
        _answered(written, blocks, PartialWrite("no room", 2), STALE)
    assert written.durable == 2
    step = next(write_blocks(TABLE, blocks, None, False, written))
    assert isinstance(step, Write)
    assert [each.first for each in step.blocks] == [b"c"]
    with pytest.raises(PartialWrite, match="so that the rest are others") as told:
        next(write_blocks(TABLE, blocks[:1], None, False, written))
    assert told.value.durable == 2
