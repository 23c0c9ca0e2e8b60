"""One row at a time: the rule's fast path for it, and its blocks.

Most rows are plain: names of key columns and columns, and perhaps of cells, with values that are not large. They come
in shapes, too: the same names in the same order, again and again. What follows from the names alone is worked out once
for each shape (which columns they are, that each stands once, that none is missing which a put must write), and what
follows from the kinds of values once for each combination of kinds. What is left to do for a row is to look at sizes
and ranges, and to make the kept form of values that are not in it already.

`PlainPuts` never refuses: it gives what `rule.judged` gives, or None, and then the row goes to `rule`, which alone says
what is wrong. What it takes is bounded so that a block of it is never too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from stelae.client.arguments.names import Names
from stelae.client.intake.blocks import SaidRow, Sizes, weighed
from stelae.client.intake.rule import judged_alone, plain_dict
from stelae.client.intake.shares import blocks_of_row
from stelae.format.block import NESTED_BYTES_MAX, SmallBlock
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Mutation, Put, PutCell
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.model.values import Value, check_ts, coerce
from stelae.service.blocks import OrderedBlock
from stelae.storage.checks.rules import required_columns
from stelae.storage.checks.sizes import SIZE_OF_PACKED_MAX, packed_bytes

_SHAPES_MAX = 64
_CELLS_MAX = 256
"""So many names may a row with cells have, if it is plain."""

_CELLS_MET_MAX = 4_096
_FAMILY_BYTES_MAX = 2_048
"""The name of a family, the times and the lengths: no mutation has more of them."""

_VALUE_BYTES = 32
"""A value in a block has no more bytes besides its own."""

_NONE = type(None)
_ALWAYS_KEPT: dict[t.ColumnType, type] = {t.Bool(): bool, t.Float(64): float}
"""Kinds of values that are kept as they are."""

_Cell = tuple[str, str, bool]
"""Family, qualifier, and whether the family is called as it is declared."""

_UNMET: _Cell = "", "", False

_Fit = Callable[[Any], Value]
_Plan = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...], tuple[tuple[int, _Fit], ...]]
"""Where values of a row are text, bytes, ints (with the limit of their range), and such that must be made to fit."""


class _NotPlain(Exception):
    """The row is not of the common kind that is handled here: check it by the general rule, which is slower. Never
    leaves this module."""


class SinglePuts:
    """Puts of single rows as blocks. Prepared for one schema; may be kept, and used by many threads."""

    def __init__(self, schema: TableSchema, limits: Limits = DEFAULT_LIMITS) -> None:
        self._schema = schema
        self._version = schema.version
        self._names = Names(schema, limits)
        self._sizes = Sizes(limits)
        self._plain = PlainPuts(self._names)

    def blocks(self, row: Mapping[str, Any], ts: int | None) -> Sequence[OrderedBlock]:
        """What a put of one row says, checked."""
        time = None if ts is None else check_ts(ts)
        given = row if type(row) is dict else plain_dict(row)
        plain = self._plain.put(given, time)
        if plain is not None:
            return (OrderedBlock(SmallBlock(self._version, plain)),)
        return blocks_of_row(self._schema, judged_alone(self._names, given, time), self._sizes)

    def said(self, row: Mapping[str, Any], ts: int | None) -> SaidRow:
        """The same, to be put into a block with others."""
        time, given = None if ts is None else check_ts(ts), plain_dict(row)
        plain = self._plain.put(given, time)
        return weighed(judged_alone(self._names, given, time) if plain is None else plain)


class PlainPuts:
    """Prepared for one schema; may be kept, and used by many threads."""

    def __init__(self, names: Names) -> None:
        limits = names.limits
        self._names = names
        self._shapes: dict[tuple[Any, ...], _Shape] = {}
        self._cells: dict[Any, _Cell | None] = {}
        # Of a block, rows and qualifiers of so many mutations have at most three eighths, their values a quarter, and
        # the values of columns another.
        named_bytes_max = _CELLS_MAX * (_FAMILY_BYTES_MAX + 5 * limits.row_bytes_max)
        self._cells_max = _CELLS_MAX if named_bytes_max <= limits.block_bytes_max * 3 // 8 else 0
        self._cell_bytes_max = min(limits.value_bytes_max, limits.block_bytes_max // 4 // _CELLS_MAX)

    def put(self, row: dict[Any, Any], ts: Micros | None) -> tuple[Mutation, ...] | None:
        """What the row says, checked; None: ask the rule."""
        shape = self._shapes.get(tuple(row))
        if shape is None:
            return self._put_other(row, ts)
        said = None if shape.lacks_columns else shape.said(list(row.values()))
        return None if said is None else (Put(said[0], said[1], ts),)

    def _put_other(self, row: dict[Any, Any], ts: Micros | None) -> tuple[Mutation, ...] | None:
        """Of a row that has cells, or a shape that was not met before."""
        names: list[Any] = []
        values: list[Any] = []
        cells: list[tuple[str, str, bytes]] = []
        are_declared = True
        met, bytes_max = self._cells, self._cell_bytes_max
        for name, value in row.items():
            cell = met.get(name, _UNMET)
            if cell is _UNMET:
                cell = self._new_cell(name)
            if cell is None:
                names.append(name)
                values.append(value)
            elif type(value) is bytes and len(value) <= bytes_max:
                cells.append((cell[0], cell[1], value))
                are_declared = are_declared and cell[2]
            else:
                return None
        if len(row) > self._cells_max and cells:
            return None
        if not are_declared and len({cell[:2] for cell in cells}) < len(cells):
            return None
        shape = self._shapes.get(tuple(names)) or self._new_shape(tuple(names))
        if shape is None or (shape.lacks_columns and not (cells and shape.is_key_alone)):
            return None
        said = shape.said(values)
        if said is None:
            return None
        encoded, written = said
        puts = [PutCell(encoded, family, qualifier, data, ts) for family, qualifier, data in cells]
        return (Put(encoded, written, ts), *puts) if written or not cells else tuple(puts)

    def _new_cell(self, name: object) -> _Cell | None:
        """None if the name is no cell's, or one that the rule refuses."""
        found: _Cell | None = None
        if type(name) is not str:
            return None
        if ":" in name:
            try:
                cell = self._names.cell(name)
            except InvalidArgument:
                return None
            found = cell.family, cell.qualifier, name.startswith(f"{cell.family}:")
        if len(self._cells) >= _CELLS_MET_MAX:
            self._cells.clear()
        self._cells[name] = found
        return found

    def _new_shape(self, names: tuple[Any, ...]) -> _Shape | None:
        """None if some name is not that of a column, or one is there twice, or a key column is not."""
        places: list[KeyColumn | Column] = []
        for name in names:
            try:
                place = self._names.meaning(name)
            except InvalidArgument:
                return None
            if not isinstance(place, KeyColumn | Column):
                return None
            places.append(place)
        schema, limits = self._names.schema, self._names.limits
        ids = {place.id for place in places}
        if len(ids) < len(names) or any(key.id not in ids for key in schema.key):
            return None
        if limits.row_bytes_max + _VALUE_BYTES * (len(names) + 2) > limits.block_bytes_max // 2:
            return None
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        shape = self._shapes[names] = _Shape(schema, places, limits)
        return shape


