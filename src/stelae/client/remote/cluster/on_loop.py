"""Rows that several shards have, for the tasks of one event loop: one connection to each shard, no thread for each
answer. Only where a table is, if that is not known yet, a thread asks a master, for all that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.routing import Routing
from stelae.client.remote.cluster.silence import SilentPeers
from stelae.client.remote.cluster.writes import newest_written
from stelae.client.remote.on_loop import begin_row
from stelae.client.remote.writes import WriteGroup, write_groups, write_in_order_on_loop
from stelae.model.errors import Closed, DeadlineExceeded, Retryable, StelaeError, UnknownOutcome
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.registry.peers import Begun, Peer, Sign
from stelae.service import operations as ops
from stelae.service.backend import Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline


class ClusterRowsOnLoop:
    """A `RowsOnLoop`. `open_peer` connects the running loop to a shard, by its name."""

    def __init__(self, routing: Routing, open_peer: Callable[[str, Sign], Peer]) -> None:
        self._routing = routing
        self._open_peer = open_peer
        self._peers: dict[str, Peer] = {}
        self._is_over = False
        self._finding: dict[TableId, asyncio.Task[TableRoutes]] = {}
        self._silent = SilentPeers(self._peers, routing)

    async def newest(
        self, table: TableId, row: Row, columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, Values | None]:
        routing = self._routing
        routing.changes.check()
        routes = routing.locations.known(table) or await self._find(table, deadline)
        shard = routes.shard_of(row)
        self._silent.watch()
        try:
            found = await self._peer(shard).ask(ops.NEWEST, deadline, table, row, columns, at)
        except (Retryable, UnknownOutcome) as error:
            told = routing.explain(table, routes, shard, error)
            if told is error:
                raise
            raise told from error
        routing.seen.note(found[0])
        return found

    async def write(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, deadline: Deadline
    ) -> Txn:
        routing = self._routing
        with routing.changes.counted():
            routes = routing.locations.known(table) or await self._find(table, deadline)
            self._silent.watch()

            async def send_part(shard: str, part: Sequence[OrderedBlock]) -> Txn:
                peer = self._peer(shard)

                async def write_group(group: WriteGroup) -> Txn:
                    routing.changes.check()
                    return await peer.receive(ops.WRITE, group.message, group.body, deadline)

                try:
                    return await write_in_order_on_loop(write_groups(table, part, max_txn, must_show), write_group)
                except (Retryable, UnknownOutcome) as error:
                    raise routing.explain(table, routes, shard, error) from None

            async def attempt(shard: str, part: Sequence[OrderedBlock]) -> Txn | StelaeError:
                try:
                    return await send_part(shard, part)
                except StelaeError as error:
                    return error.with_traceback(None)

            parts = routes.cut_blocks(blocks)
            if len(parts) == 1:
                ((shard, part),) = parts.items()
                return routing.seen.note(await send_part(shard, part))
            outcomes = await asyncio.gather(*(attempt(shard, part) for shard, part in parts.items()))
            return newest_written(parts, dict(zip(parts, outcomes, strict=True)), routing.seen)

    def begin_write(
        self, table: TableId, block: OrderedBlock, deadline: Deadline, ended: Callable[[], None]
    ) -> ShardWrite | None:
        routing = self._routing
        routes = routing.locations.known(table)
        shard = None if routes is None else routes.shard_of(block.first)
        peer = None if shard is None else self._peers.get(shard)
        if routes is None or shard is None or peer is None:
            return None
        self._silent.watch()
        begun = begin_row(peer, routing.changes, table, block, deadline, ended)
        return None if begun is None else ShardWrite(begun, routing, table, routes, shard)

    def _peer(self, shard: str) -> Peer:
        peer = self._peers.get(shard)
        if peer is None:
            if self._is_over:
                raise Closed(f"shard {shard}: the connections to the cluster were closed")
            peer = self._peers[shard] = self._open_peer(shard, self._routing.seen.sign)
        return peer

    async def _find(self, table: TableId, deadline: Deadline) -> TableRoutes:
        """All that need the same table's routes wait for one answer; whoever has no more time gives up alone."""
        finding = self._finding.get(table)
        if finding is None:
            find = self._routing.locations.find
            finding = self._finding[table] = asyncio.create_task(asyncio.to_thread(find, table, deadline.anew()))
            finding.add_done_callback(lambda done: self._note_found(table, done))
        await asyncio.wait((finding,), timeout=deadline.left_s)
        if not finding.done():
            raise DeadlineExceeded(f"table {table}: nobody said within {deadline.seconds:g} s where its rows are")
        return finding.result()

    def _note_found(self, table: TableId, finding: asyncio.Task[TableRoutes]) -> None:
        self._finding.pop(table, None)
        if not finding.cancelled():
            finding.exception()  # nobody may be left to look at it

    async def retire(self) -> None:
        self._is_over = True
        await asyncio.gather(*(peer.retire() for peer in self._peers.values()))
        self._silent.close()

    async def close(self) -> None:
        self._is_over = True
        self._silent.close()
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))


class ShardWrite:
    """A `WriteUnderWay` to a shard, by the routes that were known."""

    __slots__ = ("_begun", "_routes", "_routing", "_shard", "_table")

    def __init__(self, begun: Begun[Txn], routing: Routing, table: TableId, routes: TableRoutes, shard: str) -> None:
        self._begun = begun
        self._routing = routing
        self._table = table
        self._routes = routes
        self._shard = shard

    @property
    def is_open(self) -> bool:
        return self._begun.is_open

    async def result(self) -> Txn:
        try:
            return self._routing.seen.note(await self._begun.result())
        except (Retryable, UnknownOutcome) as error:
            raise self._routing.explain(self._table, self._routes, self._shard, error) from None
