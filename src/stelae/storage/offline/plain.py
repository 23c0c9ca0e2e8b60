"""Which files of a held tablet may be read as they lie there, and how much of them lies in which rows.

A stretch of rows is *clean* if the files that have records of it are *plain*, by the same rule that lets a scan pass on
blocks as they are: each record is exactly what is seen of its row. Where several plain files lie over each other, each
newer than the one below, that holds of the newest record of each row (see `hidden`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile
from stelae.model import types as t
from stelae.model.ids import GroupId, Txn
from stelae.model.predicate.plan import TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import WILDCARD, Column, ColumnsGroup
from stelae.storage.files.extents import extent_of, layered, rows_of_file
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.offline.tablets import HeldTablet
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.columns import ColumnsQuestion, is_plain, lies_over
from stelae.storage.read.scans.shapes import output_schema
from stelae.storage.read.scans.streams import Appearing
from stelae.storage.read.scans.windows import Piece
from stelae.storage.tablet.parts import LEFT_OVER, FamilySet
from stelae.storage.tablet.state import Ref

__all__ = ["FileShare", "PlainFile", "clean_stretches", "files_beside", "needed_files", "rows_of_file"]


@dataclass(frozen=True, slots=True, eq=False)
class PlainFile:
    """A file each of whose records is exactly what is seen of its row, unless a newer file has the row, too."""

    ref: Ref
    fragment: Fragment

    @property
    def file(self) -> FragmentFile:
        return self.fragment.file

    @property
    def key_names(self) -> tuple[str, ...]:
        """What the key columns are called in the file."""
        return tuple(key.name for key in self.fragment.spec.key)

    @property
    def row_column(self) -> tuple[str, t.ColumnType]:
        """The column of the file that a row is found by, and its type."""
        point = self.fragment.point
        return point, t.Binary() if point == layout.ROW else self.fragment.spec.codec().types[0]

    def stored(self, column: Column) -> tuple[str, t.ColumnType] | None:
        """The name and type that a column of the table has in the file; None: it is not there, its default is read."""
        known = self.fragment.columns.get(column.id)
        is_read = not isinstance(self.ref.part, FamilySet) and column.id in self.ref.part
        return known if is_read else None


@dataclass(frozen=True, slots=True)
class FileShare:
    """A file of a tablet that a scan looks into, and how much of it lies in which rows."""

    ref: Ref
    file: FragmentFile
    fragments: Fragments

    @property
    def rows(self) -> RowRange:
        """The rows that it reaches into, of those that are the tablet's."""
        return extent_of(self.ref)

    def bytes_in(self, rows: RangeSet) -> int:
        """About how many of its bytes lie in the rows."""
        inside = rows.intersect(RangeSet.of([self.rows]))
        if inside.is_empty:
            return 0
        if inside.covers(RangeSet.of([rows_of_file(self.file)])):
            return self.file.seal.size_bytes
        fragment = self.fragments.of(self.file)
        blocks = {block for each in inside for block in fragment.reader.blocks_of(each)}
        return self.file.seal.size_bytes * len(blocks) // max(1, len(fragment.starts))

    def cuts_in(self, rows: RangeSet) -> list[bytes]:
        """Where its blocks begin, inside the rows."""
        starts = self.fragments.of(self.file).starts
        return [start for start in starts if start in rows and start in self.ref.rows]


def needed_files(
    tablet: HeldTablet, fragments: Fragments, columns: Selectors, appearing: Appearing
) -> tuple[FileShare, ...]:
    """The files that a scan of these columns looks into: all, if rows are to be shown that have none of them."""
    schema = tablet.shown_schema
    names = set(output_schema(schema, columns).names)
    groups = [] if appearing is not Appearing.EXISTING else [LEFT_OVER]
    for group in schema.groups:
        members = group.columns if isinstance(group, ColumnsGroup) else group.families
        is_open = not isinstance(group, ColumnsGroup) and group.wildcard and WILDCARD in names
        is_read = is_open or any(member.name in names for member in members)
        if is_read or appearing is Appearing.EXISTING:
            groups.append(group.id)
    return tuple(_shares(tablet, fragments, groups))


def files_beside(tablet: HeldTablet, fragments: Fragments, group: ColumnsGroup) -> tuple[FileShare, ...]:
    """The files by which a row may exist that this group has nothing of."""
    others = [each.id for each in tablet.shown_schema.groups if each.id != group.id]
    return tuple(_shares(tablet, fragments, [*others, LEFT_OVER]))


def _shares(tablet: HeldTablet, fragments: Fragments, groups: Iterable[GroupId]) -> Iterator[FileShare]:
    for id_ in groups:
        for ref in tablet.state.refs(id_):
            if ref.file is not None:
                yield FileShare(ref, ref.file, fragments)


def clean_stretches(
    tablet: HeldTablet,
    fragments: Fragments,
    group: ColumnsGroup,
    columns: Sequence[Column],
    at: Txn,
    time: TimeRange,
    others: Sequence[Column] = (),
) -> Iterator[tuple[RowRange, tuple[PlainFile, ...]]]:
    """Stretches of rows, in order, in which these columns of a group are to be had from files as they are, and the
    files, the oldest first: all of a row's newest record in them counts, and nothing else. `others`: the columns by
    which a row of the group appears too."""
    state, existing = tablet.state, tablet.shown_schema.existence_group
    asking, policy = tablet.asking(at, time), group.purging_at(at)
    choice = ColumnChoice(tuple(columns), existing.id == group.id, others)
    asked = ColumnsQuestion(state.rows, choice, asking, policy)
    pieces = {id(ref): _plain_piece(tablet, fragments, ref, asked) for ref in state.refs(group.id)}
    files = {id_: PlainFile(piece.ref, piece.fragment) for id_, piece in pieces.items() if piece is not None}
    for rows, refs in layered(state.refs(group.id)):
        found = [piece for ref in refs if (piece := pieces[id(ref)]) is not None]
        found.sort(key=lambda piece: piece.fragment.file.txn_min)
        if len(found) == len(refs) and all(lies_over(new, old, choice) for old, new in pairwise(found)):
            yield rows, tuple(files[id(piece.ref)] for piece in found)


def _plain_piece(tablet: HeldTablet, fragments: Fragments, ref: Ref, asked: ColumnsQuestion) -> Piece | None:
    if ref.file is None or isinstance(ref.part, FamilySet):
        return None
    fragment = fragments.of(ref.file)
    piece = Piece(ref, fragment, range(1), ref.rows)
    is_same_key = fragment.spec.codec().types == tablet.shown_schema.codec.types
    return piece if is_same_key and is_plain(piece, asked) else None
