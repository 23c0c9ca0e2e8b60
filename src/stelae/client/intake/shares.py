"""Merged rows shared out among blocks, by what is said of them.

Blocks say exactly what the rows were given to say, and no row is in two of them:

| a row | goes into |
|---|---|
| writes every column of the call | a columnar put whose nulls are NULL |
| writes no NULL, or says its key alone | a columnar put whose nulls are columns left untouched |
| writes some columns, some of them NULL | a columnar put of the rows that write the same columns |
| has only cells | a columnar put of cells |
| has columns and cells, or says its key alone besides | a small block |

A share of few rows is a small block too, except for rows whose nested values are too large for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stelae.client.intake.blocks import SaidRow, Sizes, batch_of, cut_columnar, small_blocks, weighed
from stelae.client.intake.merge import MergedRows, merged_rows
from stelae.client.intake.rows import GivenColumn, given_row, taken_cells
from stelae.format import layout
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.format.layout import flags_of
from stelae.model.arrow_values import values_of
from stelae.model.ids import Micros, Row
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.schema import TableSchema
from stelae.service.blocks import OrderedBlock
from stelae.storage.merge.order import Flags, Positions, order_sorted


class _Share(msgspec.Struct, frozen=True):
    """Rows that one kind of columnar block can say: puts of these columns, or of the rows' cells."""

    places: Positions
    columns: tuple[GivenColumn, ...] = ()
    nulls_written: bool = True
    is_cells: bool = False


def shared_out(schema: TableSchema, found: MergedRows, ts: Micros | None, sizes: Sizes) -> list[OrderedBlock]:
    """All blocks. InvalidArgument for a row that no block can hold."""
    return _Sharing(schema, found, ts, sizes).blocks()


def blocks_of_row(schema: TableSchema, mutations: Sequence[Mutation], sizes: Sizes) -> list[OrderedBlock]:
    """Of puts of one row, which were checked: a small block, except of nested values that are too large for one."""
    said = weighed(mutations)
    if said.fits_small:
        return list(small_blocks(schema, [said], sizes))
    given, ts = given_row(schema, mutations)
    return shared_out(schema, merged_rows(schema, given, sizes.limits), ts, sizes)


