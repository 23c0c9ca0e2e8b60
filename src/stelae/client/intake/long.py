"""Frames of cells, one in each row: the key, then family, qualifier and value, and perhaps the time.

A column is called `_ts` instead of `ts`, and so with the others, where a key column has that name already. Times are
whole microseconds or moments with a zone; where there is such a column, each cell has one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.arguments.names import Names
from stelae.client.intake.frames import FramePart, Given
from stelae.client.intake.rows import GivenCells, GivenRows, keys_in_order, side_by_side, typed
from stelae.model import types as t
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId
from stelae.model.schema import TableSchema
from stelae.model.values import check_ts, coerce, micros_of_datetime, show
from stelae.storage.merge.order import Ints

_PARTS = ("family", "qualifier", "value", "ts")
_TYPES: dict[str, t.ColumnType] = {"family": t.String(), "qualifier": t.String(), "value": t.Binary()}


def long_names(schema: TableSchema) -> dict[str, str]:
    """What the columns besides the key's are called."""
    taken = {column.name.casefold() for column in schema.key}
    return {part: f"_{part}" if part in taken else part for part in _PARTS}


def given_long(names: Names, part: FramePart, first_row: int, *, skip_nulls: bool) -> GivenRows:
    schema = names.schema
    known = {column.name.casefold(): column for column in schema.key}
    parts = {name: part_ for part_, name in long_names(schema).items()}
    keys: dict[ColumnId, pa.Array] = {}
    found: dict[str, pa.Array | Ints] = {}
    for name, given in part.columns:
        folded = name.casefold() if isinstance(name, str) else ""
        what = parts.get(folded, "")
        if what in found or (folded in known and known[folded].id in keys):
            raise InvalidArgument(f"column {name!r} is given twice (case does not count)")
        if what == "ts":
            found[what] = _times(given, f"column {name!r}", first_row)
        elif what:
            found[what] = typed(_TYPES[what], given, f"column {name!r}", first_row)
        elif folded in known:
            key = known[folded]
            keys[key.id] = typed(key.type, given, f"key column {key.name!r}", first_row)
        else:
            raise _unknown(name, [*(column.name for column in schema.key), *parts])
    for name, what in parts.items():
        if what not in found and what != "ts":
            raise InvalidArgument(f"column {name!r} is missing: cells='long' takes one cell in each row")
    cells = _cells(names, found, part.count, first_row)
    return GivenRows(
        part.count,
        tuple(keys_in_order(schema, keys)),
        cells=side_by_side([cells], first_row, skip_nulls=skip_nulls),
        is_long=True,
    )


def _unknown(name: object, known: list[str]) -> InvalidArgument:
    if not isinstance(name, str):
        return InvalidArgument(f"the name of a column is text, not {show(name)}")
    if name == "txn":
        return InvalidArgument("column 'txn' is given by the store: leave it out")
    return InvalidArgument(f"no column {name!r} with cells='long'{nearest(name, known)}")


def _cells(names: Names, found: dict[str, Any], count: int, first_row: int) -> GivenCells:
    for what in ("family", "qualifier"):
        if found[what].null_count:
            place = pc.index(found[what].is_null(), True).as_py()
            raise InvalidArgument(f"row number {first_row + place}: column {what!r} cannot be NULL")
    encoded = found["family"].dictionary_encode()
    families = []
    for code, family in enumerate(encoded.dictionary.to_pylist()):
        try:
            families.append(names.family(family))
        except InvalidArgument as error:
            place = pc.index(encoded.indices, pa.scalar(code, encoded.indices.type)).as_py()
            raise InvalidArgument(f"row number {first_row + place}: {error}") from None
    family_of = pa.array(families, pa.string()).take(encoded.indices)
    return GivenCells(np.arange(count), family_of, found["qualifier"], found["value"], found.get("ts"))


def _times(given: Given, what: str, first_row: int) -> Ints:
    if isinstance(given, list):
        return np.array(
            [_time(value, f"row number {at}: {what}") for at, value in enumerate(given, first_row)], np.int64
        )
    type_: t.ColumnType = t.Timestamp() if pa.types.is_timestamp(given.type) else t.Int(64)
    micros = typed(type_, given, what, first_row).view(pa.int64())
    wrong = pc.fill_null(pc.or_(pc.less(micros, TS_MIN), pc.greater(micros, TS_MAX)), True)
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        check_ts(micros[place].as_py(), f"row number {first_row + place}: {what}")
    times: Ints = micros.to_numpy()
    return times


def _time(value: Any, where: str) -> int:
    if isinstance(value, datetime):
        return micros_of_datetime(coerce(t.Timestamp(), value, where))
    return check_ts(int(value) if type(value).__module__ == "numpy" else value, where)
