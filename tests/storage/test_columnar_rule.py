"""A columnar block is let in just where the same puts are, one by one; and else the row that is named is at fault."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stelae.format import layout
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, ColumnId, Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, TableSchema
from stelae.model.values import Value, coerce
from stelae.storage.checks.blocks import check_block
from stelae.storage.checks.mutations import check_mutations
from stelae.storage.checks.rules import shown_row
from tests.client.intake import givens
from tests.effort import examples
from tests.strategies import key_values, values

TIMES = (0, 7, TS_MAX, TS_MAX + 1)


@st.composite
def rows_of(draw: st.DrawFn, schema: TableSchema) -> list[Row]:
    """A few in order, each once."""
    keys = draw(st.lists(st.tuples(*(key_values(key.type) for key in schema.key)), min_size=1, max_size=4))
    return sorted({schema.codec.encode(schema.codec.check(key)) for key in keys})


def with_keys(
    schema: TableSchema, rows: Sequence[Row], others: Sequence[tuple[pa.Field, pa.Array]]
) -> list[tuple[pa.Field, pa.Array]]:
    found = []
    if layout.row_is_stored(schema.codec):
        found.append((layout.system_field(layout.ROW), pa.array(rows, pa.binary())))
    keys = zip(*(schema.codec.decode(row) for row in rows), strict=True)
    for column, several in zip(schema.key, keys, strict=True):
        array = array_of(column.type, several)
        found.append((layout.user_field(column.name, array.type, column.id, nullable=False), array))
    return [*found, *others]


def block_of(
    schema: TableSchema, op: ColumnarOp, columns: Sequence[tuple[pa.Field, pa.Array]], *, nulls_written: bool = True
) -> ColumnarBlock:
    arrays, fields = [array for _, array in columns], [field for field, _ in columns]
    return ColumnarBlock(schema.version, op, nulls_written, pa.record_batch(arrays, schema=pa.schema(fields)))


@st.composite
def times_of(draw: st.DrawFn, count: int) -> list[int] | None:
    some = st.sampled_from(TIMES[:3]) if draw(st.integers(0, 3)) else st.sampled_from(TIMES)
    return draw(st.none() | st.lists(some, min_size=count, max_size=count))


def time_column(times: Sequence[int] | None) -> list[tuple[pa.Field, pa.Array]]:
    field = layout.system_field(layout.TS)
    return [] if times is None else [(field, pa.array(times, pa.int64()).view(field.type))]


@st.composite
def arrays_of(draw: st.DrawFn, column: Column, count: int) -> pa.Array:
    """In the column's Arrow form or a narrower one; perhaps with values that Arrow has and the type has not."""
    of = [column.type]
    if isinstance(column.type, t.Int):
        of += [t.Int(bits) for bits in t.INT_BITS if bits < column.type.bits]
    type_ = draw(st.sampled_from(of))
    may_be_null = column.nullable or draw(st.integers(0, 3)) == 0
    if draw(st.integers(0, 2)):
        good = st.none() | values(type_) if may_be_null else values(type_)
        return array_of(type_, draw(st.lists(good, min_size=count, max_size=count)))
    held = givens.held_by(to_arrow(type_))
    held = st.none() | held if may_be_null else held
    return pa.array(draw(st.lists(held, min_size=count, max_size=count)), to_arrow(type_))


def hold_to(
    schema: TableSchema, limits: Limits, block: ColumnarBlock, expected: dict[Row, list[Mutation] | None]
) -> None:
    """`expected`: by row, the same puts; None where some value is none that a put could have."""
    refused = set()
    for row, mutations in expected.items():
        try:
            check_mutations(schema, mutations or (), limits)
        except InvalidArgument:
            refused.add(row)
        if mutations is None:
            refused.add(row)
    event("refused" if refused else "passed")
    try:
        check_block(schema, block, limits)
    except InvalidArgument as error:
        assert refused, f"refused what passes one by one: {error}"
        assert any(str(error).startswith(f"row {shown_row(schema.codec, row)}: ") for row in refused), error
    else:
        assert not refused


@settings(max_examples=examples(500))
@given(st.data(), givens.schemas(), st.sampled_from(givens.LIMITS), st.booleans())
def test_columns(data: st.DataObject, schema: TableSchema, limits: Limits, nulls_written: bool) -> None:
    rows = data.draw(rows_of(schema))
    groups = [group for group in schema.groups if isinstance(group, ColumnsGroup)]
    some = [column for group in groups for column in group.columns if data.draw(st.integers(0, 3))]
    arrays = [data.draw(arrays_of(column, len(rows))) for column in some]
    times = data.draw(times_of(len(rows)))
    others = [
        (layout.user_field(column.name, array.type, column.id, nullable=True), array)
        for column, array in zip(some, arrays, strict=True)
    ]
    columns = with_keys(schema, rows, [*others, *time_column(times)])
    block = block_of(schema, ColumnarOp.PUT, columns, nulls_written=nulls_written)
    seen = [givens.python_values(column.type, array) for column, array in zip(some, arrays, strict=True)]
    expected: dict[Row, list[Mutation] | None] = {}
    for at, row in enumerate(rows):
        written: list[tuple[ColumnId, Value]] = []
        try:
            for column, given_ in zip(some, seen, strict=True):
                value = None if given_[at] is None else coerce(column.type, given_[at], "it")
                if nulls_written or value is not None:
                    written.append((column.id, value))
        except InvalidArgument:
            expected[row] = None
        else:
            expected[row] = [Put(row, tuple(written), None if times is None else Micros(times[at]))]
    hold_to(schema, limits, block, expected)


@settings(max_examples=examples(300))
@given(
    st.data(),
    givens.schemas().filter(lambda schema: any(isinstance(group, CellsGroup) for group in schema.groups)),
    st.sampled_from(givens.LIMITS),
)
def test_cells(data: st.DataObject, schema: TableSchema, limits: Limits) -> None:
    rows = data.draw(rows_of(schema))
    families = [family for family in givens.LONG_FAMILIES if family is not None]
    clean = data.draw(st.booleans())
    if clean:
        families = [each for each in givens.some_families(schema, clean=True) if each is not None]
    qualifiers = givens.QUALIFIERS[:4] if clean else givens.QUALIFIERS
    names = st.tuples(st.sampled_from(rows), st.sampled_from(families), st.sampled_from(qualifiers))
    cells = data.draw(st.lists(names, min_size=1, max_size=4, unique=True))
    cells.sort(key=lambda cell: (cell[0], cell[1].encode(), cell[2].encode()))
    blobs = [b"", b"1"] if clean else [b"", b"1", b"x" * 25]
    data_of = data.draw(st.lists(st.sampled_from(blobs), min_size=len(cells), max_size=len(cells)))
    times = data.draw(times_of(len(cells)))
    others = [
        (layout.system_field(layout.FAMILY), pa.array([cell[1] for cell in cells], pa.string())),
        (layout.system_field(layout.QUALIFIER), pa.array([cell[2] for cell in cells], pa.string())),
        (layout.system_field(layout.VALUE), pa.array(data_of, pa.binary())),
    ]
    columns = with_keys(schema, [cell[0] for cell in cells], [*others, *time_column(times)])
    expected: dict[Row, list[Mutation] | None] = {}
    for at, ((row, family, qualifier), value) in enumerate(zip(cells, data_of, strict=True)):
        put = PutCell(row, family, qualifier, value, None if times is None else Micros(times[at]))
        expected[row] = [*(expected.get(row) or ()), put]
    hold_to(schema, limits, block_of(schema, ColumnarOp.PUT_CELLS, columns), expected)
