"""Blocks of clients on their way into tablets: cut where tablets end, let in, and waited for.

Each part lies in one tablet and is atomic for each of its rows. A tablet that moved meanwhile is looked for again. All
parts are let in before anything is waited for, so one sync makes all of them durable. Nobody waits here for room: a
full store says Overloaded, and the client comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from msgspec.structs import replace

from stelae.format.block import Block, SmallBlock
from stelae.model.errors import (
    ClockTooFarAhead,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    PartialWrite,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.hybrid import millis_of
from stelae.model.ids import Row, TableId, Txn
from stelae.service.blocks import OrderedBlock, cut_block, split_blocks
from stelae.service.deadlines import Deadline, left_of
from stelae.storage.log.done import DoneInPart
from stelae.storage.log.futures import settled_all, wait_for
from stelae.storage.read.points.conditions import UndecidedConflict
from stelae.storage.shard import Commit, Shard
from stelae.storage.tablet.doubts import ChangeInDoubt
from stelae.storage.tablet.opening import SchemasOf, brought_up

_ROUTES_MAX = 100


Settle = Callable[[TableId, Txn, Deadline | None], None]
"""When it returns, whatever change of the table happens at or below the txn has happened here."""


class TableWriter:
    """Leads blocks to the tablets that hold their rows. Safe for threads. `is_alone`: all that read rows were given
    their txns by this server's clock."""

    def __init__(self, shard: Shard, schemas_of: SchemasOf, settle: Settle, *, is_alone: bool = True) -> None:
        self._shard = shard
        self._schemas_of = schemas_of
        self._settle = settle
        self._is_alone = is_alone

    def write(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None,
        must_show: bool,
        deadline: Deadline | None,
    ) -> Txn:
        """Durable when it returns; the largest txn, or the newest if there is nothing to write."""
        if _is_row(blocks, max_txn):
            durable = self._let_row_in(table, blocks[0], max_txn, must_show, deadline).durable
            self._shard.drain(deadline)
            try:
                return durable.result(None if deadline is None else 0)
            except TimeoutError:
                return wait_durable(durable, deadline)
        commits, error = self._let_in(table, blocks)
        self._shard.drain(deadline)
        return self._outcome(commits, error, deadline)

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None,
        must_show: bool,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        """Let in now; somebody must drain the log for the future to be done."""
        if _is_row(blocks, max_txn):
            return self._submit_row(table, blocks[0], max_txn, must_show, deadline)
        done: Future[Txn] = Future()
        commits, error = self._let_in(table, blocks)
        if not commits:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(self._shard.visible)
            return done

        def finish(_: Future[None]) -> None:
            try:
                done.set_result(self._outcome(commits, error, None))
            except StelaeError as failed:
                done.set_exception(failed)

        settled_all([commit.durable for _, commit in commits]).add_done_callback(finish)
        return done

    def _let_row_in(
        self, table: TableId, block: OrderedBlock, max_txn: Txn | None, must_show: bool, deadline: Deadline | None
    ) -> Commit:
        """A block of one row is of one tablet, and is in or not. A conflict with what is not decided yet is waited for:
        whoever is told of one can read what caused it."""
        while True:
            try:
                commit = self._apply(table, block, max_txn, must_show, is_first=True)
            except UndecidedConflict as undecided:
                wait_decided(self._shard, undecided.txn, deadline)
            except ChangeInDoubt as doubt:
                self._settle(table, doubt.txn, deadline)
            else:
                if commit is not None:
                    return commit

    def _submit_row(
        self,
        table: TableId,
        block: OrderedBlock,
        max_txn: Txn | None,
        must_show: bool,
        deadline: Deadline | None,
        *,
        may_wait: bool = True,
    ) -> Future[Txn]:
        """As `_let_row_in`, but what waits is the future. Behind a future nobody else is asked, since the log's own
        thread may have brought it there: whoever wrote tries again."""
        while True:
            try:
                commit = self._apply(table, block, max_txn, must_show, is_first=True)
                if commit is not None:
                    return commit.durable
            except UndecidedConflict as undecided:
                decided = self._shard.ready(undecided.txn)
                if decided is not None:
                    again = partial(self._submit_row, table, block, max_txn, must_show, deadline, may_wait=False)
                    return _after(decided, again)
            except ChangeInDoubt as doubt:
                if not may_wait:
                    return _refused(Unavailable(str(doubt)))
                try:
                    self._settle(table, doubt.txn, deadline)
                except StelaeError as error:
                    return _refused(error)
            except StelaeError as error:
                return _refused(error)

    def _let_in(
        self, table: TableId, blocks: Sequence[OrderedBlock]
    ) -> tuple[list[tuple[int, Commit]], StelaeError | None]:
        """The commits, with how many rows each has, and what stopped the rest."""
        commits: list[tuple[int, Commit]] = []
        try:
            for block in blocks:
                self._let_block_in(table, block, commits)
        except StelaeError as error:
            return commits, error
        return commits, None

    def _let_block_in(self, table: TableId, ordered: OrderedBlock, commits: list[tuple[int, Commit]]) -> None:
        count = ordered.count
        if not count:
            return
        state = self._shard.state_at(table, ordered.first)
        if count == 1 or state.rows.stop is None or ordered.last < state.rows.stop:
            parts = [ordered]
        else:
            # Where tablets end, too: what follows may be on another server.
            ranges = [each.rows for each in self._shard.of_table(table)]
            bounds = {bound for rows in ranges for bound in (rows.start, rows.stop) if bound}
            parts = [part for _, part in split_blocks(ordered, sorted(bounds))]
        for part in parts:
            try:
                commit = self._apply(table, part, None, False, is_first=not commits)
            except DoneInPart as found:
                for piece in cut_block(part, found.places):
                    self._let_block_in(table, piece, commits)
                continue
            if commit is None:
                # A tablet was split in between: cut anew.
                self._let_block_in(table, part, commits)
            else:
                commits.append((part.count, commit))

    def _apply(
        self, table: TableId, part: OrderedBlock, max_txn: Txn | None, must_show: bool, *, is_first: bool
    ) -> Commit | None:
        """Let a part into its tablet; None if that does not hold all of its rows any more. The bytes a block came as
        are those that are logged, unless it had to be changed."""
        first, block, data, once = part.first, part.block, part.data, part.once
        count = 0 if once is None else part.count
        if max_txn is not None and max_txn > self._shard.clock.last:
            self._follow(max_txn)
        for _ in range(_ROUTES_MAX):
            state = self._shard.state_at(table, first)
            try:
                return self._shard.apply(
                    state.tablet, block, payload=data, max_txn=max_txn, must_show=must_show, once=once, places=count
                )
            except StaleSchema:
                # Whoever wrote it checks it again, unless part of it is in already: then the rest follows as it would
                # if it had come a moment earlier.
                if is_first:
                    raise
                block, data = self._bring_up(table, first, block), None
                if isinstance(block, SmallBlock) and not block.mutations:
                    # All columns that were written are gone. Done when what came before it is.
                    return self._shard.sync()
            except TabletAway:
                now = self._shard.state_at(table, first)
                if part.last not in now.rows:
                    return None
                if now is state:
                    raise
        raise Overloaded(f"the tablet of row {first!r} kept moving; try again")

    def _follow(self, max_txn: Txn) -> None:
        """Let the clock pass a txn up to which a row may have been read. If it lies in the future: InvalidArgument if
        nobody else gives out txns, ClockTooFarAhead if somebody does, whose clock may be a little ahead of this one."""
        clock = self._shard.clock
        if self._is_alone:
            now = clock.tick()
            if max_txn > now:
                raise InvalidArgument(_of_the_future(max_txn, millis_of(max_txn) - millis_of(now)))
        elif ahead_ms := clock.too_far_ms(max_txn):
            raise ClockTooFarAhead(_of_the_future(max_txn, ahead_ms))
        else:
            clock.merge(max_txn)

    def _bring_up(self, table: TableId, first: Row, block: Block) -> Block:
        """The block under the schema that the tablet has now, which the catalog may be ahead of."""
        version = self._shard.state_at(table, first).schema.version
        schemas = [schema for schema in self._schemas_of(table) if schema.version <= version]
        return replace(brought_up(block, schemas, "a block"), schema_version=version)

    def _outcome(
        self, commits: Sequence[tuple[int, Commit]], error: StelaeError | None, deadline: Deadline | None
    ) -> Txn:
        """Wait until every commit is decided; the largest txn, if all that was asked for is durable. `error`: why what
        is behind the commits was refused. PartialWrite tells of a beginning: what is durable behind something that is
        not (it was done before, by another try) makes it UnknownOutcome."""
        durable, behind, last = 0, 0, self._shard.visible if not commits else Txn(0)
        failed: StelaeError | None = None
        unknown: UnknownOutcome | None = None
        for count, commit in commits:
            try:
                failure = commit.durable.exception(None if deadline is None else deadline.left_s)
            except TimeoutError:
                raise _late(deadline, f"{durable + behind} rows are durable, and the others may be or not") from None
            if failure is None:
                last = max(last, commit.txn)
                durable, behind = (durable + count, 0) if failed is None else (durable, behind + count)
            elif isinstance(failure, StelaeError):
                failed = failed or failure
                unknown = failure if unknown is None and isinstance(failure, UnknownOutcome) else unknown
            else:
                raise failure
        error = unknown or failed or error
        if error is None:
            return last
        if not durable and not behind:
            raise error
        if behind or isinstance(error, UnknownOutcome):
            words = f"{durable + behind} rows are durable, and the others may be or not: {error}"
            raise UnknownOutcome(words) from error
        raise PartialWrite(f"{durable} rows are durable, the rest is not: {error}", durable, str(error)) from error


