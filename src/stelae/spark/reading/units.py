"""Rows of a tablet that Spark may read from its files, and what must then be merged beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.plans import NativeFile, NativeShape
from stelae.spark.reading.shapes import native_shape
from stelae.spark.reading.tablets import PlannedTablet
from stelae.storage.offline.hidden import Hidden, HiddenPlaces
from stelae.storage.offline.plain import FileShare, Layers, PlainFile, layers_of, refs_besides, rows_of_file
from stelae.storage.offline.scans import Appearing, output_schema

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
        """How many records its files have together."""
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


def units_of(tablet: PlannedTablet, group: ColumnsGroup, overlay: NativeShape) -> Iterator[Unit]:
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
