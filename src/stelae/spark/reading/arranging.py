"""Files that are read together: those of one shape, each once, under as few filters on the row as may be.

Where only some rows of a file are wanted, a filter says which. Files under one filter must not have rows inside it that
are not theirs to give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stelae.model.ranges import RangeSet, RowRange
from stelae.spark.reading.conditions import SqlColumn, quoted, row_condition, sql_condition
from stelae.spark.reading.plans import NativeFile, NativeShape, PlanLimits
from stelae.spark.reading.question import Question
from stelae.spark.reading.shapes import columns_of
from stelae.spark.reading.units import Stretch, Unit

RANGES_MAX = 16
"""Of one filter: Spark tries them one after the other for every row."""

READS_MAX = 32


@dataclass(frozen=True, slots=True)
class Arranged:
    """Stretches of one shape under one filter."""

    shape: NativeShape
    rows: tuple[RowRange, ...] | None
    stretches: tuple[Stretch, ...]


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


def arrange(question: Question, units: Sequence[Unit], limits: PlanLimits) -> tuple[list[Arranged], set[Stretch]]:
    """Files of which all rows are wanted, without a filter; the others under as few as may be. And what finds no
    place."""
    refused: set[Stretch] = set()
    by_shape: dict[NativeShape, dict[str, list[tuple[Stretch, Unit]]]] = {}
    for unit in units:
        for stretch in unit.stretches:
            by_shape.setdefault(stretch.shape, {}).setdefault(stretch.file.name, []).append((stretch, unit))
    arranged: list[Arranged] = []
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
            arranged.append(Arranged(shape, None, tuple(whole)))
        row = SqlColumn(quoted(shape.row), shape.row_type)
        for each in filters:
            if row_condition(each.rows(), row) is None or len(arranged) >= READS_MAX:
                refused.update(each.stretches)
            else:
                arranged.append(Arranged(shape, each.rows().ranges, tuple(each.stretches)))
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
