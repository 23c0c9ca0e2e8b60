"""One version of a table, with everything prepared that calls need of it again and again.

Views are thrown away when the schema changes; nobody is told of that. Reads take columns by name and are answered from
the schema the tablet has, so what comes back shows whether the view is still the right one: if a column is missing or a
new one is there, `RowShape.found` returns None, and the call is made again with a fresh view. Writes are refused by the
tablet as stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

from stelae.client.api.rows import Row as FoundRow
from stelae.client.arguments.keys import row_maker
from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.calls.steps import Ask, Claim, Make, Steps
from stelae.client.intake.blocks import SaidRow, Sizes, small_blocks, weighed
from stelae.client.intake.mutations import key_values
from stelae.client.intake.single_rows import SinglePuts
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.ids import Row, Txn
from stelae.model.limits import DEFAULT_LIMITS
from stelae.model.mutation import Cell, Mutation, WholeFamily
from stelae.model.predicate.selectors import ALL_COLUMNS, NO_COLUMNS, ColumnSelector, Selectors, union_selectors
from stelae.model.purge import AllOf, AnyOf, MaxAge, MaxHistory, PurgePolicy
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, KeyColumn, TableSchema
from stelae.model.types import Array, Binary, Int, Map, String, Struct, Vector
from stelae.model.values import show
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.tables import TableInfo
from stelae.storage.checks.mutations import check_mutations

_SHAPES_MAX = 64
SIZES = Sizes(DEFAULT_LIMITS)

ALL_ROWS, HAVING = "all", "having"

T = TypeVar("T")


def is_having(rows: object) -> bool:
    """What `rows=` says: every row that exists is wanted, or only those that have one of the columns."""
    if rows not in (ALL_ROWS, HAVING):
        hint = nearest(rows, (ALL_ROWS, HAVING)) if isinstance(rows, str) else ""
        raise InvalidArgument(f"rows= is {ALL_ROWS!r} or {HAVING!r}, not {show(rows)}{hint}")
    return rows == HAVING


class RowShape:
    """A choice of columns: what to ask for, and what a row of it looks like."""

    __slots__ = (
        "_nested",
        "_plain",
        "_telling",
        "all_names",
        "has_cells",
        "is_flat",
        "is_whole",
        "keys_only",
        "names",
        "selectors",
    )

    def __init__(self, schema: TableSchema, selectors: Selectors | None, *, keys_only: bool = False) -> None:
        """None: all columns. `keys_only`: the key alone."""
        self.is_whole = selectors is None
        self.keys_only = keys_only
        self.selectors = NO_COLUMNS if keys_only else ALL_COLUMNS if selectors is None else selectors
        columns: list[Column] = []
        for group in schema.groups:
            if isinstance(group, ColumnsGroup) and not self.keys_only:
                columns += [c for c in group.columns if any(s.matches(c.name) for s in self.selectors)]
        self.names = tuple(c.name for c in columns)
        self._plain = frozenset(self.names)
        self._telling = tuple(c.name for c in columns if c.default is None)
        self._nested = tuple(c.name for c in columns if isinstance(c.type, Array | Map | Struct | Vector))
        all_cells = any(isinstance(group, CellsGroup) for group in schema.groups)
        self.has_cells = all_cells and any(s.is_prefix or ":" in s.text for s in self.selectors)
        self.all_names = (*schema.codec.names, *self.names)
        self.is_flat = not (self.has_cells or keys_only or self._nested)
        """Only columns whose values nobody can write into."""

    def found(self, row: FoundRow, values: Values) -> FoundRow | None:
        """The values behind the key columns, in the order of the schema; None if they are of another schema."""
        try:
            for name in self.names:
                row[name] = values[name]
        except KeyError:
            return None
        if self._nested:
            # What memory holds is given out as it is: nobody may write into it.
            row.update({name: deepcopy(row[name]) for name in self._nested})
        if len(values) > len(self.names) and not self.keys_only:
            cells = [name for name in values if name not in self._plain]
            if any(":" not in name for name in cells):
                return None
            for name in sorted(cells):
                row[name] = values[name]
        return row

    def is_doubtful(self, values: Values | None) -> bool:
        """Whether there may be so little because what was asked for is called otherwise by now."""
        if self.is_whole or self.keys_only or values is None:
            return False
        return self.has_cells and len(values) <= len(self.names)

    def has_any(self, row: FoundRow) -> bool:
        """Whether it shows that a row has any of the columns. What is NULL or a default may have been written, or not:
        only the row's versions tell."""
        if self.keys_only:
            return True
        return any(row[name] is not None for name in self._telling) or any(":" in name for name in row)


