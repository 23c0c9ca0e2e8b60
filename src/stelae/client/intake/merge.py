"""Rows as they were given, put in order, each once: the later mention of a cell wins.

Rows are encoded and sorted, the latest mention of each first. Where none stands twice that is all; where some do, each
column takes its value from the latest mention that writes it, and each cell from the latest that says it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.client.intake.rows import (
    GivenCells,
    GivenColumn,
    GivenRows,
    Written,
    bare_rows,
    taken_cells,
)
from stelae.format.layout import flags_of
from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.keys.vector import encode_arrays, with_one_zero
from stelae.model.limits import Limits
from stelae.model.schema import TableSchema
from stelae.storage.checks.rules import shown_row
from stelae.storage.checks.sizes import first_oversized
from stelae.storage.merge.order import Flags, Ints, Ordering, Positions, order_records, shared_bytes
from stelae.storage.merge.pick import first_of_each, gathered
from stelae.storage.merge.slab import as_bytes

_BINARY = t.Binary()


class MergedRows(msgspec.Struct, frozen=True):
    """Rows ascending, each once. `exists`: its key alone was said. The owners of cells are places in `rows`; cells are
    in order, the newest time first."""

    rows: pa.Array
    keys: tuple[pa.Array, ...]
    columns: tuple[GivenColumn, ...]
    exists: Flags
    cells: GivenCells | None


def merged_rows(schema: TableSchema, given: GivenRows, limits: Limits) -> MergedRows:
    keys, rows = encoded_rows(schema, given, limits)
    ordering = _ordered(rows)
    if ordering.positions is None:
        cells = None if given.cells is None else unique_cells(given.cells)
        return MergedRows(rows, tuple(keys), given.columns, bare_rows(given), cells)
    latest = ordering.positions[ordering.begins]
    at = pa.array(latest)
    ids = np.cumsum(ordering.begins, dtype=np.int64)
    exists = np.zeros(len(latest), np.bool_)
    exists[ids[bare_rows(given)[ordering.positions]] - 1] = True
    cells = given.cells
    if cells is not None:
        place = np.empty(len(rows), np.int64)
        place[ordering.positions] = ids - 1
        cells = unique_cells(replace(cells, owners=place[cells.owners]))
    return MergedRows(
        rows.take(at),
        tuple(key.take(at) for key in keys),
        tuple(_merged_column(column, ordering, latest, ids) for column in given.columns),
        exists,
        cells,
    )


def encoded_rows(schema: TableSchema, given: GivenRows, limits: Limits) -> tuple[list[pa.Array], pa.Array]:
    """The key columns as they are kept, in which the two zeros are one key; and the rows that they make, none of which
    is too long. InvalidArgument names the row by its number."""
    keys = [with_one_zero(type_, values) for type_, values in zip(schema.codec.types, given.keys, strict=True)]
    rows = encode_arrays(schema.codec, keys)
    number = first_oversized(_BINARY, rows, limits.row_bytes_max)
    if number is not None:
        row = rows[number].as_py()
        raise InvalidArgument(
            f"row number {number}: key {shown_row(schema.codec, row)} "
            f"has {len(row)} bytes; at most {limits.row_bytes_max} are allowed"
        )
    return keys, rows


def _ordered(rows: pa.Array) -> Ordering:
    """Rows ascending, of one row the latest mention first. Without positions if each is greater than the one before."""
    count = len(rows)
    if pc.all(pc.less(rows.slice(0, count - 1), rows.slice(1))).as_py():
        return Ordering(None, np.ones(count, np.bool_))
    ends = pc.min_max(rows).as_py()
    shared = shared_bytes([pa.array([ends["min"], ends["max"]], rows.type)])
    return order_records(rows, None, np.zeros(count, np.int64), np.arange(count), None, shared)


def _merged_column(given: GivenColumn, ordering: Ordering, latest: Positions, ids: Ints) -> GivenColumn:
    positions = ordering.positions
    if given.written is True or positions is None:
        return GivenColumn(given.column, given.values.take(pa.array(latest)), True)
    flags = flags_of(given.written, len(ids))[positions]
    places = first_of_each(ids, flags, len(latest))
    source = np.where(places < 0, -1, positions[places])
    written: Written = source >= 0
    return GivenColumn(given.column, gathered(given.values, to_arrow(given.column.type), source), written)


def unique_cells(cells: GivenCells) -> GivenCells:
    """In order, each cell and time once, as it is said last. Owners are in the order of their rows."""
    family, _ = _ranks(cells.family)
    qualifier, qualifiers = _ranks(cells.qualifier)
    names = family * qualifiers + qualifier
    times = [] if cells.ts is None else [-cells.ts]
    order = np.lexsort((*times, names, cells.owners))
    is_last = np.ones(len(order), np.bool_)
    if len(order):
        is_last[:-1] = np.any([np.diff(each[order]) != 0 for each in (cells.owners, names, *times)], axis=0)
    return taken_cells(cells, order[is_last])


def _ranks(texts: pa.Array) -> tuple[Ints, int]:
    """Numbers that compare as the texts do, and how many there are."""
    encoded = as_bytes(texts).dictionary_encode()
    count = len(encoded.dictionary)
    ranks = np.empty(count, np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(count)
    return ranks[encoded.indices.to_numpy(zero_copy_only=False)], count
