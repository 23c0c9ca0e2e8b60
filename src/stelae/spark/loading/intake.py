"""What a frame says of a table, as records of each group: judged by the fast paths of `client/intake/rule` that
`put_many` takes, and ready to be sorted.

A frame's columns are the same in every batch, so it is known beforehand what files it becomes (`file_specs`): one kind
for each group that it touches, with the columns that it has, and no others. Records are tables of exactly those
columns, and `_row` and `_txn` besides: the latter is no txn yet but the place of the record in the frame, by which the
last of several mentions is found. None of it is written.

A frame may also say which rows to erase (`erases`). Then every group has a record of every row of the frame, so that
all groups come to the same end where a row is mentioned twice; those that say nothing are dropped after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from stelae.client.arguments.names import OTHER_CELLS, Names
from stelae.client.intake.frames import FramePart, part_of_frame
from stelae.client.intake.long_frames import given_long
from stelae.client.intake.merge import encoded_rows, unique_cells
from stelae.client.intake.rows import (
    GivenRows,
    bare_rows,
    check_given,
    check_keys,
    given_frame,
    taken_cells,
)
from stelae.format import layout
from stelae.format.fragment.footer import FragmentColumn, FragmentSpec, spec_of
from stelae.format.layout import flags_of
from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, GroupId, Micros, TableId
from stelae.model.limits import DEFAULT_LIMITS
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.record import Kind
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Group, TableSchema
from stelae.storage.offline.sorting import SAYS_NOTHING, Flags, Ints, Positions

SEQUENCE = "__stelae_sequence"
"""A frame's own column with the place of each row, where that counts."""

ERASED = "__stelae_erased"
"""A frame's own column that is true of rows to erase."""

MISFIT = "__stelae_misfit"
"""A frame's own column that says of a row why it cannot be what the table wants, where whoever read it knows."""

OWN_COLUMNS = (SEQUENCE, ERASED, MISFIT)


