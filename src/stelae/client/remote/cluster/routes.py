"""Which shard has which rows of a table: routes are values, and what is cut by them are rows, blocks and ranges.

A route is a run of rows that one shard has: tablets beside each other on the same shard are one route. Routes cover all
rows, without a gap. They may be out of date: whoever is asked for rows that it does not have says so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise

import msgspec

from stelae.model.errors import Unavailable
from stelae.model.ids import Row
from stelae.model.ranges import RangeSet, RowRange
from stelae.registry.control_operations import TableLocation
from stelae.service.blocks import OrderedBlock, split_blocks


class TableRoutes(msgspec.Struct, frozen=True, dict=True):
    """`starts[n]`: the first row that `servers[n]` has; it has those before `starts[n + 1]`, too. The first is the
    empty row, and neighbours differ."""

    starts: tuple[bytes, ...]
    servers: tuple[str, ...]

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """All that have rows of the table, each once, by their first rows."""
        return tuple(dict.fromkeys(self.servers))

    @property
    def bounds(self) -> Sequence[bytes]:
        """Where one route ends and the next begins."""
        return self.starts[1:]

    def shard_of(self, row: bytes) -> str:
        return self.servers[bisect_right(self.starts, row) - 1]

    def cut_rows(self, rows: Sequence[Row]) -> Mapping[str, list[int]]:
        """By shard, the places of its rows among these."""
        cut: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            cut.setdefault(self.shard_of(row), []).append(place)
        return cut

    def cut_blocks(self, blocks: Sequence[OrderedBlock]) -> Mapping[str, list[OrderedBlock]]:
        """By shard, the blocks and parts of blocks with its rows, in the order in which they were given."""
        cut: dict[str, list[OrderedBlock]] = {}
        if len(self.shards) == 1:
            return {self.servers[0]: list(blocks)}
        for block in blocks:
            for place, part in self._cut_block(block):
                cut.setdefault(self.servers[place], []).append(part)
        return cut

    def _cut_block(self, block: OrderedBlock) -> Sequence[tuple[int, OrderedBlock]]:
        if not block.count:
            return ((0, block),)
        first, last = (bisect_right(self.starts, row) - 1 for row in (block.first, block.last))
        return ((first, block),) if first == last else split_blocks(block, self.bounds)

    def cut_ranges(self, rows: RangeSet, *, reverse: bool = False) -> Iterator[tuple[str, RangeSet]]:
        """What each route has of the rows, in their order, or in reverse; without routes that have none of them."""
        if rows.is_empty:
            return
        first, last = bisect_right(self.starts, rows.ranges[0].start) - 1, len(self.starts)
        if (stop := rows.ranges[-1].stop) is not None:
            last = bisect_left(self.starts, stop)
        places = range(first, last)
        for place in reversed(places) if reverse else places:
            part = rows.within(RowRange(self.starts[place], self._stop(place)))
            if not part.is_empty:
                yield self.servers[place], part

    def _stop(self, place: int) -> bytes | None:
        return self.starts[place + 1] if place + 1 < len(self.starts) else None


def routes_of(location: TableLocation) -> TableRoutes:
    """Unavailable if what the master said makes no sense: it is asked again."""
    runs = [(server, next(run)[0]) for server, run in groupby(location.tablets, key=lambda each: each[1])]
    starts = tuple(start for _, start in runs)
    if not starts or starts[0] or any(a >= b for a, b in pairwise(starts)):
        raise Unavailable(f"table {location.table}: the master does not know where all of its rows are")
    return TableRoutes(starts, tuple(server for server, _ in runs))
