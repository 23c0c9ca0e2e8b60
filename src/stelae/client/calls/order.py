"""Writes to one row take effect in the order in which they were begun, though several are under way at once.

A store in this process lets a write in, or refuses it, before `submit` returns: what is begun later comes later. One
that was refused is tried again after a while, and meanwhile others of the same rows have to wait for it. A store in
another process says only when it answers whether it has let a write in, so there the next write of the same rows waits
for that. Writes of different rows never wait for each other.

For the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stelae.model.ids import TableId
from stelae.service.blocks import OrderedBlock


class Turn:
    """The place of one write in the order. `last` None: up to the last row there is."""

    __slots__ = ("_before", "_order", "ended", "first", "last", "table")

    def __init__(self, order: WriteOrder, table: TableId, first: bytes, last: bytes | None) -> None:
        self.table = table
        self.first = first
        self.last = last
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order = order
        self._before = [turn.ended for turn in order.turns if turn.overlaps(self)]

    def overlaps(self, other: Turn) -> bool:
        if self.table != other.table:
            return False
        is_above = self.last is not None and other.first > self.last
        is_below = other.last is not None and other.last < self.first
        return not is_above and not is_below

    async def come(self) -> None:
        """Wait for all that were begun before and write the same rows."""
        for ended in self._before:
            await asyncio.shield(ended)
        self._before = []

    def end(self) -> None:
        """It is written, or never will be."""
        self._order.turns.pop(self, None)
        if not self.ended.done():
            self.ended.set_result(None)


class WriteOrder:
    """`turns`: of the writes that others may have to wait for, as they were begun."""

    def __init__(self) -> None:
        self.turns: dict[Turn, None] = {}

    def take(self, table: TableId, blocks: Sequence[OrderedBlock] | None) -> Turn:
        """The next turn, for the rows of these blocks; None: of the whole table."""
        if blocks:
            first, last = min(block.first for block in blocks), max(block.last for block in blocks)
            turn = Turn(self, table, first, last)
        else:
            turn = Turn(self, table, b"", None)
        self.turns[turn] = None
        return turn
