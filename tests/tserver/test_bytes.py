"""The bytes that a block came as are the bytes that are logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stelae.client.intake.mutations import blocks_of
from stelae.format.block import decode_block, encode_block
from stelae.format.log.chain import read_log
from stelae.model.ids import TableId
from stelae.service.blocks import OrderedBlock
from stelae.service.tables import AlterAsk, TableInfo
from tests.tserver.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def block(info: TableInfo, *keys: int) -> OrderedBlock:
    (made,) = blocks_of(info.schema, [{"id": key, "a": key} for key in keys])
    return made


def oddly_written(made: OrderedBlock) -> bytes:
    """The same block in bytes that our encoder would not write: the length of the outer list takes two bytes."""
    plain = bytes(encode_block(made.block))
    assert plain[2:3] == b"\x92"
    odd = plain[:2] + b"\xdc\x00\x02" + plain[3:]
    assert decode_block(odd) == made.block
    return odd


def logged(place: Place, table: TableId) -> Sequence[bytes]:
    records = [record for segment in read_log(place.machine.disk) for record in segment.records]
    return [bytes(record.payload) for record in records if record.table == table]


@pytest.mark.parametrize("keys", [(1,), (1, 2, 3)])
@pytest.mark.parametrize("how", ["write", "submit"])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_what_came_as_bytes_is_logged_as_it_came(
    place: Place, keys: tuple[int, ...], how: str, kind: type[bytes | memoryview]
) -> None:
    info = place.create()
    made = block(info, *keys)
    odd = oddly_written(made)
    asked = [OrderedBlock(made.block, made.given_rows, kind(odd))]
    if how == "write":
        place.store.write(info.id, asked)
    else:
        future = place.store.submit(info.id, asked)
        place.store.log_step()
        future.result()
    assert logged(place, info.id) == [odd]
    place.reopen("kill")
    assert place.keys(info.id) == list(keys)


def test_a_block_that_is_cut_is_written_anew(place: Place) -> None:
    info = place.create("t", 5)
    made = block(info, 1, 2, 8)
    place.store.write(info.id, [OrderedBlock(made.block, made.given_rows, oddly_written(made))])
    assert logged(place, info.id) == [bytes(encode_block(block(info, *keys).block)) for keys in ((1, 2), (8,))]


def test_a_block_that_is_brought_to_another_schema_is_written_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block is in when the table changes: the second follows as if it had come before that."""
    info = place.create()
    first, second = block(info, 1), block(info, 2)
    before, plain = [0, 1], place.server.shard.apply

    def alter_between(*args: Any, **options: Any) -> Any:
        if before and before.pop(0):
            place.store.alter("t", AlterAsk(add={"data": {"b": "int32"}}))
        return plain(*args, **options)

    monkeypatch.setattr(place.server.shard, "apply", alter_between)
    odd = [OrderedBlock(each.block, each.given_rows, oddly_written(each)) for each in (first, second)]
    place.store.write(info.id, odd)
    again = block(place.store.info(info.id), 2).block
    assert logged(place, info.id)[0] == odd[0].data
    assert decode_block(logged(place, info.id)[1]).schema_version == again.schema_version
    assert [place.get(info.id, key) for key in (1, 2)] == [1, 2]
