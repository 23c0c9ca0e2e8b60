"""Files most of whose rows have one record that says all, as a compaction leaves them where history is kept: which rows
have others, several versions or an erasure or only some columns, and so take a merge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.model.record import Kind
from stelae.storage.merge.order import Flags
from stelae.storage.merge.select import RawColumns
from stelae.storage.read.scans.columns import ColumnsQuestion, has_all, is_inside
from stelae.storage.read.scans.windows import Piece

_TOUCHED_SHARE_MAX = 0.4


def is_mixed(piece: Piece, question: ColumnsQuestion) -> bool:
    """Whether rows of a file that is not plain may be read from it, but for those that take a merge. That these are
    not too many is told from what the footer says and from one block."""
    choice, fragment, stats = question.choice, piece.fragment, piece.fragment.file.stats
    ids = choice.ids
    if not ids or not is_inside(piece, question) or not has_all(piece, ids):
        return False
    most = _TOUCHED_SHARE_MAX * stats.records
    if 2 * (stats.records - stats.rows) + stats.erasures + stats.markers > most:
        return False
    middle = fragment.reader.block_count // 2
    block = fragment.block(middle, fragment.needed_marks(ids), keep=False)
    raw = block.raw_columns(fragment.range_of(middle), tuple(ids), with_values=False)
    return int(np.count_nonzero(merged_flags([raw]))) <= _TOUCHED_SHARE_MAX * len(raw.rows)


def merged_flags(raws: Sequence[RawColumns]) -> Flags:
    """Of records that lie behind each other, which are of rows that take a merge: they have another record, or this one
    erases, or leaves out a column that is asked for."""
    rows = pa.concat_arrays([pa.array([], pa.binary()), *(raw.rows for raw in raws)])
    flags = np.concatenate([np.zeros(0, np.bool_), *(_says_less(raw) for raw in raws)])
    if len(rows) > 1:
        is_same = pc.equal(rows.slice(1), rows.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
        flags[1:] |= is_same
        flags[:-1] |= is_same
    return flags


def _says_less(raw: RawColumns) -> Flags:
    flags = np.zeros(len(raw.rows), np.bool_)
    if raw.kinds is not None:
        flags |= raw.kinds != Kind.PUT
    for column in raw.columns.values():
        flags |= ~column.flags(len(raw.rows))
    return flags
