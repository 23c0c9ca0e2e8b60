"""Fragments of which only some rows are there: a scan of them merges these rows, and reads no block that has none.

A scan takes them for the files themselves: a file with fewer records is a file all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa

from stelae.format.fragment.footer import FragmentFile
from stelae.model.arrow import compute as pc
from stelae.storage.files.blocks import Block
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.merge.order import extent
from stelae.storage.offline.hidden import Hidden
from stelae.storage.offline.marked import Marked
from stelae.storage.offline.plain import Layers

_NOWHERE = Marked()


class ChosenRows(Fragments):
    """Of the files of a stretch, the rows that are merged. Whoever closes the fragments underneath closes these."""

    def __init__(self, fragments: Fragments, layers: Layers, hidden: Hidden) -> None:
        self.reading = fragments.reading
        self._fragments = fragments
        self._touched = hidden.touched
        self._marked = {each.file.name: hidden.marked.get(each.file.name, _NOWHERE) for each in layers.files}
        self._whole = {ref.file.name for ref in layers.touching if ref.file is not None}
        self._chosen: dict[str, Fragment] = {}

    def of(self, file: FragmentFile) -> Fragment:
        found = self._chosen.get(file.name)
        if found is None:
            found = self._chosen[file.name] = self._choose(self._fragments.of(file))
        return found

    def _choose(self, fragment: Fragment) -> Fragment:
        """All rows of a file that touches the stretch are merged; of its plain files it is known where they lie."""
        name = fragment.file.name
        if name in self._whole:
            return fragment
        marked = self._marked.get(name)
        return _ByRows(fragment, self._touched) if marked is None else _ByPlaces(fragment, marked, self._touched)


class _Chosen(Fragment):
    def __init__(self, fragment: Fragment) -> None:
        super().__init__(fragment.file, fragment.reader, fragment.cache)
        self._inner = fragment

    def _nothing(self, columns: Iterable[str]) -> Block:
        schema = self.reader.schema
        names = dict.fromkeys([*columns, self.point])
        arrays = {name: pa.array([], schema.field(name).type) for name in names}
        return Block(self._shape, pa.array([], pa.binary()), arrays)

    def _some(self, block: Block, columns: Iterable[str], places: pa.Array) -> Block:
        names = dict.fromkeys([*columns, self.point])
        return Block(self._shape, block.rows.take(places), {name: block.columns[name].take(places) for name in names})


class _ByPlaces(_Chosen):
    """The records that are marked, of blocks that may have one of the rows: others are hidden for other reasons."""

    def __init__(self, fragment: Fragment, marked: Marked, rows: pa.Array) -> None:
        super().__init__(fragment)
        self._marked = marked
        self._rows = rows
        counts = (self.reader.block_records(block) for block in range(self.reader.block_count))
        self._starts = list(accumulate(counts, initial=0))

    def block(self, block: int, columns: Iterable[str], keep: bool) -> Block:
        first, stop = self._starts[block], self._starts[block + 1]
        columns = tuple(columns)
        begin, end = extent(self._rows, self.range_of(block))
        places = self._marked.places(first, stop)
        if begin == end or not len(places):
            return self._nothing(columns)
        found = self._inner.block(block, columns, keep)
        return self._some(found, columns, pa.array(places - first))


class _ByRows(_Chosen):
    """The records of these rows."""

    def __init__(self, fragment: Fragment, rows: pa.Array) -> None:
        super().__init__(fragment)
        self._rows = rows

    def block(self, block: int, columns: Iterable[str], keep: bool) -> Block:
        low, high = extent(self._rows, self.range_of(block))
        columns = tuple(columns)
        if low == high:
            return self._nothing(columns)
        found = self._inner.block(block, columns, keep)
        is_chosen = pc.is_in(found.rows, value_set=self._rows.slice(low, high - low))
        return self._some(found, columns, pc.indices_nonzero(is_chosen))
