"""Which groups a scan reads, what each gives, and by which of them rows appear.

`columns` is a projection: a scan shows every row that exists, so groups that nothing is asked of are read too, though
only their rows are. That is not needed where a condition is true of no row that has none of the columns read, as most
conditions on values are: then only the groups that it and the columns look at are read. A scan of the rows *having* one
of the columns reads what a condition asks for besides in streams of its own, by which no row appears.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, auto

from stelae.model.ids import GroupId
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.pruning import Bounds, may_match
from stelae.model.predicate.selectors import ColumnSelector, Selectors, union_selectors
from stelae.model.schema import Column, ColumnsGroup, Group, TableSchema
from stelae.model.types import Array, Map, Struct, Vector
from stelae.storage.read.points.rows import READERS_MAX
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.shapes import (
    NO_CHOICE,
    ScanPart,
    asked_by,
    output_schema,
    parts_of,
    rows_alone,
    with_asked,
)
from stelae.storage.tablet.parts import LEFT_OVER
from stelae.storage.tablet.state import Ref, TabletState

_NOTHING_ASKED = frozenset[str]()


class Appearing(IntEnum):
    """Which rows a scan shows: all that exist; those that have any of the columns it reads, since its condition is true
    of no others; or those that have one of the columns it shows. Numbers, since those are keys of a dict at no cost."""

    EXISTING = auto()
    READ = auto()
    HAVING = auto()


@dataclass(frozen=True, slots=True)
class Stream:
    """What is read of one group. `counts`: rows appear by it. `has_all`: by whatever the group has of them, not only by
    what is read. `asked`: names of single cells that the condition looks at, and this stream has."""

    group: Group
    part: ScanPart
    refs: tuple[Ref, ...]
    counts: bool = True
    has_all: bool = True
    asked: tuple[str, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether anything but its rows is read."""
        part = self.part
        return bool(part.columns or part.families or part.is_wildcard or self.asked)


class Prepared:
    """How a choice of columns is read from one state of a tablet, whatever the rows and the snapshot: kept with the
    state. `alone`: there is one group to read, and the columns that are read of it are those that are shown.

    `beside` a group: of rows that exist without anything of it. What the others have of them is not read: `blank` is
    what there would be to read, and is read as nothing."""

    __slots__ = ("alone", "blank", "ids", "in_one", "left_over", "shown", "streams")

    def __init__(
        self,
        state: TabletState,
        columns: Selectors,
        asked: frozenset[str],
        rows: Appearing,
        beside: GroupId | None = None,
    ) -> None:
        schema = state.schema
        read = with_asked(columns, asked)
        parts = parts_of(schema, read)
        self.shown = output_schema(schema, columns)
        self.left_over = state.refs(LEFT_OVER) if rows is Appearing.EXISTING else ()
        having = rows is Appearing.HAVING
        found = tuple(_having(schema, columns, asked) if having else _existing(schema, parts, asked, rows))
        self.blank = found
        if beside is not None:
            found = tuple(Stream(group, rows_alone(schema, group), ()) for group in schema.groups)
        self.streams = tuple(replace(stream, refs=state.refs(stream.group.id)) for stream in found)
        self.in_one = len(schema.groups) == 1 and not state.refs(LEFT_OVER)
        self.ids = {column.name: column.id for part in parts.values() for column in part.columns}
        is_alone = len(self.streams) == 1 and not self.left_over and read == columns and beside is None
        self.alone = is_alone and isinstance(self.streams[0].group, ColumnsGroup)


def prepared(
    state: TabletState, columns: Selectors, where: Expr | None, *, having: bool, beside: GroupId | None = None
) -> Prepared:
    asked, rows = _NOTHING_ASKED, Appearing.EXISTING
    if where is not None:
        asked, rows = asked_by(where), rows_shown(state.schema, where)
    if having:
        rows = Appearing.HAVING
    at = (columns, asked, rows, beside)
    found = state.readers.get(at)
    if not isinstance(found, Prepared):
        if len(state.readers) >= READERS_MAX:
            state.readers.clear()
        found = state.readers[at] = Prepared(state, *at)
    return found


def rows_shown(schema: TableSchema, where: Expr | None) -> Appearing:
    """Of a scan that shows every row that exists and its condition is true of."""
    if where is None or may_match(where, lambda name: _blank(schema, name)):
        return Appearing.EXISTING
    return Appearing.READ


def _blank(schema: TableSchema, name: str) -> Bounds | None:
    """What a condition finds under a name in a row that has no values; None: that depends on its key."""
    column = _column(schema, name)
    if column is None:
        return Bounds(None, None, 1, 1, is_exact=True) if ":" in name else None
    if column.default is None:
        return Bounds(None, None, 1, 1, is_exact=True)
    if isinstance(column.type, Array | Map | Struct | Vector):
        return None
    return Bounds(column.default, column.default, 0, 1, is_exact=True)


def _column(schema: TableSchema, name: str) -> Column | None:
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            for column in group.columns:
                if column.name == name:
                    return column
    return None


def _existing(
    schema: TableSchema, parts: dict[int, ScanPart], asked: frozenset[str], rows: Appearing
) -> Iterator[Stream]:
    for group in schema.groups:
        part = parts.get(group.id)
        if part is not None:
            cells = tuple(name for name in asked if _is_cell_of(part, name))
            yield Stream(group, part, (), has_all=rows is Appearing.EXISTING, asked=cells)
        elif rows is Appearing.EXISTING:
            yield Stream(group, rows_alone(schema, group), ())


def _having(schema: TableSchema, columns: Selectors, asked: frozenset[str]) -> Iterator[Stream]:
    shown = parts_of(schema, columns)
    besides = union_selectors(
        ColumnSelector(name, is_prefix=False) for name in asked if not any(each.matches(name) for each in columns)
    )
    unshown = parts_of(schema, besides)
    for group in schema.groups:
        part = shown.get(group.id)
        if part is not None:
            cells = tuple(
                name for name in asked if _is_cell_of(part, name) and any(each.matches(name) for each in columns)
            )
            yield Stream(group, _narrowed(part), (), has_all=False, asked=cells)
        part = unshown.get(group.id)
        if part is not None:
            names = tuple(each.text for each in besides if _is_cell_of(part, each.text))
            only = replace(_narrowed(part), families=(), is_wildcard=False)
            yield Stream(group, only, (), counts=False, has_all=False, asked=names)


def _narrowed(part: ScanPart) -> ScanPart:
    """Rows appear by what is read, and by nothing else."""
    return part if part.choice is NO_CHOICE else replace(part, choice=ColumnChoice(part.columns, exists=False))


def _is_cell_of(part: ScanPart, name: str) -> bool:
    family, colon, _ = name.partition(":")
    return bool(colon) and part.has_family(family)
