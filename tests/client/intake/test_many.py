"""Many rows at once say what the same rows say one by one, in order; and each row in one block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.client.api.rows import pandas_of
from stelae.client.intake.mutations import blocks_of, erase_rows_blocks, key_of, mutations_of
from stelae.format import layout
from stelae.format.block import NESTED_BYTES_MAX, SmallBlock, encode_block
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Erase, Mutation, Put, PutCell, WholeRow
from stelae.model.schema import TableSchema
from stelae.service.blocks import OrderedBlock, split_blocks
from tests.client.plainly import checked, held
from tests.client.samples import FLOATING, HASHED, PAIR, STRICT, USERS, WILD
from tests.effort import examples

BOTH = declare(
    {"id": "string"},
    [
        columns("g", {"a": "int64", "b": "string", "items": "array<int32>"}),
        columns("h", {"c": "float64"}),
        cells("events", ["click"]),
        cells("rest"),
    ],
)
CELL_NAMES = ("click:x", "click:", "wild:y", "wild:z")
VALUES: dict[str, tuple[Any, ...]] = {
    "a": (0, 2**63 - 1, None),
    "b": ("", "ä", None),
    "items": ([], [1, None], None),
    "c": (0.5, math.inf, None),
    "number": (1, -1, None),
    "note": ("x", None),
    **dict.fromkeys(CELL_NAMES, (b"", b"1")),
}
SCHEMAS = {"both": BOTH, "pair": PAIR, "hashed": HASHED, "floating": FLOATING}
KEYS: dict[str, tuple[dict[str, Any], ...]] = {
    "both": tuple({"id": id_} for id_ in ("a", "b", "", "a\x00")),
    "pair": tuple({"area": area, "place": place} for area in ("a", "a\x00") for place in (1, -1)),
    "hashed": tuple({"id": id_} for id_ in (0, 1, -1)),
    "floating": tuple({"x": x} for x in (0.0, -0.0, 1.5, -math.inf)),
}
NAMES = {
    "both": ("a", "b", "items", "c", *CELL_NAMES),
    "pair": ("number", "note"),
    "hashed": ("number", "note", "wild:y"),
    "floating": ("number",),
}


def shown(value: object) -> str:
    """For the names of cases."""
    text = ascii(value) if isinstance(value, str | dict | list) else f"{type(value).__module__} {type(value).__name__}"
    return text[:40]


@st.composite
def uneven(draw: st.DrawFn, which: str) -> list[dict[str, Any]]:
    """Rows that do not all have the same names, and often the same keys."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        names = draw(st.lists(st.sampled_from(NAMES[which]), unique=True, max_size=4))
        found.append(draw(st.sampled_from(KEYS[which])) | {n: draw(st.sampled_from(VALUES[n])) for n in names})
    return found


@st.composite
def even(draw: st.DrawFn, which: str) -> list[dict[str, Any]]:
    """Rows with the same columns; cells only where each has them."""
    names = draw(st.lists(st.sampled_from(NAMES[which]), unique=True, max_size=4))
    rows = draw(st.lists(st.sampled_from(KEYS[which]), min_size=1, max_size=12))
    return [row | {name: draw(st.sampled_from(VALUES[name])) for name in names} for row in rows]


def one_by_one(
    schema: TableSchema, rows: Sequence[Mapping[str, Any]], ts: int | None, *, skip: bool = False
) -> list[Mutation]:
    kept = [{name: value for name, value in row.items() if not (skip and value is None)} for row in rows]
    return [mutation for row in kept for mutation in mutations_of(schema, row, ts)]


def sizes(data: st.DataObject) -> dict[str, Any]:
    draw = data.draw
    return {"small_rows_max": draw(st.sampled_from([0, 2, 64])), "block_rows_max": draw(st.sampled_from([1, 3, 1000]))}


@settings(max_examples=examples(100))
@given(st.data(), st.sampled_from(sorted(SCHEMAS)), st.sampled_from(["write", "skip"]), st.sampled_from([None, 5]))
def test_uneven_dicts(data: st.DataObject, which: str, nulls: str, ts: int | None) -> None:
    schema, rows, chosen = SCHEMAS[which], data.draw(uneven(which)), sizes(data)
    blocks = blocks_of(schema, rows, nulls=nulls, ts=ts, **chosen)
    assert all(len(b.rows) <= chosen["block_rows_max"] or len(b.rows.unique()) == 1 for b in blocks)
    expected = held(schema, one_by_one(schema, rows, ts, skip=nulls == "skip"))
    assert held(schema, checked(schema, blocks)) == expected


