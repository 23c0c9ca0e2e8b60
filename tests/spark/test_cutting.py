"""Which task a row goes to: as the tablets' bounds say, for every type of key, in SQL and in Python."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.model.keys.scalar import KeyCodec
from stelae.model.types import KeyType, parse_type
from stelae.spark.loading.cutting import BUCKETS_MAX, BucketOfKey, bucket_bounds, bucket_of, key_name, spread
from stelae.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2026, 1, 2, 3, 4, 5, 6)]  # noqa: DTZ001
KEYS: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [-128, -1, 0, 127],
    "int32": [-(2**31), -1, 0, 2**31 - 1],
    "int64": [-(2**63), -1, 0, 255, 256, 2**63 - 1],
    "float32": [-2.5, -0.0, 0.1, 3.0],
    "float64": [-1e300, -0.0, 1e-300, 1e300],
    "decimal(9, 2)": [Decimal("-9.99"), Decimal("0.00"), Decimal("10.01")],
    "string": ["", "a", "a\x00", "ab", "ä", "\U0001f600", "'\\"],
    "binary": [b"", b"\x00", b"\x7f", b"\x80", b"\xff"],
    "date": [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    "timestamp": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "timestamp_ntz": MOMENTS,
}


def codec_of(*types: str, hashed: bool = False) -> KeyCodec:
    found: dict[str, KeyType] = {}
    for number, text in enumerate(types):
        type_ = parse_type(text)
        assert isinstance(type_, KeyType)
        found[f"k{number}"] = type_
    return KeyCodec(found, hashed)


def rows_of(codec: KeyCodec, keys: list[tuple[Any, ...]]) -> list[Row]:
    return [codec.encode(codec.check(key)) for key in keys]


CASES: dict[str, tuple[KeyCodec, list[tuple[Any, ...]]]] = {
    **{type_: (codec_of(type_), [(key,) for key in keys]) for type_, keys in KEYS.items()},
    **{
        f"{type_} hashed": (codec_of(type_, hashed=True), [(key,) for key in KEYS[type_]])
        for type_ in ("int8", "int32", "int64", "string", "binary")
    },
    "compound": (
        codec_of("string", "int64", "timestamp"),
        [(a, b, c) for a in ("", "a", "a\x00") for b in (-1, 5) for c in KEYS["timestamp"][1:]],
    ),
    "compound hashed": (
        codec_of("string", "int64", hashed=True),
        [(a, b) for a in ("", "x") for b in (-1, 5)],
    ),
}


def test_every_type_of_key(spark: SparkSession) -> None:
    """All of them in one job: the keys of all cases stand side by side in one frame, a column of buckets for each."""
    length = max(len(keys) for _, keys in CASES.values())
    columns, buckets, wanted = {}, {}, {}
    for name, (codec, keys) in CASES.items():
        rows = rows_of(codec, keys)
        bounds = sorted(set(rows))[1:]
        names = [f"{name} {at}" for at in range(len(codec.types))]
        for at, type_ in enumerate(codec.types):
            padded = [key[at] for key in keys] + [None] * (length - len(keys))
            columns[names[at]] = pa.array(padded, to_arrow(type_))
        buckets[name] = bucket_of(codec, [f"`{each}`" for each in names], bounds).alias(name)
        wanted[name] = [bisect_right(bounds, row) for row in rows]
    table = pa.table(columns | {"number": pa.array(range(length))})
    frame = spark.createDataFrame(table, spark_schema(table.schema)).select("number", *buckets.values())
    found = sorted(frame.collect())
    assert {name: [row[name] for row in found][: len(each)] for name, each in wanted.items()} == wanted


@pytest.mark.parametrize("name", list(CASES))
def test_in_python(name: str) -> None:
    codec, keys = CASES[name]
    rows = rows_of(codec, keys)
    bounds = tuple(sorted(set(rows))[1:])
    columns = [pa.array([key[at] for key in keys], to_arrow(type_)) for at, type_ in enumerate(codec.types)]
    found = BucketOfKey(tuple(zip(codec.names, codec.types, strict=True)), codec.hashed, bounds)(*columns)
    assert found.to_pylist() == [bisect_right(bounds, row) for row in rows]


def test_what_is_no_key_is_somewhere() -> None:
    bucket = BucketOfKey((("k", parse_type("float64")),), False, (rows_of(codec_of("float64"), [(0.5,)])[0],))  # type: ignore[arg-type]
    assert bucket(pa.array([1.0, None, float("nan"), 0.0])).to_pylist() == [1, 0, 0, 0]


def test_many_tablets_share_a_task() -> None:
    starts = [Row(bytes([number])) for number in range(200)]
    bounds = bucket_bounds(starts)
    assert len(bounds) == BUCKETS_MAX - 1
    assert list(bounds) == sorted(set(bounds))
    places = [0, *(starts.index(bound) for bound in bounds), 200]
    assert {after - before for before, after in pairwise(places)} == {3, 4}
    assert bucket_bounds(starts[:1]) == ()
    assert bucket_bounds(starts, 4) == (starts[50], starts[100], starts[150])


def test_few_tablets_are_cut_further(spark: SparkSession) -> None:
    frame = spark.range(2_000_000, numPartitions=1).selectExpr("id AS k0")
    assert spread(frame, codec_of("int64"), [Row(b"")], 2).rdd.getNumPartitions() == 4
    assert spread(frame, codec_of("int64"), [Row(b"")], 2, samples=False).rdd.getNumPartitions() == 1


def test_a_small_frame_is_not_spread_over_all_tablets(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of("int64")
    starts = [Row(b""), *rows_of(codec, [(number * 100,) for number in range(1, 10)])]
    frame = spark.range(1_500_000, numPartitions=1).selectExpr("id AS k0")
    assert spread(frame, codec, starts, 2).rdd.getNumPartitions() == 2
    monkeypatch.setattr("stelae.spark.loading.cutting.TASK_BYTES", 100)
    assert spread(frame, codec, starts, 2).rdd.getNumPartitions() == 10


SMALL = {
    "id AS k0": 1,
    "CASE WHEN id < 10 THEN id END AS k0": 1,
    "explode(sequence(id, id + 1)) AS k0": 2,
    "CAST(rand() * 10 AS BIGINT) AS k0": 1,
}


@pytest.mark.parametrize("column", SMALL)
def test_a_very_small_frame_is_not_shared_out(spark: SparkSession, column: str) -> None:
    """Unless there may be more of it than Spark knows."""
    codec = codec_of("int64")
    starts = [Row(b""), *rows_of(codec, [(number * 100,) for number in range(1, 10)])]
    frame = spark.range(1_000, numPartitions=4).selectExpr(column)
    whole = spread(frame, codec, starts, 2)
    assert whole.rdd.getNumPartitions() == SMALL[column]
    united = frame.union(spark.range(10).selectExpr("id AS k0")).where("k0 > 0")
    assert spread(united, codec, starts, 2).rdd.getNumPartitions() == SMALL[column]
    joined = frame.join(spark.range(1_000).toDF("other"), how="cross").select("k0")
    assert spread(joined, codec, starts, 2).rdd.getNumPartitions() == 2


def test_names_of_key_columns() -> None:
    assert key_name(["a", "Id", "b`c"], "id") == "`Id`"
    assert key_name(["B`C"], "b`c") == "`B``C`"
    with pytest.raises(InvalidArgument, match="key column 'id' is missing"):
        key_name(["a"], "id")
