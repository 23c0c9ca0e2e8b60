"""A tablet as a read of one snapshot sees it: files that have something to say, and the rows that are asked for."""

from __future__ import annotations

from functools import cached_property

from stelae.model.ranges import RangeSet
from stelae.model.schema import ColumnsGroup
from stelae.spark.reading.question import Question
from stelae.storage.offline.plain import FileShare, files_beside, needed_files
from stelae.storage.offline.scans import Appearing
from stelae.storage.offline.tablets import Fragments, HeldTablet


class PlannedTablet:
    """`asked`: its rows that the question is about; `native`: those of them that are read natively, as it is found, and
    `overlaid`: all of whose values are merged while the read is planned.
    `is_beside_known`: rows that exist beside those are among them."""

    def __init__(self, question: Question, tablet: HeldTablet, fragments: Fragments) -> None:
        self.question = question
        self.tablet = tablet.at(question.job.txn)
        self.fragments = fragments
        self.asked = question.predicate.rows.intersect(RangeSet.of([tablet.rows]))
        self.native = RangeSet()
        self.overlaid = RangeSet()
        self.is_beside_known = False

    @cached_property
    def files(self) -> tuple[FileShare, ...]:
        """Files that a scan of what is asked for looks into."""
        return needed_files(self.tablet, self.fragments, self.question.read, self.question.appearing)

    def merged(self) -> RangeSet:
        """What is left, without stretches that no file reaches into."""
        there = RangeSet.of([file.rows for file in self.files])
        return self.asked.subtract(self.native).subtract(self.overlaid).intersect(there)

    def beside(self, group: ColumnsGroup, native: RangeSet) -> tuple[RangeSet, int]:
        """Where rows are read natively from one group, others may exist that have nothing of it; and about how many
        records of the other groups lie there."""
        if self.question.appearing is not Appearing.EXISTING or native.is_empty:
            return RangeSet(), 0
        files = files_beside(self.tablet, self.fragments, group)
        rows = native.intersect(RangeSet.of([file.rows for file in files]))
        return rows, sum(file.records_in(rows) for file in files)

    def beside_bytes(self, group: ColumnsGroup, rows: RangeSet) -> int:
        """About how many bytes of the other groups lie in the rows."""
        return sum(file.bytes_in(rows) for file in files_beside(self.tablet, self.fragments, group))

    def records_of(self, group: ColumnsGroup) -> int:
        """How many records the files of a group have together."""
        return sum(ref.file.stats.records for ref in self.tablet.state.refs(group.id) if ref.file is not None)

    def size_bytes(self, rows: RangeSet) -> int:
        return sum(file.bytes_in(rows) for file in self.files)

    def cuts(self, rows: RangeSet) -> list[bytes]:
        """Where blocks of the largest file begin, inside the rows."""
        largest = max(self.files, key=lambda file: file.bytes_in(rows), default=None)
        return [] if largest is None else largest.cuts_in(rows)
