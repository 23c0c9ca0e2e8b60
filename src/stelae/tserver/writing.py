"""Blocks of clients on their way into tablets: cut where tablets end, let in, and waited for.

Each part lies in one tablet and is atomic for each of its rows. A tablet that moved meanwhile is looked for again; an
overloaded store is waited for, up to a deadline. All parts are let in before anything is waited for, so one sync makes
all of them durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from stelae.format.block import Block, SmallBlock
from stelae.model.errors import Overloaded, PartialWrite, StaleSchema, StelaeError, TabletAway
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import Row, TableId, Txn
from stelae.ports.clock import Clock
from stelae.service.blocks import OrderedBlock, split_blocks
from stelae.storage.shard import Commit, Shard
from stelae.storage.tablet.opening import SchemasOf, brought_up
from stelae.tserver.server import TabletServer

_ROUTES_MAX = 100
_NAP_S = 0.05


class TableWriter:
    """Safe for threads."""

    def __init__(
        self,
        server: TabletServer,
        schemas_of: SchemasOf,
        clock: Clock,
        overload_wait_s: float,
        on_full: Callable[[], None],
    ) -> None:
        """`on_full`: somebody must flush for the write to go on."""
        self._on_full = on_full
        self._schemas_of = schemas_of
        self._server = server
        self._shard: Shard = server.shard
        self._clock = clock
        self._overload_wait_s = overload_wait_s

    def write(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None) -> Txn:
        """Durable when it returns; the largest txn, or the newest if there is nothing to write."""
        if len(blocks) == 1 and blocks[0].count == 1:
            commit = self._alone(table, blocks[0], max_txn, may_wait=True)
            self._shard.drain()
            return commit.durable.result()
        commits, error = self._let_in(table, blocks, max_txn)
        self._shard.drain()
        return self._settled(commits, error)

    def submit(self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None) -> Future[Txn]:
        """Let in now; somebody must drain the log for the future to be done. Never waits: Overloaded is an answer."""
        done: Future[Txn] = Future()
        if len(blocks) == 1 and blocks[0].count == 1:
            try:
                return self._alone(table, blocks[0], max_txn, may_wait=False).durable
            except StelaeError as refused:
                done.set_exception(refused)
                return done
        commits, error = self._let_in(table, blocks, max_txn, may_wait=False)
        last = commits[-1][1] if commits else None
        if last is None:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(self._shard.visible)
            return done

        def finish(_: Future[Txn]) -> None:
            try:
                done.set_result(self._settled(commits, error))
            except StelaeError as failed:
                done.set_exception(failed)

        # Commits become durable, or fail, in the order of their txns.
        last.durable.add_done_callback(finish)
        return done

    def _alone(self, table: TableId, block: OrderedBlock, max_txn: Txn | None, *, may_wait: bool) -> Commit:
        """A block of one row is of one tablet, and is in or not."""
        while True:
            commit = self._apply(table, block, max_txn, may_wait=may_wait, is_first=True)
            if commit is not None:
                return commit

    def _let_in(
        self, table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, *, may_wait: bool = True
    ) -> tuple[list[tuple[int, Commit]], StelaeError | None]:
        """The commits, with how many rows each has, and what stopped the rest."""
        commits: list[tuple[int, Commit]] = []
        try:
            for block in blocks:
                self._let_block_in(table, block, max_txn, commits, may_wait=may_wait)
        except StelaeError as error:
            return commits, error
        return commits, None

    def _let_block_in(
        self,
        table: TableId,
        ordered: OrderedBlock,
        max_txn: Txn | None,
        commits: list[tuple[int, Commit]],
        *,
        may_wait: bool,
    ) -> None:
        count = ordered.count
        if not count:
            return
        state = self._shard.state_at(table, ordered.first)
        if count == 1 or state.rows.stop is None or ordered.last < state.rows.stop:
            parts = [ordered]
        else:
            starts = [each.rows.start for each in self._shard.of_table(table)][1:]
            parts = [part for _, part in split_blocks(ordered, starts)]
        for part in parts:
            commit = self._apply(table, part, max_txn, may_wait=may_wait, is_first=not commits)
            if commit is None:
                # A tablet was split in between: cut anew.
                self._let_block_in(table, part, max_txn, commits, may_wait=may_wait)
            else:
                commits.append((part.count, commit))

    def _apply(
        self, table: TableId, part: OrderedBlock, max_txn: Txn | None, *, may_wait: bool, is_first: bool
    ) -> Commit | None:
        first, block = part.first, part.block
        deadline_s: float | None = None
        for _ in range(_ROUTES_MAX):
            state = self._shard.state_at(table, first)
            try:
                self._server.check_writable(state.tablet)
                return self._shard.apply(state.tablet, block, max_txn=max_txn)
            except StaleSchema:
                # Whoever wrote it checks it again, unless part of it is in already: then the rest follows as it would
                # if it had come a moment earlier.
                if is_first:
                    raise
                block = self._brought_up(table, first, block)
                if isinstance(block, SmallBlock) and not block.mutations:
                    # All columns that were written are gone. Done when what came before it is.
                    return Commit(self._shard.visible, self._shard.sync(TXN_MAX))
            except TabletAway:
                now = self._shard.state_at(table, first)
                if part.last not in now.rows:
                    return None
                if now is state:
                    raise
            except Overloaded:
                now_s = self._clock.monotonic_s()
                deadline_s = now_s + self._overload_wait_s if deadline_s is None else deadline_s
                if not may_wait or now_s >= deadline_s:
                    raise
                self._wait_for_room(min(_NAP_S * 10, deadline_s - now_s))
        raise Overloaded(f"the tablet of row {first!r} kept moving; try again")

    def _brought_up(self, table: TableId, first: Row, block: Block) -> Block:
        """To the schema that the tablet has now, which the catalog may be ahead of."""
        version = self._shard.state_at(table, first).schema.version
        schemas = [schema for schema in self._schemas_of(table) if schema.version <= version]
        return replace(brought_up(block, schemas, "a block"), schema_version=version)

    def _wait_for_room(self, seconds: float) -> None:
        self._shard.drain()
        self._on_full()
        try:
            self._shard.when_room().result(seconds)
        except FutureTimeout:
            return

    def _settled(self, commits: Sequence[tuple[int, Commit]], error: StelaeError | None) -> Txn:
        durable, last = 0, self._shard.visible if not commits else Txn(0)
        for count, commit in commits:
            failure = commit.durable.exception()
            if failure is None:
                durable += count
                last = max(last, commit.txn)
            elif isinstance(failure, StelaeError):
                error = error or failure
            else:
                raise failure
        if error is None:
            return last
        if not durable:
            raise error
        raise PartialWrite(f"{durable} rows are durable, the rest is not: {error}", durable) from error
