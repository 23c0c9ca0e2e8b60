"""Which files of a held tablet may be read as they lie there, and how much of them lies in which rows.

A file is *plain* by the same rule that lets a scan pass on blocks as they are: each record is exactly what is seen of
its row. Where several plain files lie over each other, each newer than the one below, that holds of the newest record
of each row (see `hidden`). Rows that any other file touches are merged; the rest of the stretch is still read as it is.
The oldest may be *mixed* (`mixed`): plain but for some rows, which are merged, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter

import msgspec

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile
from stelae.model import types as t
from stelae.model.ids import GroupId, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.predicate.plan import TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import WILDCARD, Column, ColumnsGroup, Group
from stelae.storage.files.extents import extent_of, layered, rows_of_file
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.offline.mixed import Mixed, mixed_of
from stelae.storage.offline.tablets import HeldTablet
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.columns import ColumnsQuestion, is_plain, lies_over
from stelae.storage.read.scans.shapes import output_schema
from stelae.storage.read.scans.streams import Appearing
from stelae.storage.read.scans.windows import Piece
from stelae.storage.tablet.parts import LEFT_OVER, FamilySet
from stelae.storage.tablet.state import Ref

__all__ = [
    "FileShare",
    "Layers",
    "PlainFile",
    "Ref",
    "files_beside",
    "layers_of",
    "needed_files",
    "refs_besides",
    "row_column",
    "rows_of_file",
]


def row_column(codec: KeyCodec) -> tuple[str, t.ColumnType]:
    """The column that rows are found by in files of such keys, and its type."""
    return (layout.ROW, t.Binary()) if layout.row_is_stored(codec) else (codec.names[0], codec.types[0])


class PlainFile(msgspec.Struct, frozen=True, eq=False):
    """A file each of whose records is exactly what is seen of its row, unless a newer file has the row, too. `mixed`:
    that holds but for some rows."""

    ref: Ref
    fragment: Fragment
    mixed: Mixed | None = None

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
        return row_column(self.fragment.reader.codec)

    @property
    def names(self) -> frozenset[str]:
        """What all of its columns are called."""
        return frozenset(self.fragment.reader.schema.names)

    def stored(self, column: Column) -> tuple[str, t.ColumnType] | None:
        """The name and type that a column of the table has in the file; None: it is not there, its default is read."""
        known = self.fragment.columns.get(column.id)
        is_read = not isinstance(self.ref.part, FamilySet) and column.id in self.ref.part
        return known if is_read else None


class Layers(msgspec.Struct, frozen=True, eq=False):
    """A stretch of rows. `files`: plain ones, the oldest first, each lying over the ones before. `touching`: all else
    that has records of these rows; what is seen of a row that one of them has takes a merge. `erasing`: those of them
    that may erase whole rows, all at or below the snapshot; of a row that they erase, and nothing else touches, nothing
    is seen."""

    rows: RowRange
    files: tuple[PlainFile, ...]
    touching: tuple[Ref, ...]
    erasing: tuple[Ref, ...] = ()

    @property
    def is_clean(self) -> bool:
        """All of a row's newest record in the files counts, and nothing else."""
        return not self.touching and not any(each.mixed for each in self.files)


class FileShare(msgspec.Struct, frozen=True):
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

    def records_in(self, rows: RangeSet) -> int:
        """About how many of its records lie in the rows."""
        return self.file.stats.records * self.bytes_in(rows) // max(1, self.file.seal.size_bytes)

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
    every = appearing is Appearing.EXISTING
    groups = [group.id for group in schema.groups if every or _is_read(group, names)]
    groups += [LEFT_OVER] if every else []
    return tuple(_shares(tablet, fragments, groups))


def _is_read(group: Group, names: Collection[str]) -> bool:
    """Whether a scan whose batches have these names looks into a group for values."""
    members = group.columns if isinstance(group, ColumnsGroup) else group.families
    is_open = not isinstance(group, ColumnsGroup) and group.wildcard and WILDCARD in names
    return is_open or any(member.name in names for member in members)


