"""What was read, as users get it: dicts, Arrow tables, pandas and polars frames.

Dicts hold Python values in the form they are kept in (moments with a zone, decimals, lists, dicts), and cells under
`family:qualifier`. Arrow tables hold what a scan's batches hold; of no batches, an empty table of the same columns.
Nothing is rounded on the way to pandas: ints that are null somewhere have its nullable types there, not floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.arrow_values import values_of
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import show_txn
from stelae.model.ids import Micros, Txn
from stelae.model.public import public
from stelae.model.schema import WILDCARD, ColumnsGroup, TableSchema
from stelae.model.types import ColumnType
from stelae.model.values import Value


@public("Row")
class Row(dict[str, Value]):
    """A row: its key and its newest values, and the txn up to which they were read. `put(if_unchanged_since=row.txn)`
    fails if they changed since."""

    __slots__ = ("txn",)
    txn: Txn

    def __repr__(self) -> str:
        return f"Row({super().__repr__()}, txn={getattr(self, 'txn', None)})"

    def _repr_html_(self) -> str:
        from stelae.client.api.display import row_html

        return row_html(self, f"Row at {show_txn(self.txn)}" if hasattr(self, "txn") else "Row")


@public("Version")
class Version(NamedTuple):
    """One version of a column or cell. `erased`: an erasure hides it from reads."""

    value: Value
    ts: Micros
    txn: Txn
    erased: bool = False

    def __repr__(self) -> str:
        return f"Version(value={self.value!r}, ts={self.ts}, txn={self.txn}, erased={self.erased})"


def rows_of_batch(schema: TableSchema, batch: pa.RecordBatch, txn: Txn) -> list[Row]:
    """The rows of a batch of a scan at that txn."""
    types: dict[str, ColumnType] = {key.name: key.type for key in schema.key}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            for column in group.columns:
                types[column.name] = column.type
    plain: list[str] = []
    columns: list[list[Value]] = []
    cells: list[tuple[str, pa.Array]] = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name in types:
            plain.append(name)
            columns.append(values_of(types[name], array))
        else:
            cells.append(("" if name == WILDCARD else f"{name}:", array))
    rows: list[Row] = []
    for values in zip(*columns, strict=True):
        row = Row(zip(plain, values))  # noqa: B905 - both are of one length
        row.txn = txn
        rows.append(row)
    for prefix, maps in cells:
        _add_cells(rows, prefix, maps)
    return rows


def _add_cells(rows: list[Row], prefix: str, maps: pa.Array) -> None:
    offsets = maps.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    if not count:
        return
    names = maps.keys.slice(first, count)
    if prefix:
        names = pc.binary_join_element_wise(pa.scalar(prefix), names, "")
    cells = list(zip(names.to_pylist(), maps.items.slice(first, count).to_pylist(), strict=True))
    for row, start, stop in zip(rows, offsets, offsets[1:], strict=False):
        row.update(cells[start - first : stop - first])


def table_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """The batches of a scan as one table; `schema` is what they all have."""
    return pa.Table.from_batches(batches, schema=schema)


def pandas_of(table: pa.Table) -> Any:
    """A pandas frame. Arrays, structs and maps are Python's lists and dicts in it, vectors numpy's arrays."""
    pd = _imported("pandas")
    odd = {
        name: _odd_series(column)
        for name, column in zip(table.column_names, table.columns, strict=True)
        if _is_odd(column)
    }
    frame = table.drop_columns(list(odd)).to_pandas()
    return pd.concat([frame, pd.DataFrame(odd)], axis=1)[table.column_names] if odd else frame


def _is_odd(column: pa.ChunkedArray) -> bool:
    """What numpy cannot hold as it is: it makes floats of ints with gaps, and forgets the zones of nested times."""
    if pa.types.is_integer(column.type):
        return bool(column.null_count)
    return bool(pa.types.is_nested(column.type) and not pa.types.is_fixed_size_list(column.type))


def _odd_series(column: pa.ChunkedArray) -> Any:
    pd = _imported("pandas")
    if pa.types.is_integer(column.type):
        return column.to_pandas(types_mapper=lambda type_: pd.array([], dtype=f"Int{type_.bit_width}").dtype)
    return pd.Series(column.to_pylist(maps_as_pydicts="strict"), dtype=object)


def polars_of(table: pa.Table) -> Any:
    return _imported("polars").from_arrow(table)


def _imported(library: str) -> Any:
    """pandas or polars: only here, since few need them and they take long."""
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"{library} is not installed: pip install {library}") from error