def as_table(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(rows[0])
    types = {"items": pa.list_(pa.int32()), "a": pa.int64(), "c": pa.float64(), "number": pa.int64()}
    types |= {"b": pa.string(), "note": pa.string(), "place": pa.int64(), "area": pa.string()}
    types |= dict.fromkeys(CELL_NAMES, pa.binary())
    arrays = [pa.array([row[name] for row in rows], types.get(name)) for name in names]
    return pa.table(dict(zip(names, arrays, strict=True)))


def as_frames(schema: TableSchema, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """pandas frames are made by `pandas_of`: Arrow's own way rounds ints beside nulls before anybody sees them. Of
    several levels, pandas takes a text with a NUL for the text before it: such keys are not put there."""
    table = as_table(schema, rows)
    pandas = pandas_of(table)
    key = list(schema.codec.names)
    objects = pd.DataFrame(dict.fromkeys(rows[0], 0), index=range(len(rows))).astype(object)
    for name in rows[0]:
        objects[name] = pd.Series([row[name] for row in rows], dtype=object)
    return {
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
        "batches": (batch for batch in table.to_batches(max_chunksize=2)),
        "reader": table.to_reader(max_chunksize=2),
        "pandas": pandas,
        "indexed": pandas.set_index(key[:1] if any("\x00" in str(row[key[0]]) for row in rows) else key),
        "objects": objects,
        "polars": pl.from_arrow(table),
        "dicts": list(rows),
        "generator": (row for row in rows),
    }


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(sorted(SCHEMAS)), st.sampled_from(["write", "skip"]), st.sampled_from([None, 5]))
def test_frames(data: st.DataObject, which: str, nulls: str, ts: int | None) -> None:
    schema, rows = SCHEMAS[which], data.draw(even(which))
    kind = data.draw(st.sampled_from(sorted(as_frames(schema, rows))))
    frame = as_frames(schema, rows)[kind]
    blocks = blocks_of(schema, frame, nulls=nulls, ts=ts, **sizes(data))
    expected = held(schema, one_by_one(schema, rows, ts, skip=nulls == "skip"))
    assert held(schema, checked(schema, blocks)) == expected


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from(["write", "skip"]))
def test_maps_of_cells(data: st.DataObject, nulls: str) -> None:
    """Families as maps, beside single cells: within a row the later column wins."""
    entries = st.dictionaries(st.sampled_from(["x", "", "q"]), st.sampled_from([b"", b"1", b"2"]), max_size=2)
    rows = [
        key | {"click": data.draw(st.none() | entries), "click:x": data.draw(st.sampled_from([b"7", b"8"]))}
        for key in data.draw(st.lists(st.sampled_from(KEYS["both"]), min_size=1, max_size=6))
    ]
    maps = pa.map_(pa.string(), pa.binary())
    columns_ = {name: [row[name] for row in rows] for name in rows[0]}
    columns_["click"] = pa.array([None if m is None else list(m.items()) for m in columns_["click"]], maps)
    table = pa.table(columns_)
    expected = held(BOTH, one_by_one(BOTH, rows, None))
    for frame in (table, pandas_of(table), pl.from_arrow(table), rows):
        blocks = blocks_of(BOTH, frame, nulls=nulls, **sizes(data))
        assert held(BOTH, checked(BOTH, blocks)) == expected


