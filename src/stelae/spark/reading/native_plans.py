"""Which rows Spark may read from the files as they are.

In each stretch of a tablet's rows there are *plain* files (`storage/offline/plain`): each record is exactly what is
seen of its row, unless another file has the row too. So they are read as they are, without those rows. Where the other
file is plain as well and newer, it is read likewise. Rows that any other file touches (one that has erasures, or only
some columns, or is of another group) are merged here, and written to an *overlay*: one more file for Spark to read.

Files with the same columns under the same names and types are read together, each once. Where only some rows of a file
are wanted, a filter on the row says which; files under one filter must not have rows inside it that are not theirs to
give. What is too small to be worth a filter, or has no exact one, or is touched in too many rows, is left to be merged
by tasks; files that lie over each other are read natively all together, or none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.conditions import SqlColumn, quoted, row_condition, sql_condition
from stelae.spark.reading.overlaid import BesideRows, Overlays, TouchedRows, overlay_of
from stelae.spark.reading.plans import HiddenRows, NativeFile, NativeRead, NativeShape, PlanLimits
from stelae.spark.reading.question import Question
from stelae.spark.reading.shapes import columns_of, native_shape, overlay_shape
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.hidden import Hidden, HiddenPlaces, Places
from stelae.storage.offline.plain import FileShare, Layers, PlainFile, layers_of, refs_besides, rows_of_file
from stelae.storage.offline.scans import Appearing, output_schema

RANGES_MAX = 16
"""Of one filter: Spark tries them one after the other for every row."""

READS_MAX = 32
HIDING_FILES_MAX = 64
"""Of one read: for every row Spark looks for its file's part of the bits."""