class TableView:
    __slots__ = (
        "_key_kind",
        "_puts",
        "_shapes",
        "has_ages",
        "id",
        "info",
        "key_name",
        "name",
        "put_blocks",
        "row_of",
        "schema",
        "whole",
    )

    def __init__(self, info: TableInfo) -> None:
        self.info = info
        self.id = info.id
        self.name = info.name
        self.schema = schema = info.schema
        self.row_of = row_maker(schema)
        kind = {String: str, Binary: bytes, Int: int}.get(type(schema.key[0].type)) if len(schema.key) == 1 else None
        self.key_name = None if kind is None else schema.key[0].name
        self._key_kind = kind
        self.whole = RowShape(schema, None)
        self._shapes: dict[tuple[str, ...], RowShape] = {}
        self._puts = SinglePuts(schema)
        self.put_blocks = self._puts.blocks
        self.has_ages = any(_goes_by_age(group.options.purge) for group in schema.groups)

    # -- reading

    def shape(self, columns: Sequence[str] | None) -> RowShape:
        """Of `columns=`; those that were asked for lately are remembered."""
        if columns is None:
            return self.whole
        if type(columns) not in (list, tuple) and (
            isinstance(columns, str | bytes | Mapping) or not isinstance(columns, Iterable)
        ):
            raise InvalidArgument(f"columns= is a list of names, not {show(columns)}")
        wanted = tuple(columns)
        try:
            found = self._shapes.get(wanted)
        except TypeError:
            found = None  # something in it that is no name: told below
        if found is None:
            if not wanted:
                raise InvalidArgument("columns= is empty: leave it out, or name some")
            chosen = self.selectors(wanted)
            found = RowShape(self.schema, chosen, keys_only=not chosen)
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[wanted] = found
        return found

    def selectors(self, columns: Iterable[str]) -> Selectors:
        """Of names as users give them; key columns are always there, and need none."""
        names = Names(self.schema)
        chosen: list[ColumnSelector] = []
        for name in columns:
            match names.meaning(name):
                case KeyColumn():
                    pass
                case Column(name=known):
                    chosen.append(ColumnSelector(known, is_prefix=False))
                case Cell(family, ""):
                    chosen.append(ColumnSelector(f"{family}:", is_prefix=True))
                case Cell(family, qualifier):
                    chosen.append(ColumnSelector(f"{family}:{qualifier}", is_prefix=False))
                case WholeFamily() as whole:
                    if whole == OTHER_CELLS:
                        raise InvalidArgument("'*' is no column: name a family, as in 'click:'")
                    chosen.append(ColumnSelector(f"{whole.family}:", is_prefix=True))
        return union_selectors(chosen)

    def started(self, key: object, row: Row, txn: Txn) -> FoundRow:
        """The key columns of a row; values follow."""
        if self.key_name is not None and type(key) is self._key_kind:
            found = FoundRow()
            found[self.key_name] = key
        else:
            found = FoundRow(key_values(self.schema, row))
        found.txn = txn
        return found

    def found_row(self, shape: RowShape, key: object, row: Row, values: tuple[Any, ...], txn: Txn) -> FoundRow:
        """Of a row the values in the order of a flat shape."""
        head = (key,) if type(key) is self._key_kind else self.schema.codec.decode(row)
        made = FoundRow(zip(shape.all_names, head + values))  # noqa: B905 - both are of one length
        made.txn = txn
        return made

    def found_rows(
        self,
        shape: RowShape,
        keys: Sequence[object],
        rows: Sequence[Row],
        values: Sequence[tuple[Any, ...] | Values | None],
        txn: Txn,
    ) -> list[FoundRow | None]:
        """Of each row what is known of it: its values by name, or in the order of a flat shape. None for rows that are
        not there, or have values of another schema."""
        found: list[FoundRow | None] = []
        names, kind, decode = shape.all_names, self._key_kind, self.schema.codec.decode
        for key, row, each in zip(keys, rows, values, strict=True):
            if isinstance(each, tuple):
                head = (key,) if type(key) is kind else decode(row)
                made = FoundRow(zip(names, head + each))  # noqa: B905 - as in `found_row`
                made.txn = txn
                found.append(made)
            else:
                found.append(None if each is None else shape.found(self.started(key, row, txn), each))
        return found

    def rows_of(
        self, shape: RowShape, rows: Sequence[bytes], values: Sequence[tuple[Any, ...]], txn: Txn
    ) -> list[FoundRow]:
        """Of encoded keys, and the values of the columns of a flat shape."""
        codec = self.schema.codec
        names = shape.all_names
        keys: Iterable[tuple[Any, ...]]
        kind = None if self.schema.hashed else self._key_kind
        if kind is str:
            keys = [(row.decode(),) for row in rows]
        else:
            keys = zip(rows) if kind is bytes else map(codec.decode, map(Row, rows))
        found = [FoundRow(zip(names, key + of_row)) for key, of_row in zip(keys, values, strict=True)]  # noqa: B905
        for row in found:
            row.txn = txn
        return found

    # -- writing

    def said_put(self, row: Mapping[str, Any], ts: int | None) -> SaidRow:
        """What a put of one row says, checked, to be written together with others."""
        return self._puts.said(row, ts)

    def weighed(self, mutations: Sequence[Mutation]) -> SaidRow:
        """What is said of one row, checked on its own."""
        check_mutations(self.schema, mutations, DEFAULT_LIMITS)
        return weighed(mutations)

    def blocks(self, rows: Sequence[SaidRow]) -> Sequence[OrderedBlock]:
        """Encode rows for the store. They come in the order of their keys, and no row comes twice."""
        return tuple(small_blocks(self.schema, rows, SIZES))


