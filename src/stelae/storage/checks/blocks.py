"""The door of the write path: a block is checked whole before any of it counts.

Whatever sent the block, what passes can be logged, replayed, kept in memory, written to files and read back under the
schema it was checked with; what does not is refused, with the row and the column at fault.

What may be written is said in `mutations`; `columnar` holds blocks of columns to the same, in vectors. Besides that, a
block says something, and can be read again: a small one keeps the bounds of `format/block`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal as PyDecimal

from stelae.format.block import NESTED_BYTES_MAX, SMALL_MUTATIONS_MAX, Block, SmallBlock
from stelae.format.columnar import ColumnarBlock
from stelae.model.errors import InvalidArgument
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Mutation, Put
from stelae.model.schema import TableSchema
from stelae.model.values import show
from stelae.storage.checks.columnar import check_columnar
from stelae.storage.checks.mutations import check_mutations
from stelae.storage.checks.rules import check_size
from stelae.storage.checks.sizes import packed_bytes

_PACKED = frozenset((PyDecimal, date, datetime, list, dict))


def check_block(
    schema: TableSchema, block: Block, limits: Limits = DEFAULT_LIMITS, size_bytes: int | None = None
) -> None:
    """InvalidArgument if the block may not be written. `size_bytes`: of the block as it is encoded, where known."""
    if size_bytes is not None:
        check_size("block: it", size_bytes, limits.block_bytes_max)
    if not 0 < block.schema_version < 2**31:
        raise InvalidArgument(f"block: {show(block.schema_version)} is no schema version")
    match block:
        case SmallBlock():
            _check_small(schema, block, limits)
        case ColumnarBlock():
            check_columnar(schema, block, limits)


def _check_small(schema: TableSchema, block: SmallBlock, limits: Limits) -> None:
    count = len(block.mutations)
    if not 1 <= count <= SMALL_MUTATIONS_MAX:
        raise InvalidArgument(f"block: {count} mutations; a small block has from 1 to {SMALL_MUTATIONS_MAX}")
    if check_mutations(schema, block.mutations, limits) > NESTED_BYTES_MAX:
        check_size("block: what is nested in it", _nested_bytes(block.mutations), NESTED_BYTES_MAX)


def _nested_bytes(mutations: Sequence[Mutation]) -> int:
    """What a reader of the block will count before it decodes a value."""
    puts = [mutation for mutation in mutations if isinstance(mutation, Put)]
    values = [value for put in puts for _, value in put.values]
    return sum(packed_bytes(value) for value in values if type(value) in _PACKED)
