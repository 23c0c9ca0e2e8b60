"""Which rows Spark may read from the files as they are.

Where a stretch of a tablet's rows is *clean* for a question (`storage/offline/plain`), each record of a file is exactly
what is seen of its row. One such file is read as it is; several, each newer than the one below, without the records
that a newer one hides.

Files with the same columns under the same names and types are read together, each once. Where only some rows of a file
are wanted, a filter on the row says which; files under one filter must not have rows inside it that are not theirs to
give. What is too small to be worth a filter, or has no exact one, is left to be merged; files that lie over each other
are read natively all together, or none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.conditions import SqlColumn, quoted, row_condition, sql_condition
from stelae.spark.reading.plans import HiddenRows, NativeRead, NativeShape, PlanLimits
from stelae.spark.reading.question import Question
from stelae.spark.reading.shapes import columns_of, native_shape
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.hidden import HiddenPlaces, Places
from stelae.storage.offline.plain import FileShare, PlainFile, clean_stretches, rows_of_file
from stelae.storage.offline.scans import Appearing, output_schema

RANGES_MAX = 16
"""Of one filter: Spark tries them one after the other for every row."""

READS_MAX = 32
HIDING_FILES_MAX = 64
"""Of one read: for every row Spark looks for its file's part of the bits."""

_FILLING_MAX = 2
_hidden = HiddenPlaces()


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Clean rows of one file."""

    file: FragmentFile
    shape: NativeShape
    rows: RangeSet
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Stretches of one tablet that are read natively together, or not at all. `layers`: where files lie over each
    other, which, oldest first."""

    tablet: PlannedTablet
    stretches: tuple[Stretch, ...]
    layers: tuple[tuple[RowRange, tuple[PlainFile, ...]], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(stretch.size_bytes for stretch in self.stretches)

    def hidden(self) -> Iterator[tuple[str, Places]]:
        for whole, files in self.layers:
            for rows in self.tablet.asked.intersect(RangeSet.of([whole])):
                yield from _hidden.of(files, self.tablet.fragments, rows).items()


@dataclass(frozen=True, slots=True)
class _Arranged:
    """Stretches of one shape under one filter."""

    shape: NativeShape
    rows: tuple[RowRange, ...] | None
    stretches: tuple[Stretch, ...]


def native_reads(question: Question, tablets: Sequence[PlannedTablet], limits: PlanLimits) -> tuple[NativeRead, ...]:
    """The tablets are told which of their rows are in them."""
    group = native_group(question)
    if group is None:
        return ()
    units = _affordable([unit for tablet in tablets for unit in clean_units(tablet, group)], limits)
    arranged, refused = _arrange(question, units, limits)
    while refused:
        units = [unit for unit in units if not any(stretch in refused for stretch in unit.stretches)]
        arranged, refused = _arrange(question, units, limits)
    places: dict[str, list[Places]] = {}
    for unit in units:
        for stretch in unit.stretches:
            unit.tablet.native = unit.tablet.native.union(stretch.rows)
        for name, some in unit.hidden():
            places.setdefault(name, []).append(some)
    return tuple(read for each in arranged for read in _reads(question, each, places))


def _affordable(units: Sequence[Unit], limits: PlanLimits) -> list[Unit]:
    """Not more than so many rows are looked through for what is hidden."""
    left = limits.hidden_rows_max
    kept = []
    for unit in units:
        if unit.layers:
            left -= sum(stretch.file.stats.records for stretch in unit.stretches)
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
    if sum(file.stats.records for file in whole) <= sum(file.stats.records for file in hiding_files):
        hiding_files += whole
    elif whole:
        yield NativeRead(arranged.shape, tuple(file.name for file in whole), arranged.rows, where)
    for some in _bins(hiding_files):
        hiding = tuple(_packed(file, places.get(file.name, ())) for file in some)
        yield NativeRead(arranged.shape, tuple(each.file for each in hiding), arranged.rows, where, hiding)


def _bins(files: Iterable[FragmentFile]) -> Iterator[list[FragmentFile]]:
    """Files of different sizes together, where that takes few reads; the rest as they come."""
    bins: list[dict[int, FragmentFile]] = []
    rest: list[FragmentFile] = []
    for file in files:
        size = file.seal.size_bytes
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


def _packed(file: FragmentFile, places: Sequence[Places]) -> HiddenRows:
    bits = np.zeros(-(-file.stats.records // 64) * 64, np.uint8)
    for some in places:
        bits[some] = 1
    return HiddenRows(file.name, file.seal.size_bytes, np.packbits(bits, bitorder="little").tobytes())


def native_group(question: Question) -> ColumnsGroup | None:
    """The one group of columns that all is asked of; None if there is none such, or more than values are asked for, or
    rows appear by some of what is read only. If nothing but keys is asked for, the group that has the most of them, as
    far as that can be told: the one that puts of the key alone go to."""
    schema = question.schema
    if not question.is_newest:
        return None
    if question.appearing is Appearing.HAVING and question.read != question.predicate.columns:
        return None
    keys = set(schema.codec.names)
    names = {name for name in output_schema(schema, question.read).names if name not in keys}
    for group in sorted(schema.groups, key=lambda group: group is not schema.existence_group):
        if isinstance(group, ColumnsGroup) and names <= {column.name for column in group.columns}:
            return group
    return None


def clean_units(tablet: PlannedTablet, group: ColumnsGroup) -> Iterator[Unit]:
    question = tablet.question
    names = set(output_schema(question.schema, question.read).names)
    columns = tuple(column for column in group.columns if column.name in names)
    is_having = question.appearing is Appearing.HAVING
    others = () if is_having else tuple(column for column in group.columns if column.name not in names)
    single: dict[PlainFile, list[RowRange]] = {}
    stacked: dict[PlainFile, list[RowRange]] = {}
    layers: list[tuple[RowRange, tuple[PlainFile, ...]]] = []
    txn, time = question.job.txn, question.predicate.time
    clean = clean_stretches(tablet.tablet, tablet.fragments, group, columns, txn, time, others)
    for rows, files in clean:
        for file in files:
            (single if len(files) == 1 else stacked).setdefault(file, []).append(rows)
        if len(files) > 1 and not tablet.asked.intersect(RangeSet.of([rows])).is_empty:
            layers.append((rows, files))

    def stretches(of: Mapping[PlainFile, Iterable[RowRange]]) -> Iterator[Stretch]:
        for plain, ranges in of.items():
            rows = tablet.asked.intersect(RangeSet.of(ranges))
            if not rows.is_empty:
                share = FileShare(plain.ref, plain.file, tablet.fragments)
                yield Stretch(plain.file, native_shape(plain, columns), rows, share.bytes_in(rows))

    for stretch in stretches(single):
        yield Unit(tablet, (stretch,))
    if layers:
        yield Unit(tablet, tuple(stretches(stacked)), tuple(layers))


@dataclass(slots=True)
class _Filter:
    """Stretches that one filter on the row is for."""

    stretches: list[Stretch] = field(default_factory=list)
    wanted: dict[str, RangeSet] = field(default_factory=dict)
    files: dict[str, FragmentFile] = field(default_factory=dict)

    def takes(self, stretch: Stretch) -> bool:
        """Whether with this one too, each file gives its own rows and no others."""
        wanted = self._with(stretch)
        files = self.files | {stretch.file.name: stretch.file}
        together = RangeSet.of(rows for each in wanted.values() for rows in each)
        return len(together.ranges) <= RANGES_MAX and all(
            together.intersect(RangeSet.of([rows_of_file(files[name])])) == rows for name, rows in wanted.items()
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
            if rows.covers(RangeSet.of([rows_of_file(some[0][0].file)])):
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