def files_beside(tablet: HeldTablet, fragments: Fragments, group: ColumnsGroup) -> tuple[FileShare, ...]:
    """The files by which a row may exist that this group has nothing of."""
    others = [each.id for each in tablet.shown_schema.groups if each.id != group.id]
    return tuple(_shares(tablet, fragments, [*others, LEFT_OVER]))


def _shares(tablet: HeldTablet, fragments: Fragments, groups: Iterable[GroupId]) -> Iterator[FileShare]:
    for id_ in groups:
        for ref in tablet.state.refs(id_):
            if ref.file is not None:
                yield FileShare(ref, ref.file, fragments)


def refs_besides(tablet: HeldTablet, group: ColumnsGroup, columns: Selectors) -> tuple[Ref, ...]:
    """What other groups than this one have of these columns."""
    names = set(output_schema(tablet.shown_schema, columns).names)
    found: list[Ref] = []
    for other in tablet.shown_schema.groups:
        if other.id != group.id and _is_read(other, names):
            found += tablet.state.refs(other.id)
    return tuple(found)


def layers_of(
    tablet: HeldTablet,
    fragments: Fragments,
    group: ColumnsGroup,
    columns: Sequence[Column],
    at: Txn,
    time: TimeRange,
    others: Sequence[Column] = (),
    besides: Sequence[Ref] = (),
) -> Iterator[Layers]:
    """The tablet's rows in stretches, in order: where these columns of a group are to be had from files as they are.
    `others`: the columns by which a row of the group appears too. `besides`: what is read of other groups."""
    state, existing = tablet.state, tablet.shown_schema.existence_group
    asking, policy = tablet.asking(at, time), group.purging_at(at)
    choice = ColumnChoice(tuple(columns), existing.id == group.id, others)
    asked = ColumnsQuestion(state.rows, choice, asking, policy)
    files = {id(ref): _plain_file(tablet, fragments, ref, asked) for ref in state.refs(group.id)}
    for rows, refs in layered([*state.refs(group.id), *besides]):
        chain = _heaviest_chain([file for ref in refs if (file := files.get(id(ref))) is not None], choice)
        chosen = {id(each.ref) for each in chain}
        touching = tuple(ref for ref in refs if id(ref) not in chosen)
        erasing = tuple(ref for ref in touching if id(ref) in files and _erases(ref, asking))
        yield Layers(rows, chain, touching, erasing)


def _erases(ref: Ref, asking: Asking) -> bool:
    file = ref.file
    return file is not None and file.stats.erasures > 0 and asking.floor <= file.txn_min and file.txn_max <= asking.at


def _heaviest_chain(files: Sequence[PlainFile], choice: ColumnChoice) -> tuple[PlainFile, ...]:
    """Of plain files, those with the most records that lie over each other, the oldest first. What is left out is
    merged, so the largest file should be among them."""
    ordered = sorted(files, key=lambda each: each.file.txn_min)
    best: list[tuple[int, tuple[PlainFile, ...]]] = []
    for at, file in enumerate(ordered):
        below = [found for found, old in zip(best, ordered[:at], strict=True) if _lies_over(file, old, choice)]
        weight, chain = max(below, key=itemgetter(0), default=(0, ()))
        best.append((weight + file.file.stats.records, (*chain, file)))
    return max(best, key=itemgetter(0), default=(0, ()))[1]


def _lies_over(new: PlainFile, old: PlainFile, choice: ColumnChoice) -> bool:
    """A mixed file only lies below others."""
    return new.mixed is None and lies_over(_whole(new.ref, new.fragment), _whole(old.ref, old.fragment), choice)


def _plain_file(tablet: HeldTablet, fragments: Fragments, ref: Ref, asked: ColumnsQuestion) -> PlainFile | None:
    if ref.file is None or isinstance(ref.part, FamilySet):
        return None
    fragment = fragments.of(ref.file)
    if fragment.reader.codec.types != tablet.shown_schema.codec.types:
        return None
    piece = _whole(ref, fragment)
    if is_plain(piece, asked):
        return PlainFile(ref, fragment)
    mixed = mixed_of(piece, asked)
    return None if mixed is None else PlainFile(ref, fragment, mixed)


def _whole(ref: Ref, fragment: Fragment) -> Piece:
    return Piece(ref, fragment, range(1), ref.rows)