LONG_TYPES = {"value": pa.binary(), "family": pa.string(), "qualifier": pa.string()}


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from([None, "ints", "moments"]))
def test_long_cells(data: st.DataObject, times: str | None) -> None:
    rows = []
    for key in data.draw(st.lists(st.sampled_from(KEYS["both"]), min_size=1, max_size=10)):
        family, qualifier = data.draw(st.sampled_from([("click", "x"), ("CLICK", ""), ("wild", "y")]))
        row = key | {"family": family, "qualifier": qualifier, "value": data.draw(st.sampled_from([b"", b"1", b"2"]))}
        rows.append(row | ({"ts": data.draw(st.sampled_from([-5, 0, 7]))} if times else {}))
    put = [
        mutation
        for row in rows
        for mutation in mutations_of(
            BOTH, {"id": row["id"], f"{row['family']}:{row['qualifier']}": row["value"]}, row.get("ts")
        )
    ]
    table = pa.table({name: pa.array([row[name] for row in rows], LONG_TYPES.get(name)) for name in rows[0]})
    if times == "moments":
        table = table.set_column(table.column_names.index("ts"), "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
        rows = table.to_pylist()
    for frame in (table, pandas_of(table), pl.from_arrow(table), rows):
        blocks = blocks_of(BOTH, frame, cells="long", **sizes(data))
        assert held(BOTH, checked(BOTH, blocks)) == held(BOTH, put)


def test_a_long_frame_of_a_table_whose_key_has_such_names() -> None:
    schema = declare({"ts": "int64", "value": "string"}, [cells("c", ["f"])])
    rows = [{"ts": 1, "value": "v", "family": "f", "qualifier": "q", "_value": b"1", "_ts": 9}]
    assert checked(schema, blocks_of(schema, rows, cells="long")) == [
        PutCell(schema.codec.encode((1, "v")), "f", "q", b"1", Micros(9))
    ]


def test_a_long_row_without_a_value_says_nothing() -> None:
    rows = [{"id": "a", "family": "click", "qualifier": "q", "value": None}]
    assert blocks_of(BOTH, rows, cells="long", nulls="skip") == []
    with pytest.raises(InvalidArgument, match="row number 0: column 'click:q': a cell has no NULL"):
        blocks_of(BOTH, rows, cells="long")


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"family": "clik"}, "row number 1: no family 'clik'; did you mean 'click'?"),
        ({"family": None}, "row number 1: column 'family' cannot be NULL"),
        ({"qualifier": None}, "row number 1: column 'qualifier' cannot be NULL"),
        ({"qualifier": "q" * 5000}, "row number 1: qualifier of family 'click' has 5000 bytes; at most 4096 are"),
        ({"value": "x"}, "row number 1: column 'value': 'x' (str) is not a binary"),
        ({"ts": 1.5}, "row number 1: column 'ts': 1.5 is not a time"),
        ({"ts": None}, "row number 1: column 'ts': None is not a time"),
        ({"id": None}, "row number 1: key column 'id': a key cannot be NULL"),
        ({"txn": 5}, "column 'txn' is given by the store"),
        ({"valu": 5}, "no column 'valu' with cells='long'; did you mean 'value'?"),
        ({"Value": b""}, "column 'Value' is given twice"),
    ],
    ids=shown,
)
@pytest.mark.parametrize("small_rows_max", [0, 64])
def test_bad_long_rows(change: dict[str, Any], complaint: str, small_rows_max: int) -> None:
    row = {"id": "a", "family": "click", "qualifier": "q", "value": b"1", "ts": 5}
    with pytest.raises(InvalidArgument) as caught:
        blocks_of(USERS, [row, row | change], cells="long", small_rows_max=small_rows_max)
    assert complaint in str(caught.value)


def test_a_long_frame_has_its_columns() -> None:
    row = {"id": "a", "family": "click", "qualifier": "q", "value": b"1"}
    for name in row:
        with pytest.raises(InvalidArgument, match=f"column '{name}' is missing"):
            blocks_of(USERS, [{n: v for n, v in row.items() if n != name}], cells="long")
    with pytest.raises(InvalidArgument, match="times of their own"):
        blocks_of(USERS, [row | {"ts": 5}], cells="long", ts=7)
    table = pa.table({"id": ["a"], "family": ["click"], "qualifier": ["q"], "value": [b""], "ts": [2**62]})
    with pytest.raises(InvalidArgument, match="row number 0: column 'ts': 4611686018427387904 is not a time"):
        blocks_of(USERS, table, cells="long")


