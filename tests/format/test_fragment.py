"""Fragments: what goes in comes out, found by row, in any stock reader, and no flipped byte goes unnoticed."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format import layout
from stelae.format.fragment.footer import FRAGMENT_VERSION, FragmentSpec
from stelae.format.fragment.reader import FragmentReader
from stelae.format.fragment.writer import FragmentWriter
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import Closed, Corruption, DiskFull, InvalidArgument, UnsupportedFormat
from stelae.model.keys.vector import encode_arrays
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.record import Kind
from stelae.model.schema import GroupOptions
from tests.effort import examples
from tests.format.fragments import Memory, batch_of, column, spec, write
from tests.strategies import column_types, key_types, key_values, values

PROFILE = spec(
    [column(1, "id", "string")],
    [column(2, "name", "string"), column(3, "age", "int32"), column(4, "score", "float64")],
    nulls="written",
    has_kind=False,
)


def profile_batch(start: int, count: int, step: int = 1) -> pa.RecordBatch:
    numbers = range(start, start + count * step, step)
    return batch_of(
        PROFILE,
        {
            "id": [f"user-{n:08d}" for n in numbers],
            "name": [f"Name {n}" for n in numbers],
            "age": [None if n % 7 == 0 else n % 90 for n in numbers],
            "score": [n / 4 for n in numbers],
            "_ts": [1_700_000_000_000_000 + n for n in numbers],
            "_txn": [2**40 + n for n in numbers],
        },
    )


def test_what_goes_in_comes_out() -> None:
    batches = [profile_batch(0, 700), profile_batch(700, 1), profile_batch(701, 299)]
    blob, footer, seal = write(PROFILE, batches)
    reader = FragmentReader(blob, seal)
    assert pa.concat_tables(reader.scan()).equals(pa.Table.from_batches(batches))
    assert reader.block_count > 3
    assert reader.footer == footer
    stats = footer.stats
    assert (stats.records, stats.erasures) == (1_000, 0)
    assert (stats.first_row, stats.last_row) == (b"user-00000000", b"user-00000999")
    assert (stats.txn_min, stats.txn_max) == (2**40, 2**40 + 999)
    assert footer.spec.complete
    reader.verify()


@st.composite
def tables(draw: st.DrawFn) -> tuple[FragmentSpec, list[dict[str, Any]]]:
    keys = draw(st.lists(key_types, min_size=1, max_size=3))
    types = draw(st.lists(column_types, min_size=1, max_size=3))
    hashed = draw(st.booleans())
    spec_ = spec(
        [column(i + 1, f"k{i}", str(type_)) for i, type_ in enumerate(keys)],
        [column(i + 10, f"c{i}", str(type_)) for i, type_ in enumerate(types)],
        hashed=hashed,
    )
    one = st.fixed_dictionaries(
        {
            **{f"k{i}": key_values(type_) for i, type_ in enumerate(keys)},
            **{f"c{i}": st.none() | values(type_) for i, type_ in enumerate(types)},
            "_ts": st.integers(0, 10**15),
            "_txn": st.integers(0, 2**62),
            "_kind": st.sampled_from([int(kind) for kind in Kind]),
            "_mask": st.binary(min_size=1, max_size=1),
        }
    )
    codec = spec_.codec()
    records = draw(st.lists(one, max_size=12))

    def order(record: dict[str, Any]) -> tuple[Any, ...]:
        row = codec.encode(tuple(record[name] for name in codec.names))
        return row, -record["_ts"], -record["_txn"], record["_kind"]

    unique = {order(record): record for record in records}
    return spec_, [unique[key] for key in sorted(unique)]


@given(tables(), st.integers(1, 5))
def test_any_table_comes_back_and_any_row_is_found(
    case: tuple[FragmentSpec, list[dict[str, Any]]], batch_size: int
) -> None:
    spec_, records = case
    names = [name for name in spec_.arrow_schema().names if name != layout.ROW]
    batches = [
        batch_of(spec_, {name: [record[name] for record in part] for name in names})
        for part in (records[i : i + batch_size] for i in range(0, len(records), batch_size))
    ]
    blob, footer, seal = write(spec_, batches)
    reader = FragmentReader(blob, seal)
    reader.verify()
    expected = pa.Table.from_batches(batches, spec_.arrow_schema())
    assert pa.concat_tables([expected.slice(0, 0), *reader.scan()]).equals(expected)
    assert footer.stats.erasures == sum(record["_kind"] != 0 for record in records)
    codec = spec_.codec()
    rows = [codec.encode(tuple(record[name] for name in codec.names)) for record in records]
    for row in set(rows):
        found = reader.lookup(row)
        assert found.equals(expected.filter(pa.array([other == row for other in rows])))
    assert reader.lookup(b"\x07no such row").num_rows == 0


@given(st.lists(st.integers(0, 400), max_size=150), st.integers(0, 400), st.integers(0, 400))
def test_ranges_give_exactly_their_rows(numbers: list[int], start: int, stop: int) -> None:
    """Rows with many versions each, in blocks of a few records: rows that span blocks are found whole."""
    spec_ = spec([column(1, "k", "int32")], [column(2, "v", "string")], nulls="written", has_txn=False, has_kind=False)
    numbers.sort()
    versions = [(n, 10_000 - i) for i, n in enumerate(numbers)]
    batch = batch_of(
        spec_,
        {
            "k": [n for n, _ in versions],
            "v": ["x" * 150 for _ in versions],
            "_ts": [ts for _, ts in versions],
        },
    )
    blob, _, seal = write(spec_, [batch])
    reader = FragmentReader(blob, seal)
    codec = spec_.codec()
    area = RowRange(codec.encode((start,)), codec.encode((stop,)))
    found = pa.concat_tables([pa.schema([reader.schema.field("k")]).empty_table(), *reader.scan(area, ["k"])])
    assert found.column("k").to_pylist() == [n for n in numbers if start <= n < stop]
    for n in {*numbers[:3], start}:
        assert reader.lookup(codec.encode((n,)), ["_ts"]).num_rows == numbers.count(n)


@pytest.mark.parametrize("key", ["string", "binary", "int8", "int16", "int32", "int64", "date", "timestamp", "bool"])
def test_the_bloom_filter_never_denies_what_is_there_and_mostly_denies_the_rest(key: str) -> None:
    type_ = t.parse_type(key)
    numbers = range(2) if key == "bool" else range(-60, 60)
    keys = pa.array(numbers, pa.int64())
    if key in ("string", "binary"):
        keys = keys.cast(pa.string()).sort()
    cast = {"date": pa.int32(), "timestamp": pa.int64()}.get(key, to_arrow(type_))
    keys = keys.cast(cast).view(to_arrow(type_)) if key in ("date", "timestamp") else keys.cast(cast)
    spec_ = spec(
        [column(1, "k", key)], [column(2, "v", "int8")], nulls="written", has_kind=False, has_txn=False, has_ts=False
    )
    blob, _, seal = write(spec_, [batch_of(spec_, {"k": keys.to_pylist(), "v": [1] * len(keys)})])
    reader = FragmentReader(blob, seal)
    rows = encode_arrays(spec_.codec(), [keys]).to_pylist()
    assert all(reader.lookup(row).num_rows == 1 for row in rows)
    assert all(
        reader.may_contain(row, block) for row in rows for block in reader.blocks_of(RowRange(row, row + b"\x00"))
    )
    if key != "bool":
        others = [bytes([*row[:-1], row[-1] ^ 0x55]) for row in rows]
        strange = [row for row in others if row not in rows]
        denied = sum(not reader.may_contain(row, 0) for row in strange)
        assert denied >= 0.8 * len(strange)


def test_point_reads_open_one_block_and_only_the_columns_asked_for() -> None:
    blob, footer, seal = write(PROFILE, [profile_batch(0, 30_000)], block_bytes=64 * 1024)
    reader = FragmentReader(blob, seal)
    assert reader.block_count > 20
    reader.lookup(b"user-00012345")
    whole = sum(length for _, length in blob.reads)
    blob.reads.clear()
    assert reader.lookup(b"user-00022345", ["score"]).to_pylist() == [{"score": 22345 / 4}]
    assert sum(length for _, length in blob.reads) < whole
    blob.reads.clear()
    assert reader.lookup(b"user-99999999").num_rows == 0
    assert reader.lookup(b"a").num_rows == 0
    assert blob.reads == []
    assert footer.starts[0] == b"user-00000000"


def test_a_lookup_among_ten_million_records_reads_at_most_two_row_groups() -> None:
    spec_ = spec(
        [column(1, "k", "int64")],
        [column(2, "v", "int32")],
        nulls="written",
        has_kind=False,
        has_txn=False,
        has_ts=False,
    )
    sink = _Growing()
    writer = FragmentWriter(sink, spec_, GroupOptions(compression="lz4"))
    total, step = 10_000_000, 1_000_000
    for start in range(0, total, step):
        keys = np.arange(start, start + step, dtype=np.int64) * 3
        writer.write(pa.record_batch([pa.array(keys), pa.array(keys.astype(np.int32))], schema=spec_.arrow_schema()))
    footer, seal = writer.close()
    assert footer.stats.records == total
    blob = Memory(sink.buffer.getvalue())
    reader = FragmentReader(blob, seal)
    assert reader.block_count > 20
    codec = spec_.codec()
    opened: Counter[int] = Counter()
    original = reader.read_block

    def counting(block: int, columns: Any = None) -> pa.Table:
        opened[block] += 1
        return original(block, columns)

    reader.read_block = counting  # type: ignore[method-assign]
    chance = random.Random(5)
    for _ in range(40):
        n = chance.randrange(total)
        opened.clear()
        assert reader.lookup(codec.encode((3 * n,))).column("v").to_pylist() == [3 * n]
        assert opened.total() <= 2
        opened.clear()
        assert reader.lookup(codec.encode((3 * n + 1,))).num_rows == 0
        assert opened.total() <= 1


class _Growing(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()

    def write(self, data: object) -> None:
        self.buffer.write(data)  # type: ignore[arg-type]


def test_a_flipped_bit_in_any_byte_is_found_by_verify_and_never_misread() -> None:
    blob, _, seal = write(PROFILE, [profile_batch(0, 300)])
    expected = pa.concat_tables(FragmentReader(blob, seal).scan())
    for place in range(len(blob.data)):
        damaged = bytearray(blob.data)
        damaged[place] ^= 1 << (place % 8)
        bad = Memory(bytes(damaged))
        with pytest.raises(Corruption, match=r"fragment\.parquet"):
            FragmentReader(bad, seal).verify()
        if place % 5:
            continue
        try:
            reader = FragmentReader(bad, seal)
            assert pa.concat_tables(reader.scan()).equals(expected)
            assert reader.lookup(b"user-00000123").num_rows == 1
        except Corruption:
            continue


def test_a_truncated_or_foreign_file_is_refused_with_and_without_a_seal() -> None:
    blob, _, seal = write(PROFILE, [profile_batch(0, 50)])
    for size in (0, 3, 11, len(blob.data) // 2, len(blob.data) - 1):
        for known in (seal, None):
            with pytest.raises(Corruption):
                FragmentReader(Memory(blob.data[:size]), known)
    foreign = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(Corruption, match="not a fragment"):
        FragmentReader(Memory(foreign.getvalue()))


@settings(max_examples=examples(300))
@given(st.binary(max_size=300))
def test_random_bytes_are_no_fragment(data: bytes) -> None:
    for candidate in (data, b"PAR1" + data + b"PAR1"):
        with pytest.raises(Corruption):
            FragmentReader(Memory(candidate))


def test_random_damage_without_a_seal_is_found_or_does_not_matter_to_a_look() -> None:
    """A tool that looks at a stray file must not fail in its own way; what it cannot trust it does not decode."""
    blob, _, _ = write(PROFILE, [profile_batch(0, 100)])
    chance = random.Random(9)
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(blob.data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            FragmentReader(Memory(bytes(damaged))).verify()
        except (Corruption, UnsupportedFormat):
            refused += 1
    assert refused > 1_000


def test_without_its_seal_a_fragment_can_be_looked_at_but_not_read() -> None:
    blob, footer, _ = write(PROFILE, [profile_batch(0, 10)])
    reader = FragmentReader(blob)
    assert reader.footer == footer
    reader.verify()
    for read in (lambda: reader.read_block(0), lambda: reader.lookup(b"x"), lambda: list(reader.scan())):
        with pytest.raises(InvalidArgument, match="without its seal"):
            read()


def test_columns_are_told_apart_whatever_their_names() -> None:
    names = {
        "a.b": "int32",
        "a": "struct<b: int32, c: string>",
        "größe, in m": "float64",
        "c": "int32",
        "a.c": "string",
    }
    columns = [column(i + 2, name, type_) for i, (name, type_) in enumerate(names.items())]
    spec_ = spec([column(1, "k", "string")], columns, nulls="written", has_kind=False, has_ts=False, has_txn=False)
    data: dict[str, list[Any]] = {
        "k": ["x", "y"],
        "a.b": [1, 2],
        "a": [{"b": 10, "c": "in"}, None],
        "größe, in m": [1.5, None],
        "c": [7, 8],
        "a.c": ["out", "side"],
    }
    blob, _, seal = write(spec_, [batch_of(spec_, data)])
    reader = FragmentReader(blob, seal)
    for name in names:
        assert reader.read_block(0, [name]).to_pydict() == {name: data[name]}
        assert reader.lookup(b"y", [name]).to_pydict() == {name: data[name][1:]}
    assert reader.read_block(0, ["c", "a.b", "a"]).column_names == ["c", "a.b", "a"]


def one_value(rows: Sequence[tuple[str, str]]) -> tuple[FragmentSpec, pa.RecordBatch]:
    spec_ = spec(
        [column(1, "k", "string")],
        [column(2, "v", "string")],
        nulls="written",
        has_kind=False,
        has_ts=False,
        has_txn=False,
    )
    return spec_, batch_of(spec_, {"k": [k for k, _ in rows], "v": [v for _, v in rows]})


def test_blocks_are_cut_by_size_however_uneven_the_records() -> None:
    rows = [(f"a{n:06d}", "x") for n in range(20_000)] + [(f"b{n:06d}", "x" * 100_000) for n in range(40)]
    spec_, batch = one_value(rows)
    blob, footer, seal = write(spec_, [batch], block_bytes=400_000)
    reader = FragmentReader(blob, seal)
    sizes = [reader.read_block(block).nbytes for block in range(reader.block_count)]
    assert all(300_000 < size < 700_000 for size in sizes[:-1]), sizes
    assert sum(reader.block_records(block) for block in range(reader.block_count)) == len(rows) == footer.stats.records


def test_filters_are_of_use_also_after_a_first_block_of_few_large_records() -> None:
    rows = [(f"a{n:06d}", "x" * 300_000) for n in range(2)] + [(f"b{n:06d}", "x") for n in range(6_000)]
    spec_, batch = one_value(rows)
    blob, _, seal = write(spec_, [batch], block_bytes=400_000)
    reader = FragmentReader(blob, seal)
    last = reader.block_count - 1
    assert reader.block_records(last) > 1_000
    passed = sum(reader.may_contain(b"b%06dx" % n, last) for n in range(2_000))
    assert passed < 500


class _Full(Memory):
    def write(self, data: object) -> None:
        raise DiskFull("no room")


def test_a_writer_whose_sink_fails_says_so_and_stays_silent() -> None:
    writer = FragmentWriter(_Full(), PROFILE, GroupOptions(block_bytes=4096))
    with pytest.raises(DiskFull):
        writer.write(profile_batch(0, 500))
    for again in (lambda: writer.write(profile_batch(500, 1)), writer.close):
        with pytest.raises(Closed, match="its sink failed"):
            again()


def test_a_closed_writer_says_so() -> None:
    writer = FragmentWriter(Memory(), PROFILE, GroupOptions())
    writer.close()
    for again in (lambda: writer.write(profile_batch(0, 1)), writer.close):
        with pytest.raises(Closed, match="was closed"):
            again()


def test_a_newer_format_version_is_told_apart_from_damage() -> None:
    blob, _, _ = write(PROFILE, [profile_batch(0, 5)])
    newer = blob.data.replace(b'{"version":%d,' % FRAGMENT_VERSION, b'{"version":%d,' % (FRAGMENT_VERSION + 8))
    assert newer != blob.data
    with pytest.raises(UnsupportedFormat, match=f"version {FRAGMENT_VERSION + 8}"):
        FragmentReader(Memory(newer))


def _with(batch: pa.RecordBatch, name: str, values: list[Any]) -> pa.RecordBatch:
    field = batch.schema.field(name)
    return batch.set_column(batch.schema.get_field_index(name), field, pa.array(values, field.type))


MASKED = spec([column(1, "a", "int8"), column(2, "b", "string")], [column(3, "v", "int8")])
MASKED_ROW: dict[str, list[Any]] = {
    "a": [1],
    "b": ["x"],
    "v": [5],
    "_ts": [7],
    "_txn": [9],
    "_kind": [0],
    "_mask": [b"\x01"],
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("_kind", 99, "_kind from 99 to 99 is not from 0 to 4"),
        ("_mask", b"", "masks of 0 to 0 bytes instead of 1"),
        ("_row", b"else", "the row of record 0 of a batch is not that of its key"),
    ],
)
def test_records_that_mean_nothing_are_refused(name: str, value: object, message: str) -> None:
    write(MASKED, [batch_of(MASKED, MASKED_ROW)])
    with pytest.raises(InvalidArgument, match=message):
        write(MASKED, [_with(batch_of(MASKED, MASKED_ROW), name, [value])])


def _at(batch: pa.RecordBatch, ts: int) -> pa.RecordBatch:
    place = batch.schema.get_field_index("_ts")
    times = pa.array([ts] * batch.num_rows, pa.int64()).cast(batch.schema.field(place).type)
    return batch.set_column(place, batch.schema.field(place), times)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([profile_batch(5, 2), profile_batch(0, 2)], "does not follow the last one"),
        ([profile_batch(10, 3, step=-1)], "records 0 and 1 of a batch are not in order"),
        ([profile_batch(0, 3).drop_columns(["age"])], "columns are"),
        ([pa.concat_batches([profile_batch(3, 1), _at(profile_batch(3, 1), 2**51)])], "records 0 and 1"),
        ([profile_batch(3, 1), _at(profile_batch(3, 1), 2**51)], "does not follow the last one"),
        ([pa.concat_batches([profile_batch(3, 1), profile_batch(3, 1)])], "records 0 and 1"),
        ([_with(profile_batch(3, 1), "_txn", [-5])], "_txn from -5 to -5"),
    ],
)
def test_what_is_out_of_order_or_shape_is_refused(batches: list[pa.RecordBatch], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write(PROFILE, batches)


def test_a_null_key_is_refused() -> None:
    batch = profile_batch(0, 2)
    broken = batch.set_column(0, batch.schema.field(0), pa.array(["a", None]))
    with pytest.raises(InvalidArgument, match="column 'id' has a null"):
        write(PROFILE, [broken])


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("bloom", [True, False])
def test_options(compression: str, bloom: bool) -> None:
    blob, _, seal = write(PROFILE, [profile_batch(0, 500)], compression=compression, bloom=bloom)
    reader = FragmentReader(blob, seal)
    reader.verify()
    assert reader.lookup(b"user-00000321").num_rows == 1
    group = pq.read_metadata(io.BytesIO(blob.data)).row_group(0)
    assert group.column(0).compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert (group.column(0).bloom_filter_offset is not None) is bloom


def test_an_empty_fragment() -> None:
    blob, footer, seal = write(PROFILE, [])
    reader = FragmentReader(blob, seal)
    reader.verify()
    assert footer.stats.records == reader.block_count == 0
    assert list(reader.scan()) == []
    assert reader.lookup(b"x").num_rows == 0


def test_many_threads_read_one_fragment() -> None:
    blob, _, seal = write(PROFILE, [profile_batch(0, 5_000)])
    reader = FragmentReader(blob, seal)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: reader.lookup(b"user-%08d" % n).num_rows, range(0, 5_000, 50)))
        scanned = pa.concat_tables(reader.scan(ALL_ROWS, ["id"], run=pool.map))
    assert found == [1] * 100
    assert scanned.column("id").to_pylist() == [f"user-{n:08d}" for n in range(5_000)]


EVENTS = spec([column(1, "id", "string"), column(2, "day", "date")], families=((("click"), 5), ("view", 6)))
EVENT_ROWS: dict[str, list[Any]] = {
    "id": ["ann", "ann", "bob"],
    "day": [datetime(2024, 5, 6, tzinfo=UTC).date()] * 3,
    "_family": ["click", "view", "click"],
    "_qualifier": ["home", "home", ""],
    "_value": [b"1", None, b"\x00"],
    "_ts": [datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)] * 3,
    "_txn": [10, 11, 12],
    "_kind": [0, 2, 0],
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, blob in (
        ("profile", write(PROFILE, [profile_batch(0, 1_000)])[0]),
        ("events", write(EVENTS, [batch_of(EVENTS, EVENT_ROWS)])[0]),
    ):
        (tmp_path / f"{name}.parquet").write_bytes(blob.data)
    return tmp_path


def test_duckdb_sees_a_sensible_table(files: Path) -> None:
    with duckdb.connect() as connection:
        query = f"select id, name, age, score, _ts::varchar from '{files}/profile.parquet' where id = 'user-00000005'"
        assert connection.sql(query).fetchall() == [
            ("user-00000005", "Name 5", 5, 1.25, "2023-11-14 22:13:20.000005+00")
        ] or connection.sql(query).fetchall()[0][:4] == ("user-00000005", "Name 5", 5, 1.25)
        assert connection.sql(f"select count(*), count(age) from '{files}/profile.parquet'").fetchall() == [(1000, 857)]
        events = connection.sql(f"select id, day::varchar, _family, _qualifier, _value from '{files}/events.parquet'")
        assert events.fetchall() == [
            ("ann", "2024-05-06", "click", "home", b"1"),
            ("ann", "2024-05-06", "view", "home", None),
            ("bob", "2024-05-06", "click", "", b"\x00"),
        ]


def test_pandas_sees_a_sensible_table(files: Path) -> None:
    frame = pd.read_parquet(files / "profile.parquet")
    assert list(frame.columns) == ["id", "name", "age", "score", "_ts", "_txn"]
    assert frame.loc[8, ["id", "age", "score"]].tolist() == ["user-00000008", 8, 2.0]
    assert str(frame["_ts"].dtype) == "datetime64[us, UTC]"
    assert pd.read_parquet(files / "events.parquet")["_family"].tolist() == ["click", "view", "click"]


def test_spark_sees_a_sensible_table(files: Path, spark: Any) -> None:
    frame = spark.read.parquet(str(files / "profile.parquet"))
    assert dict(frame.dtypes) == {
        "id": "string",
        "name": "string",
        "age": "int",
        "score": "double",
        "_ts": "timestamp",
        "_txn": "bigint",
    }
    assert frame.where("id = 'user-00000005'").select("name", "age").collect() == [("Name 5", 5)]
    assert frame.count() == 1_000
    events = spark.read.parquet(str(files / "events.parquet")).select("id", "_family", "_value").collect()
    assert [(row[0], row[1], row[2] and bytes(row[2])) for row in events] == [
        ("ann", "click", b"1"),
        ("ann", "view", None),
        ("bob", "click", b"\x00"),
    ]


def test_columns_carry_their_ids_and_pages_their_checksums(files: Path) -> None:
    schema = pq.read_schema(files / "profile.parquet")
    assert [layout.field_id(schema.field(name)) for name in ("id", "name", "age", "score")] == [1, 2, 3, 4]
    group = pq.read_metadata(files / "profile.parquet").row_group(0)
    assert all(group.column(i).has_column_index and group.column(i).has_offset_index for i in range(group.num_columns))
    data = bytearray((files / "profile.parquet").read_bytes())
    data[group.column(1).data_page_offset + 60] ^= 1
    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(io.BytesIO(bytes(data)), page_checksum_verification=True).read()