class _Shape:
    """Rows of the same key columns and columns, in one order."""

    __slots__ = (
        "_bytes_max",
        "_codec",
        "_ids",
        "_in_order",
        "_key_at",
        "_key_kind",
        "_keys_at",
        "_nested_bytes_max",
        "_places",
        "_plans",
        "_row_bytes_max",
        "is_key_alone",
        "lacks_columns",
    )

    def __init__(self, schema: TableSchema, places: Sequence[KeyColumn | Column], limits: Limits) -> None:
        columns = [place for place in places if isinstance(place, Column)]
        ids = [column.id for column in columns]
        self._places = tuple(places)
        self._plans: dict[tuple[type, ...], _Plan] = {}
        self._codec = schema.codec
        self._keys_at = tuple(places.index(key) for key in schema.key)
        self._key_at = self._keys_at[0]
        is_own_row = len(schema.key) == 1 and not schema.hashed
        self._key_kind = {t.String(): str, t.Binary(): bytes}.get(schema.key[0].type) if is_own_row else None
        self._ids = tuple(sorted(ids))
        self._in_order = None if ids == sorted(ids) else itemgetter(*[ids.index(id_) for id_ in self._ids])
        self.is_key_alone = not columns
        self.lacks_columns = _lacks_columns(schema, frozenset(ids))
        nested = sum(not isinstance(column.type, t.KeyType) for column in columns)
        self._row_bytes_max = limits.row_bytes_max
        # All values together have a quarter of a block, and those that are nested half of what small blocks take.
        self._bytes_max = min(limits.value_bytes_max, limits.block_bytes_max // 4 // len(places))
        largest = min(self._bytes_max, limits.value_bytes_max // SIZE_OF_PACKED_MAX)
        self._nested_bytes_max = min(largest, NESTED_BYTES_MAX // 2 // max(nested, 1))

    def said(self, values: list[Any]) -> tuple[Row, tuple[tuple[ColumnId, Value], ...]] | None:
        """The row of the key, and the columns with their kept values; the list is used up. None if some value is none
        of its column, or large."""
        kinds = tuple(map(type, values))
        plan = self._plans.get(kinds) or self._new_plan(kinds)
        if plan is None:
            return None
        texts, blobs, ints, others = plan
        bytes_max = self._bytes_max
        for at in texts:
            text = values[at]
            if len(text) > bytes_max or not (text.isascii() or _fits_in(text, bytes_max)):
                return None
        for at in blobs:
            if len(values[at]) > bytes_max:
                return None
        for at, limit in ints:
            if not -limit <= values[at] < limit:
                return None
        kind = self._key_kind
        try:
            for at, fit in others:
                values[at] = fit(values[at])
            if kind is None:
                encoded = self._encoded(values)
            else:
                encoded = values.pop(self._key_at)
                if kind is str:
                    encoded = encoded.encode()
        except (InvalidArgument, UnicodeEncodeError, _NotPlain):
            return None
        if len(encoded) > self._row_bytes_max:
            return None
        if not values:
            return encoded, ()
        if self._in_order is not None:
            values = self._in_order(values)
        return encoded, tuple(zip(self._ids, values))  # noqa: B905

    def _encoded(self, values: list[Any]) -> Row:
        """The row of the key, which is taken out of the values."""
        codec = self._codec
        encoded = codec.encode(codec.check(tuple([values[at] for at in self._keys_at])))
        for at in sorted(self._keys_at, reverse=True):
            del values[at]
        return encoded

    def _new_plan(self, kinds: tuple[type, ...]) -> _Plan | None:
        texts: list[int] = []
        blobs: list[int] = []
        ints: list[tuple[int, int]] = []
        others: list[tuple[int, _Fit]] = []
        for at, (place, kind) in enumerate(zip(self._places, kinds, strict=True)):
            if isinstance(place, KeyColumn):
                if self._key_kind is not None and kind is not self._key_kind:
                    return None
                continue
            match place.type:
                case _ if kind is _NONE:
                    if not place.nullable:
                        return None
                case t.String() if kind is str:
                    texts.append(at)
                case t.Binary() if kind is bytes:
                    blobs.append(at)
                case t.Int(bits) if kind is int:
                    ints.append((at, 1 << (bits - 1)))
                case type_ if _ALWAYS_KEPT.get(type_) is kind:
                    pass
                case _:
                    others.append((at, _fit(place, self._bytes_max, self._nested_bytes_max)))
        if len(self._plans) >= _SHAPES_MAX:
            self._plans.clear()
        plan = self._plans[kinds] = tuple(texts), tuple(blobs), tuple(ints), tuple(others)
        return plan


def _lacks_columns(schema: TableSchema, written: frozenset[int]) -> bool:
    """Whether a put of these columns, or of the key alone, lacks one that it must write."""
    for group in schema.groups:
        needed = {column.id for column in required_columns(group)}
        mine = {column.id for column in getattr(group, "columns", ())}
        is_touched = bool(written & mine) or (not written and group.id == schema.existence_group.id)
        if is_touched and not needed <= written:
            return True
    return False


def _fits_in(text: str, bytes_max: int) -> bool:
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def _fit(column: Column, bytes_max: int, nested_bytes_max: int) -> _Fit:
    """What makes the kept form of a value."""
    type_, where = column.type, f"column {column.name!r}"

    def fit_plain(value: Any) -> Value:
        kept = coerce(type_, value, where)
        if (type(kept) is str and not _fits_in(kept, bytes_max)) or (type(kept) is bytes and len(kept) > bytes_max):
            raise _NotPlain
        return kept

    def fit_nested(value: Any) -> Value:
        has_length = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
        if has_length and len(value) > nested_bytes_max:  # no element is packed into less than a byte
            raise _NotPlain
        kept = coerce(type_, value, where)
        if packed_bytes(kept) > nested_bytes_max:
            raise _NotPlain
        return kept

    return fit_plain if isinstance(type_, t.KeyType) else fit_nested
