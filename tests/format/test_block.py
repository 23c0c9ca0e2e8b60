"""Blocks come back as they were; any other bytes are refused with a clear error."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.format import layout
from stelae.format.block import (
    BLOCK_VERSION,
    SmallBlock,
    _decode_small,
    decode_block,
    decode_single,
    encode_block,
    schema_version_of,
)
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument, UnsupportedFormat
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, Micros, Row, SchemaVersion
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from tests.strategies import column_types, texts, values

VERSION = SchemaVersion(7)
rows = st.binary(max_size=8).map(Row)
times = st.integers(TS_MIN, TS_MAX).map(Micros)
ids = st.integers(1, 2**31 - 1).map(ColumnId)
any_value = st.none() | column_types.flatmap(values)
cells = st.builds(Cell, texts, texts)
columns = st.builds(Columns, st.lists(ids, max_size=3).map(tuple))
mutations: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, rows, st.lists(st.tuples(ids, any_value), max_size=4).map(tuple), st.none() | times),
    st.builds(PutCell, rows, texts, texts, st.binary(max_size=20), st.none() | times),
    st.builds(Erase, rows, st.just(WholeRow()) | st.builds(WholeFamily, texts) | columns | cells, st.none() | times),
    st.builds(EraseVersion, rows, columns | cells, times),
)


def same(a: object, b: object) -> bool:
    """Equal, and of the same types all the way down: 1 is not 1.0 or True."""
    return a == b and repr(a) == repr(b)


@given(st.lists(mutations, max_size=6))
def test_small_blocks_come_back(given_: list[Mutation]) -> None:
    block = SmallBlock(VERSION, tuple(given_))
    assert same(decode_block(encode_block(block)), block)


@given(mutations, st.sampled_from([1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1]))
def test_a_single_put_is_read_at_once_and_nothing_else_is(mutation: Mutation, version: int) -> None:
    data = encode_block(SmallBlock(SchemaVersion(version), (mutation,)))
    for given_ in (data, memoryview(data)):
        found = decode_single(given_)
        if not isinstance(mutation, Put):
            assert found is None
        else:
            assert found is not None
            schema_version, row, columns_, values_, ts = found
            assert schema_version == version
            assert same(Put(row, tuple(zip(columns_, values_, strict=True)), ts), mutation)
    assert decode_single(encode_block(SmallBlock(VERSION, (mutation, mutation)))) is None
    assert decode_single(encode_block(SmallBlock(VERSION, ()))) is None


@given(st.lists(mutations, max_size=3), st.sampled_from([1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1]))
def test_the_schema_that_a_block_names_is_read_without_the_rest(given_: list[Mutation], version: int) -> None:
    data = encode_block(SmallBlock(SchemaVersion(version), tuple(given_)))
    many = encode_block(ColumnarBlock(SchemaVersion(version), ColumnarOp.PUT, False, plain_batch(2)))
    assert schema_version_of(data) == schema_version_of(memoryview(data)) == schema_version_of(many) == version


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\x01\x92", b"\x02\x01\x92\x07\x90", b"\x01\x03\x92\x07", b"\x01\x01\x92\xa1"]
)
def test_bytes_that_are_no_block_name_no_schema(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="begin with no schema version"):
        schema_version_of(data)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    types = draw(st.lists(column_types, min_size=1, max_size=3))
    count = draw(st.integers(0, 4))
    arrays: list[Any] = []
    for type_ in types:
        column = draw(st.lists(st.none() | values(type_), min_size=count, max_size=count))
        arrays.append(pa.array(column, to_arrow(type_)))
    fields = [layout.user_field(f"c{i}", a.type, i + 1, nullable=True) for i, a in enumerate(arrays)]
    return pa.record_batch(
        [pa.array([b"r"] * count, pa.binary()), *arrays], schema=pa.schema([layout.system_field(layout.ROW), *fields])
    )


@given(batches(), st.booleans())
def test_columnar_blocks_come_back(batch: pa.RecordBatch, nulls_written: bool) -> None:
    block = decode_block(encode_block(ColumnarBlock(VERSION, ColumnarOp.PUT, nulls_written, batch)))
    assert isinstance(block, ColumnarBlock)
    assert block.batch.equals(batch, check_metadata=True)
    assert (block.schema_version, block.op, block.nulls_written) == (VERSION, ColumnarOp.PUT, nulls_written)


def plain_batch(count: int = 50) -> pa.RecordBatch:
    schema = pa.schema([layout.user_field("k", pa.string(), 1, False), layout.user_field("v", pa.int32(), 2, True)])
    return pa.record_batch(
        [pa.array([f"k{i}" for i in range(count)]), pa.array(range(count), pa.int32())], schema=schema
    )


SAMPLES = [
    encode_block(
        SmallBlock(
            VERSION,
            (
                Put(Row(b"row"), ((ColumnId(1), "x"), (ColumnId(2), None), (ColumnId(3), [1.0] * 9)), None),
                PutCell(Row(b"row"), "f", "q", b"value", Micros(5)),
                Erase(Row(b"row"), WholeRow(), Micros(9)),
                EraseVersion(Row(b"row"), Cell("f", "q"), Micros(3)),
            ),
        )
    ),
    encode_block(ColumnarBlock(VERSION, ColumnarOp.PUT, True, plain_batch())),
    encode_block(SmallBlock(VERSION, (Put(Row(b"row"), ((ColumnId(1), "x"), (ColumnId(2), [1, None])), Micros(5)),))),
]


def test_a_single_put_of_any_bytes_is_what_the_general_way_makes_of_them() -> None:
    chance = random.Random(5)
    puts = 0
    for _ in range(20_000):
        data = bytearray(SAMPLES[2])
        for _ in range(chance.randrange(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        put = decode_single(bytes(data))
        if put is not None:
            puts += 1
            version, row, columns_, values_, ts = put
            pairs = tuple(zip(columns_, values_, strict=True))
            assert same(SmallBlock(version, (Put(row, pairs, ts),)), _decode_small(bytes(data)))
    assert 1_000 < puts < 19_000


@pytest.mark.parametrize("sample", SAMPLES, ids=["small", "columnar", "single"])
def test_mutated_blocks_are_a_block_or_refused(sample: bytes) -> None:
    chance = random.Random(3)
    refused = 0
    for _ in range(20_000):
        data = bytearray(sample)
        for _ in range(chance.randrange(1, 4)):
            match chance.randrange(3):
                case 0:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(len(data)) :]
                case _:
                    at = chance.randrange(len(data) + 1)
                    data[at:at] = chance.randbytes(chance.randrange(1, 5))
            if not data:
                break
        try:
            block = decode_block(bytes(data))
        except (InvalidArgument, UnsupportedFormat):
            refused += 1
        else:
            assert isinstance(block, SmallBlock | ColumnarBlock)
    assert refused > 10_000


@given(st.binary(max_size=60))
def test_random_bytes_are_refused(data: bytes) -> None:
    for prefix in (b"", bytes((BLOCK_VERSION, 1)), bytes((BLOCK_VERSION, 2))):
        try:
            decode_block(prefix + data)
        except (InvalidArgument, UnsupportedFormat):
            continue
        assert prefix


def columnar_bytes(batch: pa.RecordBatch, op: int = 1, **options: Any) -> bytes:
    header = msgspec.msgpack.encode([7, op, True])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch)
    return bytes((BLOCK_VERSION, 2)) + struct.pack("<I", len(header)) + header + sink.getvalue().to_pybytes()


def small(body: object) -> bytes:
    return bytes((BLOCK_VERSION, 1)) + msgspec.msgpack.encode(body)


def _rows_of_nothing(type_: pa.DataType) -> pa.RecordBatch:
    """Two billion rows that take no bytes."""
    column = pa.Array.from_buffers(type_, 2**31 - 1, [None], children=[pa.array([], pa.float32())] * type_.num_fields)
    return pa.record_batch([column], schema=pa.schema([layout.user_field("v", type_, 2, True)]))


def with_time(ts: int) -> pa.RecordBatch:
    times = pa.array([ts], pa.int64()).view(pa.timestamp("us", "UTC"))
    schema = pa.schema([layout.user_field("k", pa.string(), 1, False), layout.system_field(layout.TS)])
    return pa.record_batch([pa.array(["a"]), times], schema=schema)


def twice() -> pa.RecordBatch:
    fields = [layout.user_field(name, pa.int32(), 2, True) for name in ("a", "b")]
    return pa.record_batch([pa.array([1], pa.int32())] * 2, schema=pa.schema(fields))


def with_field(type_: pa.DataType, name: str = "v", id_: int | None = 2) -> pa.RecordBatch:
    field = layout.user_field(name, type_, id_, True) if id_ else pa.field(name, type_)
    return pa.record_batch([pa.nulls(3, type_)], schema=pa.schema([field]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (columnar_bytes(plain_batch(5_000), compression="zstd"), "compressed batches are not allowed"),
        (columnar_bytes(plain_batch(5_000), compression="lz4"), "compressed batches are not allowed"),
        (columnar_bytes(plain_batch()) + b"more", "bytes follow|block:"),
        (columnar_bytes(plain_batch(), op=9), "9 is not a valid ColumnarOp"),
        (columnar_bytes(plain_batch(), op=2), "do not make a columnar put_cells"),
        (columnar_bytes(with_field(pa.large_string())), "column 'v' of large_string is not one a table can have"),
        (columnar_bytes(with_field(pa.time64("us"))), "no column type holds"),
        (columnar_bytes(with_field(pa.int32(), id_=None)), "column 'v' of int32"),
        (columnar_bytes(with_field(pa.int32(), name="_ts")), "column '_ts'"),
        (columnar_bytes(with_field(pa.binary(), name="_row")), "column '_row' has a null"),
        (
            columnar_bytes(pa.record_batch([pa.array(["a"]).dictionary_encode()], names=["v"])),
            "a dictionary message is not allowed",
        ),
        (b"\x01", "1 bytes; a block has from 2 to"),
        (columnar_bytes(_rows_of_nothing(pa.struct([]))), "block: "),
        (columnar_bytes(_rows_of_nothing(pa.list_(pa.float32(), 0))), "block: "),
        (columnar_bytes(pa.RecordBatch.from_struct_array(_rows_of_nothing(pa.struct([])).column(0))), "which rows"),
        (columnar_bytes(with_time(2**62)), "outside the years 1 to 9999"),
        (columnar_bytes(twice()), "a column stands twice"),
        (columnar_bytes(with_field(pa.int32(), id_=99999999999)), "column 'v' of int32"),
        (small([7, [[1, b"r", [1], [[{}] * 600_000], None]] * 2]), "bytes of nested values; at most"),
        (small([7, [[3, b"", None]] * 100_001]), "block: "),
        (bytes(65 * 1024 * 1024), "a block has from 2 to"),
        (bytes((BLOCK_VERSION, 3)), "no encoding 3"),
        (bytes((BLOCK_VERSION, 1)) + msgspec.msgpack.encode([7, [[9, b"r"]]]), "block: "),
        (bytes((BLOCK_VERSION, 1)) + msgspec.msgpack.encode([0, []]), "`int` >= 1"),
        (
            bytes((BLOCK_VERSION, 1)) + msgspec.msgpack.encode([7, [[1, b"r", [1], [], None]]]),
            "1 columns with 0 values",
        ),
        (bytes((BLOCK_VERSION, 1)) + msgspec.msgpack.encode([7, [[3, b"r", 2**62]]]), "is no time"),
        (small([7, [[1, b"r", [1], [2], TS_MAX + 1]]]), "is no time"),
        (small([7, [[1, b"r", [1], [2], TS_MIN - 1]]]), "is no time"),
        (bytes((BLOCK_VERSION, 1)) + b"\x92\x07\x91\x95\x01\xc4\x01r\x91\x01" + b"\x91" * 5_000, "block: "),
        (
            bytes((BLOCK_VERSION, 1)) + b"\x92\x07\x91\x95\x01\xc4\x01r\x91\x01\x91\xc7\x03\x01NaN\xc0",
            "decimal not finite",
        ),
    ],
)
def test_what_is_wrong_is_said(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_block(data)


def test_a_newer_version_is_told_apart() -> None:
    with pytest.raises(UnsupportedFormat, match=f"reads format version {BLOCK_VERSION}, not 9"):
        decode_block(b"\x09\x01")
