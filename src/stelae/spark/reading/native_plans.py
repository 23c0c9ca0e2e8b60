"""Which rows Spark may read from the files as they are.

In each stretch of a tablet's rows there are *plain* files (`storage/offline/plain`): each record is exactly what is
seen of its row, unless another file has the row too. So they are read as they are, without those rows. Where the other
file is plain as well and newer, it is read likewise. Rows that any other file touches (one that has erasures, or only
some columns, or is of another group) are merged here, and written to an *overlay*: one more file for Spark to read.

What is too small to be worth a filter, or has no exact one, or is touched in too many rows, is left to be merged by
tasks, or where all that is left has few records, here as well: so are small tables of cells. Files that lie over each
other are read natively all together, or none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stelae.model.ranges import RangeSet
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.arranging import Arranged, arrange
from stelae.spark.reading.conditions import sql_condition
from stelae.spark.reading.overlaid import BesideRows, Overlays, TouchedRows, WholeRows, overlay_of
from stelae.spark.reading.plans import HiddenRows, NativeFile, NativeRead, NativeShape, PlanLimits
from stelae.spark.reading.question import Question
from stelae.spark.reading.shapes import columns_of, overlay_shape
from stelae.spark.reading.tablets import PlannedTablet
from stelae.spark.reading.units import Stretch, Unit, units_of
from stelae.storage.offline.marked import Marked
from stelae.storage.offline.scans import Appearing, output_schema

HIDING_FILES_MAX = 64
"""Of one read: for every row Spark looks for its file's part of the bits."""

_FILLING_MAX = 2
_FAR_MORE = 2


@dataclass(slots=True)
class _Room:
    """How much may still be merged here: rows in all and their bytes; `few` wherever they are; and among how many
    records of other groups it may be looked for rows that the one read has nothing of."""

    rows: int
    size_bytes: int
    few: int
    beside: int

    def takes(self, rows: int, size_bytes: int, beside: int = 0) -> bool:
        if rows > self.rows or size_bytes > self.size_bytes or beside > self.beside:
            return False
        self.rows -= rows
        self.size_bytes -= size_bytes
        self.beside -= beside
        return True


def native_reads(
    question: Question, tablets: Sequence[PlannedTablet], limits: PlanLimits, overlays: Overlays | None
) -> tuple[tuple[NativeRead, ...], ColumnsGroup | None]:
    """The reads, and the group that is read by them. Each tablet is told which of its rows they cover. `overlays`:
    where merged rows are written; None: nowhere, and rows that take a merge are left to tasks."""
    shape = overlay_shape(question)
    if question.where is not None and sql_condition(question.where, columns_of(shape, question)) is None:
        overlays = None
    if not _is_of_rows(question):
        return (), None
    group = native_group(question, tablets, alone=overlays is None)
    room = _Room(limits.overlay_rows_max, limits.overlay_bytes_max, limits.overlay_rows_small, limits.beside_rows_max)
    units: list[Unit] = []
    if group is not None:
        found_units = [unit for tablet in tablets for unit in units_of(tablet, group, shape)]
        units = _affordable(_overlaid(found_units, group, limits, room if overlays is not None else None), limits)
    arranged, refused = arrange(question, units, limits)
    while refused:
        units = [unit for unit in units if not any(stretch in refused for stretch in unit.stretches)]
        arranged, refused = arrange(question, units, limits)
    marked: dict[str, list[Marked]] = {}
    touched: list[TouchedRows] = []
    for unit in units:
        unit.tablet.native = unit.tablet.native.union(unit.rows)
        for layers, rows, hidden in unit.hidden():
            for name, some in hidden.marked.items():
                marked.setdefault(name, []).append(some)
            if not layers.is_clean:
                touched.append(TouchedRows(unit.tablet, layers, rows, hidden))
    if overlays is not None:
        beside = [] if group is None else _beside(tablets, group, touched, room.beside)
        found = overlay_of(question, shape, touched, beside, _whole(tablets, room), overlays)
        arranged = arranged if found is None else _with_overlay(arranged, found, shape)
    return tuple(read for each in arranged for read in _reads(question, each, marked)), group


def _is_of_rows(question: Question) -> bool:
    """Whether newest values are asked for, of rows that appear by all that is read."""
    if not question.is_newest:
        return False
    return question.appearing is not Appearing.HAVING or question.read == question.predicate.columns


def _overlaid(units: Iterable[Unit], group: ColumnsGroup, limits: PlanLimits, room: _Room | None) -> list[Unit]:
    """Without those of which too much would have to be merged here. `room` None: nothing can be."""
    kept = []
    for unit in units:
        touched, touched_bytes = unit.touched()
        if touched:
            if room is None:
                continue
            room.few -= touched
            is_few = room.few >= 0 or touched <= limits.overlay_share * unit.records
            if not is_few or not room.takes(touched, touched_bytes, unit.tablet.beside(group, unit.tablet.asked)[1]):
                continue
        kept.append(unit)
    return kept


def _whole(tablets: Iterable[PlannedTablet], room: _Room) -> list[WholeRows]:
    """All that is left of tablets, where it has few records."""
    found = []
    for tablet in tablets:
        rows = tablet.merged()
        records = sum(file.records_in(rows) for file in tablet.files)
        if not rows.is_empty and records <= room.few and room.takes(records, tablet.size_bytes(rows)):
            room.few -= records
            tablet.overlaid = rows
            found.append(WholeRows(tablet, rows))
    return found


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


def _with_overlay(arranged: Sequence[Arranged], file: NativeFile, shape: NativeShape) -> list[Arranged]:
    """With the overlay among the files that are read whole, if there are some of its shape: one read costs less than
    two."""
    mine = Stretch(file, shape, RangeSet.of([file.rows]), file.size_bytes)
    found = list(arranged)
    for at, each in enumerate(found):
        if each.rows is None and each.shape == shape:
            found[at] = replace(each, stretches=(*each.stretches, mine))
            return found
    return [*found, Arranged(shape, None, (mine,))]


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


def _reads(question: Question, arranged: Arranged, marked: Mapping[str, Sequence[Marked]]) -> Iterator[NativeRead]:
    """Files in which there is something to hide, some at a time. Those without are read with them if they are few: a
    read of its own costs Spark more than a look at each row."""
    where = None if question.where is None else sql_condition(question.where, columns_of(arranged.shape, question))
    files = {stretch.file.name: stretch.file for stretch in arranged.stretches}
    whole = [file for name, file in files.items() if name not in marked]
    hiding_files = [file for name, file in files.items() if name in marked]
    if sum(file.records for file in whole) <= sum(file.records for file in hiding_files):
        hiding_files += whole
    elif whole:
        yield NativeRead(arranged.shape, tuple(file.name for file in whole), arranged.rows, where)
    for some in _bins(hiding_files):
        hiding = tuple(_packed(file, marked.get(file.name, ())) for file in some)
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


def _packed(file: NativeFile, marked: Sequence[Marked]) -> HiddenRows:
    bits = np.zeros(-(-file.records // 64) * 8, np.uint8)
    for some in marked:
        some.mark(bits)
    return HiddenRows(file.name, file.size_bytes, bits.tobytes(), file.records)


def native_group(question: Question, tablets: Sequence[PlannedTablet], *, alone: bool = True) -> ColumnsGroup | None:
    """The group of columns that is read natively; None if there is none.

    It is the one that all is asked of; if nothing but keys is, the group that puts of the key alone go to. If several
    are read, or (unless it is to be that one `alone`) far more rows exist by another group, it is the one with the most
    records: rows that others have something of are merged."""
    schema = question.schema
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