BAD_ROWS: list[tuple[dict[Any, Any], str]] = [
    ({"name": "x"}, "no value for key column 'id'"),
    ({"id": None}, "key column 'id': a key cannot be NULL"),
    ({"id": 7}, "key column 'id': 7 (int) is not a string"),
    ({"id": "a", "nme": "x"}, "no column 'nme'; did you mean 'name'?"),
    ({"id": "a", "age": "x"}, "column 'age': 'x' (str) is not a int32"),
    ({"id": "a", "age": True}, "column 'age': True (bool) is not a int32"),
    ({"id": "a", "age": 1.5}, "column 'age': 1.5 (float) is not a int32"),
    ({"id": "a", "age": 2**31}, "column 'age': 2147483648 (int) is not a int32: out of range"),
    ({"id": "a", "age": None}, "column 'age' is NOT NULL, and NULL is written to it"),
    ({"id": "a", "name": "x", "NAME": "y"}, "column 'NAME' is given twice"),
    ({"id": "a", "click:a": None}, "column 'click:a': a cell has no NULL"),
    ({"id": "a", "click:a": "x"}, "column 'click:a': 'x' (str) is not a binary"),
    ({"id": "a", "click": {"q": 7}}, "7 (int) is not a binary"),
    ({"id": "a", 7: 1}, "the name of a column is text, not 7"),
    ({"id": "a" * 5000}, "5000 bytes; at most 4096 are allowed"),
]


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize("row, complaint", BAD_ROWS, ids=shown)
def test_bad_rows_are_refused_by_number(row: dict[Any, Any], complaint: str, small_rows_max: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        blocks_of(USERS, [{"id": "ok", "age": 1.0}, row], small_rows_max=small_rows_max)
    assert "row number 1: " in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize(
    "row, nulls, complaint",
    [
        ({"id": "a", "note": "x"}, "write", "column 'name' is NOT NULL without a default"),
        ({"id": "a"}, "write", "column 'name' is NOT NULL without a default"),
        ({"id": "a", "name": None}, "write", "column 'name' is NOT NULL, and NULL"),
        ({"id": "a", "name": None}, "skip", "column 'name' is NOT NULL without a default"),
        ({"id": "a", "name": "x"}, "write", ""),
        ({"id": "a", "age": 1}, "write", ""),
        ({"id": "a", "age": None}, "skip", "column 'name' is NOT NULL without a default"),
        ({"id": "a", "f:q": b""}, "write", ""),
    ],
    ids=str,
)
def test_not_null(row: dict[str, Any], nulls: str, complaint: str, small_rows_max: int) -> None:
    rows = [{"id": "b", "name": "x"}, row]
    if complaint:
        with pytest.raises(InvalidArgument, match=f"row number 1: .*{complaint}"):
            blocks_of(STRICT, rows, nulls=nulls, small_rows_max=small_rows_max)
    else:
        blocks = blocks_of(STRICT, rows, nulls=nulls, small_rows_max=small_rows_max)
        assert held(STRICT, checked(STRICT, blocks)) == held(STRICT, one_by_one(STRICT, rows, None))


@pytest.mark.parametrize(
    "rows, complaint",
    [
        ({"id": "a"}, "rows are a list of dicts or a frame, not {'id': 'a'}"),
        ("ann", "rows are a list of dicts or a frame, not 'ann'"),
        (7, "rows are a list of dicts or a frame, not 7"),
        ([["a"]], "row number 0: a row is a dict of column to value, not ['a']"),
        ([{"id": "a"}, None], "row number 1: a row is a dict"),
        ([pa.record_batch({"id": ["a"]}), {"id": "b"}], "after 1 frames comes {'id': 'b'}"),
        (pa.table({"name": ["a"]}), "key column 'id' is missing"),
        (pa.table({"name": pa.array([], pa.string())}), "key column 'id' is missing"),
        (pa.table({"id": ["a"], "nme": ["b"]}), "no column 'nme'; did you mean 'name'?"),
        (pa.table([pa.array(["a"]), pa.array(["a"])], ["id", "ID"]), "column 'ID' is given twice"),
        (pa.table([pa.array(["a"])] * 3, ["id", "name", "name"]), "column 'name' is given twice"),
        (pa.table({"id": ["a", "b", None]}), "row number 2: key column 'id': a key cannot be NULL"),
        (pa.table({"id": ["a", "b"], "age": [1, None]}), "row number 1: column 'age' is NOT NULL"),
        (pa.table({"id": ["a", "b"], "age": [1, 2**31]}), "row number 1: column 'age': 2147483648"),
        (pa.table({"id": ["a", "b"], "click:q": [b"", None]}), "row number 1: column 'click:q': a cell has no NULL"),
        (pa.table({"id": ["a", "b" * 5000]}), "row number 1: key 'bbb"),
        (pd.DataFrame({0: ["a"]}), "the name of a column is text, not 0"),
        (pl.Series("id", ["a"]), "row number 0: a row is a dict of column to value, not 'a'"),
    ],
    ids=shown,
)
def test_what_is_no_table_of_rows_is_refused(rows: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        blocks_of(USERS, rows)
    assert complaint in str(caught.value)


def test_batches_are_numbered_on_and_may_differ() -> None:
    batches = [pa.record_batch({"id": ["a", "b"], "age": [1, 2]}), pa.record_batch({"id": ["c"], "age": ["x"]})]
    with pytest.raises(InvalidArgument, match="row number 2: column 'age': 'x'"):
        blocks_of(USERS, iter(batches))
    uneven_ = [pa.table({"id": ["a"], "name": ["x"]}), pd.DataFrame({"id": ["a", "b"], "score": [0.5, None]})]
    rows: list[dict[str, Any]] = [{"id": "a", "name": "x"}, {"id": "a", "score": 0.5}, {"id": "b", "score": None}]
    for small_rows_max in (0, 64):
        blocks = blocks_of(USERS, uneven_, small_rows_max=small_rows_max)
        assert held(USERS, checked(USERS, blocks)) == held(USERS, one_by_one(USERS, rows, None))


@pytest.mark.parametrize("options", [{"nulls": "keep"}, {"nulls": None}, {"cells": "wide"}, {"ts": 1.5}], ids=str)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"nulls= is 'write' or 'skip'|cells= is 'map' or 'long'|not a time"):
        blocks_of(USERS, [{"id": "a"}], **options)


NO_IDS = pa.table({"id": pa.array([], pa.string()), "click": pa.array([], pa.map_(pa.string(), pa.binary()))})


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        (),
        NO_IDS,
        pa.record_batch({"id": pa.array([], pa.string())}),
        [NO_IDS, NO_IDS],
        pd.DataFrame({"id": []}),
        pd.DataFrame(index=pd.Index([], name="id")),
        pl.DataFrame({"id": []}),
        pl.DataFrame(schema={"id": pl.String, "age": pl.Int32}),
    ],
    ids=shown,
)
@pytest.mark.parametrize("nulls", ["write", "skip"])
def test_no_rows_are_no_blocks(nothing: Any, nulls: str) -> None:
    assert blocks_of(USERS, nothing, nulls=nulls) == []


