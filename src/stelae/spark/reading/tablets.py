"""A tablet as a read of one snapshot sees it: files that have something to say, and the rows that are asked for.

Files above the snapshot, or below the tablet's floor, have no say, and are left out.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from stelae.model.ids import Txn
from stelae.model.ranges import RangeSet
from stelae.model.schema import WILDCARD, ColumnsGroup
from stelae.spark.reading.question import Question
from stelae.storage.files.blocks import FragmentFile
from stelae.storage.files.extents import extent_of, rows_of_file
from stelae.storage.files.fragments import Fragments
from stelae.storage.read.scans.shapes import output_schema
from stelae.storage.tablet.config import TabletConfig, state_of
from stelae.storage.tablet.parts import LEFT_OVER
from stelae.storage.tablet.state import Ref


class PlannedTablet:
    """`asked`: its rows that the question is about; `native`: those of them that are read natively, as it is found."""

    def __init__(self, question: Question, config: TabletConfig, fragments: Fragments) -> None:
        self.question = question
        self.config = _visible_only(config, question.job.txn)
        self.fragments = fragments
        self.state = state_of(self.config, question.schema)
        self.asked = question.predicate.rows.intersect(RangeSet.of([config.rows]))
        self.native = RangeSet()

    @cached_property
    def refs(self) -> tuple[Ref, ...]:
        """Files that a scan of what is asked for looks into."""
        schema, existing = self.question.schema, self.question.schema.existence_group
        names = set(output_schema(schema, self.question.read).names)
        groups = []
        for group in schema.groups:
            members = group.columns if isinstance(group, ColumnsGroup) else group.families
            is_open = not isinstance(group, ColumnsGroup) and group.wildcard and WILDCARD in names
            marks = group is existing and any(may_have_markers(ref) for ref in self.state.refs(group.id))
            if is_open or marks or any(member.name in names for member in members):
                groups.append(group.id)
        found = [ref for id_ in (*groups, LEFT_OVER) for ref in self.state.refs(id_)]
        return tuple(ref for ref in found if ref.file is not None)

    def merged(self) -> RangeSet:
        """What is left, without stretches that no file reaches into."""
        there = RangeSet.of([extent_of(ref) for ref in self.refs])
        return self.asked.subtract(self.native).intersect(there)

    def size_bytes(self, rows: RangeSet) -> int:
        return sum(self.share_bytes(ref, rows) for ref in self.refs)

    def share_bytes(self, ref: Ref, rows: RangeSet) -> int:
        """About how many bytes of a file lie in the rows."""
        file = ref.file
        inside = rows.intersect(RangeSet.of([extent_of(ref)]))
        if file is None or inside.is_empty:
            return 0
        if inside.covers(RangeSet.of([rows_of_file(file)])):
            return file.seal.size_bytes
        fragment = self.fragments.of(file)
        blocks = {block for each in inside for block in fragment.reader.blocks_of(each)}
        return file.seal.size_bytes * len(blocks) // max(1, len(fragment.starts))

    def cuts(self, rows: RangeSet) -> list[bytes]:
        """Where blocks of the largest file begin, inside the rows."""
        largest = max(self.refs, key=lambda ref: self.share_bytes(ref, rows), default=None)
        if largest is None or largest.file is None:
            return []
        return [start for start in self.fragments.of(largest.file).starts if start in rows and start in largest.rows]


def _visible_only(config: TabletConfig, at: Txn) -> TabletConfig:
    floor = max((floor for floor in config.floors if floor <= at), default=Txn(0))

    def is_visible(file: FragmentFile) -> bool:
        return file.stats.records > 0 and file.txn_min <= at and file.txn_max >= floor

    groups = []
    for group, refs in config.groups:
        kept = tuple(ref for ref in refs if is_visible(ref.file))
        if kept:
            groups.append((group, kept))
    return msgspec.structs.replace(config, groups=tuple(groups), prepared=())


def may_have_markers(ref: Ref) -> bool:
    """Whether a put of a key alone may be in the file: it says how many it has."""
    return ref.file is not None and bool(ref.file.stats.markers or not ref.file.stats.rows)
