"""What the door lets in can be kept and read; what it refuses, it refuses with the row and the column."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal as PyDecimal
from enum import IntEnum
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.format import layout
from stelae.format.block import NESTED_BYTES_MAX, SMALL_MUTATIONS_MAX, Block, SmallBlock, decode_block, encode_block
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import InvalidArgument, StelaeError
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, Micros, Row, SchemaVersion, Txn
from stelae.model.keys.vector import encode_arrays
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.ranges import ALL_ROWS
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.model.values import Value, coerce
from stelae.storage.checks.blocks import check_block
from stelae.storage.memory.insertion import insert
from stelae.storage.memory.memory import Memory
from tests.effort import examples
from tests.storage import workloads
from tests.strategies import column_types, values

SCHEMA = declare(
    {"id": "string"},
    [
        columns(
            "g",
            {
                "number": "int32",
                "text": "string",
                "raw": "binary",
                "price": "decimal(6, 2)",
                "ratio": "float32",
                "share": "float64",
                "day": "date",
                "seen": "timestamp",
                "clock": "timestamp_ntz",
                "flag": "bool",
                "items": "array<int64>",
                "days": "array<date>",
                "spot": "struct<x: int32, y: timestamp>",
                "counts": "map<string, int32>",
                "weights": "map<float64, string>",
                "stays": "map<date, timestamp>",
                "place": "vector(float32, 3)",
                "level": "int32 not null default 7",
            },
        ),
        columns("must", {"name": "string not null", "note": "string"}),
        cells("events", ["click", "view"]),
    ],
)
WILD = declare({"id": "int64"}, [cells("events", ["click"]), cells("rest")])
PAIR = declare({"area": "string", "place": "int64"}, [columns("g", {"number": "int64"})])
HASHED = declare({"id": "string"}, [columns("g", {"number": "int64"})], hashed=True)
FLOATING = declare({"x": "float64"}, [columns("g", {"number": "int64"})])
DATED = declare({"day": "date"}, [columns("g", {"number": "int64"})])
STRICT = declare({"id": "string"}, [columns("g", {"name": "string not null", "note": "string"})])
TIGHT = Limits(row_bytes_max=8, value_bytes_max=40, name_bytes_max=10)
TXN = Txn(1 << 40)
ROW = Row(b"a")


def id_of(schema: TableSchema, name: str) -> ColumnId:
    return schema.column(name)[1].id


def put(name: str, value: Value, schema: TableSchema = SCHEMA, row: Row = ROW) -> Put:
    return Put(row, ((id_of(schema, name), value),))


def small(*mutations: Mutation) -> SmallBlock:
    return SmallBlock(SCHEMA.version, mutations)


def array(type_: t.ColumnType, given_: Sequence[Value] | pa.Array) -> pa.Array:
    return given_ if isinstance(given_, pa.Array) else array_of(type_, given_)


def columnar(
    schema: TableSchema,
    keys: Sequence[Any],
    values_of: dict[str, Sequence[Value] | pa.Array] | None = None,
    *,
    op: ColumnarOp = ColumnarOp.PUT,
    nulls_written: bool = True,
    **system: pa.Array,
) -> ColumnarBlock:
    """Keys as they are said, values by column; system columns (`_row` is made) as arrays."""
    whole = [key if isinstance(key, tuple) else (key,) for key in keys]
    parts = [array(c.type, [key[i] for key in whole]) for i, c in enumerate(schema.key)]
    found: dict[str, tuple[pa.Field, pa.Array]] = {}
    if layout.row_is_stored(schema.codec):
        found[layout.ROW] = layout.system_field(layout.ROW), encode_arrays(schema.codec, parts)
    for c, part in zip(schema.key, parts, strict=True):
        found[c.name] = layout.user_field(c.name, part.type, c.id, False), part
    for name, given_ in (values_of or {}).items():
        column = schema.column(name)[1]
        made = array(column.type, given_)
        found[name] = layout.user_field(name, made.type, column.id, True), made
    for name, made in system.items():
        found[name] = layout.system_field(name), made
    fields, arrays = [field for field, _ in found.values()], [made for _, made in found.values()]
    return ColumnarBlock(schema.version, op, nulls_written, pa.record_batch(arrays, schema=pa.schema(fields)))


def cells_of(schema: TableSchema, given_: Sequence[tuple[Any, str, str, bytes, int]], *, timed: bool) -> ColumnarBlock:
    system = {
        layout.FAMILY: pa.array([cell[1] for cell in given_], pa.string()),
        layout.QUALIFIER: pa.array([cell[2] for cell in given_], pa.string()),
        layout.VALUE: pa.array([cell[3] for cell in given_], pa.binary()),
    }
    if timed:
        system[layout.TS] = pa.array([cell[4] for cell in given_], pa.int64()).view(pa.timestamp("us", "UTC"))
    return columnar(schema, [cell[0] for cell in given_], op=ColumnarOp.PUT_CELLS, **system)


def refusal(schema: TableSchema, block: Block, limits: Limits = DEFAULT_LIMITS) -> str | None:
    try:
        check_block(schema, block, limits)
    except InvalidArgument as error:
        return str(error)
    return None


def refusal_after_travel(schema: TableSchema, block: Block, limits: Limits = DEFAULT_LIMITS) -> str | None:
    """The same of the block as it comes off the wire, or out of the log."""
    try:
        return refusal(schema, decode_block(encode_block(block)), limits)
    except InvalidArgument as error:
        return str(error)


def kept(schema: TableSchema, block: Block) -> None:
    """It goes into memory, and comes out as records."""
    memory = Memory(schema, ALL_ROWS)
    insert(memory, block, TXN, len(encode_block(block)))
    for group in memory.groups.values():
        for raw in group.raw(ALL_ROWS):
            raw.rows.validate(full=True)


# -- what is let in


@settings(max_examples=examples(100))
@given(st.data())
def test_whatever_the_workloads_write_passes(data: st.DataObject) -> None:
    schema = data.draw(workloads.schemas())
    rows = data.draw(workloads.row_sets(schema))
    for _ in range(3):
        _, schema = data.draw(workloads.alterations(schema))
        block = SmallBlock(schema.version, data.draw(workloads.blocks(schema, rows)))
        check_block(schema, block, size_bytes=len(encode_block(block)))
        assert refusal_after_travel(schema, block) is None


@st.composite
def columnar_blocks(draw: st.DrawFn, schema: TableSchema, rows: Sequence[Row]) -> ColumnarBlock:
    """Of every op, in order; values sometimes of a narrower type, as an older client writes them."""
    here = [c for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns]
    families = sorted(workloads.families_of(schema))
    op = draw(st.sampled_from([op for op in ColumnarOp if families or op is not ColumnarOp.PUT_CELLS]))
    timed = draw(st.booleans())
    times = [ts for ts in workloads.TIMES if ts is not None]
    if op is ColumnarOp.PUT_CELLS:
        names = st.tuples(*(st.sampled_from(each) for each in (rows, families, workloads.QUALIFIERS, times)))
        order = (lambda c: (c[0], c[1], c[2], -c[3])) if timed else (lambda c: c[:3])
        chosen = draw(st.lists(names, min_size=1, max_size=8, unique_by=order))
        chosen.sort(key=lambda c: (c[0], c[1].encode(), c[2].encode(), -c[3]))
        return cells_of(schema, [(schema.codec.decode(r), f, q, b"v", ts) for r, f, q, ts in chosen], timed=timed)
    several = sorted(draw(st.lists(st.sampled_from(rows), min_size=1, max_size=8, unique=True)))
    count = len(several)
    nulls_written = draw(st.booleans())
    written: dict[str, Sequence[Value] | pa.Array] = {}
    for column in draw(st.lists(st.sampled_from(here), unique=True)) if here and op is ColumnarOp.PUT else []:
        narrower = [type_ for type_ in workloads.VALUES if t.widens(type_, column.type)]
        type_ = draw(st.sampled_from(narrower))
        options = workloads.VALUES[type_] + ((None,) if column.nullable or not nulls_written else ())
        written[column.name] = array_of(type_, draw(st.lists(st.sampled_from(options), min_size=count, max_size=count)))
    system = {}
    if timed:
        drawn = draw(st.lists(st.sampled_from(times), min_size=count, max_size=count))
        system[layout.TS] = pa.array(drawn, pa.int64()).view(pa.timestamp("us", "UTC"))
    keys = [schema.codec.decode(row) for row in several]
    return columnar(schema, keys, written, op=op, nulls_written=nulls_written, **system)


@settings(max_examples=examples(150))
@given(st.data())
def test_columnar_blocks_in_order_pass_and_are_kept(data: st.DataObject) -> None:
    schema = data.draw(workloads.schemas())
    block = data.draw(columnar_blocks(schema, data.draw(workloads.row_sets(schema))))
    check_block(schema, block)
    assert refusal_after_travel(schema, block) is None
    kept(schema, block)


GOOD_VALUES: list[tuple[str, Value]] = [
    ("number", -(2**31)),
    ("text", "ä\x00"),
    ("text", None),
    ("raw", b"\xff"),
    ("price", PyDecimal("1.50")),
    ("ratio", float("nan")),
    ("ratio", 0.5),
    ("share", 0.1),
    ("share", -0.0),
    ("day", date(1, 1, 1)),
    ("seen", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("clock", datetime(2024, 5, 6)),  # noqa: DTZ001 - a reading of a wall clock
    ("flag", False),
    ("items", [1, None, 2**40]),
    ("days", [date.max, None]),
    ("spot", {"x": None, "y": datetime(2024, 1, 1, tzinfo=UTC)}),
    ("spot", {"y": None, "x": 3}),
    ("counts", {"": 1, "b": None}),
    ("weights", {1.5: "x", -0.0: None}),
    ("stays", {date.max: datetime(1, 1, 1, tzinfo=UTC), date.min: None}),
    ("place", [0.5, 1.0, float("nan")]),
]


@pytest.mark.parametrize(("name", "value"), GOOD_VALUES, ids=[f"{n}{i}" for i, (n, _) in enumerate(GOOD_VALUES)])
def test_values_in_their_kept_form_pass(name: str, value: Value) -> None:
    for block in (small(put(name, value)), columnar(SCHEMA, ["a", "b", "c"], {name: [None, value, None]})):
        check_block(SCHEMA, block)
        assert refusal_after_travel(SCHEMA, block) is None
        kept(SCHEMA, block)


def in_words(value: Value) -> str:
    """Tells values and types apart, all the way down; the order of a struct's fields does not count."""
    match value:
        case dict():
            return f"dict{sorted((in_words(key), in_words(item)) for key, item in value.items())}"
        case list():
            return f"list{[in_words(item) for item in value]}"
        case _:
            return f"{type(value)} {value!r}"


