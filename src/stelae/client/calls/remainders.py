"""Writes of many rows, of which a store let in some and not the others: then what is left follows.

A store that becomes full half-way has let in the first part (PartialWrite); of several shards each takes its part or
refuses it (PartsLeft). Stores do not wait until they can take the rest; the session's loop does, as for any write that
was refused. What is durable is never written again, since others may have changed it meanwhile: where the table was
altered, and all blocks are made anew, only those rows follow that are left.

Once some rows are durable, whatever ends the call says so, and how many: PartialWrite, or UnknownOutcome if nobody
knows what became of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from stelae.client.calls.steps import Again, Steps, Write
from stelae.model.errors import PartialWrite, Retryable, StaleSchema, StelaeError, UnknownOutcome, why_no_more
from stelae.model.ids import TableId, Txn
from stelae.service.blocks import OrderedBlock, blocks_behind, blocks_of_rows


class PartsLeft(StelaeError):
    """Some parts of a write are durable, and nothing happened of the blocks that are `left`: because of the `cause`.
    `newest`: the largest txn of what is durable, as far as it is known. For the call, which goes on with the rest."""

    def __init__(self, left: Sequence[OrderedBlock], newest: Txn, cause: StelaeError) -> None:
        super().__init__(str(cause))
        self.left = left
        self.newest = newest
        self.cause = cause


class Written(msgspec.Struct):
    """How far one write has come. `left`: what is to be written still, once some of it is durable. `rows`: how many
    rows all of it is about. `newest`: the largest txn, as far as it is known."""

    left: Sequence[OrderedBlock] | None = None
    rows: int = 0
    newest: Txn = Txn(0)

    @property
    def rows_durable(self) -> int:
        return 0 if self.left is None else self.rows - len(_rows(self.left))

    def note_durable(self, blocks: Sequence[OrderedBlock], left: Sequence[OrderedBlock]) -> None:
        """Of the blocks, which are all that was to be written just now, only this is left."""
        if self.left is None:
            self.rows = len(_rows(blocks))
        self.left = left

    def tell(self, error: StelaeError) -> StelaeError:
        """What the caller is told when the call ends with an error."""
        if self.left is None:
            return error
        durable = self.rows_durable
        words = f"{durable} of {self.rows} rows are durable"
        if isinstance(error, UnknownOutcome):
            return UnknownOutcome(f"{error}; {words}, the others may be", is_fault=error.is_fault)
        why = why_no_more(error)  # how many rows of its own part were durable is counted already
        return PartialWrite(f"{words}; then: {why}", durable, why)


def write_blocks(
    table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, written: Written
) -> Steps[Txn]:
    """The largest txn. StaleSchema: the caller makes all blocks anew, and comes again with what is `written`."""
    if written.left is not None:
        blocks = blocks_of_rows(blocks, _rows(written.left))
    step = Write(table, blocks, max_txn, must_show)
    while True:
        try:
            txn: Txn = yield step
            return max(txn, written.newest)
        except PartialWrite as error:
            if not error.durable:
                raise
            left = blocks_behind(step.blocks, error.durable)  # with the numbers that they have
            written.note_durable(step.blocks, left)
            step.blocks = left
            if not left:
                raise
            continue
        except PartsLeft as error:
            written.note_durable(step.blocks, error.left)
            step.blocks, written.newest = error.left, max(written.newest, error.newest)
            cause = error.cause
        # Behind the `except`: what is raised in it would lead to PartsLeft, and keep all blocks that are not written.
        if not may_repeat(cause):
            raise cause
        yield Again(cause)


def may_repeat(error: StelaeError) -> bool:
    """Whether what is left may be written by asking again with nothing changed."""
    if isinstance(error, PartialWrite):
        return bool(error.durable)
    return isinstance(error, Retryable) and not isinstance(error, StaleSchema)


def _rows(blocks: Sequence[OrderedBlock]) -> pa.Array:
    """The rows that blocks are about, each once."""
    return pa.chunked_array([block.rows for block in blocks], pa.binary()).unique()
