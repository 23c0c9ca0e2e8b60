"""Rows of a frame that break a rule: found, counted, shown, and where that is wanted written aside.

A batch is checked as a whole. Only where that fails are the rows at fault looked for, by halving: few bad rows among
many good ones cost little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stelae.adapters.blobs.urls import open_blobs
from stelae.adapters.rng import SystemRng
from stelae.model.errors import InvalidArgument
from stelae.model.values import show
from stelae.spark.loading.intake import OWN_COLUMNS

T = TypeVar("T")

SHOWN_MAX = 5
REASON = "_reason"
_TOLD_LENGTH_MAX = 300
_NUMBERED = re.compile(r"row number \d+: ")
_COLUMN = re.compile(r"column '((?:[^'\\]|\\.)*)'")


class BadRow(msgspec.Struct, frozen=True):
    """What was given, as text, and what is wrong with it. `column` is empty where no single one is at fault."""

    row: str
    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.row}: {self.reason}"


def sifted(batch: pa.Table, check: Callable[[pa.Table], T]) -> tuple[pa.Table, T, pa.Table | None]:
    """The good rows, and what the check makes of them; and the bad ones with their reasons, or None."""
    try:
        return batch, check(batch), None
    except InvalidArgument:
        found = _found(batch, check)
    bad = np.zeros(batch.num_rows, np.bool_)
    bad[[place for place, _ in found]] = True
    reasons = pa.array([reason for _, reason in found], pa.string())
    good = batch.filter(pa.array(~bad))
    own = [name for name in OWN_COLUMNS if name in batch.column_names]
    return good, check(good), batch.filter(pa.array(bad)).drop_columns(own).append_column(REASON, reasons)


def _found(batch: pa.Table, check: Callable[[pa.Table], object]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    waiting = [(0, batch.num_rows)]
    while waiting:
        start, count = waiting.pop()
        try:
            check(batch.slice(start, count))
        except InvalidArgument as error:
            if count == 1:
                found.append((start, _NUMBERED.sub("", str(error))))
            else:
                half = count // 2
                waiting += [(start + half, count - half), (start, half)]
    return found


def shown_rows(bad: pa.Table, limit: int) -> tuple[BadRow, ...]:
    """The first few of them, for people."""
    found = []
    for row in _python_rows(bad.slice(0, limit)):
        reason = row.pop(REASON)
        column = _COLUMN.search(reason)
        told = reason if len(reason) <= _TOLD_LENGTH_MAX else f"{reason[:_TOLD_LENGTH_MAX]}..."
        found.append(BadRow(show(row), column[1] if column else "", told))
    return tuple(found)


def _python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """With days and moments that Python has no objects for as text."""
    columns = [_python_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return list(column.cast(_without_times(column.type)).to_pylist())


def _without_times(type_: pa.DataType) -> pa.DataType:
    """The type with text in the place of days and moments."""
    if pa.types.is_temporal(type_):
        return pa.string()
    if pa.types.is_map(type_):
        return pa.map_(_without_times(type_.key_type), _without_times(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_without_times(field.type)) for field in type_])
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_without_times(type_.value_type))
    return type_


def write_aside(directory: str, prefix: str, bad: Sequence[pa.Table]) -> str:
    """A Parquet file of bad rows with their reasons, whole or not at all; its name in the directory."""
    name = f"{prefix}{SystemRng().token(8).hex()}.parquet"
    file = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(bad), file)
    sink = open_blobs(directory).create(name)
    try:
        sink.write(file.getvalue())
        sink.commit()
    finally:
        sink.abort()
    return name


def drop_others(directory: str, prefix: str, kept: Sequence[str]) -> None:
    """What attempts that do not count have written aside goes."""
    store = open_blobs(directory)
    for info in list(store.list(prefix)):
        if info.name not in kept:
            store.delete(info.name)
