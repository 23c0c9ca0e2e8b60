"""What a scan asks of a store: which rows, at which snapshot, in which order, and how to go on from where one stopped.

A predicate is bound to a table's schema once, by `bind`, by the client that makes the scan: from then on its condition
is in the types of that schema. Over a connection it goes as it was said, as text, and the server that gets it binds
that once more: what comes from outside has to be checked anyhow, and that is the check (decision 52).
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.model.ids import Row, SchemaVersion, Txn
from stelae.model.keys.vector import encode_arrays
from stelae.model.predicate.binding import WILDCARD_CELLS, check_types
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.keyranges import key_ranges
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.schema import ColumnsGroup, TableSchema
from stelae.model.types import Binary, ColumnType
from stelae.storage.read.scans.shapes import fixed


class Binding(msgspec.Struct, frozen=True):
    """`condition`: what `predicate.where` says, in the types that columns have in `schema`."""

    schema: TableSchema
    condition: Expr | None = None


class ScanAsk(msgspec.Struct, frozen=True):
    """Rows of a table at the snapshot `at`, which whoever asks holds pinned. At most `limit` rows.

    Every row that exists and the predicate is true of, with what it has of `predicate.columns`. `having`: only those
    that have one of the columns.

    `binding` None: the predicate is as it was said, and the store binds it, if its schema is still of the version
    `schema_version`, to which whoever asks has bound it: names may mean other columns in another one. `predicate.where`
    stays as it was said in either case; it is what goes over a connection.
    """

    predicate: ScanPredicate
    at: Txn
    reverse: bool = False
    limit: int | None = None
    binding: Binding | None = None
    having: bool = False
    schema_version: SchemaVersion | None = None

    @property
    def is_done(self) -> bool:
        """Whether the scan has no rows left to give."""
        return self.limit == 0 or self.predicate.rows.is_empty

    def after(self, row: bytes, count: int) -> ScanAsk:
        """What is left once `count` rows have been given out, of which `row`, encoded, was the last.

        The one rule for going on: of pages, of retries, and when another process takes the store over."""
        rows = self.predicate.rows.after(row, reverse=self.reverse)
        limit = None if self.limit is None else max(0, self.limit - count)
        return replace(self, predicate=replace(self.predicate, rows=rows), limit=limit)

    def after_batch(self, schema: TableSchema, batch: pa.RecordBatch, count: int) -> ScanAsk:
        """What is left once `count` rows have been given out, the last of them the last of this batch, which has the
        table's key columns."""
        return self.after(last_row(schema, batch), count)


def last_row(schema: TableSchema, batch: pa.RecordBatch) -> Row:
    """The encoded key of the last row of a batch."""
    codec, last = schema.codec, batch.num_rows - 1
    return Row(encode_arrays(codec, [batch.column(name).slice(last) for name in codec.names])[0].as_py())


def close_stream(items: object) -> None:
    """Let go of what an iterator still holds: nobody takes the rest. Not every one has something to let go of."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


def bind(predicate: ScanPredicate, schema: TableSchema) -> tuple[ScanPredicate, Binding]:
    """The predicate with its columns by the names that this schema has, and no other rows than its condition leaves;
    and what it is bound to. InvalidArgument if the condition does not fit the schema's types."""
    columns = fixed(schema, predicate.columns)
    if predicate.where is None:
        if columns != predicate.columns:
            predicate = replace(predicate, columns=columns)
        return predicate, Binding(schema)
    condition = check_types(predicate.where, condition_types(schema))
    rows = predicate.rows.intersect(key_ranges(condition, schema.codec))
    return replace(predicate, rows=rows, columns=columns), Binding(schema, condition)


def condition_types(schema: TableSchema) -> dict[str, ColumnType]:
    """Everything a condition can name."""
    types: dict[str, ColumnType] = {column.name: column.type for column in schema.key}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            types.update((column.name, column.type) for column in group.columns)
        else:
            types.update((f"{family.name}:", Binary()) for family in group.families)
            types.update({WILDCARD_CELLS: Binary()} if group.wildcard else {})
    return types
