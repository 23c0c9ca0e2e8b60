"""Writes to one row take effect in the order in which they were begun, though several are under way at once.

A store in this process lets a write in, or refuses it, before `submit` returns: what is begun later comes later. One
that was refused is tried again after a while, and meanwhile others of the same rows have to wait for it. A store in
another process says only when it answers whether it has let a write in, so there the next write of the same rows waits
for that. Writes of different rows never wait for each other, unless one of them does not know its rows yet.

A turn has *passed* when its own write is over, or given up, and all that it stood behind have passed. So whoever gives
up waiting does not let those behind it go before those ahead of it.

For the tasks of one event loop; turns of a loop that has ended are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from stelae.model.errors import DeadlineExceeded
from stelae.model.ids import TableId
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline


class Turn:
    """The place of one write in the order, for the rows from `first` to `last`. `last` None: to the last there is."""

    __slots__ = ("_ahead", "_behind", "_here", "_is_over", "_order", "first", "last", "loop", "table")

    def __init__(
        self, order: WriteOrder, loop: asyncio.AbstractEventLoop, table: TableId, first: bytes, last: bytes | None
    ) -> None:
        self.loop = loop
        self.table = table
        self.first = first
        self.last = last
        self._order = order
        self._ahead: set[Turn] = set()
        self._behind: dict[Turn, None] = {}
        self._here: asyncio.Future[None] | None = None
        self._is_over = False

    def overlaps(self, other: Turn) -> bool:
        if self.table != other.table:
            return False
        is_above = self.last is not None and other.first > self.last
        is_below = other.last is not None and other.last < self.first
        return not is_above and not is_below

    def covers(self, table: TableId, blocks: Sequence[OrderedBlock]) -> bool:
        first, last = _bounds(blocks)
        return table == self.table and self.first <= first and (self.last is None or last <= self.last)

    def stand_behind(self, ahead: Iterable[Turn]) -> None:
        for turn in ahead:
            self._ahead.add(turn)
            turn._behind[self] = None

    async def come(self, deadline: Deadline) -> None:
        """Wait for all that were begun before and write the same rows."""
        if self._ahead:
            self._here = self.loop.create_future()
            await asyncio.wait((self._here,), timeout=deadline.left_s)
            if self._ahead:
                raise DeadlineExceeded("writes of the same rows that were begun before it took all the time")

    def narrow(self, blocks: Sequence[OrderedBlock]) -> None:
        """Its rows are known now: it stands apart from all who write other rows."""
        self.first, self.last = _bounds(blocks)
        for turn in [turn for turn in self._behind if not self.overlaps(turn)]:
            del self._behind[turn]
            turn._lose(self)
            turn._pass()
        for turn in [turn for turn in self._ahead if not self.overlaps(turn)]:
            del turn._behind[self]
            self._lose(turn)

    def end(self) -> None:
        """Let those behind it go on: the write is done, or was refused."""
        self._is_over = True
        self._pass()

    def _pass(self) -> None:
        """If it has passed, those behind it may come, and with them those behind who have given up."""
        passed = [self]
        while passed:
            turn = passed.pop()
            if turn._ahead or not turn._is_over:
                continue
            turn._order.forget(turn)
            behind, turn._behind = turn._behind, {}
            for each in behind:
                each._lose(turn)
                passed.append(each)

    def _lose(self, ahead: Turn) -> None:
        self._ahead.discard(ahead)
        if not self._ahead and self._here is not None and not self._here.done():
            self._here.set_result(None)


class WriteOrder:
    """The turns that others may have to stand behind. Of those of a single row the last is enough: it passes after the
    ones before it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_rows: dict[tuple[TableId, bytes], Turn] = {}
        self._of_ranges: dict[Turn, None] = {}

    @property
    def has_turns(self) -> bool:
        return bool(self._of_rows or self._of_ranges)

    def take(self, table: TableId, blocks: Sequence[OrderedBlock] | None) -> Turn:
        """The next turn, for the rows of these blocks; None: for any rows of the table."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._of_rows.clear()
            self._of_ranges.clear()
        first, last = (b"", None) if blocks is None else _bounds(blocks)
        turn = Turn(self, loop, table, first, last)
        turn.stand_behind(each for each in self._of_ranges if each.overlaps(turn))
        if first == last:
            before = self._of_rows.get((table, first))
            turn.stand_behind(() if before is None else (before,))
            self._of_rows[table, first] = turn
        else:
            turn.stand_behind(each for each in self._of_rows.values() if each.overlaps(turn))
            self._of_ranges[turn] = None
        return turn

    def forget(self, turn: Turn) -> None:
        self._of_ranges.pop(turn, None)
        if self._of_rows.get((turn.table, turn.first)) is turn:
            del self._of_rows[turn.table, turn.first]


def _bounds(blocks: Sequence[OrderedBlock]) -> tuple[bytes, bytes]:
    return (
        min((block.first for block in blocks if block.count), default=b""),
        max((block.last for block in blocks if block.count), default=b""),
    )
