"""Blocks that came over a connection, looked at before the store sees them. Their bytes stay what they are: those are
what the log gets."""

from __future__ import annotations

from itertools import pairwise

from stelae.format import layout
from stelae.format.block import SmallBlock, decode_block
from stelae.model.errors import InvalidArgument, StaleSchema
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.once import Once
from stelae.model.schema import TableSchema
from stelae.service.blocks import OrderedBlock
from stelae.service.bodies import Bytes
from stelae.storage.checks.blocks import check_block


def read_block(
    schema: TableSchema, data: Bytes, limits: Limits = DEFAULT_LIMITS, once: Once | None = None
) -> OrderedBlock:
    """A block from elsewhere as the store takes it: whole, of this schema, its rows in order. What `decode_block` and
    `check_block` raise comes out. `once`: its number, if it has one."""
    block = decode_block(data, limits)
    if block.schema_version != schema.version:
        raise StaleSchema(f"a block of schema version {block.schema_version}; the table is at {schema.version}")
    check_block(schema, block, limits, len(data))
    if not isinstance(block, SmallBlock):
        return OrderedBlock(block, layout.rows_of(schema.codec, block.batch), data, once)
    if any(a.row > b.row for a, b in pairwise(block.mutations)):
        raise InvalidArgument("block: its rows do not ascend")
    return OrderedBlock(block, None, data, once)
