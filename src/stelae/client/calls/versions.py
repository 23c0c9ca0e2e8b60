"""Histories of rows as Arrow: a list of versions in the place of each value, or one cell's version in each row.

| form | columns |
|---|---|
| `history = N` | the key; of each column a list<struct<value, ts, txn>>; of each family a map from qualifier to such |
| `cells="long"` | the key, family, qualifier, ts, txn, value; `_ts` and so on where a key column has that name |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from stelae.client.api.rows import Version as FoundVersion
from stelae.client.calls.views import RowShape
from stelae.client.intake.rule import long_names
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.predicate.selectors import ColumnSelector, Selectors
from stelae.model.schema import WILDCARD, CellsGroup, TableSchema
from stelae.model.types import Binary, ColumnType
from stelae.storage.read.scans.shapes import output_schema

_MOMENT = pa.timestamp("us", "UTC")
_Histories = Sequence[Mapping[str, Sequence[FoundVersion]]]


def shown_schema(schema: TableSchema, columns: Selectors) -> pa.Schema:
    """Of a scan's rows: without the wildcard's map where all cells that were asked for are of declared families."""
    whole = output_schema(schema, columns)
    if WILDCARD not in whole.names:
        return whole
    families = {f.name.casefold() for group in schema.groups if isinstance(group, CellsGroup) for f in group.families}
    if any(_may_be_other(each, families) for each in columns):
        return whole
    return pa.schema([field for field in whole if field.name != WILDCARD])


def _may_be_other(selector: ColumnSelector, declared: Collection[str]) -> bool:
    family, colon, _ = selector.text.partition(":")
    return family.casefold() not in declared if colon else selector.is_prefix


def long_schema(schema: TableSchema) -> pa.Schema:
    keys = [pa.field(key.name, to_arrow(key.type), nullable=False) for key in schema.key]
    names = long_names(schema)
    txn = "_txn" if any(key.name.casefold() == "txn" for key in schema.key) else "txn"
    return pa.schema(
        [
            *keys,
            pa.field(names["family"], pa.string(), nullable=False),
            pa.field(names["qualifier"], pa.string(), nullable=False),
            pa.field(names["ts"], _MOMENT, nullable=False),
            pa.field(txn, pa.int64(), nullable=False),
            pa.field(names["value"], pa.binary(), nullable=False),
        ]
    )


def long_batch(schema: TableSchema, keys: pa.RecordBatch, histories: _Histories) -> Iterator[pa.RecordBatch]:
    """At most one batch: rows without cells have no place in it."""
    owners: list[int] = []
    parts: list[tuple[str, str, int, int, bytes]] = []
    for owner, history in enumerate(histories):
        for name, versions in history.items():
            family, colon, qualifier = name.partition(":")
            if colon:
                owners += [owner] * len(versions)
                parts += [(family, qualifier, each.ts, each.txn, each.value) for each in versions]
    if not parts:
        return
    whole = long_schema(schema)
    columns = [column.take(pa.array(owners, pa.int64())) for column in keys.columns]
    fields = list(whole)[len(columns) :]
    columns += [pa.array(values, field.type) for values, field in zip(zip(*parts, strict=True), fields, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, schema=whole)


def _list_type(value: pa.DataType) -> pa.DataType:
    fields = [pa.field("value", value), pa.field("ts", _MOMENT), pa.field("txn", pa.int64())]
    return pa.list_(pa.struct(fields))


def _cell_columns(schema: TableSchema, shape: RowShape) -> list[str]:
    """The columns of a result that hold maps of cells: the families', and the wildcard's."""
    plain = {*schema.codec.names, *shape.names}
    return [name for name in shown_schema(schema, shape.selectors).names if name not in plain and not shape.keys_only]


def versions_schema(schema: TableSchema, shape: RowShape) -> pa.Schema:
    fields = [pa.field(key.name, to_arrow(key.type), nullable=False) for key in schema.key]
    fields += [pa.field(name, _list_type(to_arrow(schema.column(name)[1].type))) for name in shape.names]
    cells = pa.map_(pa.string(), _list_type(pa.binary()))
    return pa.schema([*fields, *(pa.field(name, cells) for name in _cell_columns(schema, shape))])


def versions_batch(schema: TableSchema, shape: RowShape, keys: pa.RecordBatch, histories: _Histories) -> pa.RecordBatch:
    whole = versions_schema(schema, shape)
    declared = [f.name for group in schema.groups if isinstance(group, CellsGroup) for f in group.families]
    plain = [
        _lists(schema.column(name)[1].type, [history.get(name, ()) for history in histories]) for name in shape.names
    ]
    cells = [_maps(name, declared, histories) for name in _cell_columns(schema, shape)]
    return pa.RecordBatch.from_arrays([*keys.columns, *plain, *cells], schema=whole)


def _lists(type_: ColumnType, lists: Sequence[Sequence[FoundVersion]]) -> pa.Array:
    flat = [each for versions in lists for each in versions]
    values = pa.StructArray.from_arrays(
        [
            array_of(type_, [each.value for each in flat]),
            pa.array([each.ts for each in flat], pa.int64()).cast(_MOMENT),
            pa.array([each.txn for each in flat], pa.int64()),
        ],
        fields=list(_list_type(to_arrow(type_)).value_type),
    )
    return pa.ListArray.from_arrays(_offsets([len(versions) for versions in lists]), values)


def _maps(name: str, declared: Sequence[str], histories: _Histories) -> pa.Array:
    """The cells of one family, or of all that are not declared under their whole names."""
    counts: list[int] = []
    qualifiers: list[str] = []
    lists: list[Sequence[FoundVersion]] = []
    for history in histories:
        before = len(lists)
        for cell, versions in history.items():
            family, colon, qualifier = cell.partition(":")
            if colon and (family == name or (name == WILDCARD and family not in declared)):
                qualifiers.append(cell if name == WILDCARD else qualifier)
                lists.append(versions)
        counts.append(len(lists) - before)
    return pa.MapArray.from_arrays(_offsets(counts), pa.array(qualifiers, pa.string()), _lists(Binary(), lists))


def _offsets(counts: Sequence[int]) -> pa.Array:
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return pa.array(offsets, pa.int32())
