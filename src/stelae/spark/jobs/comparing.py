"""Two streams of rows in key order, side by side: which rows are on one side only, and which values differ.

Values are compared in vectors where Arrow can, floats by their bits: NaN is equal to itself, and 0.0 is not -0.0.
Nested values and maps of cells are first compared all at once; only if that fails they are looked at one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.format.fragment.reader import bounds
from stelae.model.ranges import RowRange

SomeRows: TypeAlias = tuple[pa.Array, pa.RecordBatch]
"""Encoded keys, ascending, and as many rows of a batch."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same on both sides. `here` and `there` are None where it is missing; else they hold what
    differs, by the names in `columns`."""

    row: bytes
    key: dict[str, Any]
    columns: tuple[str, ...]
    here: dict[str, Any] | None
    there: dict[str, Any] | None

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        if self.here is None or self.there is None:
            return f"{key}: only {'there' if self.here is None else 'here'}"
        pairs = [f"{name} {self.here[name]!r} here, {self.there[name]!r} there" for name in self.columns]
        return f"{key}: {'; '.join(pairs)}"


class ComparedRows(NamedTuple):
    """What came of a stretch of rows. `samples` are in the order of their rows."""

    rows_here: int
    rows_there: int
    only_here: int
    only_there: int
    different: int
    by_column: dict[str, int]
    samples: tuple[RowDifference, ...]
    size_bytes: int


class RowStream:
    """One side, taken up to a row at a time."""

    def __init__(self, batches: Iterator[SomeRows]) -> None:
        self._batches = batches
        self._current = next(batches, None)

    @property
    def last(self) -> bytes | None:
        """The last row that is at hand; None if there are no more."""
        found: bytes | None = None if self._current is None else self._current[0][-1].as_py()
        return found

    def up_to(self, last: bytes) -> SomeRows | None:
        if self._current is None:
            return None
        rows, batch = self._current
        _, count = bounds(rows, RowRange(b"", last + b"\0"))
        rest = (rows.slice(count), batch.slice(count))
        self._current = rest if count < len(rows) else next(self._batches, None)
        return (rows.slice(0, count), batch.slice(0, count)) if count else None


class Comparison:
    """Of the columns with these names. Some samples of what differs are kept: the first."""

    def __init__(self, keys: Sequence[str], names: Sequence[str], samples_max: int) -> None:
        self._keys = tuple(keys)
        self._names = tuple(names)
        self._samples_max = samples_max
        self._rows = [0, 0]
        self._only = [0, 0]
        self._different = 0
        self._by_column: Counter[str] = Counter()
        self._samples: list[RowDifference] = []

    def run(self, here: RowStream, there: RowStream) -> None:
        while True:
            lasts = [last for last in (here.last, there.last) if last is not None]
            if not lasts:
                return
            self._add(here.up_to(min(lasts)), there.up_to(min(lasts)))

    def result(self, size_bytes: int) -> ComparedRows:
        return ComparedRows(
            rows_here=self._rows[0],
            rows_there=self._rows[1],
            only_here=self._only[0],
            only_there=self._only[1],
            different=self._different,
            by_column=dict(self._by_column),
            samples=tuple(sorted(self._samples, key=lambda each: each.row)),
            size_bytes=size_bytes,
        )

    def _add(self, here: SomeRows | None, there: SomeRows | None) -> None:
        for side, some in enumerate((here, there)):
            self._rows[side] += 0 if some is None else len(some[0])
        if here is None or there is None:
            if here is not None or there is not None:
                self._missing(0 if there is None else 1, here or there)
            return
        at = pc.index_in(here[0], there[0])
        both = at.is_valid()
        self._missing(0, _filtered(here, pc.invert(both)))
        self._missing(1, _filtered(there, pc.invert(pc.is_in(there[0], here[0]))))
        mine = _filtered(here, both)
        self._compare(mine, there[1].take(at.drop_null()))

    def _missing(self, side: int, some: SomeRows | None) -> None:
        """Rows of one side that the other does not have."""
        if some is None:
            return
        rows, batch = some
        self._only[side] += len(rows)
        for place in range(min(len(rows), self._samples_max - len(self._samples))):
            values = {name: batch.column(name)[place].as_py() for name in self._names}
            here, there = (values, None) if side == 0 else (None, values)
            self._samples.append(RowDifference(rows[place].as_py(), self._key(batch, place), (), here, there))

    def _compare(self, mine: SomeRows, other: pa.RecordBatch) -> None:
        rows, batch = mine
        differing = {
            name: flags
            for name in self._names
            if (flags := differs(batch.column(name), other.column(name))) is not None
        }
        if not differing:
            return
        places = np.flatnonzero(np.logical_or.reduce(list(differing.values())))
        self._different += len(places)
        self._by_column.update({name: int(flags.sum()) for name, flags in differing.items()})
        for place in places[: max(0, self._samples_max - len(self._samples))].tolist():
            names = tuple(name for name, flags in differing.items() if flags[place])
            here, there = ({name: side.column(name)[place].as_py() for name in names} for side in (batch, other))
            self._samples.append(RowDifference(rows[place].as_py(), self._key(batch, place), names, here, there))

    def _key(self, batch: pa.RecordBatch, place: int) -> dict[str, Any]:
        return {name: batch.column(name)[place].as_py() for name in self._keys}


def _filtered(some: SomeRows, flags: pa.Array) -> SomeRows:
    return some[0].filter(flags), some[1].filter(flags)


def differs(one: pa.Array, other: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Where two arrays of one length differ; None if nowhere. Types that differ are brought to the wider one."""
    if one.type != other.type:
        wide = wider(one.type, other.type)
        one, other = one.cast(wide), other.cast(wide)
    bits = _bits(one.type)
    one, other = (one, other) if bits == one.type else (one.view(bits), other.view(bits))
    if one.equals(other):
        return None
    if pa.types.is_nested(bits):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([a != b for a, b in pairs], np.bool_)
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    unequal = pc.or_(unequal, pc.not_equal(one.is_null(), other.is_null()))
    found: np.ndarray[Any, np.dtype[np.bool_]] = unequal.to_numpy(zero_copy_only=False)
    return found


def _bits(type_: pa.DataType) -> pa.DataType:
    """The type with whole numbers in the place of floats."""
    if pa.types.is_floating(type_):
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width]
    if pa.types.is_map(type_):
        return pa.map_(_bits(type_.key_type), _bits(type_.item_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_bits(type_.value_type), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(_bits(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _bits(field.type)) for field in type_])
    return type_


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of the two that holds the values of both as they are; None if neither does."""
    for is_kind in (pa.types.is_integer, pa.types.is_floating):
        if is_kind(one) and is_kind(other):
            return max(one, other, key=lambda type_: type_.bit_width)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda type_: type_.precision)
    return None
