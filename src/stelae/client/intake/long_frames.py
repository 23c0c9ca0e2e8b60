"""Frames of cells, one in each row: the key, then family, qualifier and value, and perhaps the time. A fast path of
`rule.judged_long`, which says how the columns are called.

Times are whole microseconds or moments with a zone; where there is such a column, each cell has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stelae.client.arguments.names import Names
from stelae.client.intake.frames import FramePart, Given
from stelae.client.intake.rows import GivenCells, GivenRows, cells_of_columns, typed
from stelae.client.intake.rule import cell_time, long_names, long_places
from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId
from stelae.model.schema import KeyColumn
from stelae.storage.merge.order import Ints

_TYPES: dict[str, t.ColumnType] = {"family": t.String(), "qualifier": t.String(), "value": t.Binary()}


def given_long(names: Names, part: FramePart, first_row: int, *, skip_nulls: bool) -> GivenRows:
    schema = names.schema
    keys: dict[ColumnId, pa.Array] = {}
    found: dict[str, pa.Array | Ints] = {}
    places = long_places(schema, [name for name, _ in part.columns])
    for place, (name, given) in zip(places, part.columns, strict=True):
        match place:
            case KeyColumn() as key:
                keys[key.id] = typed(key.type, given, f"key column {key.name!r}", first_row)
            case "ts":
                found["ts"] = _times(given, f"column {name!r}", first_row)
            case what:
                found[what] = typed(_TYPES[what], given, f"column {name!r}", first_row)
    cells = _cells(names, found, part.count, first_row)
    return GivenRows(
        part.count,
        tuple(keys[key.id] for key in schema.key),
        cells=cells_of_columns(names, [cells], first_row, skip_nulls=skip_nulls),
        is_long=True,
    )


def _cells(names: Names, found: dict[str, Any], count: int, first_row: int) -> GivenCells:
    for what in ("family", "qualifier"):
        if found[what].null_count:
            place = pc.index(found[what].is_null(), True).as_py()
            called = long_names(names.schema)[what]
            raise InvalidArgument(f"row number {first_row + place}: column {called!r} cannot be NULL")
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
        times = [cell_time(value, f"row number {at}: {what}") for at, value in enumerate(given, first_row)]
        return np.array(times, np.int64)
    micros = typed(_time_type(given.type), given, what, first_row).view(pa.int64())
    wrong = pc.fill_null(pc.or_(pc.less(micros, TS_MIN), pc.greater(micros, TS_MAX)), True)
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        cell_time(micros[place].as_py(), f"row number {first_row + place}: {what}")
    found: Ints = micros.to_numpy()
    return found


def _time_type(given: pa.DataType) -> t.ColumnType:
    if pa.types.is_dictionary(given) or pa.types.is_run_end_encoded(given):
        return _time_type(given.value_type)
    return t.Timestamp() if pa.types.is_timestamp(given) else t.Int(64)
