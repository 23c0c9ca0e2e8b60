"""What blocks say, one mutation at a time, and what a table then holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from stelae.format import layout
from stelae.format.block import Block, SmallBlock, decode_block, encode_block
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model.arrow_values import values_of
from stelae.model.hybrid import pack
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Columns, Erase, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.schema import CellsGroup, ColumnsGroup, TableSchema
from stelae.service.blocks import OrderedBlock
from stelae.storage.checks.blocks import check_block
from tests.storage.plain import PlainTable

TXN = pack(1_700_000_000_000)
LATER = pack(1_700_000_001_000)


def mutations_in(schema: TableSchema, block: Block) -> list[Mutation]:
    if isinstance(block, SmallBlock):
        return list(block.mutations)
    batch = block.batch
    rows = [Row(row) for row in layout.rows_of(schema.codec, batch).to_pylist()]
    times: list[Micros | None] = [None] * len(rows)
    if layout.TS in batch.schema.names:
        times = batch.column(layout.TS).view(pa.int64()).to_pylist()
    match block.op:
        case ColumnarOp.ERASE_ROWS:
            return [Erase(row, WholeRow(), ts) for row, ts in zip(rows, times, strict=True)]
        case ColumnarOp.PUT_CELLS:
            parts = [batch.column(name).to_pylist() for name in (layout.FAMILY, layout.QUALIFIER, layout.VALUE)]
            return [PutCell(*cell) for cell in zip(rows, *parts, times, strict=True)]
        case ColumnarOp.PUT:
            return _puts(schema, block, rows, times)


def _puts(schema: TableSchema, block: ColumnarBlock, rows: list[Row], times: list[Micros | None]) -> list[Mutation]:
    keys = {column.id for column in schema.key}
    ids = {name: layout.field_id(block.batch.schema.field(name)) for name in block.batch.schema.names}
    columns = {
        ColumnId(id_): values_of(schema.column_by_id(ColumnId(id_))[1].type, block.batch.column(name))
        for name, id_ in ids.items()
        if name not in layout.SYSTEM_NAMES and id_ is not None and id_ not in keys
    }
    found: list[Mutation] = []
    for at, (row, ts) in enumerate(zip(rows, times, strict=True)):
        values = [(id_, column[at]) for id_, column in columns.items() if block.nulls_written or column[at] is not None]
        found.append(Put(row, tuple(values), ts))
    return found


def checked(schema: TableSchema, blocks: Iterable[OrderedBlock], limits: Limits = DEFAULT_LIMITS) -> list[Mutation]:
    """All mutations of blocks that pass the door as they are and as they are sent, whose rows are as they say, and of
    which no two have a row in common."""
    found: list[Mutation] = []
    seen: set[bytes] = set()
    for ordered in blocks:
        sent = encode_block(ordered.block)
        check_block(schema, ordered.block, limits, len(sent))
        received = decode_block(sent, limits)
        check_block(schema, received, limits)
        mutations = mutations_in(schema, ordered.block)
        assert repr(mutations) == repr(mutations_in(schema, received))
        rows = ordered.rows.to_pylist()
        assert rows == [mutation.row for mutation in mutations]
        assert rows == sorted(rows)
        assert not seen & set(rows)
        seen |= set(rows)
        found += mutations
    return found


Held = dict[Row, tuple[dict[str, tuple[tuple[int, Any], ...]], bool]]


def held(schema: TableSchema, mutations: Iterable[Mutation]) -> Held:
    """By row: all versions of each column and cell, and whether the key alone was said."""
    table = PlainTable(schema)
    table.commit(TXN, mutations)
    rows = table.read(TXN, history=1_000)
    ids = tuple(c.id for g in schema.groups if isinstance(g, ColumnsGroup) for c in g.columns)
    families = [f.name for g in schema.groups if isinstance(g, CellsGroup) for f in g.families]
    names = {name.partition(":")[0] for row in rows.values() for name in row.versions if ":" in name}
    erasures: list[Mutation] = []
    for row in rows:
        erasures += [Erase(row, Columns(ids))] if ids else []
        erasures += [Erase(row, WholeFamily(family)) for family in dict.fromkeys([*families, *names])]
    table.commit(LATER, erasures)
    bare = table.read(LATER)
    return {
        row: (
            {name: tuple((v.ts, _shown(v.value)) for v in versions) for name, versions in found.versions.items()},
            row in bare,
        )
        for row, found in rows.items()
    }


def _shown(value: Any) -> Any:
    """NaN equals itself here, and 1 is not 1.0 or True."""
    return repr(value)
