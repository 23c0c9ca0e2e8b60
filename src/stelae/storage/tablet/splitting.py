"""Where a tablet is best split: just below a row that halves its bytes, found from the data itself. The boundary is as
little of that row as parts it from the one before, since boundaries outlive rows, and an erased key must not stay.

Files say in their footers where each block begins, and blocks are of one size, but for the last. So what lies below
any of those rows is known, except for the blocks that reach across it. The search takes the row that comes nearest to
the half; if that leaves more than a twentieth of the bytes open, it reads the blocks around the row and searches again,
now among their rows too. Blocks that reach between the row and the one before it are read last. A tablet of a few
blocks is read whole, and weighed record by record.

Of a larger tablet, memory is weighed where it is a good part of it, or where no row is found without it. Otherwise it
is left alone: to put all of it in order would hold up everybody for the sake of a few bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.model.arrow import compute as pc
from stelae.model.ids import Row
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.separators import separator
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.memory.memory import Memory, MemoryGroup
from stelae.storage.merge.order import extent
from stelae.storage.merge.select import RawCells, RawColumns
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.estimate import share_of

WHOLE_BLOCKS_MAX = 16
BLOCKS_READ_MAX = 16
OPEN_SHARE_MAX = 0.05
MEMORY_SHARE_MIN = 0.125


def size_of(state: TabletState, fragments: Fragments) -> int:
    """The tablet's bytes: its share of files and of memory. What is prepared and not yet visible does not count."""
    return int(_bytes_in_files(state, fragments) + _bytes_in_memory(state))


def choose_split_row(state: TabletState, fragments: Fragments) -> Row | None:
    """Where above the tablet's first row it is best split; None if there are not two rows to part."""
    codec = state.schema.codec
    blocks = _blocks(state, fragments)
    memory, files = _bytes_in_memory(state), _bytes_in_files(state, fragments)
    if len(blocks) > WHOLE_BLOCKS_MAX and memory < MEMORY_SHARE_MIN * (memory + files):
        found = _Search(state.rows, codec, blocks, []).find()
        if found is not None:
            return found
    return _Search(state.rows, codec, blocks, _memory_runs(state)).find()


def _bytes_in_files(state: TabletState, fragments: Fragments) -> float:
    """A file that several groups refer to counts once."""
    parts = {(ref.file.name, ref.rows): ref.file for _, refs in state.groups for ref in refs if ref.file is not None}
    return sum(file.seal.size_bytes * share_of(fragments.of(file), rows) for (_, rows), file in parts.items())


def _bytes_in_memory(state: TabletState) -> float:
    return sum(memory.size_bytes * _memory_share(memory, state.rows) for memory in state.memories)


def _memory_share(memory: Memory, rows: RowRange) -> float:
    """Tablets that were one share what was in memory then."""
    if rows.covers(memory.rows):
        return 1.0
    every = sum(_rows_in(source, ALL_ROWS) for source in memory.groups.values())
    return sum(_rows_in(source, rows) for source in memory.groups.values()) / every if every else 0.0


def _rows_in(source: MemoryGroup, rows: RowRange) -> int:
    ends = [extent(block.rows, rows) for block in source.blocks]
    return sum(high - low for low, high in ends) + len(source.every(1, rows)) or int(source.has_any(rows))


class _Unread(msgspec.Struct, frozen=True):
    """A block, or the part of it that counts: of its rows, only that they lie in a range is known."""

    fragment: Fragment
    block: int
    rows: RowRange
    weight: float

    def below(self, row: bytes) -> tuple[float, float]:
        """How much certainly lies below the row, and how much may."""
        if row <= self.rows.start:
            return 0.0, 0.0
        return (self.weight, 0.0) if row not in self.rows else (0.0, self.weight)

    def read(self) -> _Run:
        block = self.fragment.block(self.block, self.fragment.reader.schema.names, keep=False)
        batch = pa.RecordBatch.from_arrays(list(block.columns.values()), list(block.columns))
        low, high = extent(block.rows, self.rows)
        inside = batch.slice(low, high - low)
        weight = self.weight * inside.nbytes / batch.nbytes if batch.nbytes else 0.0
        return _Run(block.rows.slice(low, high - low), inside, weight)


class _Run(msgspec.Struct, frozen=True):
    """Records in order, all of them known."""

    rows: pa.Array
    records: pa.RecordBatch
    weight: float

    def below(self, row: bytes) -> tuple[float, float]:
        at, _ = extent(self.rows, RowRange(row))
        if at in (0, len(self.rows)):
            return (self.weight if at else 0.0), 0.0
        return self.weight * self.records.slice(0, at).nbytes / self.records.nbytes, 0.0