class _Sharing:
    def __init__(self, schema: TableSchema, found: MergedRows, ts: Micros | None, sizes: Sizes) -> None:
        self._schema = schema
        self._found = found
        self._ts = ts
        self._sizes = sizes
        self._count = len(found.rows)
        self._has_cells = np.zeros(self._count, np.bool_)
        if found.cells is not None:
            self._has_cells[found.cells.owners] = True

    def blocks(self) -> list[OrderedBlock]:
        found = self._found
        wrote = _any([flags_of(each.written, self._count) for each in found.columns], self._count)
        mixed = (self._has_cells & (wrote | found.exists)) | (wrote & found.exists)
        shares = list(self._shares((wrote | found.exists) & ~mixed & ~self._has_cells))
        if found.cells is not None:
            shares.append(_Share(np.flatnonzero(self._has_cells & ~mixed), is_cells=True))
        columnar = [share for share in shares if self._records(share) > self._sizes.small_rows_max]
        few = [share for share in shares if self._records(share) <= self._sizes.small_rows_max]
        said = self._said(np.flatnonzero(mixed))
        rows = iter(self._said(np.concatenate([share.places for share in few]) if few else np.zeros(0, np.intp)))
        for share in few:
            mine = list(islice(rows, len(share.places)))
            light = np.array([row.fits_small for row in mine], np.bool_)
            said += [row for row, is_light in zip(mine, light.tolist(), strict=True) if is_light]
            if not light.all():
                columnar.append(replace(share, places=share.places[~light]))
        said.sort(key=lambda row: row.row)
        blocks = list(small_blocks(self._schema, said, self._sizes))
        for share in columnar:
            blocks += self._cells(share) if share.is_cells else self._puts(share)
        return blocks

    def _shares(self, rows: Flags) -> Iterator[_Share]:
        """Of rows that have columns alone, or their key alone."""
        columns = self._found.columns
        if all(each.written is True for each in columns):
            yield _Share(np.flatnonzero(rows), columns)
            return
        written = [flags_of(each.written, self._count) for each in columns]
        complete = np.logical_and.reduce(written)
        yield _Share(np.flatnonzero(rows & complete), columns)
        nulls = np.zeros(self._count, np.bool_)
        for each, flags in zip(columns, written, strict=True):
            nulls |= flags & each.values.is_null().to_numpy(zero_copy_only=False)
        plain = np.flatnonzero(rows & ~complete & ~nulls)
        some = tuple(each for each, flags in zip(columns, written, strict=True) if flags[plain].any())
        yield _Share(plain, some, nulls_written=False)
        rest = np.flatnonzero(rows & ~complete & nulls)
        patterns, which, counts = np.unique(
            np.array(written)[:, rest].T, axis=0, return_inverse=True, return_counts=True
        )
        by_pattern = rest[np.argsort(which.ravel(), kind="stable")]
        for pattern, places in zip(patterns, np.split(by_pattern, np.cumsum(counts)[:-1]), strict=False):
            same = tuple(each for each, is_written in zip(columns, pattern, strict=True) if is_written)
            yield _Share(places, same)

    def _records(self, share: _Share) -> int:
        cells = self._found.cells
        if not share.is_cells or cells is None:
            return len(share.places)
        return int(np.isin(cells.owners, share.places).sum())

    def _puts(self, share: _Share) -> list[OrderedBlock]:
        found, at = self._found, None if len(share.places) == self._count else pa.array(share.places)
        rows, *keys = (part if at is None else part.take(at) for part in (found.rows, *found.keys))
        values = [
            (
                layout.user_field(each.column.name, each.values.type, each.column.id, nullable=True),
                each.values if at is None else each.values.take(at),
            )
            for each in share.columns
        ]
        batch = batch_of(self._schema, rows, keys, values, self._ts)
        block = ColumnarBlock(self._schema.version, ColumnarOp.PUT, share.nulls_written, batch)
        return cut_columnar(self._schema, OrderedBlock(block, rows), None, self._sizes)

    def _cells(self, share: _Share) -> list[OrderedBlock]:
        found, cells = self._found, self._found.cells
        if cells is None:
            return []
        mine = taken_cells(cells, np.flatnonzero(np.isin(cells.owners, share.places)))
        at = pa.array(mine.owners)
        rows = found.rows.take(at)
        named = (layout.FAMILY, mine.family), (layout.QUALIFIER, mine.qualifier), (layout.VALUE, mine.value)
        others = [(layout.system_field(name), values) for name, values in named]
        times = self._ts if mine.ts is None else mine.ts
        batch = batch_of(self._schema, rows, [key.take(at) for key in found.keys], others, times)
        block = ColumnarBlock(self._schema.version, ColumnarOp.PUT_CELLS, True, batch)
        return cut_columnar(self._schema, OrderedBlock(block, rows), order_sorted(rows).begins, self._sizes)

    def _said(self, places: Positions) -> list[SaidRow]:
        """What is written to the rows at these places, row by row, as mutations."""
        if not len(places):
            return []
        found, at = self._found, pa.array(places)
        columns = [
            (
                each.column.id,
                values_of(each.column.type, each.values.take(at)),
                flags_of(each.written, self._count)[places].tolist(),
            )
            for each in sorted(found.columns, key=lambda each: each.column.id)
        ]
        cells = self._cells_of(places)
        said = []
        for number, (place, row) in enumerate(zip(places.tolist(), found.rows.take(at).to_pylist(), strict=True)):
            mutations: list[Mutation] = [Put(Row(row), (), self._ts)] if found.exists[place] else []
            values = tuple([(id_, values[number]) for id_, values, written in columns if written[number]])
            mutations += [Put(Row(row), values, self._ts)] if values else []
            mutations += [PutCell(Row(row), *cell) for cell in cells.get(place, ())]
            said.append(weighed(mutations))
        return said

    def _cells_of(self, places: Positions) -> dict[int, list[tuple[str, str, bytes, Micros | None]]]:
        cells = self._found.cells
        if cells is None:
            return {}
        mine = taken_cells(cells, np.flatnonzero(np.isin(cells.owners, places)))
        times = [self._ts] * len(mine.owners) if mine.ts is None else mine.ts.tolist()
        parts = (part.to_pylist() for part in (mine.family, mine.qualifier, mine.value))
        by_owner: dict[int, list[tuple[str, str, bytes, Micros | None]]] = {}
        for owner, *cell in zip(mine.owners.tolist(), *parts, times, strict=True):
            by_owner.setdefault(owner, []).append(tuple(cell))
        return by_owner


def _any(some: Sequence[Flags], count: int) -> Flags:
    return np.logical_or.reduce(some) if some else np.zeros(count, np.bool_)