def test_frames_without_rows_may_stand_among_others() -> None:
    blocks = blocks_of(USERS, iter([NO_IDS, pa.table({"id": ["a"], "age": [1]}), NO_IDS]))
    assert checked(USERS, blocks) == mutations_of(USERS, {"id": "a", "age": 1})
    assert blocks_of(USERS, NO_IDS.to_reader()) == []
    assert blocks_of(USERS, iter([])) == []
    with pytest.raises(InvalidArgument, match="no column 'agee'; did you mean 'age'"):
        blocks_of(USERS, NO_IDS.append_column("agee", pa.array([], pa.int32())))


def kinds(blocks: Sequence[OrderedBlock]) -> list[str]:
    """What kinds of blocks, and of how many rows."""
    found = []
    for each in blocks:
        match each.block:
            case SmallBlock(_, mutations):
                found.append(f"small {len(mutations)}")
            case ColumnarBlock(_, ColumnarOp.PUT, nulls_written, batch):
                found.append(f"put{'' if nulls_written else ' some'} {batch.num_rows}")
            case ColumnarBlock(_, op, _, batch):
                found.append(f"{op.name.lower()} {batch.num_rows}")
    return found


def test_rows_go_where_they_can_be_said() -> None:
    many = range(100)
    plain = [{"id": f"p{i:03}", "name": "x", "age": 1} for i in many]
    nulls = [{"id": f"n{i:03}", "name": None, "age": 1} for i in many]
    some = [{"id": f"s{i:03}", "name": "x"} for i in many]
    some_nulls = [{"id": f"t{i:03}", "name": None} for i in many]
    bare = [{"id": f"b{i:03}"} for i in many]
    only_cells = [{"id": f"c{i:03}", "click:a": b"1"} for i in many]
    mixed = [{"id": f"m{i:03}", "name": "x", "click:a": b"1"} for i in many]
    cases: list[tuple[list[dict[str, Any]], list[str]]] = [
        (plain[:64], ["small 64"]),
        (plain[:65], ["put 65"]),
        (plain + nulls, ["put 200"]),
        (plain + some, ["put 100", "put some 100"]),
        (bare, ["put 100"]),
        (plain + bare, ["put 100", "put some 100"]),
        (plain + some_nulls, ["put 100", "put 100"]),
        (plain + some_nulls[:64], ["small 64", "put 100"]),
        (only_cells, ["put_cells 100"]),
        (mixed, ["small 200"]),
        (plain + only_cells + mixed, ["small 200", "put 100", "put_cells 100"]),
        (plain + plain, ["put 100"]),
        (plain + [{"id": row["id"]} for row in plain], ["small 200"]),
    ]
    for rows, expected in cases:
        blocks = blocks_of(USERS, rows)
        assert kinds(blocks) == expected
        assert held(USERS, checked(USERS, blocks)) == held(USERS, one_by_one(USERS, rows, None))
    assert kinds(blocks_of(USERS, nulls, nulls="skip")) == ["put some 100"]
    assert kinds(blocks_of(USERS, mixed, nulls="skip", small_rows_max=0)) == ["small 200"]


