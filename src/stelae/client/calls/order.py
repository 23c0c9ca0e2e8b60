"""Writes to one row take effect in the order in which they were begun, though several are under way at once.

A store in this process lets a write in, or refuses it, before `submit` returns: what is begun later comes later. One
that was refused is tried again after a while, and meanwhile others of the same rows have to wait for it. A store in
another process says only when it answers whether it has let a write in, so there the next write of the same rows waits
for that. Writes of different rows never wait for each other, unless one of them does not know its rows yet.

A call that reads a row before it writes it has its turn from its beginning, and waits until what was let in before can
be read: it reads all that was begun before it, and nothing that was begun later.

A turn has *passed* when its own write is over, or given up, and all that it stood behind have passed. So whoever gives
up waiting does not let those behind it go before those ahead of it.

For the tasks of one event loop; turns of a loop that has ended are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from stelae.model.errors import DeadlineExceeded
from stelae.model.ids import Row, TableId
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline

_LET_IN_MAX = 1_000


class Span(NamedTuple):
    """The rows from `first` to `last`. `last` None: to the last there is."""

    first: bytes
    last: bytes | None


ANY_ROWS = Span(b"", None)


def span_of_row(row: Row) -> Span:
    return Span(row, row)


def span_of(blocks: Sequence[OrderedBlock]) -> Span:
    return Span(
        min((block.first for block in blocks if block.count), default=b""),
        max((block.last for block in blocks if block.count), default=b""),
    )


class Turn:
    """The place of one write in the order."""

    __slots__ = ("_ahead", "_behind", "_here", "_is_over", "_order", "loop", "span", "table")

    def __init__(self, order: WriteOrder, loop: asyncio.AbstractEventLoop, table: TableId, span: Span) -> None:
        self.loop = loop
        self.table = table
        self.span = span
        self._order = order
        self._ahead: set[Turn] = set()
        self._behind: dict[Turn, None] = {}
        self._here: asyncio.Future[None] | None = None
        self._is_over = False

    def overlaps(self, table: TableId, span: Span) -> bool:
        if self.table != table:
            return False
        is_above = self.span.last is not None and span.first > self.span.last
        is_below = span.last is not None and span.last < self.span.first
        return not is_above and not is_below

    def covers(self, table: TableId, span: Span) -> bool:
        if table != self.table or span.first < self.span.first:
            return False
        return self.span.last is None or (span.last is not None and span.last <= self.span.last)

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

    def narrow(self, span: Span) -> None:
        """Its rows are known now: it stands apart from all who write other rows."""
        self.span = span
        for turn in [turn for turn in self._behind if not turn.overlaps(self.table, span)]:
            del self._behind[turn]
            turn._lose(self)
            turn._pass()
        for turn in [turn for turn in self._ahead if not turn.overlaps(self.table, span)]:
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
        self._last_let_in: Future[Any] | None = None
        self._let_in: dict[tuple[TableId, bytes], Future[Any]] | None = None
        self._let_in_max = _LET_IN_MAX

    @property
    def has_turns(self) -> bool:
        return bool(self._of_rows or self._of_ranges)

    def note_let_in(self, table: TableId, blocks: Sequence[OrderedBlock], future: Future[Any]) -> None:
        """A local store has let in a write of one row, which has no turn, or has ended it. The future is done when it
        can be read."""
        self._last_let_in = future
        if self._let_in is None:
            return
        if len(self._let_in) >= self._let_in_max:
            self._let_in = {key: each for key, each in self._let_in.items() if not each.done()}
            # As many more come before it is looked through again: that costs each of them little, however many wait.
            self._let_in_max = 2 * len(self._let_in) + _LET_IN_MAX
        self._let_in[table, blocks[0].first] = future

    def let_in(self, table: TableId, row: Row) -> Future[Any] | None:
        """The last write of a row that a local store has let in, if it may not be readable yet. Until somebody asks,
        rows are not noted, which costs puts a little; then it is the last write of all: a store decides in the order
        in which it lets in."""
        if self._let_in is None:
            self._let_in = {}
            future = self._last_let_in
        else:
            future = self._let_in.get((table, row))
        return None if future is None or future.done() else future

    def is_free(self, table: TableId, span: Span) -> bool:
        """Whether no turn is for any of these rows. Of a row it is quick to say."""
        if span.first != span.last:
            return not any(turn.overlaps(table, span) for turn in (*self._of_ranges, *self._of_rows.values()))
        if (table, span.first) in self._of_rows:
            return False
        return not any(turn.overlaps(table, span) for turn in self._of_ranges)

    def take(self, table: TableId, span: Span) -> Turn:
        """A new turn for these rows: it begins when all turns before it that share a row have ended."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._of_rows.clear()
            self._of_ranges.clear()
        turn = Turn(self, loop, table, span)
        turn.stand_behind(each for each in self._of_ranges if each.overlaps(table, span))
        if span.first == span.last:
            before = self._of_rows.get((table, span.first))
            turn.stand_behind(() if before is None else (before,))
            self._of_rows[table, span.first] = turn
        else:
            turn.stand_behind(each for each in self._of_rows.values() if each.overlaps(table, span))
            self._of_ranges[turn] = None
        return turn

    def forget(self, turn: Turn) -> None:
        self._of_ranges.pop(turn, None)
        if self._of_rows.get((turn.table, turn.span.first)) is turn:
            del self._of_rows[turn.table, turn.span.first]
