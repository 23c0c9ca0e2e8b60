"""Rows of a store that another process has, for the tasks of one event loop: no thread waits for an answer.

Single rows are what many tasks ask for at once; all of their requests share one connection (`registry.peers`). Scans,
pins and what is asked of tables as a whole go the way of threads (`store`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from stelae.client.remote.writes import WriteGroup, write_groups, write_in_order_on_loop
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.registry.peers import Peer
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline


class RemoteRowsOnLoop:
    """A `RowsOnLoop`. `check` raises Closed if the store may not be used any more; `counted` is around each change."""

    def __init__(
        self, peer: Peer, check: Callable[[], None], counted: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._peer = peer
        self._check = check
        self._counted = counted

    async def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, Values | None]:
        self._check()
        return await self._peer.ask(ops.NEWEST, deadline, table, row, columns, at)

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn:
        async def write_group(group: WriteGroup) -> Txn:
            self._check()
            return await self._peer.receive(ops.WRITE, group.message, group.body, deadline)

        with self._counted():
            return await write_in_order_on_loop(write_groups(table, blocks, max_txn, must_show), write_group)

    async def retire(self) -> None:
        await self._peer.retire()

    async def close(self) -> None:
        await self._peer.close()
