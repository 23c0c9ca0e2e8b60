"""Single rows, the short way: what it says is what the long way says, and blocks of it pass the door."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from decimal import Decimal as PyDecimal
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.client.api.rows import Row as FoundRow
from stelae.client.arguments import names as names_module
from stelae.client.arguments.names import Names
from stelae.client.intake.mutations import blocks_of, key_of, mutations_of
from stelae.client.intake.rule import said
from stelae.client.intake.single_rows import PlainPuts, SinglePuts
from stelae.format.block import NESTED_BYTES_MAX, SmallBlock, encode_block
from stelae.format.columnar import ColumnarBlock
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Mutation
from stelae.model.schema import TableSchema
from stelae.storage.checks.blocks import check_block
from tests.client.plainly import checked, held, mutations_in
from tests.client.samples import EVERYTHING, FLOATING, HASHED, PAIR, STRICT, USERS, WILD, every_type
from tests.effort import examples

ANY_VALUE: tuple[Any, ...] = (
    *(None, True, 0, -1, 7.0, 1.5, math.nan, 2**31, 2**63, 10**400, "", "x", "größe", "\ud800", b"", b"1"),
    *(bytearray(b"2"), memoryview(b"3"), np.int64(4), np.float32(0.5), np.str_("n"), PyDecimal("1.50"), [], [1], {}),
    *(row[name] for row in every_type() for name in row),
)
HASHED_TEXT = declare({"id": "string"}, [columns("g", {"name": "string"})], hashed=True)
SCHEMAS = {
    "texts": HASHED_TEXT,
    "users": USERS,
    "pair": PAIR,
    "wild": WILD,
    "floating": FLOATING,
    "hashed": HASHED,
    "strict": STRICT,
    "everything": EVERYTHING,
}
EXTRA_NAMES = ("ID", "nothing", "click", "click:a", "CLICK:a", "click:", "view:é", "f:q", "x:y", "*", "row:a", "_x:a")
ORDINARY: dict[str, tuple[Any, ...]] = {
    "id": ("a", "\x00", 7, 1.0),
    "area": ("a", ""),
    "place": (1, -1),
    "x": (0.0, -0.0, 2),
    "name": ("x", "ü"),
    "age": (1, 2.0),
    "number": (3,),
    "note": ("n", None),
    "may": (1,),
}


@st.composite
def any_row(draw: st.DrawFn, schema: TableSchema) -> dict[Any, Any]:
    """A row that is often right, and sometimes wrong in one way or another."""
    declared = [column.name for group in schema.groups for column in getattr(group, "columns", ())]
    names = [*schema.codec.names, *draw(st.lists(st.sampled_from([*declared, *EXTRA_NAMES]), max_size=5))]
    if draw(st.integers(0, 9)) == 0:
        names.remove(schema.codec.names[0])
    row: dict[Any, Any] = {}
    for name in draw(st.permutations(names)):
        likely = (b"1", b"") if ":" in name else ORDINARY.get(name, ANY_VALUE)
        row[name] = draw(st.sampled_from(likely if draw(st.integers(0, 5)) else ANY_VALUE))
    return row


def outcome(say: Callable[[], Any]) -> str:
    try:
        return repr(say())
    except InvalidArgument as error:
        return f"refused: {error}"


def the_long_way(schema: TableSchema, row: dict[Any, Any], ts: int | None) -> list[Mutation]:
    mutations = mutations_of(schema, row, ts)
    check_block(schema, SmallBlock(schema.version, tuple(mutations)))
    return mutations


def in_one_block(schema: TableSchema, puts: SinglePuts, row: dict[Any, Any], ts: int | None) -> list[Mutation]:
    (only,) = puts.blocks(row, ts)
    return mutations_in(schema, only.block)


@settings(max_examples=examples(600))
@given(st.data(), st.sampled_from(sorted(SCHEMAS)), st.sampled_from([None, 5]))
def test_a_put_says_what_the_long_way_says(data: st.DataObject, which: str, ts: int | None) -> None:
    schema = SCHEMAS[which]
    puts, rows = SinglePuts(schema), data.draw(st.lists(any_row(schema), min_size=1, max_size=3))
    for row in rows:
        short = outcome(lambda row=row: in_one_block(schema, puts, row, ts))  # type: ignore[misc]
        assert short == outcome(lambda row=row: the_long_way(schema, row, ts))  # type: ignore[misc]


PLAINEST = declare(
    {"id": "binary"}, [columns("g", {"t": "string", "b": "binary", "i": "int32", "n": "int64", "f": "float64"})]
)
PLAINEST_VALUES: dict[str, Any] = {"id": b"a", "t": "x", "b": b"y", "i": 2**31 - 1, "n": -(2**63), "f": 1.5}
PLAINEST_OTHERS: dict[str, tuple[Any, ...]] = {
    "id": (b"", b"a" * 4096, b"a" * 4097, bytearray(b"a"), "a", None),
    "t": ("", "größe", "\ud800", "x" * 70_000, None, b"x", np.str_("n")),
    "b": (b"", b"y" * 70_000, bytearray(b"2"), memoryview(b"3"), "y", None),
    "i": (0, -(2**31), 2**31, -(2**31) - 1, True, 7.0, 1.5, None),
    "n": (2**63 - 1, 2**63, np.int64(4), False, "1"),
    "f": (math.nan, -0.0, 2, True, None, np.float32(0.5)),
}


@settings(max_examples=examples(40))
@given(st.data(), st.permutations(sorted(PLAINEST_VALUES)))
def test_a_shape_that_was_met_before_is_not_trusted_with_other_values(data: st.DataObject, names: list[str]) -> None:
    puts = SinglePuts(PLAINEST)
    kept = [name for name in names if name == "id" or data.draw(st.booleans())]
    in_order = [name for name in PLAINEST_VALUES if name in kept]
    for order in (kept, in_order):
        plain = {name: PLAINEST_VALUES[name] for name in order}
        others = [{**plain, name: value} for name in order for value in PLAINEST_OTHERS[name]]
        for row in (plain, *others, plain):
            short = outcome(lambda row=row: in_one_block(PLAINEST, puts, row, 5))  # type: ignore[misc]
            assert short == outcome(lambda row=row: the_long_way(PLAINEST, row, 5))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["t", "b"])
def test_a_shape_that_was_met_before_takes_no_larger_values(name: str) -> None:
    plain = PlainPuts(Names(PLAINEST))
    size = DEFAULT_LIMITS.block_bytes_max // 4 // len(PLAINEST_VALUES)
    assert plain.put(PLAINEST_VALUES, None) is not None
    assert plain.put({**PLAINEST_VALUES, name: PLAINEST_VALUES[name] * size}, None) is not None
    assert plain.put({**PLAINEST_VALUES, name: PLAINEST_VALUES[name] * (size + 1)}, None) is None


@settings(max_examples=examples(300))
@given(st.data(), st.sampled_from(sorted(SCHEMAS)), st.sampled_from(["write", "skip"]))
def test_few_dicts_and_many_say_the_same(data: st.DataObject, which: str, nulls: str) -> None:
    """Where one is refused so is the other, and both name the same row."""
    schema, rows = SCHEMAS[which], data.draw(st.lists(any_row(SCHEMAS[which]), min_size=1, max_size=3))
    outcomes = [
        outcome(lambda n=n: held(schema, checked(schema, blocks_of(schema, rows, nulls=nulls, small_rows_max=n))))  # type: ignore[misc]
        for n in (0, 64)
    ]
    if outcomes[0].startswith("refused"):
        assert all(each.startswith("refused: row number ") for each in outcomes), outcomes
    else:
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("small_rows_max", [0, 64])
def test_whole_floats_fit_int_keys_of_many_rows(small_rows_max: int) -> None:
    (put,) = checked(WILD, blocks_of(WILD, [{"id": 7.0}], small_rows_max=small_rows_max))
    assert put.row == key_of(WILD, 7)
    with pytest.raises(InvalidArgument, match=r"row number 1: key column 'id': 7\.5 \(float\) is not a int64"):
        blocks_of(WILD, [{"id": 7}, {"id": 7.5}], small_rows_max=small_rows_max)


@pytest.mark.parametrize(
    "schema, row",
    [
        (USERS, {"id": "ann"}),
        (USERS, {"id": "ann", "name": "Ann", "age": 31, "score": 0.5}),
        (USERS, {"score": 1, "name": None, "id": "größe"}),
        (USERS, {"id": "ann", "name": "größe", "click:a": b"1", "View:a": b"2"}),
        (PAIR, {"place": 7, "area": "a", "note": "x"}),
        (WILD, {"id": 7, "any:thing": b""}),
        (HASHED, {"id": 7, "number": 1}),
        (FLOATING, {"x": -0.0}),
        (STRICT, {"id": "a", "name": "x"}),
        (STRICT, {"id": "a", "age": 1}),
        (STRICT, {"id": "a", "f:q": b""}),
        (USERS, {"ID": "ann", "NAME": "x"}),
        (USERS, {"id": "ann", "name": "x" * 70_000}),
        (USERS, {"id": "ann", "name": "ü" * 40_000}),
        (USERS, {"id": "ann", "name": None, "CLICK:a": b"1"}),
        (PAIR, {"note": None, "PLACE": 7, "number": 1, "area": "a"}),
        (EVERYTHING, every_type()[0]),
        (EVERYTHING, every_type()[1]),
        (EVERYTHING, every_type()[2]),
        (EVERYTHING, {"id": 1, "binary": bytearray(70_000)}),
    ],
    ids=lambda value: ascii(value)[:50] if isinstance(value, dict) else "",
)
def test_plain_rows_go_the_short_way(schema: TableSchema, row: dict[str, Any]) -> None:
    found = PlainPuts(Names(schema)).put(row, Micros(5))
    assert list(found or ()) == mutations_of(schema, row, 5)


@pytest.mark.parametrize(
    "schema, row",
    [
        (USERS, {"name": "Ann"}),
        (USERS, {"id": "ann", "ID": "bob"}),
        (USERS, {"id": "ann", "name": "x", "NAME": "x"}),
        (USERS, {"id": "ann", "click": {"a": b"1"}}),
        (USERS, {"id": "ann", "click:a": b"1", "CLICK:a": b"2"}),
        (USERS, {"id": "ann", "click:a": bytearray(b"1")}),
        (USERS, {"id": "ann", "click:a": b"x" * 70_000}),
        (USERS, {"id": "ann", "name": "x" * (2**23 + 1)}),
        (USERS, {"id": "ann", "name": "ü" * (2**22 + 1)}),
        (USERS, {"id": "a" * 5_000}),
        (USERS, {"id": "\ud800"}),
        (USERS, {"id": "ann", "age": None}),
        (USERS, {"id": "ann", 7: 1}),
        (USERS, {"id": "ann"} | {f"click:{i}": b"" for i in range(300)}),
        (STRICT, {"id": "a"}),
        (STRICT, {"id": "a", "note": "x"}),
        (EVERYTHING, {"id": 1, "ints": [0] * 2**20}),
        (EVERYTHING, {"id": 1, "binary": bytearray(2**23 + 1)}),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, dict) else "",
)
def test_other_rows_go_the_long_way(schema: TableSchema, row: dict[Any, Any]) -> None:
    assert PlainPuts(Names(schema)).put(row, None) is None


def test_where_blocks_are_small_nothing_is_plain() -> None:
    row = {"id": "ann", "name": "x"}
    with_cells = row | {"click:a": b""}
    assert PlainPuts(Names(USERS, Limits(block_bytes_max=2**13))).put(row, None) is None
    assert PlainPuts(Names(USERS, Limits(block_bytes_max=2**14))).put(row, None) is not None
    assert PlainPuts(Names(USERS, Limits(block_bytes_max=2**23))).put(with_cells, None) is None
    assert PlainPuts(Names(USERS, Limits(block_bytes_max=2**24))).put(with_cells, None) is not None


@pytest.mark.parametrize("columns_count", [0, 10])
def test_the_largest_plain_row_fits_into_a_block(columns_count: int) -> None:
    limits = Limits(block_bytes_max=2**24)
    size = limits.block_bytes_max // 4 // 256
    row: dict[str, Any] = {"id": "k" * limits.row_bytes_max}
    row |= {f"c{i}": b"y" * (limits.block_bytes_max // 4 // (columns_count + 1)) for i in range(columns_count)}
    row |= {f"fam:{i:04}".ljust(4_000, "ü")[:2_000]: b"x" * size for i in range(255 - columns_count)}
    schema = declare({"id": "string"}, [columns("g", {f"c{i}": "binary" for i in range(10)}), cells("c")])
    (*puts,) = PlainPuts(Names(schema, limits)).put(row, None) or ()
    assert len(puts) == 255 - columns_count + bool(columns_count)
    block = SmallBlock(schema.version, tuple(puts))
    check_block(schema, block, limits, len(encode_block(block)))
    assert PlainPuts(Names(schema, limits)).put(row | {"fam:z": b"x" * (size + 1)}, None) is None


WIDE = declare({"id": "string"}, [columns("g", {f"c{i}": "binary" for i in range(10)} | {"items": "array<int32>"})])


@pytest.mark.parametrize(
    "row, complaint",
    [
        ({"id": "a", "c0": b"x" * (DEFAULT_LIMITS.value_bytes_max + 1)}, r"^row 'a': column 'c0' has 16777217 bytes"),
        (
            {"id": "a"} | {f"c{i}": b"x" * DEFAULT_LIMITS.value_bytes_max for i in range(5)},
            r"^row 'a': what is written to it has \d+ bytes; a block has at most 67108864$",
        ),
        ({"id": "a" * 4097}, r"^row 'aaa.*: the row has 4097 bytes; at most 4096"),
        ({"id": "a", "c9": None, "c10": b""}, r"^row 'a': no column 'c10'; did you mean 'c1'"),
    ],
    ids=["value", "row", "key", "name"],
)
def test_what_is_too_large_names_the_row(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        SinglePuts(WIDE).blocks(row, None)


def test_large_nested_values_go_columnar() -> None:
    items = list(range(2**31 - 250_000, 2**31))
    assert 5 * len(items) > NESTED_BYTES_MAX
    (only,) = SinglePuts(WIDE).blocks({"id": "a", "items": items, "c0": b"x"}, 5)
    block = only.block
    assert isinstance(block, ColumnarBlock)
    check_block(WIDE, block)
    expected = held(WIDE, mutations_of(WIDE, {"id": "a", "items": items, "c0": b"x"}, 5))
    is_same = held(WIDE, mutations_in(WIDE, block)) == expected
    assert is_same, "not shown: it is long"
    with pytest.raises(InvalidArgument, match=r"row 'a': column 'items'\[0\]: 1\.0 \(float\) is not a int32"):
        SinglePuts(WIDE).blocks({"id": "a", "items": [1.0, *items]}, None)


@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_an_array_that_is_too_long_is_refused_before_its_numbers_are_looked_at(make: Any) -> None:
    names = Names(WIDE, Limits(value_bytes_max=1_000))
    given = [("id", "a"), ("items", make([1] * 250))]

    def never(*_: object) -> None:
        raise AssertionError("looked at")

    with pytest.raises(InvalidArgument, match=r"^column 'items' has 1004 bytes; at most 1000 are allowed$"):
        said(names, given, None, never)
    with pytest.raises(InvalidArgument, match=r"^row 'a': column 'items' has 1004 bytes; at most 1000 are allowed$"):
        SinglePuts(WIDE, names.limits).blocks(dict(given), None)
    (block,) = SinglePuts(WIDE, names.limits).blocks({"id": "a", "items": make([1] * 249)}, None)
    assert mutations_in(WIDE, block.block) == mutations_of(WIDE, {"id": "a", "items": [1] * 249})


@pytest.mark.parametrize("make", [list, partial(np.array, dtype=object)])
def test_nulls_of_an_array_count_for_little(make: Any) -> None:
    given = {"id": "a", "items": make([1, None] * 199)}
    (block,) = SinglePuts(WIDE, Limits(value_bytes_max=1_000)).blocks(given, None)
    assert mutations_in(WIDE, block.block) == mutations_of(WIDE, {"id": "a", "items": [1, None] * 199})


def test_a_time_is_checked_first() -> None:
    with pytest.raises(InvalidArgument, match=r"ts: 1\.5 is not a time"):
        SinglePuts(USERS).blocks({"id": "ann"}, 1.5)  # type: ignore[arg-type]


def test_the_longest_key_is_a_setting() -> None:
    puts = SinglePuts(USERS, Limits(row_bytes_max=3))
    assert len(puts.blocks({"id": "abc"}, None)) == 1
    with pytest.raises(InvalidArgument, match="row 'abcd': the row has 4 bytes; at most 3"):
        puts.blocks({"id": "abcd"}, None)


@pytest.mark.parametrize(
    "row",
    [OrderedDict(id="ann", name="x"), MappingProxyType({"id": "ann", "name": "x"}), FoundRow({"id": "ann"})],
    ids=lambda row: type(row).__name__,
)
def test_any_mapping_is_a_row(row: Mapping[str, Any]) -> None:
    (only,) = SinglePuts(USERS).blocks(row, None)
    assert mutations_in(USERS, only.block) == mutations_of(USERS, dict(row))


@pytest.mark.parametrize("row", [None, "ann", 7, [("id", "ann")]], ids=str)
def test_what_is_no_mapping_is_no_row(row: Any) -> None:
    for put in (SinglePuts(USERS).blocks, SinglePuts(USERS).said):
        with pytest.raises(InvalidArgument, match="a row is a dict of column to value, not"):
            put(row, None)


def test_names_of_cells_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "_MET_MAX", 8)
    names = Names(WILD)
    met = [names.cell(f"x:{number}") for number in range(100)]
    assert [cell.qualifier for cell in met] == [str(number) for number in range(100)]
    assert len(names._met) <= 8
    assert names.cell("x:99") is met[-1]


def test_rows_are_bytes_of_their_own() -> None:
    (put,) = PlainPuts(Names(USERS)).put({"id": "ann"}, None) or ()
    assert type(put.row) is bytes
    assert put.row == Row(b"ann")