def _blocks(state: TabletState, fragments: Fragments) -> list[_Unread]:
    """All that files hold of the tablet, each piece once."""
    found: dict[tuple[str, int, RowRange], _Unread] = {}
    for _, refs in state.groups:
        for ref in refs:
            if ref.file is None or not ref.file.stats.records:
                continue
            fragment = fragments.of(ref.file)
            full, last = _block_bytes(fragment)
            for block in fragment.reader.blocks_of(ref.rows):
                inside = fragment.range_of(block).intersect(ref.rows)
                if not inside.is_empty:
                    weight = last if block + 1 == len(fragment.starts) else full
                    found.setdefault((ref.file.name, block, inside), _Unread(fragment, block, inside, weight))
    return list(found.values())


def _block_bytes(fragment: Fragment) -> tuple[float, float]:
    """Of each block but the last, and of that: what was left when the file ended."""
    count, size = len(fragment.starts), fragment.file.seal.data_end
    records = fragment.reader.block_records(count - 1)
    others = fragment.file.stats.records - records
    rest = min(1.0, records * (count - 1) / others) if others else 1.0
    full = size / (count - 1 + rest)
    return full, full * rest


def _memory_runs(state: TabletState) -> list[_Run]:
    return [
        _run_of(raw)
        for _, refs in state.groups
        for ref in refs
        if not isinstance(ref.source, FragmentFile)
        for raw in ref.source.raw(ref.rows)
    ]


def _run_of(raw: RawColumns | RawCells) -> _Run:
    if isinstance(raw, RawCells):
        arrays = [raw.rows, raw.family, raw.qualifier, raw.value]
    else:
        arrays = [raw.rows, *(column.values for column in raw.columns.values() if column.values is not None)]
    records = pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
    return _Run(raw.rows, records, float(records.nbytes))


class _Search:
    def __init__(self, rows: RowRange, codec: KeyCodec, blocks: Sequence[_Unread], runs: Sequence[_Run]) -> None:
        self._rows = rows
        self._codec = codec
        self._unread = sorted(blocks, key=lambda each: (-each.weight, each.fragment.file.name, each.block))
        self._runs = list(runs)
        self._reads_left = BLOCKS_READ_MAX
        if len(blocks) <= WHOLE_BLOCKS_MAX:
            read = [each.read() for each in self._unread]
            self._runs += [replace(run, weight=float(run.records.nbytes)) for run in read]
            self._unread = []

    def find(self) -> Row | None:
        while True:
            rows = self._candidates()
            whole = sum(each.weight for each in self._parts())
            at = bisect_left(range(len(rows)), whole / 2, key=lambda i: self._middle(rows[i].as_py()))
            near = [rows[i].as_py() for i in (at - 1, at) if 0 <= i < len(rows)]
            best = min(near, key=lambda row: abs(self._middle(row) - whole / 2), default=None)
            if best is not None and self._off(best, whole) <= OPEN_SHARE_MAX * whole:
                return self._parting(best)
            low = near[0] if at > 0 else self._rows.start
            stop = near[-1] + b"\0" if at < len(rows) else self._rows.stop
            if not self._read_some(RowRange(low, stop)):
                return None if best is None else self._parting(best)

    def _parting(self, row: bytes) -> Row:
        """As little of the row as parts it from the one before it. What reaches into between is read for that."""
        self._reads_left = BLOCKS_READ_MAX
        self._read_some(RowRange(self._before(row), row))
        found = separator(self._codec, self._before(row), row)
        return found if found in self._rows and self._middle(found) > 0 else Row(row)

    def _before(self, row: bytes) -> bytes:
        """The last row below it that is known."""
        known = self._known_rows()
        at = bisect_left(range(len(known)), row, key=lambda i: known[i].as_py())
        before: bytes = known[at - 1].as_py() if at else self._rows.start
        return before

    def _parts(self) -> list[_Unread | _Run]:
        return [*self._unread, *self._runs]

    def _candidates(self) -> pa.Array:
        """Every row that is known, in order, but for those that have nothing below them."""
        rows = self._known_rows()
        first = bisect_left(range(len(rows)), True, key=lambda i: self._middle(rows[i].as_py()) > 0)
        return rows.slice(first)

    def _known_rows(self) -> pa.Array:
        starts = pa.array([each.rows.start for each in self._unread], pa.binary())
        merged = pa.concat_arrays([starts, *(run.rows.unique() for run in self._runs)]).unique()
        return merged.take(pc.sort_indices(merged))

    def _below(self, row: bytes) -> tuple[float, float]:
        found = [each.below(row) for each in self._parts()]
        return sum(certain for certain, _ in found), sum(possible for _, possible in found)

    def _middle(self, row: bytes) -> float:
        certain, possible = self._below(row)
        return certain + possible / 2

    def _off(self, row: bytes, whole: float) -> float:
        """How far from the half the row may be."""
        certain, possible = self._below(row)
        return abs(certain + possible / 2 - whole / 2) + possible / 2

    def _read_some(self, rows: RowRange) -> bool:
        """The blocks around the middle, the heaviest first; whether there were any."""
        near = [each for each in self._unread if each.rows.overlaps(rows)][: self._reads_left]
        self._reads_left -= len(near)
        self._runs += [each.read() for each in near]
        self._unread = [each for each in self._unread if each not in near]
        return bool(near)
