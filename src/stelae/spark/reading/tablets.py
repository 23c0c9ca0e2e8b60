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
    """`asked`: its rows that the question is about; `native`: those of them that are read natively, as it is found."""

    def __init__(self, question: Question, tablet: HeldTablet, fragments: Fragments) -> None:
        self.question = question
        self.tablet = tablet.at(question.job.txn)
        self.fragments = fragments
        self.asked = question.predicate.rows.intersect(RangeSet.of([tablet.rows]))
        self.native = RangeSet()

    @cached_property
    def files(self) -> tuple[FileShare, ...]:
        """Files that a scan of what is asked for looks into."""
        return needed_files(self.tablet, self.fragments, self.question.read, self.question.appearing)

    def merged(self) -> RangeSet:
        """What is left, without stretches that no file reaches into."""
        there = RangeSet.of([file.rows for file in self.files])
        return self.asked.subtract(self.native).intersect(there)

    def beside(self, group: ColumnsGroup) -> tuple[RangeSet, int]:
        """Where rows that are read natively from one group, others may exist that have nothing of it; and about how
        many bytes of the other groups lie there."""
        if self.question.appearing is not Appearing.EXISTING or self.native.is_empty:
            return RangeSet(), 0
        files = files_beside(self.tablet, self.fragments, group)
        rows = self.native.intersect(RangeSet.of([file.rows for file in files]))
        return rows, sum(file.bytes_in(rows) for file in files)

    def size_bytes(self, rows: RangeSet) -> int:
        return sum(file.bytes_in(rows) for file in self.files)

    def cuts(self, rows: RangeSet) -> list[bytes]:
        """Where blocks of the largest file begin, inside the rows."""
        largest = max(self.files, key=lambda file: file.bytes_in(rows), default=None)
        return [] if largest is None else largest.cuts_in(rows)
