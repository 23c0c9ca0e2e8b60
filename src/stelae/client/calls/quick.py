"""Single rows in the quickest way there is, where nothing is odd. What comes of anything else is left to the steps of
`rows`, which do it again from the beginning: nothing has happened by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stelae.client.api.rows import Row as FoundRow
from stelae.client.arguments.keys import txn_of
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.brief import MISTAKES
from stelae.client.calls.order import Turn, span_of_row
from stelae.client.calls.steps import Steps, Write
from stelae.client.calls.views import TableView
from stelae.model.errors import InvalidArgument, NotCached, Retryable, SnapshotTooOld, StaleSchema, UnknownOutcome
from stelae.model.ids import TableId, Txn
from stelae.service.backend import Backend, QuickReads, RowsOnLoop, Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline


class Missed:
    """The quick way did not lead to an answer. `error`: what a store said that may say something else soon."""

    __slots__ = ("error",)

    def __init__(self, error: Retryable | None = None) -> None:
        self.error = error


_MISSED = Missed()


def quick_get(
    view: TableView,
    backend: Backend,
    newest: Callable[..., tuple[Txn, Values | None]],
    key: object,
    columns: Sequence[str] | None,
    at: object,
    quick: QuickReads | None = None,
) -> FoundRow | Missed | None:
    """`Rows.get` where nothing is odd. `newest` is the backend's, or `newest_cached`. `quick`: a quicker way, which may
    read from files."""
    try:
        shape = view.whole if columns is None else view.shape(columns)
        row = view.row_of(key)
        if quick is not None and at is None and shape.is_flat and not view.has_ages:
            told = quick.values(view.id, row, shape.selectors, view.schema.version)
            if told is not None:
                txn, known = told
                if isinstance(known, tuple):
                    return view.found_row(shape, key, row, known, txn)
                if known is None:
                    return None
                found = shape.found(view.started(key, row, txn), known)
                return _MISSED if found is None else found
        if at is None and not view.has_ages:
            txn, values = newest(view.id, row, shape.selectors)
        else:
            txn, values = newest(view.id, row, shape.selectors, backend.now(view.id) if at is None else txn_of(at))
    except (InvalidArgument, Retryable, NotCached, SnapshotTooOld):
        return _MISSED
    if values is None:
        return None
    if columns is not None and shape.is_doubtful(values):
        return _MISSED
    found = shape.found(view.started(key, row, txn), values)
    return _MISSED if found is None else found


async def quick_get_on_loop(
    view: TableView,
    backend: Backend,
    rows: RowsOnLoop,
    key: object,
    columns: Sequence[str] | None,
    at: object,
    deadline: Deadline,
) -> FoundRow | Missed | None:
    """The same in an event loop, for a backend of another process. `rows`: the backend's."""
    try:
        if at is None and view.has_ages:
            return _MISSED
        shape = view.whole if columns is None else view.shape(columns)
        wanted = None if at is None else txn_of(at)
        found = await rows.newest(view.id, view.row_of(key), shape.selectors, wanted, deadline)
    except (InvalidArgument, SnapshotTooOld):
        return _MISSED
    except Retryable as error:
        return Missed(error)
    return quick_get(view, backend, lambda *_: found, key, columns, at)


async def put_on_loop(
    session: AsyncSession,
    rows: RowsOnLoop,
    table: TableId,
    block: OrderedBlock,
    deadline: Deadline,
    steps: Callable[[], Steps[Txn]],
) -> Txn:
    """Write a block of one row to a store of another process: sent before anything is waited for, if nobody writes the
    row already. `steps`: the same write, step by step, with its turn if it had one."""
    order, row = session.order, block.first
    span = span_of_row(row)
    if order.has_turns and not order.is_free(table, span):
        return await session.run(steps(), deadline)
    turn = order.take(table, span)
    held, numbering = _HeldTurn(turn), session.session.begin_numbering()
    try:
        sent = Write(table, (block,))
        numbering.number(sent)
        begun = rows.begin_write(table, sent.blocks[0], deadline, held.leave)
        if begun is None:
            return await session.run(steps(), deadline, turn=held.give(), numbering=numbering)
        try:
            return await begun.result()
        except asyncio.CancelledError:
            if begun.is_open:
                held.is_left = True
            raise
        except StaleSchema:
            return await session.run(steps(), deadline, turn=held.give(), numbering=numbering)
        except (Retryable, UnknownOutcome) as error:
            again = numbering.judge(sent, error)
            return await session.run(steps(), deadline, failed=again, turn=held.give(), numbering=numbering)
        except MISTAKES as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
    finally:
        held.end()
        numbering.end()


class _HeldTurn:
    """The turn of one write. `is_left`: nobody waits any more, and the turn ends when the write does."""

    __slots__ = ("_turn", "is_left")

    def __init__(self, turn: Turn) -> None:
        self._turn: Turn | None = turn
        self.is_left = False

    def give(self) -> Turn | None:
        """To whoever ends it from then on."""
        turn, self._turn = self._turn, None
        return turn

    def leave(self) -> None:
        """The write is over: end the turn, if whoever waited for it is gone and has left that to the write."""
        if self.is_left:
            self.is_left = False
            self.end()

    def end(self) -> None:
        if self._turn is not None and not self.is_left:
            self._turn.end()
            self._turn = None
