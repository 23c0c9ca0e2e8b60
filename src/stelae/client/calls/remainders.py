"""Writes of many rows, of which a store lets in the first part when it becomes full half-way: then the rest follows.

The store does not wait until there is room; the session's loop does, as for any write that was refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from stelae.client.calls.steps import Steps, Write
from stelae.model.errors import PartialWrite, StelaeError, UnknownOutcome
from stelae.model.ids import TableId, Txn
from stelae.service.blocks import OrderedBlock, blocks_behind


def write_blocks(table: TableId, blocks: Sequence[OrderedBlock], max_txn: Txn | None, must_show: bool) -> Steps[Txn]:
    """The txn of the last part. If the rest fails in the end, the error says how many rows are durable. StaleSchema
    comes out only while none is: the caller makes all of them anew then, and no row may be written twice."""
    rest, durable = blocks, 0
    while True:
        try:
            txn: Txn = yield Write(table, rest, max_txn, must_show)
            return txn
        except PartialWrite as error:
            durable += error.durable
            rest = blocks_behind(blocks, durable)
            if not rest or not error.durable:
                raise
        except UnknownOutcome as error:
            if not durable:
                raise
            raise UnknownOutcome(f"{error}; the first {_row_count(blocks, rest)} rows are durable") from error
        except StelaeError as error:
            if not durable:
                raise
            rows = _row_count(blocks, rest)
            raise PartialWrite(f"the first {rows} rows are durable; then: {error}", rows) from error


def _row_count(blocks: Sequence[OrderedBlock], rest: Sequence[OrderedBlock]) -> int:
    """How many rows the blocks have before the rest of them."""
    every = pa.chunked_array([block.rows for block in blocks], pa.binary())
    left = sum(block.count for block in rest)
    return len(every.slice(0, len(every) - left).unique())