def _is_row(blocks: Sequence[OrderedBlock], max_txn: Txn | None) -> bool:
    """Whether all of it is about one row, as whatever is conditioned on a row must be."""
    if len(blocks) == 1 and blocks[0].count == 1:
        return True
    if max_txn is None:
        return False
    if len(blocks) != 1 or not blocks[0].count or blocks[0].first != blocks[0].last:
        raise InvalidArgument("a write with max_txn is one block of one row")
    return True


def _of_the_future(max_txn: Txn, ahead_ms: int) -> str:
    return (
        f"if_unchanged_since={max_txn} lies in the future, by {ahead_ms / 1_000:.3f} s: give the txn of a row that was "
        "read, row.txn"
    )


def wait_decided(shard: Shard, txn: Txn, deadline: Deadline | None, table: TableId | None = None) -> None:
    """Until all at or below the txn is on disk, or has failed; of one table, or of all."""
    decided = shard.ready(txn, table)
    if decided is None:
        return
    shard.drain(deadline)
    wait_for([decided], left_of(deadline))
    if deadline is not None and not decided.done():
        raise DeadlineExceeded(
            f"what was written at or before {txn} was not all on disk within the {deadline.seconds:g} s given"
        )


def _refused(error: StelaeError) -> Future[Txn]:
    refused: Future[Txn] = Future()
    refused.set_exception(error)
    return refused


def _after(decided: Future[None], submit: Callable[[], Future[Txn]]) -> Future[Txn]:
    """What becomes of a write that is submitted once something is decided."""
    later: Future[Txn] = Future()
    decided.add_done_callback(lambda _: _pass_on(submit(), later))
    return later


def _pass_on(future: Future[Txn], to: Future[Txn]) -> None:
    """What becomes of a write is what becomes of another."""

    def finish(done: Future[Txn]) -> None:
        error = done.exception()
        if error is None:
            to.set_result(done.result())
        else:
            to.set_exception(error)

    future.add_done_callback(finish)


def wait_durable(durable: Future[Txn], deadline: Deadline | None) -> Txn:
    """The txn of a commit, once it is on disk; UnknownOutcome at the deadline."""
    try:
        return durable.result(None if deadline is None else deadline.left_s)
    except TimeoutError:
        raise _late(deadline, "the write may happen or not") from None


def _late(deadline: Deadline | None, what: str) -> UnknownOutcome:
    given = "" if deadline is None else f" within the {deadline.seconds:g} s that were given for it"
    return UnknownOutcome(f"{what}: it was not on disk{given}")
