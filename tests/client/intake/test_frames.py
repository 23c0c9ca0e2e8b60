"""Frames of every library: what is null, what is a column, and that nothing is lost on the way in or out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stelae.client.api.rows import pandas_of, polars_of
from stelae.client.intake.mutations import blocks_of
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.declare import columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.mutation import Put
from stelae.model.schema import ColumnsGroup, TableSchema
from tests.client.plainly import checked
from tests.client.samples import ALL_TYPES, EVERYTHING, MOMENT, PAIR, READING, every_type

NAN = float("nan")
TABLE = declare(
    {"id": "int64"},
    [
        columns(
            "g",
            {
                "n": "int32",
                "f": "float64",
                "s": "string",
                "b": "bool",
                "d": "date",
                "t": "timestamp",
                "z": "timestamp_ntz",
                "p": "decimal(9, 2)",
                "raw": "binary",
                "v": "vector(float32, 2)",
                "a": "array<string>",
            },
        )
    ],
)


def put(schema: TableSchema, frame: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows that are written, by column, in the order of their keys."""
    names = {c.id: c.name for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns}
    found = []
    for mutation in checked(schema, blocks_of(schema, frame, **options)):
        assert isinstance(mutation, Put)
        key = dict(zip(schema.codec.names, schema.codec.decode(mutation.row), strict=True))
        found.append(key | {names[id_]: value for id_, value in mutation.values})
    return sorted(found, key=lambda row: [row[name] for name in schema.codec.names])


@pytest.mark.parametrize(
    "name, series, kept",
    [
        ("n", pd.Series([1.0, NAN]), [1, None]),
        ("n", pd.Series([1, None], dtype="Int64"), [1, None]),
        ("n", pd.Series([1, None], dtype="int32[pyarrow]"), [1, None]),
        ("n", pd.Series([1, 2.0], dtype=object), [1, 2]),
        ("n", pd.Series([1, pd.NA], dtype=object), [1, None]),
        ("n", pd.Series([NAN, NAN]), [None, None]),
        ("n", pd.Series(pd.arrays.SparseArray([1, 2])), [1, 2]),
        ("f", pd.Series([0.5, NAN]), [0.5, None]),
        ("f", pd.Series([0.5, NAN], dtype="Float64"), [0.5, None]),
        ("f", pd.Series(pd.arrays.ArrowExtensionArray(pa.array([0.5, NAN]))), [0.5, None]),
        ("f", pd.Series([0.5, None], dtype=object), [0.5, None]),
        ("f", pd.Series([1, 2]), [1.0, 2.0]),
        ("s", pd.Series(["x", None]), ["x", None]),
        ("s", pd.Series(["x", NAN], dtype=object), ["x", None]),
        ("s", pd.Series(["x", pd.NA], dtype="string"), ["x", None]),
        ("s", pd.Series(["x", None], dtype="category"), ["x", None]),
        ("s", pd.Series([NAN, NAN]), [None, None]),
        ("b", pd.Series([True, None], dtype=object), [True, None]),
        ("b", pd.Series([True, None], dtype="boolean"), [True, None]),
        ("b", pd.Series([True, False]), [True, False]),
        ("d", pd.Series([date(2024, 1, 2), None], dtype=object), [date(2024, 1, 2), None]),
        ("t", pd.Series([pd.Timestamp(MOMENT), pd.NaT]), [MOMENT, None]),
        ("t", pd.Series([MOMENT, pd.NaT], dtype=object), [MOMENT, None]),
        ("t", pd.to_datetime(pd.Series([MOMENT, None])).dt.tz_convert("Asia/Tokyo"), [MOMENT, None]),
        ("z", pd.Series([pd.Timestamp(READING), pd.NaT]), [READING, None]),
        ("p", pd.Series([PyDecimal("1.50"), 2], dtype=object), [PyDecimal("1.50"), PyDecimal("2.00")]),
        ("p", pd.Series([1, 2]), [PyDecimal("1.00"), PyDecimal("2.00")]),
        ("raw", pd.Series([b"x", None], dtype=object), [b"x", None]),
        ("raw", pd.Series([b"x", bytearray(b"y")], dtype=object), [b"x", b"y"]),
        ("v", pd.Series([np.array([1.0, 2.0], np.float32), None], dtype=object), [[1.0, 2.0], None]),
        ("v", pd.Series([[1, 2], None], dtype=object), [[1.0, 2.0], None]),
        ("a", pd.Series([["x", None], NAN], dtype=object), [["x", None], None]),
    ],
    ids=lambda value: f"{value.dtype} {value.tolist()}"[:50] if isinstance(value, pd.Series) else ascii(value)[:30],
)
def test_what_pandas_holds(name: str, series: Any, kept: list[Any]) -> None:
    frame = pd.DataFrame({"id": [1, 2], name: series})
    assert repr(put(TABLE, frame)) == repr([{"id": 1, name: kept[0]}, {"id": 2, name: kept[1]}])
    skipped = [{"id": at} | ({} if value is None else {name: value}) for at, value in enumerate(kept, 1)]
    assert repr(put(TABLE, frame, nulls="skip")) == repr(skipped)