def _goes_by_age(policy: PurgePolicy | None) -> bool:
    """Whether what a read finds depends on the time that it counts as its own."""
    match policy:
        case MaxAge():
            return True
        case AllOf(parts) | AnyOf(parts):
            return any(_goes_by_age(part) for part in parts)
        case MaxHistory() | None:
            return False


class KnownTable:
    """A table as far as one handle knows it. Threads share it: a view is put in the place of another whole."""

    __slots__ = ("id", "view")

    def __init__(self, info: TableInfo) -> None:
        self.id = info.id
        self.view = TableView(info)

    def refresh(self) -> Steps[bool]:
        """Ask the store how the table is now; whether its schema is another than was known."""
        before = self.view
        info: TableInfo = yield Ask(lambda backend, until: backend.info(self.id, deadline=until))
        if info == before.info:
            return False
        self.view = TableView(info)
        return info.schema.version != before.schema.version

    def prepared(self, make: Callable[[TableView], T], *, is_large: bool = False, for_write: bool = False) -> Steps[T]:
        """Something made from the schema; what the known one refuses, the newest one may take. `is_large`: making it
        takes a while. `for_write`: writes that are begun while the newest one is asked for come later than what is made
        by it."""
        try:
            return (yield Make(partial(make, self.view))) if is_large else make(self.view)
        except InvalidArgument:
            if for_write:
                yield Claim(self.id)
            if not (yield from self.refresh()):
                raise
        return (yield Make(partial(make, self.view))) if is_large else make(self.view)