def test_columnar_blocks_have_what_readers_need() -> None:
    (block,) = blocks_of(HASHED, pa.table({"number": [1, 2], "id": [7, -7]}), ts=5, small_rows_max=0)
    assert isinstance(block.block, ColumnarBlock)
    batch = block.block.batch
    assert batch.schema.names == [layout.ROW, "id", "number", layout.TS]
    assert batch.column(layout.ROW).to_pylist() == block.rows.to_pylist() == sorted(block.rows.to_pylist())
    assert [layout.field_id(batch.schema.field(name)) for name in ("id", "number")] == [
        HASHED.key[0].id,
        HASHED.column("number")[1].id,
    ]
    assert batch.column(layout.TS).view(pa.int64()).to_pylist() == [5, 5]


TIGHT = Limits(block_bytes_max=64 * 1024, value_bytes_max=32 * 1024)


@pytest.mark.parametrize("small_rows_max", [0, 1000])
@pytest.mark.parametrize("kind", ["columns", "cells", "mixed"])
def test_blocks_stay_below_a_quarter(kind: str, small_rows_max: int) -> None:
    names = {"columns": ["name"], "cells": ["click:a", "click:b"], "mixed": ["name", "click:a"]}[kind]
    rows: list[dict[str, Any]] = [{"id": f"{i:04}"} for i in range(1000)]
    for i, row in enumerate(rows):
        row |= {name: "ü" * (i % 97) if name == "name" else b"x" * (i % 97) for name in names}
    blocks = blocks_of(USERS, rows, limits=TIGHT, small_rows_max=small_rows_max)
    assert all(len(encode_block(each.block)) < TIGHT.block_bytes_max // 4 for each in blocks)
    assert 5 < len(blocks) < 40
    assert held(USERS, checked(USERS, blocks, TIGHT)) == held(USERS, one_by_one(USERS, rows, None))


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize(
    "row",
    [
        {"name": "x" * 30_000},
        {f"click:{i}": b"x" * 10_000 for i in range(3)},
        {"name": "x" * 20_000, "click:a": b"x" * 9_000},
    ],
    ids=["columns", "cells", "mixed"],
)
def test_a_large_row_has_a_block_of_its_own(row: dict[str, Any], small_rows_max: int) -> None:
    rows = [{"id": "b", **row}, {"id": "a", **row}, {"id": "c", **row}]
    blocks = blocks_of(USERS, rows, limits=TIGHT, small_rows_max=small_rows_max)
    assert len(blocks) == 3
    assert held(USERS, checked(USERS, blocks, TIGHT)) == held(USERS, one_by_one(USERS, rows, None))


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize(
    "row, complaint",
    [
        (
            {f"click:{i}": b"x" * 30_000 for i in range(3)},
            "row 'a': what is written to it has .* bytes; a block",
        ),
        ({"name": "x" * 40_000}, "row number 1: .*column 'name' has "),
        ({"click:a": b"x" * 40_000}, "row number 1: .*column 'click:a' has "),
    ],
    ids=["row", "value", "cell"],
)
def test_what_is_too_large_is_refused(row: dict[str, Any], complaint: str, small_rows_max: int) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        blocks_of(USERS, [{"id": "b"}, {"id": "a", **row}], limits=TIGHT, small_rows_max=small_rows_max)


def test_nested_values_too_large_for_small_blocks_go_columnar() -> None:
    items = list(range(2**31 - 250_000, 2**31))
    rows: list[dict[str, Any]] = [{"id": "a", "items": items}, {"id": "b", "items": []}]
    assert 5 * len(items) > NESTED_BYTES_MAX
    blocks = blocks_of(BOTH, rows)
    assert kinds(blocks) == ["small 1", "put 1"]
    checked(BOTH, blocks)
    with pytest.raises(InvalidArgument, match=r"row 'a': .* say it in several calls, columns apart from cells"):
        blocks_of(BOTH, [rows[0] | {"click:a": b""}])


@pytest.mark.parametrize("small_rows_max", [0, 1000])
@pytest.mark.parametrize("frame", [False, True], ids=["dicts", "frame"])
def test_splitting(frame: bool, small_rows_max: int) -> None:
    rows: list[dict[str, Any]] = [{"id": f"{i:03}", "name": "x"} for i in range(300)]
    rows += [] if frame else [{"id": "150", "click:a": b"1"}]
    (*_, block) = blocks_of(USERS, pa.Table.from_pylist(rows) if frame else rows, small_rows_max=small_rows_max)
    every = block.rows.to_pylist()
    for boundaries in (
        [],
        [b"150"],
        [b"000"],
        [b"150", b"1500", b"2"],
        [b"a", b"b"],
        [b"%03d" % i for i in range(300)],
    ):
        pieces = split_blocks(block, boundaries)
        assert [row for _, piece in pieces for row in piece.rows.to_pylist()] == every
        for place, piece in pieces:
            low = boundaries[place - 1] if place else b""
            assert all(low <= row for row in piece.rows.to_pylist())
            assert place == len(boundaries) or all(row < boundaries[place] for row in piece.rows.to_pylist())
        assert [place for place, _ in pieces] == sorted({place for place, _ in pieces})
        whole = [mutation for _, piece in pieces for mutation in checked(USERS, [piece])]
        assert whole == checked(USERS, [block])


def test_a_piece_shares_the_memory_of_its_block() -> None:
    (block,) = blocks_of(USERS, pa.table({"id": ["a", "b"], "name": ["x", "y"]}), small_rows_max=0)
    (_, (_, piece)) = split_blocks(block, [b"b"])
    assert isinstance(block.block, ColumnarBlock)
    assert isinstance(piece.block, ColumnarBlock)
    whole, part = block.block.batch.column("name"), piece.block.batch.column("name")
    assert part.offset == 1
    assert [buffer and buffer.address for buffer in part.buffers()] == [b and b.address for b in whole.buffers()]
    assert split_blocks(block, [b"z"])[0][1] is block


@pytest.mark.parametrize("small_rows_max", [0, 64])
@pytest.mark.parametrize(
    "schema, keys",
    [
        (USERS, ["b", "a", "b"]),
        (USERS, iter(["b", ("a",), {"id": "a"}, {"ID": "b"}])),
        (USERS, pa.array(["b", "a"])),
        (USERS, pa.chunked_array([["b"], ["a"]])),
        (USERS, pa.table({"ID": ["b", "a"]})),
        (USERS, pd.Series(["b", "a"])),
        (USERS, pd.DataFrame({"id": ["b", "a"]})),
        (USERS, pd.DataFrame(index=pd.Index(["b", "a"], name="id"))),
        (USERS, pl.Series(["b", "a"])),
        (USERS, pl.DataFrame({"id": ["b", "a"]})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_erasures_of_many_rows(schema: TableSchema, keys: Any, small_rows_max: int) -> None:
    # An iterator is used up by the first of the cases that share it.
    keys = ["b", ("a",), {"id": "a"}, {"ID": "b"}] if isinstance(keys, Iterator) else keys
    blocks = erase_rows_blocks(schema, keys, ts=5, small_rows_max=small_rows_max)
    assert checked(schema, blocks) == [Erase(Row(row), WholeRow(), Micros(5)) for row in (b"a", b"b")]
    assert kinds(blocks) == (["small 2"] if small_rows_max else ["erase_rows 2"])


def test_erasures_are_cut_and_need_no_columns() -> None:
    keys = [("ä" * (i % 50), i) for i in range(1000)]
    blocks = erase_rows_blocks(PAIR, keys, limits=TIGHT, block_rows_max=300)
    assert len(blocks) > 4
    assert all(len(encode_block(each.block)) < TIGHT.block_bytes_max // 4 for each in blocks)
    assert {mutation.row for mutation in checked(PAIR, blocks)} == {key_of(PAIR, key) for key in keys}
    assert len(checked(STRICT, erase_rows_blocks(STRICT, ["a"], small_rows_max=0))) == 1
    assert erase_rows_blocks(USERS, []) == []


@pytest.mark.parametrize(
    "schema, keys, complaint",
    [
        (USERS, "ann", "keys are a list of them, not 'ann'"),
        (USERS, {"id": "ann"}, "keys are a list of them"),
        (USERS, 7, "keys are a list of them"),
        (USERS, ["a", None], "key number 1: key column 'id': a key cannot be NULL"),
        (USERS, ["a", ["b"]], "key number 1: key column 'id': ['b'] (list) is not a string"),
        (USERS, ["a" * 5000], "5000 bytes; at most 4096"),
        (USERS, pa.array(["a", None]), "row number 1: key column 'id': a key cannot be NULL"),
        (USERS, pa.array([1]), "row number 0: key column 'id': 1 (int) is not a string"),
        (USERS, pa.table({"id": ["a"], "name": ["x"]}), "a frame of keys has the key columns alone"),
        (PAIR, pa.array(["a"]), "one array is no key of area, place"),
        (PAIR, ["a"], "key number 0: key 'a': give a tuple or a dict of area, place"),
        (FLOATING, pa.array([math.nan]), "row number 0: key column 'x': a key cannot be NaN"),
    ],
    ids=shown,
)
def test_keys_that_cannot_be_erased(schema: TableSchema, keys: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        erase_rows_blocks(schema, keys)
    assert complaint in str(caught.value)


def test_the_wildcard_as_a_column() -> None:
    maps = pa.array([[("x:y", b"1"), ("CLICK:q", b"2")], None, []], pa.map_(pa.string(), pa.binary()))
    blocks = blocks_of(WILD, pa.table({"id": [2, 1, 3], "*": maps}), small_rows_max=0)
    rows: list[dict[str, Any]] = [{"id": 2, "x:y": b"1", "click:q": b"2"}, {"id": 1}, {"id": 3}]
    assert held(WILD, checked(WILD, blocks)) == held(WILD, one_by_one(WILD, rows, None))
    bad = pa.array([[], [("nocolon", b"1")], [("_x:y", b"1")]], pa.map_(pa.string(), pa.binary()))
    with pytest.raises(InvalidArgument, match="row number 1: 'nocolon' is no cell: it is called family:qualifier"):
        blocks_of(WILD, pa.table({"id": [2, 1, 3], "*": bad}))
    with pytest.raises(InvalidArgument, match="row number 1: family '_x'"):
        blocks_of(WILD, pa.table({"id": [2, 3], "*": bad.take(pa.array([0, 2]))}))


def test_dicts_with_a_default_are_asked_only_for_what_they_have() -> None:
    class Generous(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            raise AssertionError(name)

    rows = [Generous(id="a", name="x"), Generous(id="b", age=1)]
    blocks = blocks_of(USERS, rows, small_rows_max=0)
    assert held(USERS, checked(USERS, blocks)) == held(USERS, one_by_one(USERS, rows, None))


def test_names_of_one_column_may_differ_between_rows() -> None:
    rows: list[dict[str, Any]] = [{"ID": "a", "Name": "x"}, {"id": "b", "name": "y"}, {"id": "c", "NAME": None}]
    for small_rows_max in (0, 64):
        blocks = blocks_of(USERS, rows, small_rows_max=small_rows_max)
        assert held(USERS, checked(USERS, blocks)) == held(USERS, one_by_one(USERS, rows, None))


def test_the_schema_of_the_blocks_is_the_schema_given() -> None:
    later = replace(USERS, version=USERS.version + 1)
    for small_rows_max in (0, 64):
        (block,) = blocks_of(later, [{"id": "a", "name": "x"}], small_rows_max=small_rows_max)
        assert block.block.schema_version == later.version


def test_what_pandas_rounded_before_is_refused_and_not_written() -> None:
    frame = pa.table({"id": ["a", "b"], "a": pa.array([2**63 - 1, None])}).to_pandas()
    with pytest.raises(InvalidArgument, match=r"row number 0: column 'a': 9\.223372036854776e"):
        blocks_of(BOTH, frame)


def test_put_of_the_key_alone() -> None:
    for rows in ([{"id": "a"}], pa.table({"id": ["a"]}), pd.DataFrame({"id": ["a"]}), pl.DataFrame({"id": ["a"]})):
        for small_rows_max in (0, 64):
            assert checked(USERS, blocks_of(USERS, rows, small_rows_max=small_rows_max)) == [Put(Row(b"a"), ())]
