"""Writes to a store that another process has: blocks in frames, encoded once.

Small blocks of one call go together, a large one goes alone and is not copied again. They go group after group: the
next is sent when the last is durable, so what was written before an error is a beginning of the call; it is encoded
while the other side is at work on the last. The bytes of a block are made here, and are the bytes that the owner logs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from stelae.format.block import encode_block
from stelae.model.errors import InvalidArgument, PartialWrite, StelaeError, UnknownOutcome, why_no_more
from stelae.model.ids import TableId, Txn
from stelae.service.blocks import OrderedBlock
from stelae.service.bodies import Bytes
from stelae.service.messages import BLOCKS_MAX, WriteMessage

GROUP_BYTES = 4 * 1024 * 1024
"""What goes together at most: a group of several blocks is copied once more."""


class WriteGroup(msgspec.Struct, frozen=True):
    """Blocks that are sent together."""

    message: WriteMessage
    body: Bytes
    blocks: tuple[OrderedBlock, ...]

    @property
    def count(self) -> int:
        return sum(ordered.count for ordered in self.blocks)


def write_message(
    table: TableId, blocks: Sequence[OrderedBlock], sizes: Sequence[int], max_txn: Txn | None, must_show: bool
) -> WriteMessage:
    """What is said of blocks that are sent together. All of them have numbers, or none has."""
    once = blocks[0].once
    if once is None:
        return WriteMessage(table, max_txn, tuple(sizes), must_show)
    sequences = tuple([block.once.sequence for block in blocks if block.once is not None])
    return WriteMessage(table, max_txn, tuple(sizes), must_show, once.client, sequences, once.age_ms)


def write_groups(
    table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool
) -> Iterator[WriteGroup]:
    """Blocks gathered into messages. A group is encoded when it is asked for, not before."""
    waiting: list[tuple[OrderedBlock, Bytes]] = []
    size = 0

    def group() -> WriteGroup:
        parts = [data for _, data in waiting]
        together = tuple([ordered for ordered, _ in waiting])
        message = write_message(table, together, [len(data) for data in parts], max_txn, must_show)
        return WriteGroup(message, parts[0] if len(parts) == 1 else b"".join(parts), together)

    if not blocks:
        raise InvalidArgument("a write without blocks says nothing")
    for ordered in blocks:
        data = encode_block(ordered.block) if ordered.data is None else ordered.data
        if waiting and (size + len(data) > GROUP_BYTES or len(waiting) == BLOCKS_MAX):
            yield group()
            waiting, size = [], 0
        waiting.append((ordered, data))
        size += len(data)
    yield group()


class GroupsWritten:
    """What became of the groups of one call so far, and what an error then means for the whole call."""

    def __init__(self) -> None:
        self.newest = Txn(0)
        self._durable = 0

    def take(self, group: WriteGroup, txn: Txn) -> None:
        self.newest = max(self.newest, txn)
        self._durable += group.count

    def tell(self, error: StelaeError) -> StelaeError:
        """What to raise for the error of the group that came next."""
        if not self._durable:
            return error  # whoever is told StaleSchema makes all of it anew, and writes all of it again
        if isinstance(error, UnknownOutcome):
            words = f"{error}; the first {self._durable} records are durable"
            return UnknownOutcome(words, is_fault=error.is_fault)
        durable, why = self._durable + (error.durable if isinstance(error, PartialWrite) else 0), why_no_more(error)
        return PartialWrite(f"the first {durable} records are durable; then: {why}", durable, why)


def write_in_order(groups: Iterator[WriteGroup], begin: Callable[[WriteGroup], Callable[[], Txn]]) -> Txn:
    """Write group after group, each when the one before it is durable; return the newest txn. `begin` sends a group;
    what it gives waits for the answer."""
    written, group = GroupsWritten(), next(groups, None)
    while group is not None:
        try:
            finish = begin(group)
            following = _Encoded(groups)
            written.take(group, finish())
        except StelaeError as error:
            told = written.tell(error)
            if told is error:
                raise
            raise told from error
        group = following.take()
    return written.newest


async def write_in_order_on_loop(groups: Iterator[WriteGroup], write: Callable[[WriteGroup], Awaitable[Txn]]) -> Txn:
    """`write_in_order` for an event loop."""
    written = GroupsWritten()
    for group in groups:
        try:
            written.take(group, await write(group))
        except StelaeError as error:
            told = written.tell(error)
            if told is error:
                raise
            raise told from error
    return written.newest


class _Encoded:
    """The next group, encoded now; what goes wrong with it is told when it is asked for, and not before."""

    def __init__(self, groups: Iterator[WriteGroup]) -> None:
        self._group: WriteGroup | None = None
        self._error: Exception | None = None
        try:
            self._group = next(groups, None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it comes after what is under way
            self._error = error

    def take(self) -> WriteGroup | None:
        if self._error is not None:
            raise self._error
        return self._group
