"""What tasks make of a frame, without Spark: the table is what `put_many` would have made of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stelae
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.types import parse_type
from stelae.spark.loading.fragment_task import BAD_ROWS_MAX
from stelae.spark.stores import backend_of
from tests.effort import examples
from tests.spark.by_hand import load_by_hand, with_options

_numbers = count()


GROUPS = [
    stelae.columns("one", {"a": "int32", "b": "string"}),
    stelae.columns("two", {"c": "float64"}),
    stelae.cells("events", families=["click", "view"]),
]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path_factory.mktemp("store")) as database:
        for name in ("wanted", "loaded"):
            database.create_table(name, {"k": "string"}, GROUPS, splits=["a", "ab"])
        yield database


def pair(db: stelae.Database, key: dict[str, str], groups: list[Any]) -> tuple[stelae.Table, stelae.Table]:
    """Two tables that are the same."""
    return (
        db.create_table(f"t{next(_numbers)}", key, groups),
        db.create_table(f"t{next(_numbers)}", key, groups),
    )


CELLS = pa.map_(pa.string(), pa.binary())
FRAME = pa.schema([("k", pa.string()), ("a", pa.int32()), ("b", pa.string()), ("c", pa.float64()), ("click", CELLS)])
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.text("ab\x00", max_size=3),
            "a": st.none() | st.integers(0, 3),
            "b": st.none() | st.sampled_from(["", "x"]),
            "c": st.none() | st.just(float("nan")) | st.just(1.5),
            "click": st.none()
            | st.dictionaries(st.sampled_from(["", "p", "q"]), st.just(b"1"), max_size=2).map(
                lambda cells: list(cells.items())
            ),
        }
    ),
    max_size=12,
)


@settings(max_examples=examples(25))
@given(
    rows=_rows,
    columns=st.sets(st.sampled_from(["a", "b", "c", "click"])),
    nulls=st.sampled_from(["write", "skip"]),
    duplicates=st.sampled_from(["last", "error"]),
    run_bytes=st.sampled_from([1, 150, 1 << 20]),
    cut=st.integers(0, 12),
)
def test_as_put_many(
    db: stelae.Database,
    rows: list[dict[str, Any]],
    columns: set[str],
    nulls: str,
    duplicates: str,
    run_bytes: int,
    cut: int,
) -> None:
    """Any columns, NULLs written or skipped, runs put aside or not, one task or two, keys twice or not."""
    frame = pa.Table.from_pylist(rows, FRAME).select(["k", *sorted(columns)])
    wanted, loaded = db.table("wanted"), db.table("loaded")
    db.truncate_table("wanted")
    db.truncate_table("loaded")
    options = with_options(nulls=nulls, duplicates=duplicates)
    distinct = len({row["k"] for row in rows}) == len(rows)
    parts = [frame.slice(0, cut), frame.slice(cut)]
    if duplicates == "error" and not distinct and "click" not in columns:
        with pytest.raises(InvalidArgument, match="say again what another says"):
            load_by_hand(db, loaded._info.name, parts, options, run_bytes=run_bytes, batch_rows=1, chunk_rows=2)
        assert loaded.count() == 0
        return
    if duplicates == "error" and not distinct:
        return
    if frame.num_rows:
        wanted.put_many(frame, nulls=nulls)
    txn, reports = load_by_hand(db, loaded._info.name, parts, options, run_bytes=run_bytes, batch_rows=1, chunk_rows=2)
    assert sum(report.rows for report in reports) == frame.num_rows
    assert str(loaded.scan(at=txn).to_arrow().to_pylist()) == str(wanted.scan().to_arrow().to_pylist())
    for key in {row["k"] for row in rows}:
        mine, other = loaded.get(key), wanted.get(key)
        assert mine is not None
        assert other is not None
        assert str(dict(mine)) == str(dict(other))


VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [-128, 127, 0],
    "int16": [-5, 5],
    "int32": [-(2**31), 7],
    "int64": [-(2**63), 2**63 - 1, 0],
    "float32": [-1.5, 0.0, 2.5],
    "float64": [-1e300, -0.0, 1e300],
    "decimal(9, 2)": [Decimal("-1.25"), Decimal("10.00")],
    "string": ["", "ä", "a\x00b", "z"],
    "binary": [b"", b"\x00", b"\xff"],
    "date": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 11, 16, 1, 2, 3, 4, tzinfo=UTC)],
    "timestamp_ntz": [datetime(1970, 1, 1), datetime(2026, 11, 16, 1, 2, 3, 4)],  # noqa: DTZ001 - it has no zone
}


@pytest.mark.parametrize("partition", ["range", "hash"])
@pytest.mark.parametrize("type_", list(VALUES))
def test_every_type_of_key(db: stelae.Database, type_: str, partition: str) -> None:
    keys, name = VALUES[type_], f"t{next(_numbers)}"
    more: dict[str, Any] = {"tablets": 3} if partition == "hash" else {"splits": sorted(keys)[1:]}
    groups = [stelae.columns("d", {"v": type_, "n": "int32"})]
    table = db.create_table(name, {"k": type_}, groups, partition=partition, **more)
    arrow = to_arrow(parse_type(type_))
    numbers = pa.array(range(len(keys)), pa.int64())
    load_by_hand(db, name, [pa.table({"k": pa.array(keys[::-1], arrow), "v": pa.array(keys, arrow), "n": numbers})])
    for number, (key, value) in enumerate(zip(keys[::-1], keys, strict=True)):
        found = table.get(key)
        assert found is not None
        assert dict(found) == {"k": key, "v": value, "n": number}


NESTED = {
    "array<int32>": pa.list_(pa.int32()),
    "struct<x: int32, y: string>": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "map<string, int64>": pa.map_(pa.string(), pa.int64()),
    "vector(float32, 2)": pa.list_(pa.float32()),
}


def test_nested_values(db: stelae.Database) -> None:
    name = f"t{next(_numbers)}"
    columns = dict(zip("abcd", NESTED, strict=True))
    table = db.create_table(name, {"k": "int64"}, [stelae.columns("d", columns)])
    values: list[Any] = [[1, None], {"x": 1, "y": None}, [("p", 5)], [0.5, 1.0]]
    frame = {"k": pa.array([2, 1])}
    for letter, arrow, value in zip("abcd", NESTED.values(), values, strict=True):
        frame[letter] = pa.array([value, None], arrow)
    load_by_hand(db, name, [pa.table(frame)])
    first, second = table.get(2), table.get(1)
    assert first is not None
    assert second is not None
    assert dict(first) == {"k": 2, "a": [1, None], "b": {"x": 1, "y": None}, "c": {"p": 5}, "d": [0.5, 1.0]}
    assert dict(second) == {"k": 1, "a": None, "b": None, "c": None, "d": None}


def test_cells_one_in_a_row(db: stelae.Database) -> None:
    wanted, loaded = pair(
        db, {"k": "string"}, groups=[stelae.cells("e", families=["click", "view"]), stelae.cells("w")]
    )
    frame = pa.table(
        {
            "k": ["b", "a", "a", "a", "a"],
            "family": ["click", "view", "click", "click", "other"],
            "qualifier": ["x", "", "x", "x", "y"],
            "ts": [5, 1, 2, 3, 9],
            "value": [b"1", b"2", b"3", b"4", b"5"],
        }
    )
    wanted.put_many(frame, cells="long")
    load_by_hand(
        db,
        loaded._info.name,
        [frame.slice(2), frame.slice(0, 2)],
        with_options(cells="long"),
        run_bytes=1,
        chunk_rows=1,
    )
    for key in "ab":
        mine, other = loaded.history(key, limit=5), wanted.history(key, limit=5)
        assert mine is not None
        assert other is not None
        shown = [
            {name: [(v.value, v.ts) for v in versions] for name, versions in found.items()} for found in (mine, other)
        ]
        assert shown[0] == shown[1]
    again = pa.concat_tables([frame, frame.slice(0, 1)])
    with pytest.raises(InvalidArgument, match=r"1 row of the frame say again what another says, as of 'b'"):
        load_by_hand(db, loaded._info.name, [again], with_options(cells="long"))


def test_files_are_cut_at_tablets_and_complete(db: stelae.Database) -> None:
    name = f"t{next(_numbers)}"
    table = db.create_table(name, {"k": "int64"}, [stelae.columns("d", {"v": "int64"})], splits=[100, 200])
    frame = pa.table({"k": list(range(299, -1, -1)), "v": [None] * 150 + list(range(150))})
    _, reports = load_by_hand(db, name, [frame], batch_rows=7, run_bytes=1_000, chunk_rows=14)
    files = [each.file for report in reports for each in report.files]
    codec = table.schema.codec
    ends = [(codec.decode(f.stats.first_row), codec.decode(f.stats.last_row)) for f in files]  # type: ignore[arg-type]
    assert ends == [((0,), (99,)), ((100,), (199,)), ((200,), (299,))]
    assert backend_of(db).begin_load(table._info.id, "to look").root == Path(db.path).as_uri()
    fragments = Path(db.path, files[0].name).parent
    assert sorted(file.name for file in fragments.iterdir()) == sorted(Path(file.name).name for file in files)
    metadata = pq.read_metadata(f"{db.path}/{files[0].name}")
    assert b'"nulls":"written"' in metadata.metadata[b"stelae"]
    assert metadata.schema.names == ["k", "v"]


def test_columns_that_are_not_there_are_untouched(db: stelae.Database) -> None:
    name = f"t{next(_numbers)}"
    table = db.create_table(name, {"k": "int64"}, GROUPS)
    table.put({"k": 1, "a": 5, "b": "x", "c": 2.0, "click:p": b"1"})
    load_by_hand(db, name, [pa.table({"k": [1, 2], "b": [None, "y"]})])
    row = table.get(1)
    assert row is not None
    assert dict(row) == {"k": 1, "a": 5, "b": None, "c": 2.0, "click:p": b"1"}


def test_what_writes_nothing_to_a_group_is_not_in_it(db: stelae.Database) -> None:
    """Or the row would still be there when all that was said of it is erased."""
    wanted, loaded = pair(db, {"k": "int64"}, GROUPS)
    frame = pa.table({"k": [1, 2], "a": pa.array([None, 5], pa.int32()), "c": pa.array([1.0, None])})
    wanted.put_many(frame, nulls="skip")
    load_by_hand(db, loaded.name, [frame], with_options(nulls="skip"))
    for table in (wanted, loaded):
        table.erase(1, columns=["c"])
        table.erase(2, columns=["a"])
        assert [row["k"] for row in table.scan()] == []


@pytest.mark.parametrize("many", [1, BAD_ROWS_MAX])
def test_bad_rows_are_counted_and_shown(db: stelae.Database, many: int) -> None:
    name = f"t{next(_numbers)}"
    table = db.create_table(name, {"k": "int64"}, [stelae.columns("d", {"v": "int8 not null"})])
    values: list[int | None] = [300] * many + [1] * 50 + [None]
    frame = pa.table({"k": [*range(len(values) - 1), None], "v": pa.array(values, pa.int64())})
    with pytest.raises(InvalidArgument) as refused:
        load_by_hand(db, name, [frame], batch_rows=10_000)
    assert f"table {table._info.name!r}: {many + 1:,} " in str(refused.value)
    assert "{'k': 0, 'v': 300}: column 'v': 300 (int) is not a int8: out of range" in str(refused.value)
    assert str(refused.value).count("\n") == min(5, many + 1)
    assert table.count() == 0


def test_a_task_stops_looking_at_bad_rows(db: stelae.Database) -> None:
    name = f"t{next(_numbers)}"
    db.create_table(name, {"k": "int64"}, [stelae.columns("d", {"v": "int8"})])
    part = pa.table({"k": list(range(70_000)), "v": pa.array([300] * 1_000 + [1] * 69_000, pa.int64())})
    with pytest.raises(InvalidArgument, match="1,000 or more rows cannot be loaded"):
        load_by_hand(db, name, [part], batch_rows=70_000)