_FILLING_MAX = 2
_FAR_MORE = 2
_hidden = HiddenPlaces()


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Rows of one file that are read from it."""

    file: NativeFile
    shape: NativeShape
    rows: RangeSet
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Stretches of one tablet that are read natively together, or not at all. `rows`: all that is then known of these.
    `layers`: where not all records of the files are read."""

    tablet: PlannedTablet
    rows: RangeSet
    stretches: tuple[Stretch, ...]
    layers: tuple[Layers, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(stretch.size_bytes for stretch in self.stretches)

    @property
    def records(self) -> int:
        """Of its files, in all."""
        return sum(stretch.file.records for stretch in self.stretches)

    def touched(self) -> tuple[int, int]:
        """About how many records other files have, and mixed ones of rows that take a merge: so many are merged. And
        about how many bytes they take in files."""
        records = size_bytes = 0
        for layers in self.layers:
            rows = self.tablet.asked.within(layers.rows)
            for ref in layers.touching:
                if ref.file is not None:
                    share = FileShare(ref, ref.file, self.tablet.fragments)
                    records += share.records_in(rows)
                    size_bytes += share.bytes_in(rows)
            for each in layers.files:
                if each.mixed is not None:
                    share = FileShare(each.ref, each.file, self.tablet.fragments)
                    records += max(1, int(share.records_in(rows) * each.mixed.share))
        whole_bytes = sum(stretch.file.size_bytes for stretch in self.stretches)
        return records, size_bytes + records * whole_bytes // max(1, self.records)

    def hidden(self) -> Iterator[tuple[Layers, RowRange, Hidden]]:
        """What is not read from the files, and what is merged instead."""
        for layers in self.layers:
            for rows in self.tablet.asked.within(layers.rows):
                yield layers, rows, _hidden.of(layers, self.tablet.fragments, rows)


@dataclass(frozen=True, slots=True)
class _Arranged:
    """Stretches of one shape under one filter."""

    shape: NativeShape
    rows: tuple[RowRange, ...] | None
    stretches: tuple[Stretch, ...]


def native_reads(
    question: Question, tablets: Sequence[PlannedTablet], limits: PlanLimits, overlays: Overlays | None
) -> tuple[tuple[NativeRead, ...], ColumnsGroup | None]:
    """The reads, and the group that is read by them. Each tablet is told which of its rows they cover. `overlays`:
    where merged rows are written; None: nowhere, and rows that take a merge are left to tasks."""
    shape = overlay_shape(question)
    if question.where is not None and sql_condition(question.where, columns_of(shape, question)) is None:
        overlays = None
    group = native_group(question, tablets, alone=overlays is None)
    if group is None:
        return (), None
    units = [unit for tablet in tablets for unit in _units(tablet, group, shape)]
    units, beside_left = _overlaid(units, group, limits, overlays)
    units = _affordable(units, limits)
    arranged, refused = _arrange(question, units, limits)
    while refused:
        units = [unit for unit in units if not any(stretch in refused for stretch in unit.stretches)]
        arranged, refused = _arrange(question, units, limits)
    places: dict[str, list[Places]] = {}
    touched: list[TouchedRows] = []
    for unit in units:
        unit.tablet.native = unit.tablet.native.union(unit.rows)
        for layers, rows, hidden in unit.hidden():
            for name, some in hidden.places.items():
                places.setdefault(name, []).append(some)
            if not layers.is_clean:
                touched.append(TouchedRows(unit.tablet, layers, rows, hidden))
    if overlays is not None:
        beside = _beside(tablets, group, touched, beside_left)
        found = overlay_of(question, shape, touched, beside, overlays)
        arranged = arranged if found is None else _with_overlay(arranged, found, shape)
    return tuple(read for each in arranged for read in _reads(question, each, places)), group


def _overlaid(
    units: Iterable[Unit], group: ColumnsGroup, limits: PlanLimits, overlays: Overlays | None
) -> tuple[list[Unit], int]:
    """Without those of which too much would have to be merged here; and how many records of other groups may still be
    looked through."""
    left, small, beside_left = limits.overlay_rows_max, limits.overlay_rows_small, limits.beside_rows_max
    left_bytes = limits.overlay_bytes_max
    kept = []
    for unit in units:
        touched, touched_bytes = unit.touched()
        if touched:
            small -= touched
            is_few = small >= 0 or touched <= limits.overlay_share * unit.records
            beside = unit.tablet.beside(group, unit.tablet.asked)[1]
            is_much = touched > left or touched_bytes > left_bytes or beside > beside_left
            if overlays is None or is_much or not is_few:
                continue
            left -= touched
            left_bytes -= touched_bytes
            beside_left -= beside
        kept.append(unit)
    return kept, beside_left


def _beside(
    tablets: Iterable[PlannedTablet], group: ColumnsGroup, touched: Sequence[TouchedRows], left: int
) -> list[BesideRows]:
    """Where rows may exist that the group has nothing of, to be looked for here: in all tablets of which rows are
    merged here, and while not more than so many records are `left` to look through, in others. The rest is left to
    tasks."""
    merged = {each.tablet for each in touched}
    found = []
    for tablet in tablets:
        rows, records = tablet.beside(group, tablet.native)
        if rows.is_empty or (tablet not in merged and records > left):
            continue
        left -= 0 if tablet in merged else records
        tablet.is_beside_known = True
        found.append(BesideRows(tablet, group.id, rows))
    return found


def _with_overlay(arranged: Sequence[_Arranged], file: NativeFile, shape: NativeShape) -> list[_Arranged]:
    """With the overlay among the files that are read whole, if there are some of its shape: one read costs less than
    two."""
    mine = Stretch(file, shape, RangeSet.of([file.rows]), file.size_bytes)
    found = list(arranged)
    for at, each in enumerate(found):
        if each.rows is None and each.shape == shape:
            found[at] = replace(each, stretches=(*each.stretches, mine))
            return found
    return [*found, _Arranged(shape, None, (mine,))]


def _affordable(units: Sequence[Unit], limits: PlanLimits) -> list[Unit]:
    """Not more than so many rows are looked through for what is hidden."""
    left = limits.hidden_rows_max
    kept = []
    for unit in units:
        if unit.layers:
            left -= unit.records
        if left >= 0 or not unit.layers:
            kept.append(unit)
    return kept


def _reads(question: Question, arranged: _Arranged, places: Mapping[str, Sequence[Places]]) -> Iterator[NativeRead]:
    """Files in which there is something to hide, some at a time. Those without are read with them if they are few: a
    read of its own costs Spark more than a look at each row."""
    where = None if question.where is None else sql_condition(question.where, columns_of(arranged.shape, question))
    files = {stretch.file.name: stretch.file for stretch in arranged.stretches}
    whole = [file for name, file in files.items() if name not in places]
    hiding_files = [file for name, file in files.items() if name in places]
    if sum(file.records for file in whole) <= sum(file.records for file in hiding_files):
        hiding_files += whole
    elif whole:
        yield NativeRead(arranged.shape, tuple(file.name for file in whole), arranged.rows, where)
    for some in _bins(hiding_files):
        hiding = tuple(_packed(file, places.get(file.name, ())) for file in some)
        yield NativeRead(arranged.shape, tuple(each.file for each in hiding), arranged.rows, where, hiding)


def _bins(files: Iterable[NativeFile]) -> Iterator[list[NativeFile]]:
    """Files of different sizes together, where that takes few reads; the rest as they come."""
    bins: list[dict[int, NativeFile]] = []
    rest: list[NativeFile] = []
    for file in files:
        size = file.size_bytes
        filling = [each for each in bins if len(each) < HIDING_FILES_MAX]
        fitting = next((each for each in filling if size not in each), None)
        if fitting is not None:
            fitting[size] = file
        elif len(filling) < _FILLING_MAX:
            bins.append({size: file})
        else:
            rest.append(file)
    yield from (list(each.values()) for each in bins)
    yield from (rest[at : at + HIDING_FILES_MAX] for at in range(0, len(rest), HIDING_FILES_MAX))


def _packed(file: NativeFile, places: Sequence[Places]) -> HiddenRows:
    bits = np.zeros(-(-file.records // 64) * 64, np.uint8)
    for some in places:
        bits[some] = 1
    return HiddenRows(file.name, file.size_bytes, np.packbits(bits, bitorder="little").tobytes(), file.records)


def native_group(question: Question, tablets: Sequence[PlannedTablet], *, alone: bool = True) -> ColumnsGroup | None:
    """The group of columns that is read natively. None if more than values are asked for, or rows appear by some of
    what is read only.

    It is the one that all is asked of; if nothing but keys is, the group that puts of the key alone go to. If several
    are read, or (unless it is to be that one `alone`) far more rows exist by another group, it is the one with the most
    records: rows that others have something of are merged."""
    schema = question.schema
    if not question.is_newest:
        return None
    if question.appearing is Appearing.HAVING and question.read != question.predicate.columns:
        return None
    keys = set(schema.codec.names)
    names = {name for name in output_schema(schema, question.read).names if name not in keys}
    groups = [group for group in schema.groups if isinstance(group, ColumnsGroup)]
    groups.sort(key=lambda group: group is not schema.existence_group)
    own = next((group for group in groups if names <= {column.name for column in group.columns}), None)
    if question.appearing is Appearing.HAVING or (alone and own is not None):
        return own
    if question.appearing is Appearing.READ and own is not None:
        return own
    records = {group.id: sum(each.records_of(group) for each in tablets) for group in groups}
    largest = max(groups, key=lambda group: records[group.id], default=None)
    if own is not None and largest is not None and records[own.id] * _FAR_MORE >= records[largest.id]:
        return own
    return largest


def _units(tablet: PlannedTablet, group: ColumnsGroup, overlay: NativeShape) -> Iterator[Unit]:
    """`overlay`: all that is read, of whatever group."""
    question = tablet.question
    names = set(output_schema(question.schema, question.read).names)
    columns = tuple(column for column in group.columns if column.name in names)
    is_having = question.appearing is Appearing.HAVING
    others = () if is_having else tuple(column for column in group.columns if column.name not in names)
    mine = {column.name for column in columns}
    besides = tuple(each for each in overlay.columns if each.shown not in mine)
    txn, time = question.job.txn, question.predicate.time
    refs = refs_besides(tablet.tablet, group, question.read)
    single: list[Layers] = []
    stacked: list[Layers] = []
    touched: list[Layers] = []
    for layers in layers_of(tablet.tablet, tablet.fragments, group, columns, txn, time, others, refs):
        if not tablet.asked.within(layers.rows).is_empty:
            kind = touched if not layers.is_clean else stacked if len(layers.files) > 1 else single
            kind.append(layers)

    def stretches(of: Sequence[Layers]) -> Iterator[Stretch]:
        by_file: dict[PlainFile, list[RowRange]] = {}
        for layers in of:
            for file in layers.files:
                by_file.setdefault(file, []).append(layers.rows)
        for plain, ranges in by_file.items():
            rows = tablet.asked.intersect(RangeSet.of(ranges))
            share = FileShare(plain.ref, plain.file, tablet.fragments)
            yield Stretch(_native_file(plain.file), native_shape(plain, columns, besides), rows, share.bytes_in(rows))

    for stretch in stretches(single):
        yield Unit(tablet, stretch.rows, (stretch,))
    for layered in (stacked, touched):
        if layered:
            rows = tablet.asked.intersect(RangeSet.of([layers.rows for layers in layered]))
            yield Unit(tablet, rows, tuple(stretches(layered)), tuple(layered))


def _native_file(file: FragmentFile) -> NativeFile:
    return NativeFile(file.name, file.seal.size_bytes, file.stats.records, rows_of_file(file))


@dataclass(slots=True)
class _Filter:
    """Stretches that one filter on the row is for."""

    stretches: list[Stretch] = field(default_factory=list)
    wanted: dict[str, RangeSet] = field(default_factory=dict)
    files: dict[str, NativeFile] = field(default_factory=dict)

    def takes(self, stretch: Stretch) -> bool:
        """Whether with this one too, each file gives its own rows and no others."""
        wanted = self._with(stretch)
        files = self.files | {stretch.file.name: stretch.file}
        together = RangeSet.of(rows for each in wanted.values() for rows in each)
        return len(together.ranges) <= RANGES_MAX and all(
            together.within(files[name].rows) == rows for name, rows in wanted.items()
        )

    def add(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        self.wanted = self._with(stretch)
        self.files[stretch.file.name] = stretch.file

    def _with(self, stretch: Stretch) -> dict[str, RangeSet]:
        name = stretch.file.name
        return self.wanted | {name: self.wanted.get(name, RangeSet()).union(stretch.rows)}

    def rows(self) -> RangeSet:
        return RangeSet.of(rows for each in self.wanted.values() for rows in each)


def _arrange(question: Question, units: Sequence[Unit], limits: PlanLimits) -> tuple[list[_Arranged], set[Stretch]]:
    """Files of which all rows are wanted, without a filter; the others under as few as may be. And what finds no
    place."""
    refused: set[Stretch] = set()
    by_shape: dict[NativeShape, dict[str, list[tuple[Stretch, Unit]]]] = {}
    for unit in units:
        for stretch in unit.stretches:
            by_shape.setdefault(stretch.shape, {}).setdefault(stretch.file.name, []).append((stretch, unit))
    arranged: list[_Arranged] = []
    for shape, by_file in by_shape.items():
        every = [stretch for some in by_file.values() for stretch, _ in some]
        if question.where is not None and sql_condition(question.where, columns_of(shape, question)) is None:
            refused.update(every)
            continue
        whole: list[Stretch] = []
        filters: list[_Filter] = []
        for some in by_file.values():
            rows = RangeSet.of(each for stretch, _ in some for each in stretch.rows)
            if rows.covers(RangeSet.of([some[0][0].file.rows])):
                whole += [stretch for stretch, _ in some]
            else:
                refused.update(_filtered(some, filters, limits))
        if whole:
            arranged.append(_Arranged(shape, None, tuple(whole)))
        row = SqlColumn(quoted(shape.row), shape.row_type)
        for each in filters:
            if row_condition(each.rows(), row) is None or len(arranged) >= READS_MAX:
                refused.update(each.stretches)
            else:
                arranged.append(_Arranged(shape, each.rows().ranges, tuple(each.stretches)))
    return arranged, refused


def _filtered(some: Iterable[tuple[Stretch, Unit]], filters: list[_Filter], limits: PlanLimits) -> Iterator[Stretch]:
    """Each goes to a filter, which may be a new one; what is not worth one is given back."""
    for stretch, unit in some:
        if unit.size_bytes < limits.filtered_bytes_min or len(stretch.rows.ranges) > RANGES_MAX:
            yield stretch
            continue
        fitting = next((each for each in filters if each.takes(stretch)), None)
        if fitting is None:
            fitting = _Filter()
            filters.append(fitting)
        fitting.add(stretch)