@dataclass(frozen=True)
class FrameShape:
    """What a frame of these columns says, by its options. `ts`: the time of all records, if it is given."""

    table: TableId
    schema: TableSchema
    columns: tuple[str, ...]
    skips_nulls: bool = False
    is_long: bool = False
    has_times: bool = False
    erases: bool = False
    ts: Micros | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """To tasks it goes without what was made of it here."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(FrameShape, **(given | {"schema": structs.replace(self.schema)})), ()

    @cached_property
    def _meanings(self) -> list[object]:
        names = Names(self.schema)
        return [] if self.is_long else [names.meaning(name) for name in self.columns]

    @cached_property
    def value_columns(self) -> frozenset[ColumnId]:
        return frozenset(each.id for each in self._meanings if isinstance(each, Column))

    @cached_property
    def _cell_groups(self) -> frozenset[GroupId]:
        groups = [group for group in self.schema.groups if isinstance(group, CellsGroup)]
        if self.is_long:
            return frozenset(group.id for group in groups)
        wild = {group.id for group in groups if group.wildcard}
        found: set[GroupId] = set()
        for each in self._meanings:
            match each:
                case WholeFamily() if each == OTHER_CELLS:
                    found |= {group.id for group in groups}
                case WholeFamily(family) | Cell(family):
                    found |= {self.schema.family_group(family).id} | (wild if family == OTHER_CELLS.family else set())
                case _:
                    pass
        return frozenset(found)

    @property
    def may_be_bare(self) -> bool:
        """Whether a row of it may say its key alone."""
        return not self.is_long and (self.skips_nulls or not self.value_columns)

    @cached_property
    def may_repeat_cells(self) -> bool:
        """Whether a row may say a cell twice: by several columns, or in one map under names that mean the same."""
        places = [each for each in self._meanings if isinstance(each, Cell | WholeFamily)]
        return len(places) > 1 or OTHER_CELLS in places

    @cached_property
    def file_specs(self) -> Mapping[GroupId, FragmentSpec]:
        found = {}
        for group in self.schema.groups:
            keeps_bare = self.may_be_bare and group.id == self.schema.existence_group.id
            mine: tuple[Column, ...] = ()
            if isinstance(group, ColumnsGroup):
                mine = tuple(column for column in group.columns if column.id in self.value_columns)
            touched = bool(mine) or group.id in self._cell_groups
            if touched or keeps_bare or self.erases:
                found[group.id] = self._spec(group, mine)
        return found

    def _spec(self, group: Group, columns: Sequence[Column]) -> FragmentSpec:
        spec = spec_of(
            self.table,
            self.schema,
            group,
            nulls="masked" if self.erases else "unwritten" if self.skips_nulls and columns else "written",
            has_ts=self.ts is not None or (self.has_times and isinstance(group, CellsGroup)),
            has_txn=False,
            has_kind=self.erases,
        )
        named = tuple(FragmentColumn(column.id, column.name, str(column.type)) for column in columns)
        return msgspec.structs.replace(spec, columns=named)


def run_spec(spec: FragmentSpec) -> FragmentSpec:
    """The same records with their places in the frame, as they are kept until all are there."""
    return msgspec.structs.replace(spec, has_txn=True)


class Intake:
    """Turns batches of a frame into records. Prepared for one frame."""

    def __init__(self, shape: FrameShape) -> None:
        self._shape = shape
        self._schema = shape.schema
        self._names = Names(shape.schema)
        self._specs = shape.file_specs

    def records(self, batch: pa.Table, first: int) -> dict[GroupId, pa.Table]:
        """Of the frame's rows from number `first` on, unsorted. InvalidArgument names the first row that breaks a rule
        by its number in the batch, and the column."""
        place: Ints = np.arange(first, first + batch.num_rows)
        if MISFIT in batch.column_names:
            batch = _without_misfits(batch)
        if SEQUENCE in batch.column_names:
            place = batch.column(SEQUENCE).to_numpy()
            batch = batch.drop_columns([SEQUENCE])
        if not self._shape.erases:
            return self._puts(self._given(batch), place)
        erased = pc.fill_null(batch.column(ERASED), False).to_numpy(zero_copy_only=False)
        batch = batch.drop_columns([ERASED])
        puts = self._puts(self._given(batch.filter(pa.array(~erased))), place[~erased])
        erasures = self._erasures(batch.filter(pa.array(erased)), place[erased])
        return {group: pa.concat_tables([puts[group], erasures[group]]) for group in self._specs}

    def _given(self, batch: pa.Table) -> GivenRows:
        read = given_long if self._shape.is_long else given_frame
        given = read(self._names, part_of_frame(batch), 0, skip_nulls=self._shape.skips_nulls)
        check_given(self._schema, given, DEFAULT_LIMITS)
        return given

    def _rows(self, given: GivenRows) -> dict[str, pa.Array]:
        """The key columns and the rows they make."""
        keys, rows = encoded_rows(self._schema, given, DEFAULT_LIMITS)
        return dict(zip(self._schema.codec.names, keys, strict=True)) | {layout.ROW: rows}

    def _puts(self, given: GivenRows, place: Ints) -> dict[GroupId, pa.Table]:
        rows = self._rows(given)
        return {
            id_: self._cells(self._schema.group(id_), spec, given, rows, place)
            if spec.kind == "cells"
            else self._columns(self._schema.group(id_), spec, given, rows, place)
            for id_, spec in self._specs.items()
        }

    def _columns(
        self, group: Group, spec: FragmentSpec, given: GivenRows, rows: dict[str, pa.Array], place: Ints
    ) -> pa.Table:
        by_id = {each.column.id: each for each in given.columns}
        mine = [by_id[column.id] for column in spec.columns]
        bare = bare_rows(given) if group.id == self._schema.existence_group.id else np.zeros(given.count, np.bool_)
        written = bare.copy()
        for each in mine:
            written |= each.written
        arrays = rows | {each.column.name: each.values for each in mine}
        if spec.has_kind:
            arrays[layout.KIND] = pa.array(np.where(written, Kind.PUT, SAYS_NOTHING).astype(np.int8))
            flags = [*(flags_of(each.written, given.count) for each in mine), bare]
            arrays[layout.MASK] = layout.masks_of(flags, given.count, len(mine))
        table = _table(run_spec(spec), arrays, place, self._shape.ts, given.count)
        return table if spec.has_kind or written.all() else table.filter(pa.array(written))

    def _cells(
        self, group: Group, spec: FragmentSpec, given: GivenRows, rows: dict[str, pa.Array], place: Ints
    ) -> pa.Table:
        tables = [_table(run_spec(spec), {}, place[:0], None, 0)]
        if given.cells is not None:
            mine = taken_cells(given.cells, np.flatnonzero(self._of_group(group, given.cells.family)))
            if self._shape.may_repeat_cells:
                mine = unique_cells(mine)
            at = pa.array(mine.owners)
            arrays = {name: column.take(at) for name, column in rows.items()}
            arrays |= {layout.FAMILY: mine.family, layout.QUALIFIER: mine.qualifier, layout.VALUE: mine.value}
            times = self._shape.ts if mine.ts is None else mine.ts
            tables.append(_table(run_spec(spec), arrays, place[mine.owners], times, len(mine.owners)))
        bare = bare_rows(given) if group.id == self._schema.existence_group.id else np.zeros(given.count, np.bool_)
        kinds = np.where(bare, Kind.PUT, SAYS_NOTHING).astype(np.int8)
        alone = np.flatnonzero(bare | spec.has_kind)
        tables.append(self._row_records(spec, rows, alone, kinds, place))
        return pa.concat_tables(tables)

    def _of_group(self, group: Group, families: pa.Array) -> Flags:
        encoded = families.dictionary_encode()
        homes = [self._schema.family_group(family).id == group.id for family in encoded.dictionary.to_pylist()]
        mine: Flags = np.array(homes, np.bool_)[encoded.indices.to_numpy(zero_copy_only=False)]
        return mine

    def _row_records(
        self, spec: FragmentSpec, rows: dict[str, pa.Array], which: Positions, kinds: npt.NDArray[np.int8], place: Ints
    ) -> pa.Table:
        """Records of whole rows in a group of cells."""
        at, count = pa.array(which), len(which)
        arrays = {name: column.take(at) for name, column in rows.items()}
        nothing = pa.repeat(pa.scalar("", pa.string()), count)
        arrays |= {layout.FAMILY: nothing, layout.QUALIFIER: nothing, layout.VALUE: pa.nulls(count, pa.binary())}
        arrays[layout.KIND] = pa.array(kinds[which])
        # Times of their own are those of cells; a row of a long frame has none besides.
        times = self._shape.ts if self._shape.ts is not None else np.zeros(count, np.int64)
        return _table(run_spec(spec), arrays, place[which], times, count)

    def _erasures(self, batch: pa.Table, place: Ints) -> dict[GroupId, pa.Table]:
        named = {column.name.casefold() for column in self._schema.key}
        keys = [(name, column) for name, column in part_of_frame(batch).columns if str(name).casefold() in named]
        given = given_frame(self._names, FramePart(batch.num_rows, tuple(keys)), 0, skip_nulls=False)
        check_keys(self._schema, given)
        rows, count = self._rows(given), given.count
        kinds = np.full(count, Kind.ERASE_ROW, np.int8)
        found = {}
        for id_, spec in self._specs.items():
            if spec.kind == "cells":
                found[id_] = self._row_records(spec, rows, np.arange(count), kinds, place)
                continue
            arrays = rows | {layout.KIND: pa.array(kinds)}
            arrays |= {each.name: pa.nulls(count, to_arrow(t.parse_type(each.type))) for each in spec.columns}
            arrays[layout.MASK] = layout.masks_of([], count, len(spec.columns))
            found[id_] = _table(run_spec(spec), arrays, place, self._shape.ts, count)
        return found


def _without_misfits(batch: pa.Table) -> pa.Table:
    reasons = batch.column(MISFIT)
    if reasons.null_count < len(reasons):
        place = pc.index(reasons.is_valid(), True).as_py()
        raise InvalidArgument(f"row number {place}: {reasons[place].as_py()}")
    return batch.drop_columns([MISFIT])


def _table(
    spec: FragmentSpec, arrays: Mapping[str, pa.Array], place: Ints, ts: Ints | Micros | None, count: int
) -> pa.Table:
    """The columns of a run, and the row. Where there are no records, no arrays are needed."""
    schema = spec.arrow_schema()
    given = dict(arrays) | {layout.TXN: pa.array(place, pa.int64())}
    if spec.has_ts and ts is not None:
        times = np.full(count, ts, np.int64) if isinstance(ts, int) else ts
        given[layout.TS] = pa.array(times).view(layout.system_field(layout.TS).type)
    names = [layout.ROW, *(name for name in schema.names if name != layout.ROW)]
    types = [pa.binary(), *(schema.field(name).type for name in names[1:])]
    columns = [given[name] if count else pa.array([], type_) for name, type_ in zip(names, types, strict=True)]
    return pa.Table.from_arrays(columns, names=names)