@settings(max_examples=examples(200))
@given(st.data())
def test_a_value_passes_if_it_is_its_own_kept_form(data: st.DataObject) -> None:
    type_ = data.draw(column_types)
    value = data.draw(values(type_) | values(data.draw(column_types)))
    schema = declare({"id": "string"}, [columns("g", {"c": str(type_)})])
    try:
        wanted = in_words(coerce(type_, value, "c")) == in_words(value)
    except InvalidArgument:
        wanted = False
    found = refusal(schema, small(put("c", value, schema)))
    assert (found is None) == wanted
    assert found is None or found.startswith("row 'a': column 'c'")


@settings(max_examples=examples(100))
@given(st.data())
def test_columnar_values_pass_as_their_mutations_do(data: st.DataObject) -> None:
    type_ = data.draw(column_types)
    schema = declare({"id": "int64"}, [columns("g", {"c": str(type_)})])
    several = data.draw(st.lists(st.none() | values(type_), min_size=1, max_size=4))
    block = columnar(schema, range(len(several)), {"c": several})
    puts = [put("c", value, schema, schema.codec.encode((i,))) for i, value in enumerate(several)]
    assert refusal(schema, small(*puts)) is None
    assert refusal(schema, block) is None


# -- small blocks that are refused


class Weekday(IntEnum):
    MONDAY = 1


