"""Files most of whose rows have one record that says all, as a compaction leaves them where history is kept, and those
of which some records are above the snapshot or were purged: which of their rows take a merge.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.ids import ColumnId
from stelae.model.purge import Purging, purging_of_columns
from stelae.model.record import Kind
from stelae.storage.merge.alive import purged_alone
from stelae.storage.merge.order import Flags
from stelae.storage.merge.select import RawColumns
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.columns import ColumnsQuestion, is_inside
from stelae.storage.read.scans.windows import Piece
from stelae.storage.tablet.parts import FamilySet

_TOUCHED_SHARE_MAX = 0.4


class Judged(msgspec.Struct, frozen=True):
    """By what it is told which records are not seen: their txn, their time, and how old they are."""

    asking: Asking
    policy: Purging

    def unseen(self, raw: RawColumns) -> Flags:
        """Which records are not to be seen, of those that are alone in their rows."""
        asking = self.asking
        flags = (raw.txn > asking.at) | (raw.txn < asking.floor)
        flags |= (raw.ts < asking.time.start) | (raw.ts >= asking.time.stop)
        return flags | purged_alone(self.policy, raw.ts, raw.txn, asking.read_us)


class Mixed(msgspec.Struct, frozen=True):
    """Which rows of a file take a merge: those with several records, or one that erases, or leaves out one of these
    columns, or is not seen. `judged` None: all records are seen. `share`: about how many of the records that are."""

    columns: frozenset[ColumnId]
    judged: Judged | None
    share: float

    def flags(self, raws: Sequence[RawColumns]) -> Flags:
        """Of records that lie behind each other, which are of such rows."""
        rows = pa.concat_arrays([pa.array([], pa.binary()), *(raw.rows for raw in raws)])
        flags = np.concatenate([np.zeros(0, np.bool_), *(self._says_less(raw) for raw in raws)])
        if len(rows) > 1:
            is_same = pc.equal(rows.slice(1), rows.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
            flags[1:] |= is_same
            flags[:-1] |= is_same
        return flags

    def _says_less(self, raw: RawColumns) -> Flags:
        flags = np.zeros(len(raw.rows), np.bool_) if self.judged is None else self.judged.unseen(raw)
        if raw.kinds is not None:
            flags |= raw.kinds != Kind.PUT
        for column in raw.columns.values():
            flags |= ~column.flags(len(raw.rows))
        return flags


def mixed_of(piece: Piece, question: ColumnsQuestion) -> Mixed | None:
    """How rows of a file that is not plain may be read from it, but for those that take a merge. None: these are too
    many, as is told from what the footer says and from a few blocks; or the file has none of the columns by which rows
    appear."""
    fragment, stats = piece.fragment, piece.fragment.file.stats
    columns = _columns_of(piece, question)
    most = _TOUCHED_SHARE_MAX * stats.records
    least = 2 * (stats.records - stats.rows) + stats.erasures + stats.markers
    if not columns or least > most:
        return None
    judged = None if is_inside(piece, question) else Judged(question.asking, purging_of_columns(question.policy))
    mixed = Mixed(columns, judged, 0.0)
    last = fragment.reader.block_count - 1
    records = flagged = 0
    for number in sorted({last // 2} if judged is None else {0, last // 2, last}):
        block = fragment.block(number, fragment.needed_marks(columns), keep=False)
        raw = block.raw_columns(fragment.range_of(number), tuple(columns), with_values=False)
        records += len(raw.rows)
        flagged += int(np.count_nonzero(mixed.flags([raw])))
    share = max(flagged / max(1, records), least / max(1, stats.records))
    return None if share > _TOUCHED_SHARE_MAX else msgspec.structs.replace(mixed, share=share)


def _columns_of(piece: Piece, question: ColumnsQuestion) -> frozenset[ColumnId]:
    """What a record must write, so that it is all that is seen of its row: what the file has of the columns that are
    asked for, or if that is nothing, of those by which rows appear. Columns that it does not have are read as their
    defaults."""
    part, choice = piece.ref.part, question.choice
    if isinstance(part, FamilySet):
        return frozenset()
    there = part & piece.fragment.columns.keys()
    return (choice.ids & there) or (choice.appearing & there)
