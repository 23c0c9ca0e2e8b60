"""Slabs: sorted records of one group from one source, as arrays, with just the columns somebody asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from stelae.model.arrow import compute as pc
from stelae.model.errors import TooMuchAtOnce
from stelae.storage.merge.order import Flags, Ints, Positions

ARRAY_BYTES_MAX = 2**31 - 2**24


class SlabColumn(msgspec.Struct, frozen=True):
    """`written[i]`: record i writes the column, or as an erasure is about it; True or False where all are alike.
    Values are None where nothing is written, and for what has no values (that a row exists)."""

    values: pa.Array | None
    written: Flags | bool

    def flags(self, count: int) -> Flags:
        return np.full(count, self.written, np.bool_) if isinstance(self.written, bool) else self.written


class Slab(msgspec.Struct, frozen=True):
    """`kinds` is None where all are puts. `cell`: family and qualifier, as bytes, in groups of cells, which have one
    column."""

    rows: pa.Array
    ts: Ints
    txn: Ints
    kinds: npt.NDArray[np.int8] | None
    columns: tuple[SlabColumn, ...]
    cell: tuple[pa.Array, pa.Array] | None = None

    def __len__(self) -> int:
        return len(self.ts)

    def slice(self, start: int, stop: int) -> Slab:
        size = stop - start
        return Slab(
            self.rows.slice(start, size),
            self.ts[start:stop],
            self.txn[start:stop],
            None if self.kinds is None else self.kinds[start:stop],
            tuple(
                SlabColumn(
                    None if c.values is None else c.values.slice(start, size),
                    c.written if isinstance(c.written, bool) else c.written[start:stop],
                )
                for c in self.columns
            ),
            None if self.cell is None else (self.cell[0].slice(start, size), self.cell[1].slice(start, size)),
        )

    def take(self, positions: Positions) -> Slab:
        at = pa.array(positions)
        return Slab(
            self.rows.take(at),
            self.ts[positions],
            self.txn[positions],
            None if self.kinds is None else self.kinds[positions],
            tuple(
                SlabColumn(
                    None if c.values is None else c.values.take(at),
                    c.written if isinstance(c.written, bool) else c.written[positions],
                )
                for c in self.columns
            ),
            None if self.cell is None else (self.cell[0].take(at), self.cell[1].take(at)),
        )

    def within(self, floor: int, at: int) -> Slab:
        """Only records with floor <= txn <= at."""
        keep = (self.txn >= floor) & (self.txn <= at)
        return self if keep.all() else self.take(np.flatnonzero(keep))


def join(slabs: Sequence[Slab]) -> Slab:
    """One behind the other; types of a column must agree. TooMuchAtOnce if a column would have more bytes than an
    array can."""
    if len(slabs) == 1:
        return slabs[0]
    _check_size(slabs)
    kinds = None
    if any(slab.kinds is not None for slab in slabs):
        kinds = np.concatenate([np.zeros(len(s), np.int8) if s.kinds is None else s.kinds for s in slabs])
    first = slabs[0]
    cell = None
    if first.cell is not None:
        cells = [slab.cell for slab in slabs if slab.cell is not None]
        cell = (pa.concat_arrays([c[0] for c in cells]), pa.concat_arrays([c[1] for c in cells]))
    return Slab(
        pa.concat_arrays([slab.rows for slab in slabs]),
        np.concatenate([slab.ts for slab in slabs]),
        np.concatenate([slab.txn for slab in slabs]),
        kinds,
        tuple(_join_column([(slab.columns[i], len(slab)) for slab in slabs]) for i in range(len(first.columns))),
        cell,
    )


def _check_size(slabs: Sequence[Slab]) -> None:
    for number in range(len(slabs[0].columns)):
        arrays = [values for slab in slabs if (values := slab.columns[number].values) is not None]
        size = sum(array.nbytes for array in arrays)
        if size >= ARRAY_BYTES_MAX:
            row = slabs[0].rows[0].as_py()
            raise TooMuchAtOnce(
                f"around row {row!r} one column has {size} bytes of versions that must be looked at together; at most "
                f"{ARRAY_BYTES_MAX} can be: erase or purge old versions of the row"
            )


def _join_column(columns: Sequence[tuple[SlabColumn, int]]) -> SlabColumn:
    type_ = next((column.values.type for column, _ in columns if column.values is not None), None)
    values = None
    if type_ is not None:
        values = pa.concat_arrays([pa.nulls(n, type_) if c.values is None else c.values for c, n in columns])
    written: Flags | bool
    if all(column.written is True for column, _ in columns):
        written = True
    elif all(column.written is False for column, _ in columns):
        written = False
    else:
        written = np.concatenate([column.flags(count) for column, count in columns])
    return SlabColumn(values, written)


def as_bytes(column: pa.Array) -> pa.Array:
    """Text as the bytes it is: they order the same, and compare faster."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column if pa.types.is_binary(column.type) else pc.cast(column, pa.binary())


def without_kinds(slab: Slab) -> Slab:
    """Says that all are puts, if they are: what follows is then cheaper."""
    return replace(slab, kinds=None) if slab.kinds is not None and not slab.kinds.any() else slab