BERLIN = timezone(timedelta(hours=2))
BAD_SMALL: list[tuple[str, SmallBlock, str]] = [
    ("empty", small(), "block: 0 mutations"),
    ("version", SmallBlock(SchemaVersion(0), (put("number", 1),)), "0 is no schema version"),
    ("not utf-8", small(Put(Row(b"\xff"), ())), r"row b'\\xff': .* is no row of key \(id\)"),
    ("long row", small(Put(Row(b"x" * 5_000), ())), r"row 'xxx.*: the row has 5000 bytes; at most 4096"),
    ("later row", small(put("number", 1), put("number", 2**40, row=Row(b"b"))), "row 'b': column 'number': .*range"),
    ("unknown column", small(Put(ROW, ((ColumnId(99), 1),))), "row 'a': no column with id 99"),
    ("key column", small(Put(ROW, ((SCHEMA.key[0].id, "x"),))), "row 'a': no column with id 1 "),
    ("unknown erased", small(Erase(ROW, Columns((ColumnId(99),)))), "row 'a': no column with id 99"),
    ("unknown version", small(EraseVersion(ROW, Columns((ColumnId(99),)), Micros(0))), "row 'a': no column with id 99"),
    ("no columns", small(Erase(ROW, Columns(()))), "row 'a': an erasure of columns names none"),
    ("unknown family", small(PutCell(ROW, "clik", "q", b"")), "row 'a': no family 'clik'; did you mean 'click'"),
    ("empty family", small(PutCell(ROW, "", "q", b"")), "row 'a': no family ''"),
    ("erased family", small(Erase(ROW, WholeFamily("buy"))), "row 'a': no family 'buy'"),
    ("erased cell", small(Erase(ROW, Cell("buy", ""))), "row 'a': no family 'buy'"),
    ("cell version", small(EraseVersion(ROW, Cell("buy", ""), Micros(0))), "row 'a': no family 'buy'"),
    ("surrogate", small(PutCell(ROW, "click", "\ud800", b"")), "row 'a': qualifier of family 'click': .*surrogate"),
    ("long qualifier", small(PutCell(ROW, "click", "ä" * 2_500, b"")), "row 'a': qualifier of family 'click' has 5000"),
    ("erased qualifier", small(Erase(ROW, Cell("view", "q" * 5_000))), "row 'a': qualifier of family 'view' has 5000"),
    ("text cell", small(PutCell(ROW, "click", "q", "x")), "row 'a': column 'click:q': 'x' is not bytes"),  # type: ignore[arg-type]
    ("time", small(replace(put("number", 1), ts=Micros(TS_MAX + 1))), "row 'a': ts: 253.* is not a time"),
    ("until", small(Erase(ROW, WholeRow(), Micros(TS_MIN - 1))), "row 'a': ts: -621.* is not a time"),
    ("version time", small(EraseVersion(ROW, Cell("click", ""), Micros(TS_MAX + 1))), "row 'a': ts: "),
    ("cell time", small(PutCell(ROW, "click", "", b"", Micros(True))), "row 'a': ts: True is not a time"),
    ("no null", small(Put(ROW, ((id_of(SCHEMA, "level"), None),))), "row 'a': column 'level' is NOT NULL, and NULL"),
    ("missing", small(put("note", "x")), "row 'a': column 'name' is NOT NULL without a default: .*group 'must'"),
    ("both", small(put("name", "x"), put("note", "y", row=Row(b"b"))), "row 'b': column 'name' is NOT NULL without"),
    ("int", small(put("number", 2**31)), "row 'a': column 'number': .*out of range"),
    ("bool as int", small(put("number", True)), "row 'a': column 'number': "),
    ("int as bool", small(put("flag", 1)), "row 'a': column 'flag': "),
    ("enum", small(put("number", Weekday.MONDAY)), "row 'a': column 'number': .*kept form 1"),
    ("int as float", small(put("share", 1)), "row 'a': column 'share': 1 is not in its kept form 1.0"),
    ("float32", small(put("ratio", 0.1)), "row 'a': column 'ratio': 0.1 is not in its kept form 0.10000000149"),
    ("scale", small(put("price", PyDecimal("1.5"))), r"row 'a': column 'price': .*kept form Decimal\('1.50'\)"),
    ("minus zero", small(put("price", PyDecimal("-0.00"))), "row 'a': column 'price': .*kept form"),
    ("text", small(put("text", b"x")), "row 'a': column 'text': "),
    ("lone surrogate", small(put("text", "\udc00")), "row 'a': column 'text': .*surrogate"),
    ("binary", small(put("raw", bytearray(b"x"))), "row 'a': column 'raw': .*kept form"),
    ("date", small(put("day", datetime(2024, 1, 1, tzinfo=UTC))), "row 'a': column 'day': "),
    ("zone", small(put("seen", datetime(2024, 1, 1, tzinfo=BERLIN))), "row 'a': column 'seen': .*kept form"),
    ("naive", small(put("seen", datetime(2024, 1, 1))), "row 'a': column 'seen': .*no time zone"),  # noqa: DTZ001
    ("aware", small(put("clock", datetime(2024, 1, 1, tzinfo=UTC))), "row 'a': column 'clock': .*has a time zone"),
    ("fold", small(put("clock", datetime(2024, 1, 1, fold=1))), "row 'a': column 'clock': .*kept form"),  # noqa: DTZ001
    ("tuple", small(put("items", (1, 2))), "row 'a': column 'items': .*kept form"),
    ("element", small(put("items", [1, True])), r"row 'a': column 'items'\[1\]: "),
    ("no field", small(put("spot", {"x": 1})), "row 'a': column 'spot': .*kept form"),
    ("inner zone", small(put("spot", {"x": 1, "y": datetime(2024, 1, 1, tzinfo=BERLIN)})), "'spot': .*kept form"),
    ("map key", small(put("weights", {1: "x"})), "row 'a': column 'weights': .*kept form"),
    ("map nan", small(put("weights", {float("nan"): "x"})), "row 'a': column 'weights': .*cannot be a key"),
    ("length", small(put("place", [1.0])), "row 'a': column 'place': .*1 elements"),
    ("vector", small(put("place", [0.1, 0.0, 0.0])), "row 'a': column 'place': .*kept form"),
]
UNTRAVELLED = {"enum", "surrogate", "lone surrogate", "binary", "tuple", "fold", "zone", "inner zone", "text cell"}
"""No bytes say these: encoding refuses them, or gives the kept form."""


