"""Rows of a store that another process has, for the tasks of one event loop: no thread waits for an answer.

Single rows are what many tasks ask for at once; all of their requests share one connection (`registry.peers`). Scans,
pins and what is asked of tables as a whole go the way of threads (`store`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.writes import WriteGroup, write_groups, write_in_order_on_loop, write_message
from stelae.format.block import encode_block
from stelae.model.errors import StelaeError
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.registry.peers import Begun, Peer
from stelae.registry.wires.calls import OpenCall
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline


class RemoteRowsOnLoop:
    """A `RowsOnLoop`."""

    def __init__(self, peer: Peer, changes: ChangesUnderWay) -> None:
        self._peer = peer
        self._changes = changes

    async def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, Values | None]:
        self._changes.check()
        return await self._peer.ask(ops.NEWEST, deadline, table, row, columns, at)

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn:
        async def write_group(group: WriteGroup) -> Txn:
            self._changes.check()
            return await self._peer.receive(ops.WRITE, group.message, group.body, deadline)

        with self._changes.counted():
            return await write_in_order_on_loop(write_groups(table, blocks, max_txn, must_show), write_group)

    def begin_write(
        self, table: TableId, block: OrderedBlock, deadline: Deadline, ended: Callable[[], None]
    ) -> Begun[Txn] | None:
        return begin_row(self._peer, self._changes, table, block, deadline, ended)

    async def retire(self) -> None:
        await self._peer.retire()

    async def close(self) -> None:
        await self._peer.close()


def begin_row(
    peer: Peer,
    changes: ChangesUnderWay,
    table: TableId,
    block: OrderedBlock,
    deadline: Deadline,
    ended: Callable[[], None],
) -> Begun[Txn] | None:
    """Send a block of one row to a peer; see `RowsOnLoop.begin_write`."""
    data = encode_block(block.block) if block.data is None else block.data
    message = write_message(table, (block,), (len(data),), None, False)

    def end(_: OpenCall[Any]) -> None:
        changes.end()
        ended()

    changes.begin()
    begun = None
    try:
        begun = peer.begin(ops.WRITE, message, data, deadline, end)
    except StelaeError:
        return None  # nothing was sent, and whoever asks again is told why
    finally:
        if begun is None:
            changes.end()
    return begun
