"""Frames taken apart: whatever users call a table, as columns of Arrow arrays or of Python values.

Known without importing their libraries: pyarrow tables and batches, pandas and polars frames, anything that exports an
Arrow stream or batch. Rows keep their order.

Of a pandas frame, index levels that have a name are columns; those without are not. What pandas counts as missing (NaN,
NaT, NA, None) is null. Elsewhere NaN stays NaN.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.errors import InvalidArgument

Given: TypeAlias = pa.Array | list[Any]
"""A column: an Arrow array, or Python values with None for null."""


class FramePart(msgspec.Struct, frozen=True):
    """Columns of one length under the names they were given, in order."""

    count: int
    columns: tuple[tuple[object, Given], ...]


def is_frame(rows: object) -> bool:
    """Something that has columns, and not an iterable of rows."""
    if isinstance(rows, pa.Array | pa.ChunkedArray) or type(rows).__name__ == "Series":
        return False
    return _library(rows) != "" or hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def part_of_frame(frame: Any) -> FramePart:
    match _library(frame):
        case "pandas":
            return _of_pandas(frame)
        case "polars":
            return _of_table(frame.to_arrow())
        case _ if isinstance(frame, pa.RecordBatch):
            return _of_table(pa.Table.from_batches([frame]))
        case _ if isinstance(frame, pa.RecordBatchReader):
            return _of_table(frame.read_all())
        case _ if isinstance(frame, pa.Table):
            return _of_table(frame)
        case _:
            return _of_table(_exported(frame))


def _exported(frame: Any) -> pa.Table:
    try:
        return pa.table(frame)
    except pa.ArrowException as error:
        raise InvalidArgument(f"{type(frame).__name__} is no table of columns: {error}") from None


def whole_array(column: pa.Array | pa.ChunkedArray, what: str) -> pa.Array:
    """The chunks as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return column.combine_chunks()
    except pa.ArrowException as error:
        raise InvalidArgument(f"{what}: too large for one call, give the rows in parts: {error}") from None


def _library(frame: object) -> str:
    """Whose frame it is, or what a frame is derived from."""
    for kind in type(frame).__mro__:
        home = kind.__module__.partition(".")[0]
        if kind.__name__ == "DataFrame" and home in ("pandas", "polars"):
            return home
    return ""


def _of_table(table: pa.Table) -> FramePart:
    named = zip(table.column_names, table.columns, strict=True)
    return FramePart(table.num_rows, tuple((name, whole_array(column, f"column {name!r}")) for name, column in named))


def _of_pandas(frame: Any) -> FramePart:
    index = [(name, frame.index.get_level_values(at).to_series()) for at, name in enumerate(frame.index.names)]
    named = [(name, level) for name, level in index if name is not None]
    columns = [(name, frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    return FramePart(len(frame), tuple((name, _of_series(name, series)) for name, series in [*named, *columns]))


def _of_series(name: object, series: Any) -> Given:
    is_text = series.dtype == object and _first_kind(series) is str
    if series.dtype != object or is_text:
        try:
            array = whole_array(pa.array(series, from_pandas=True), f"column {name!r}")
        except (pa.ArrowException, TypeError, UnicodeError):
            array = None  # Arrow has no such type, or no common one: the values may do, one by one
        # Of what objects are, Arrow's guess is taken only where nothing else looks the same to it.
        if array is not None and (not is_text or pa.types.is_string(array.type)):
            return _without_nan(array)
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return list(values.tolist())


def _first_kind(series: Any) -> type | None:
    missing = (value is None or (type(value) is float and value != value) for value in series)
    return next((type(value) for value, is_missing in zip(series, missing, strict=False) if not is_missing), None)


def _without_nan(array: pa.Array) -> pa.Array:
    """Not all of pandas' types call NaN missing."""
    if not pa.types.is_floating(array.type) or not pc.any(pc.is_nan(array)).as_py():
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