@pytest.mark.parametrize(("name", "block", "message"), BAD_SMALL, ids=[name for name, _, _ in BAD_SMALL])
def test_small_blocks_are_refused(name: str, block: SmallBlock, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_block(SCHEMA, block)
    if name not in UNTRAVELLED:
        assert refusal_after_travel(SCHEMA, block) is not None


@pytest.mark.parametrize(
    ("schema", "mutation", "message"),
    [
        (HASHED, Put(Row(b"12345678a"), ()), "12345678a.* is no row of key"),
        (HASHED, Put(Row(b"a"), ()), "row b'a': .* is no row of key"),
        (PAIR, Put(Row(b"a\x00\x01\x80"), ()), "is no row of key"),
        (FLOATING, Put(FLOATING.codec.encode((float("nan"),)), ()), "row nan: key column 'x': a key cannot be NaN"),
        (DATED, Put(Row(b"\xff\xff\xff\xff"), ()), "is no row of key"),
        (PAIR, put("number", True, PAIR, PAIR.codec.encode(("x", 5))), r"row \('x', 5\): column 'number'"),
        (PAIR, Put("a", ()), "a row is bytes, not 'a'"),  # type: ignore[arg-type]
        (STRICT, Put(ROW, ()), "row 'a': column 'name' is NOT NULL without a default"),
    ],
)
def test_rows_are_the_encoding_of_a_key(schema: TableSchema, mutation: Mutation, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_block(schema, small(mutation))


@settings(max_examples=examples(100))
@given(st.sampled_from([SCHEMA, WILD, PAIR, HASHED, FLOATING, DATED]), st.binary(max_size=12))
def test_a_row_passes_if_it_is_what_its_key_encodes_to(schema: TableSchema, row: bytes) -> None:
    try:
        key = schema.codec.decode(Row(row))
        wanted = schema.codec.encode(key) == row and all(part == part for part in key)
    except InvalidArgument:
        wanted = False
    assert (refusal(schema, small(Erase(Row(row), WholeRow()))) is None) == wanted


@pytest.mark.parametrize("family", ["a:b", "_x", "*", " x", "x\n", "\ud800", "row", "Row", "x" * 256, "ä" * 128])
def test_wild_families_have_names_that_could_be_declared(family: str) -> None:
    row = WILD.codec.encode((5,))
    for mutation in (PutCell(row, family, "", b""), Erase(row, WholeFamily(family)), Erase(row, Cell(family, "q"))):
        with pytest.raises(InvalidArgument, match="row 5: family "):
            check_block(WILD, small(mutation))
    if family != "\ud800":
        with pytest.raises(InvalidArgument, match="row 5: family "):
            check_block(WILD, cells_of(WILD, [(4, "click", "", b"", 0), (5, family, "", b"", 0)], timed=False))


def test_wild_families_may_have_any_other_name() -> None:
    row = WILD.codec.encode((5,))
    for family in ("wild", "größe", "x.y", "x" * 255, "click"):
        check_block(WILD, small(PutCell(row, family, "a:b\x00\n", b"")))
        check_block(WILD, cells_of(WILD, [(5, family, "a:b\x00\n", b"", 0)], timed=False))


def test_a_put_of_several_groups_needs_what_each_requires() -> None:
    name, note, number = (id_of(SCHEMA, each) for each in ("name", "note", "number"))
    check_block(SCHEMA, small(Put(ROW, ((number, 1),)), Put(ROW, ((note, "x"), (name, "y"), (number, 1)))))
    check_block(SCHEMA, small(Put(ROW, ()), PutCell(ROW, "click", "", b"")))
    assert refusal(SCHEMA, small(Put(ROW, ((number, 1), (note, "x")))))


# -- limits


@pytest.mark.parametrize(
    ("name", "fits", "exceeds"),
    [
        ("text", "x" * 40, "x" * 41),
        ("text", "ä" * 20, "ä" * 21),
        ("raw", b"x" * 40, b"x" * 41),
        ("items", [1, 2], list(range(60))),
        ("counts", {"a": 1}, {"x" * 60: 1}),
    ],
)
def test_values_have_at_most_so_many_bytes(name: str, fits: Value, exceeds: Value) -> None:
    both: list[Block] = [small(put("number", 1), put(name, exceeds, row=Row(b"b")))]
    both += [columnar(SCHEMA, ["a", "b", "c"], {name: [None, exceeds, fits]})] if name != "counts" else []
    for block in both:
        with pytest.raises(InvalidArgument, match=f"row 'b': column '{name}' has .*40.* allowed"):
            check_block(SCHEMA, block, TIGHT)
    check_block(SCHEMA, small(put(name, fits)), TIGHT)
    check_block(SCHEMA, columnar(SCHEMA, ["a", "b"], {name: [fits, None]}), TIGHT)


def test_cells_have_at_most_so_many_bytes() -> None:
    for block in (
        small(PutCell(ROW, "click", "q", b"x" * 41)),
        cells_of(SCHEMA, [("a", "click", "q", b"x" * 41, 0)], timed=True),
    ):
        with pytest.raises(InvalidArgument, match=r"row 'a': column '(click:q|_value)' has .*40.* allowed"):
            check_block(SCHEMA, block, TIGHT)
    for block in (
        small(PutCell(ROW, "click", "q" * 9, b"")),
        cells_of(SCHEMA, [("a", "click", "q" * 9, b"", 0)], timed=True),
    ):
        with pytest.raises(InvalidArgument, match=r"row 'a': .*qualifier.* has .*8.* allowed"):
            check_block(SCHEMA, block, TIGHT)
    check_block(SCHEMA, cells_of(SCHEMA, [("a" * 8, "click", "q" * 8, b"x" * 40, 0)], timed=True), TIGHT)


def test_rows_have_at_most_so_many_bytes() -> None:
    long = [("a" * 7, 0), ("a" * 8, 0), ("a" * 9, 0)]
    block = columnar(SCHEMA, [key for key, _ in long])
    with pytest.raises(InvalidArgument, match="row 'aaaaaaaaa': the row has more than the 8 bytes"):
        check_block(SCHEMA, block, TIGHT)
    with pytest.raises(InvalidArgument, match="row 'aaaaaaaaa': the row has 9 bytes"):
        check_block(SCHEMA, small(Put(Row(b"a" * 9), ())), TIGHT)


def test_blocks_have_at_most_so_many_bytes() -> None:
    limits = Limits(block_bytes_max=100)
    check_block(SCHEMA, small(put("number", 1)), limits, size_bytes=100)
    with pytest.raises(InvalidArgument, match="block: it has 101 bytes; at most 100"):
        check_block(SCHEMA, small(put("number", 1)), limits, size_bytes=101)


def test_small_blocks_have_at_most_so_many_mutations() -> None:
    block = small(*[put("number", 1)] * SMALL_MUTATIONS_MAX)
    check_block(SCHEMA, block)
    with pytest.raises(InvalidArgument, match=f"from 1 to {SMALL_MUTATIONS_MAX}"):
        check_block(SCHEMA, replace(block, mutations=(*block.mutations, put("number", 1))))


@pytest.mark.parametrize("more", [0, 1])
def test_small_blocks_nest_no_more_than_can_be_read_again(more: int) -> None:
    """Times count too: each is packed into ten bytes, a number of this size into nine."""
    numbers = [2**40] * ((NESTED_BYTES_MAX - 1_000) // 9)
    times = (NESTED_BYTES_MAX - 5 - 9 * len(numbers)) // 10 + more
    moment = put("seen", datetime(2024, 1, 1, tzinfo=UTC))
    block = small(put("items", numbers), *[moment] * times, put("text", "x" * NESTED_BYTES_MAX))
    found = refusal(SCHEMA, block)
    assert (found is None) == (refusal_after_travel(SCHEMA, block) is None) == (not more)
    assert found is None or "block: what is nested in it has" in found


# -- columnar blocks that are refused


def changed(block: ColumnarBlock, name: str, made: pa.Array, *, id_: int | None = None) -> ColumnarBlock:
    """With another array, and possibly another id, under a name that is there already."""
    batch = block.batch
    at = batch.schema.names.index(name)
    old = batch.schema.field(at)
    field = old.with_type(made.type) if id_ is None else user(name, made, id_)
    arrays = [made if i == at else each for i, each in enumerate(batch.columns)]
    return replace(block, batch=pa.record_batch(arrays, schema=batch.schema.set(at, field)))


def with_field(block: ColumnarBlock, field: pa.Field, made: pa.Array) -> ColumnarBlock:
    batch = block.batch
    whole = pa.record_batch([*batch.columns, made], schema=batch.schema.append(field))
    return replace(block, batch=whole)


def user(name: str, made: pa.Array, id_: int) -> pa.Field:
    return layout.user_field(name, made.type, id_, True)


def without(block: ColumnarBlock, name: str) -> ColumnarBlock:
    return replace(block, batch=block.batch.drop_columns([name]))


def micros(*given_: int) -> pa.Array:
    return pa.array(given_, pa.int64()).view(pa.timestamp("us", "UTC"))


def vectors_with_null() -> pa.Array:
    inner = pa.array([0.0, 1.0, 2.0, 3.0, None, 5.0], pa.float32())
    return pa.FixedSizeListArray.from_arrays(inner, type=to_arrow(t.Vector(3)))


def two(name: str, made: Sequence[Value] | pa.Array) -> ColumnarBlock:
    return columnar(SCHEMA, ["a", "b"], {name: made})


def stays(days: pa.Array, moments: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(list(range(len(days) + 1)), days, moments)


def spots(*moments: int) -> pa.Array:
    parts = [pa.array([1] * len(moments), pa.int32()), micros(*moments)]
    return pa.StructArray.from_arrays(parts, fields=list(to_arrow(SCHEMA.column("spot")[1].type)))


AB = two("number", [1, 2])
CELLS = cells_of(SCHEMA, [("a", "click", "q", b"", 5), ("a", "click", "q", b"", 4)], timed=True)
BUYS = cells_of(SCHEMA, [("a", "click", "", b"", 0), ("b", "buy", "", b"", 0)], timed=False)
PAIRS = columnar(PAIR, [("a", 1), ("a", 2)], {"number": [1, 2]})
TOKENS = columnar(HASHED, sorted(["a", "b"], key=lambda k: HASHED.codec.encode((k,))), {"number": [1, 2]})
DAYS = columnar(DATED, [date(2024, 1, 1), date(2024, 1, 2)])
FLOATS = columnar(FLOATING, [1.0, 2.0], {"number": [1, 2]})
FAR = pa.array([0, 2**30], pa.int32()).view(pa.date32())
NEAR = pa.array([0, 1], pa.int32()).view(pa.date32())
INTS = pa.array([1, 2], pa.int32())
NUMBER, TEXT = id_of(SCHEMA, "number"), id_of(SCHEMA, "text")
ROWS, TIMES, KINDS = (layout.system_field(name) for name in (layout.ROW, layout.TS, layout.KIND))
FIRST = PAIR.codec.encode(("a", 1))
SOME_NAMES = columnar(
    SCHEMA, ["a", "b", "c"], {"note": ["x", None, "y"], "name": ["x", None, None]}, nulls_written=False
)
NO_NAMES = columnar(STRICT, ["a", "b"], {"name": ["x", None], "note": [None, None]}, nulls_written=False)
LISTS = pa.ListArray.from_arrays([0, 1, 2], FAR, to_arrow(t.Array(t.Date())))
NAN = float("nan")
COUNTS = pa.array([[("x", 1)], [("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int32()))
ZEROS = pa.array([[(0.0, "")], [(0.0, ""), (-0.0, "")]], pa.map_(pa.float64(), pa.string()))
NANS = pa.array([[(0.0, "")], [(NAN, "")]], pa.map_(pa.float64(), pa.string()))

BAD_COLUMNAR: list[tuple[str, TableSchema, ColumnarBlock, str]] = [
    ("no rows", SCHEMA, replace(AB, batch=AB.batch.slice(0, 0)), "block: it has no rows"),
    ("version", SCHEMA, replace(AB, schema_version=SchemaVersion(0)), "0 is no schema version"),
    ("descending", SCHEMA, columnar(SCHEMA, ["a", "c", "b"]), "row 'b': it follows row 'c'; rows ascend"),
    ("row twice", SCHEMA, columnar(SCHEMA, ["a", "b", "b"]), "row 'b': it follows row 'b'; rows ascend"),
    ("erased twice", SCHEMA, columnar(SCHEMA, ["b", "b"], op=ColumnarOp.ERASE_ROWS), "row 'b': it follows row 'b'"),
    ("no key", SCHEMA, without(AB, "id"), "block: key column 'id' is missing"),
    ("key id", SCHEMA, changed(AB, "id", pa.array(["a", "b"]), id_=99), "block: column 'id': no column with id 99"),
    ("value as key", SCHEMA, changed(AB, "id", pa.array(["a", "b"]), id_=TEXT), "key column 'id' is missing"),
    ("key type", SCHEMA, changed(AB, "id", pa.array([b"a", b"b"])), "key column 'id': expected Arrow string, not bin"),
    ("null key", SCHEMA, changed(AB, "id", pa.array(["a", None])), r"key column 'id': a key cannot be NULL \(row 1\)"),
    ("NaN key", FLOATING, changed(FLOATS, "x", pa.array([1.0, NAN])), "key column 'x': a key cannot be NaN"),
    ("far key", DATED, changed(DAYS, "day", FAR), "row number 1: key column 'day': a time outside the years 1 to 9999"),
    ("no _row", PAIR, without(PAIRS, "_row"), "block: column '_row' is missing from a columnar put"),
    ("extra _row", SCHEMA, with_field(AB, ROWS, pa.array([b"a", b"b"])), "block: column '_row' has no place in"),
    ("wrong _row", PAIR, changed(PAIRS, "_row", pa.array([b"a", b"b"])), r"row \('a', 1\): column '_row' says b'a'"),
    ("second _row", PAIR, changed(PAIRS, "_row", pa.array([FIRST, b"b"])), r"row \('a', 2\): column '_row' says b'b'"),
    ("token", HASHED, changed(TOKENS, "_row", pa.array([b"00000000a", b"00000000b"])), "column '_row' says"),
    ("op", SCHEMA, replace(AB, op=ColumnarOp.PUT_CELLS), "column '_family' is missing from a columnar put_cells"),
    ("cells as put", SCHEMA, replace(CELLS, op=ColumnarOp.PUT), "column '_family' has no place in a columnar put"),
    ("erase values", SCHEMA, replace(AB, op=ColumnarOp.ERASE_ROWS), "a columnar erase_rows writes no column 'number'"),
    ("cells, values", SCHEMA, with_field(CELLS, user("n", INTS, NUMBER), INTS), "put_cells writes no column 'number'"),
    ("unknown", SCHEMA, changed(AB, "number", INTS, id_=99), "column 'number': no column with id 99"),
    ("no id", SCHEMA, with_field(AB, pa.field("v", pa.int32()), INTS), "column 'v' has no id"),
    ("same id", SCHEMA, with_field(AB, user("v", INTS, NUMBER), INTS), f"column 'v' has id {NUMBER} again"),
    ("same name", SCHEMA, with_field(AB, user("number", INTS, TEXT), INTS), "a column stands twice"),
    ("wider", SCHEMA, two("number", pa.array([1, 2], pa.int64())), "'number' is int32, and takes no Arrow int64"),
    ("other", SCHEMA, two("number", pa.array(["1", "2"])), "'number' is int32, and takes no Arrow string"),
    (
        "large",
        SCHEMA,
        two("text", pa.array(["x", "y"], pa.large_string())),
        "'text' is string, and takes no Arrow la",
    ),
    ("no type", SCHEMA, two("text", pa.array([1, 2], pa.time64("us"))), "column 'text': no column type holds"),
    ("_ts type", SCHEMA, with_field(AB, TIMES.with_type(pa.int64()), pa.array([1, 2])), "column '_ts' is int64 instea"),
    ("_ts null", SCHEMA, with_field(AB, TIMES, pa.array([1, None], TIMES.type)), "column '_ts' .* with 1 nulls"),
    ("_ts far", SCHEMA, with_field(AB, TIMES, micros(0, TS_MAX + 1)), "row 'b': column '_ts': a time outside"),
    ("_kind", SCHEMA, with_field(AB, KINDS, pa.array([0, 0], pa.int8())), "column '_kind' has no place"),
    ("null", SCHEMA, two("level", [1, None]), "row 'b': column 'level' is NOT NULL, and NULL is written to it"),
    ("missing", SCHEMA, two("note", ["x", "y"]), "row 'a': column 'name' is NOT NULL without a default"),
    ("partly missing", SCHEMA, SOME_NAMES, "row 'c': column 'name' is NOT NULL without a default"),
    ("key alone", STRICT, columnar(STRICT, ["a"]), "row 'a': column 'name' is NOT NULL without a default"),
    ("alone by nulls", STRICT, NO_NAMES, "row 'b': column 'name' is NOT NULL without a default"),
    ("date", SCHEMA, two("day", FAR), "row 'b': column 'day': a time outside the years 1 to 9999"),
    ("moment", SCHEMA, two("seen", micros(0, TS_MIN - 1)), "row 'b': column 'seen': a time outside"),
    ("reading", SCHEMA, two("clock", micros(0, TS_MAX + 1).view(pa.timestamp("us"))), "row 'b': column 'clock': a tim"),
    ("in array", SCHEMA, two("days", LISTS), "row 'b': column 'days': a time outside"),
    ("in struct", SCHEMA, two("spot", spots(0, TS_MAX + 1)), "row 'b': column 'spot': a time outside"),
    ("in vector", SCHEMA, two("place", vectors_with_null()), "row 'b': column 'place': there is a NULL in a vector"),
    ("in map", SCHEMA, two("counts", COUNTS), "row 'b': column 'counts': a key stands twice"),
    ("zeros in map", SCHEMA, two("weights", ZEROS), "row 'b': column 'weights': a key stands twice"),
    ("NaN in map", SCHEMA, two("weights", NANS), "row 'b': column 'weights': a key of a map is NaN"),
    (
        "far map key",
        SCHEMA,
        two("stays", pa.MapArray.from_arrays([0, 1, 2], FAR, micros(0, 0))),
        "row 'b': .*a time out",
    ),
    (
        "far in map",
        SCHEMA,
        two("stays", pa.MapArray.from_arrays([0, 1, 2], NEAR, micros(0, TS_MAX + 1))),
        "row 'b': .*a time",
    ),
    ("family", SCHEMA, BUYS, "row 'b': no family 'buy'"),
    ("cell twice", SCHEMA, without(CELLS, "_ts"), "row 'a': column 'click:q' is out of order"),
    ("null value", SCHEMA, changed(CELLS, "_value", pa.array([b"", None], pa.binary())), "column '_value' .* 1 nulls"),
]


@pytest.mark.parametrize(("schema", "block", "message"), [pytest.param(*case, id=name) for name, *case in BAD_COLUMNAR])
def test_columnar_blocks_are_refused(schema: TableSchema, block: ColumnarBlock, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_block(schema, block)
    assert refusal_after_travel(schema, block) is not None


@pytest.mark.parametrize("bad", range(7))
def test_the_first_bad_row_is_named(bad: int) -> None:
    places = range(7)
    wrong = [place >= bad for place in places]
    far = pa.array([2**30 if each else 0 for each in wrong], pa.int32()).view(pa.date32())
    key_twice = [[("x", 1), ("y", 2), ("x" if each else "z", 3)] for each in wrong]
    given_: dict[str, pa.Array] = {
        "day": far,
        "days": pa.ListArray.from_arrays([*places, 7], far, to_arrow(t.Array(t.Date()))),
        "counts": pa.array(key_twice, pa.map_(pa.string(), pa.int32())),
        "stays": stays(far, micros(*places)),
        "text": pa.array(["x" * 41 if each else "x" for each in wrong]),
        "items": pa.array([[1] * 41 if each else [1] for each in wrong], to_arrow(t.Array(t.Int(64)))),
        "level": pa.array([None if each else 1 for each in wrong], pa.int32()),
    }
    for name, made in given_.items():
        block = columnar(SCHEMA, [f"{place}" for place in places], {name: made})
        with pytest.raises(InvalidArgument, match=f"^row '{bad}': column '{name}'"):
            check_block(SCHEMA, block, TIGHT)
        if bad:
            check_block(SCHEMA, replace(block, batch=block.batch.slice(0, bad)), replace(TIGHT, value_bytes_max=60))
            with pytest.raises(InvalidArgument, match=f"^row '{bad}': column '{name}'"):
                check_block(SCHEMA, replace(block, batch=block.batch.slice(1)), TIGHT)


def test_the_good_twins_of_the_refused_pass() -> None:
    for schema, block in (
        (SCHEMA, AB),
        (SCHEMA, CELLS),
        (PAIR, PAIRS),
        (HASHED, TOKENS),
        (DATED, DAYS),
        (FLOATING, FLOATS),
    ):
        check_block(schema, block)
        check_block(schema, replace(block, batch=block.batch.slice(1)))


def test_what_lies_under_a_null_does_not_count() -> None:
    last = pa.array([False, True])
    spot = to_arrow(SCHEMA.column("spot")[1].type)
    under = {
        "days": pa.ListArray.from_arrays([0, 1, 2], FAR, to_arrow(t.Array(t.Date())), mask=last),
        "spot": pa.StructArray.from_arrays([INTS, micros(0, TS_MAX + 1)], fields=list(spot), mask=last),
        "counts": pa.MapArray.from_arrays([0, 1, 3], ["x", "y", "y"], pa.array([1, 2, 3], pa.int32()), mask=last),
        "place": pa.FixedSizeListArray.from_arrays(
            vectors_with_null().values, type=vectors_with_null().type, mask=last
        ),
    }
    for name, made in under.items():
        assert made.null_count == 1
        check_block(SCHEMA, two(name, made))
        assert refusal_after_travel(SCHEMA, two(name, made)) is None


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["click", "view"]), st.sampled_from("qr"), st.integers(0, 2)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_cells_pass_if_they_ascend(given_: list[tuple[str, str, str, int]], timed: bool) -> None:
    orders = [(key, family, qualifier, -ts if timed else 0) for key, family, qualifier, ts in given_]
    wrong = [i for i in range(1, len(orders)) if orders[i - 1] >= orders[i]]
    found = refusal(SCHEMA, cells_of(SCHEMA, [(k, f, q, b"", ts) for k, f, q, ts in given_], timed=timed))
    assert (found is None) == (not wrong)
    if wrong:
        key, family, qualifier, _ = orders[wrong[0]]
        assert found is not None
        assert found.startswith(f"row {key!r}: column '{family}:{qualifier}' is out of order")


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(*[st.sampled_from([None, "x"])] * 3), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([SCHEMA, STRICT]),
    st.sampled_from([(), ("name", "note"), ("note",), ("name",), ("note", "name", "text")]),
)
def test_null_and_missing_columns_are_judged_as_in_mutations(
    given_: list[tuple[Value, ...]], nulls_written: bool, schema: TableSchema, names: tuple[str, ...]
) -> None:
    names = tuple(name for name in names if schema is SCHEMA or name != "text")
    keys = [f"{i}" for i in range(len(given_))]
    block = columnar(
        schema, keys, {n: [row[i] for row in given_] for i, n in enumerate(names)}, nulls_written=nulls_written
    )
    puts = []
    for key, row in zip(keys, given_, strict=True):
        pairs = [(id_of(schema, name), value) for name, value in zip(names, row, strict=False)]
        puts.append(Put(Row(key.encode()), tuple(pair for pair in pairs if nulls_written or pair[1] is not None)))
    assert (refusal(schema, block) is None) == (refusal(schema, small(*puts)) is None)


# -- anything at all


SAMPLES = [
    (SCHEMA, small(*[put(name, value) for name, value in GOOD_VALUES], PutCell(ROW, "click", "q", b"x", Micros(5)))),
    (SCHEMA, columnar(SCHEMA, ["a", "b"], {name: [value, value] for name, value in GOOD_VALUES})),
    (SCHEMA, CELLS),
    (PAIR, PAIRS),
    (FLOATING, FLOATS),
]


@pytest.mark.parametrize(("schema", "block"), SAMPLES, ids=["small", "columnar", "cells", "pairs", "floats"])
def test_damaged_blocks_are_refused_or_kept(schema: TableSchema, block: Block) -> None:
    chance = random.Random(5)
    sample = encode_block(block)
    refused = passed = 0
    for _ in range(1_500):
        data = bytearray(sample)
        for _ in range(chance.randrange(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            damaged = decode_block(bytes(data))
            check_block(schema, damaged)
        except StelaeError:
            refused += 1
        else:
            kept(schema, damaged)
            passed += 1
    assert refused > 100
    assert passed > 100