@pytest.mark.parametrize(
    "name, series, complaint",
    [
        ("n", pd.Series([1.0, 1.5]), "row number 1: column 'n': 1.5"),
        ("n", pd.Series([0, 2**31]), "row number 1: column 'n': 2147483648"),
        ("n", pd.Series([True, False]), "row number 0: column 'n': True (bool) is not a int32"),
        ("n", pd.Series([1, True], dtype=object), "row number 1: column 'n': True (bool) is not a int32"),
        ("n", pd.Series([1, "x"], dtype=object), "row number 1: column 'n': 'x' (str) is not a int32"),
        ("s", pd.Series(["x", 1], dtype=object), "row number 1: column 's': 1 (int) is not a string"),
        ("s", pd.Series(["x", b"y"], dtype=object), "row number 1: column 's': b'y' (bytes) is not a string"),
        ("raw", pd.Series(["x", b"y"], dtype=object), "row number 0: column 'raw': 'x' (str) is not a binary"),
        ("t", pd.Series([pd.Timestamp(READING)] * 2), "it has no time zone"),
        ("t", pd.Series([MOMENT, READING], dtype=object), "row number 1: column 't'"),
        ("t", pd.Series([pd.Timestamp(MOMENT), pd.Timestamp(1, tz="UTC")]), "row number 1: column 't'"),
        ("z", pd.Series([pd.Timestamp(MOMENT)] * 2), "it has a time zone"),
        ("p", pd.Series([1.5, 2.5]), "row number 0: column 'p': 1.5 (float) is not a decimal(9, 2)"),
        ("p", pd.Series([PyDecimal("1.005")] * 2), "would be rounded"),
        ("f", pd.Series([1 + 2j, 0]), "row number 0: column 'f': (1+2j) (complex) is not a float64"),
        ("t", pd.Series(pd.period_range("2024-01", periods=2, freq="M")), "row number 0: column 't'"),
        ("id", pd.Series([1, None]), "row number 1: key column 'id': a key cannot be NULL"),
    ],
    ids=lambda value: f"{value.dtype} {value.tolist()}"[:50] if isinstance(value, pd.Series) else ascii(value)[:30],
)
def test_what_pandas_holds_and_no_column_does(name: str, series: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        put(TABLE, pd.DataFrame({"id": [1, 2]} | {name: series}))
    assert complaint in str(caught.value)


def test_named_levels_of_an_index_are_columns() -> None:
    frame = pd.DataFrame({"area": ["b", "a"], "place": [1, 2], "number": [3, 4]})
    expected = [{"area": "a", "place": 2, "number": 4}, {"area": "b", "place": 1, "number": 3}]
    assert put(PAIR, frame) == expected
    assert put(PAIR, frame.set_index("area")) == expected
    assert put(PAIR, frame.set_index(["place", "area"])) == expected
    assert put(PAIR, frame[frame["place"] > 1]) == expected[:1]
    assert put(PAIR, frame.set_axis([7, 7], axis=0)) == expected
    noted = [row | {"note": note} for row, note in zip(expected, "yx", strict=True)]
    assert put(PAIR, frame.set_axis(pd.Index(["x", "y"], name="note"), axis=0)) == noted
    unnamed = pd.MultiIndex.from_arrays([["b", "a"], [0, 0]], names=["area", None])
    assert put(PAIR, frame.drop(columns="area").set_axis(unnamed, axis=0)) == expected


def test_a_named_index_must_be_a_column_of_the_table() -> None:
    frame = pd.DataFrame({"area": ["b"], "place": [1]})
    with pytest.raises(InvalidArgument, match="no column 'nothing'"):
        put(PAIR, frame.rename_axis("nothing"))
    with pytest.raises(InvalidArgument, match="column 'area' is given twice"):
        put(PAIR, frame.set_index("area", drop=False))


def test_frames_that_are_derived_are_frames() -> None:
    class Mine(pd.DataFrame):  # type: ignore[misc]
        pass

    assert put(PAIR, Mine({"area": ["b"], "place": [1]})) == [{"area": "b", "place": 1}]


@pytest.mark.parametrize("make", [pa.table, pl.DataFrame], ids=["arrow", "polars"])
def test_nan_stays_nan_elsewhere(make: Callable[[Any], Any]) -> None:
    (row,) = put(TABLE, make({"id": [1], "f": [NAN]}))
    assert row["f"] != row["f"]
    with pytest.raises(InvalidArgument, match="row number 0: column 'n': nan"):
        put(TABLE, make({"id": [1], "n": [NAN]}))
    assert put(TABLE, make({"id": [1], "n": [2.0]})) == [{"id": 1, "n": 2}]


def test_polars_own_types() -> None:
    frame = pl.DataFrame(
        {
            "id": [1],
            "s": pl.Series(["x"], dtype=pl.Categorical),
            "n": pl.Series([3], dtype=pl.UInt64),
            "v": pl.Series([[1.0, 2.0]], dtype=pl.Array(pl.Float64, 2)),
            "p": pl.Series([PyDecimal("1.5")]),
            "t": pl.Series([MOMENT], dtype=pl.Datetime("ns", "Asia/Tokyo")),
            "a": [["x", None]],
            "b": pl.Series([None], dtype=pl.Null),
        }
    )
    assert put(TABLE, frame) == [
        {
            "id": 1,
            "n": 3,
            "s": "x",
            "b": None,
            "t": MOMENT,
            "p": PyDecimal("1.50"),
            "v": [1.0, 2.0],
            "a": ["x", None],
        }
    ]


def test_chunks_need_not_be_alike() -> None:
    dictionaries = pa.chunked_array([pa.array(["x"]).dictionary_encode(), pa.array(["y", "x"]).dictionary_encode()])
    table = pa.table({"id": pa.chunked_array([[1], [2], [3]]), "s": dictionaries})
    assert [row["s"] for row in put(TABLE, table)] == ["x", "y", "x"]
    empty = pa.table({"id": pa.chunked_array([], pa.int64()), "s": pa.chunked_array([], pa.string())})
    assert put(TABLE, empty) == []


def test_whatever_exports_arrow_is_a_frame() -> None:
    class Exporting:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return pa.record_batch({"id": [1], "s": ["x"]}).__arrow_c_array__(requested_schema)

    assert put(TABLE, Exporting()) == [{"id": 1, "s": "x"}]
    assert put(TABLE, duckdb.sql("select 1 as id, 'x' as s")) == [{"id": 1, "s": "x"}]

    class Number:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return pa.array([1]).__arrow_c_array__(requested_schema)

    with pytest.raises(InvalidArgument, match="Number is no table of columns"):
        put(TABLE, Number())


def whole_table(rows: list[dict[str, Any]]) -> pa.Table:
    arrays = {"id": pa.array([row["id"] for row in rows], pa.int64())}
    group = EVERYTHING.groups[0]
    assert isinstance(group, ColumnsGroup)
    for column in group.columns:
        arrays[column.name] = array_of(column.type, [row[column.name] for row in rows])
        assert arrays[column.name].type == to_arrow(column.type)
    return pa.table(arrays)


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize(
    "of",
    [lambda table: table, pandas_of, polars_of, lambda table: every_type()],
    ids=["arrow", "pandas", "polars", "dicts"],
)
def test_every_type_goes_out_and_comes_back(of: Callable[[pa.Table], Any], small_rows_max: int) -> None:
    rows = every_type()
    assert repr(put(EVERYTHING, of(whole_table(rows)), small_rows_max=small_rows_max)) == repr(rows)


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize("of", [pandas_of, polars_of], ids=["pandas", "polars"])
def test_a_column_without_nulls_comes_back(of: Callable[[pa.Table], Any], name: str) -> None:
    rows = every_type()[:2]
    back = put(EVERYTHING, of(whole_table(rows).select(["id", name])), small_rows_max=0)
    assert repr(back) == repr([{"id": row["id"], name: row[name]} for row in rows])


def test_keys_of_every_type() -> None:
    kinds = {name: (text, one, other) for name, (text, one, other) in list(ALL_TYPES.items())[:13]}
    for name, (text, one, other) in kinds.items():
        schema = declare({"k": text}, [columns("g", {"n": "int32"})])
        table = pa.table({"k": array_of(schema.codec.types[0], [one, other]), "n": [1, 2]})
        expected = sorted([{"k": one, "n": 1}, {"k": other, "n": 2}], key=lambda row: row["k"])
        for frame in (table, pandas_of(table), polars_of(table), [{"k": one, "n": 1}, {"k": other, "n": 2}]):
            assert put(schema, frame, small_rows_max=0) == expected, name


def test_pandas_and_polars_are_left_alone_until_they_are_needed() -> None:
    """pyarrow looks for pandas by itself when it makes arrays, so pandas is looked for before."""
    program = (
        "import sys\n"
        "from stelae.client.api import rows\nfrom stelae.client.intake import mutations\n"
        "from stelae.model.declare import columns, declare\n"
        "print(sorted({'pandas', 'polars'} & set(sys.modules)))\n"
        "schema = declare({'id': 'int64'}, [columns('g', {'n': 'int32'})])\n"
        "import pyarrow as pa\n"
        "table = pa.table({'id': [1], 'n': [2]})\n"
        "mutations.blocks_of(schema, table)\n"
        "rows.rows_of_batch(schema, table.to_batches()[0], 7)\n"
        "print('polars' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"


def test_nanoseconds_are_told_without_pandas_too() -> None:
    times = pa.array([0, 1001], pa.timestamp("ns", "UTC"))
    with pytest.raises(InvalidArgument, match=r"row number 1: column 't': .*(nanoseconds|lose data)"):
        put(TABLE, pa.table({"id": [1, 2], "t": times}))


def test_years_that_python_does_not_have() -> None:
    far = pd.Series(np.array(["2024-01-01", "12024-01-01"], "datetime64[s]"))
    with pytest.raises(InvalidArgument, match="row number 1: column 'z'"):
        put(TABLE, pd.DataFrame({"id": [1, 2], "z": far}))
    (row,) = put(TABLE, pd.DataFrame({"id": [1], "z": far[:1]}))
    assert row["z"] == datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)
