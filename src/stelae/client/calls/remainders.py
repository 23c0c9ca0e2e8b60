"""Writes of many rows, of which a store lets in the first part when it becomes full half-way: then the rest follows.

The store does not wait until there is room; the session's loop does, as for any write that was refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from stelae.client.calls.steps import Steps, Write
from stelae.model.errors import PartialWrite, StaleSchema, StelaeError, UnknownOutcome
from stelae.model.ids import TableId, Txn
from stelae.service.blocks import OrderedBlock, blocks_behind


class Written(msgspec.Struct):
    """How far one write of many rows has come: so many of its records are durable. Kept while its blocks are made anew
    because the table was altered: what is durable is not written again, since others may have changed it meanwhile."""

    durable: int = 0
    count: int = 0


def write_blocks(
    table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool, written: Written
) -> Steps[Txn]:
    """The txn of the last part. If the rest fails in the end, the error says how many rows are durable. StaleSchema:
    the caller makes all blocks anew, and comes again with what is `written`."""
    count = sum(block.count for block in blocks)
    if written.durable and count != written.count:
        raise PartialWrite(
            f"the first {written.durable} records are durable; then the table was altered so that the rest are others",
            written.durable,
        )
    written.count = count
    step = Write(table, blocks_behind(blocks, written.durable), max_txn, must_show)
    while True:
        try:
            txn: Txn = yield step
            return txn
        except StaleSchema:
            raise
        except PartialWrite as error:
            written.durable += error.durable
            step.blocks = blocks_behind(step.blocks, error.durable)  # with the numbers that they have
            if not step.blocks or not error.durable:
                raise
        except UnknownOutcome as error:
            if not written.durable:
                raise
            raise UnknownOutcome(f"{error}; the first {_row_count(blocks, step.blocks)} rows are durable") from error
        except StelaeError as error:
            if not written.durable:
                raise
            rows = _row_count(blocks, step.blocks)
            raise PartialWrite(f"the first {rows} rows are durable; then: {error}", rows) from error


def _row_count(blocks: Sequence[OrderedBlock], rest: Sequence[OrderedBlock]) -> int:
    """How many rows the blocks have before the rest of them."""
    every = pa.chunked_array([block.rows for block in blocks], pa.binary())
    left = sum(block.count for block in rest)
    return len(every.slice(0, len(every) - left).unique())
