"""How a scan runs, batch by batch, on whichever thread asks for the next one.

A scan that meets a passing error goes on behind the last row it gave out, at its snapshot, within its patience. The
rows of a hash-partitioned table come in the order of their tokens; in the order of keys they are gathered and sorted,
and where there is a limit no more than that many are held besides a batch.

With `history = N` the scan finds the rows, and each row's versions are read one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.client.api.rows import Row as FoundRow
from stelae.client.api.rows import Version as FoundVersion
from stelae.client.api.rows import rows_of_batch
from stelae.client.arguments.keys import after_key, txn_of
from stelae.client.arguments.predicates import with_condition
from stelae.client.calls.retries import Attempts
from stelae.client.calls.rows import versions_of
from stelae.client.calls.session import Session
from stelae.client.calls.tokens import PageToken, read_token
from stelae.client.calls.versions import long_batch, long_schema, shown_schema, versions_batch, versions_schema
from stelae.client.calls.views import ALL_ROWS, RowShape, TableView, is_having
from stelae.model.arrow import compute as pc
from stelae.model.errors import InvalidArgument, Retryable, SchemaChanged, StaleSchema
from stelae.model.hybrid import show_txn
from stelae.model.ids import Row, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.vector import encode_arrays
from stelae.model.predicate.plan import ALL_TIME, ScanPredicate
from stelae.model.values import show
from stelae.service.scans import Binding, ScanAsk, close_stream
from stelae.storage.read.scans.shapes import fixed, output_schema, read_shape

_SORT_KEY = "_row"
_SORTED_BATCH_ROWS = 65_536

FEW_ROWS = 1_000
"""So many rows are not too many to be held at once."""

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]


class ScanPlan(msgspec.Struct, frozen=True):
    """All that a scan is, but for its snapshot. `by_key`: rows are sorted by their key here. `token`: go on behind.
    `having`: only rows that have one of the columns."""

    view: TableView
    shape: RowShape
    predicate: ScanPredicate
    binding: Binding
    limit: int | None = None
    reverse: bool = False
    by_key: bool = False
    cells: str = "map"
    token: PageToken | None = None
    having: bool = False

    def ask(self, at: Txn) -> ScanAsk:
        """Of a store. What comes back may have to be sorted, and is limited after that."""
        limit = None if self.by_key else self.limit
        return ScanAsk(self.predicate, at, self.reverse, limit, self.binding, self.having)

    @property
    def is_simple(self) -> bool:
        """A range of rows in its order, few of them as far as one can see, without a condition; columns of plain
        values."""
        if self.limit is None:
            may_be_few = bool(self.predicate.rows.ranges) and self.predicate.rows.ranges[-1].stop is not None
        else:
            may_be_few = 0 < self.limit <= FEW_ROWS
        return (
            may_be_few
            and self.binding.condition is None
            and len(self.predicate.rows.ranges) == 1
            and self.predicate.history is None
            and self.predicate.time is ALL_TIME
            and not (self.reverse or self.by_key or self.having)
            and self.cells == "map"
            and self.shape.is_flat
        )

    @property
    def key_names(self) -> tuple[str, ...]:
        return self.view.schema.codec.names

    @property
    def batch_schema(self) -> pa.Schema:
        """Of the batches that come from the backend, without what was not asked for."""
        whole = shown_schema(self.view.schema, self.predicate.columns)
        return pa.schema([whole.field(name) for name in self.key_names]) if self.shape.keys_only else whole

    @property
    def arrow_schema(self) -> pa.Schema:
        if self.cells == "long":
            return long_schema(self.view.schema)
        return self.batch_schema if self.predicate.history is None else versions_schema(self.view.schema, self.shape)


def plan_scan(
    view: TableView,
    shape: RowShape,
    predicate: ScanPredicate,
    binding: Binding,
    *,
    limit: int | None,
    reverse: bool,
    after: str | None,
    ordered: bool,
    cells: str,
    rows: str = ALL_ROWS,
) -> ScanPlan:
    """Checked; behind the token, if one is given."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit= is a number of rows, not {show(limit)}")
    for name, flag in (("reverse", reverse), ("ordered", ordered)):
        if not isinstance(flag, bool):
            raise InvalidArgument(f"{name}= is True or False, not {show(flag)}")
    if cells not in ("map", "long"):
        raise InvalidArgument(f"cells= is 'map' or 'long', not {show(cells)}")
    by_key = ordered and view.schema.hashed
    having = is_having(rows) and not shape.keys_only
    plan = ScanPlan(view, shape, predicate, binding, limit, reverse, by_key, cells, having=having)
    return plan if after is None else _behind(plan, read_token(after))


def _behind(plan: ScanPlan, token: PageToken) -> ScanPlan:
    view = plan.view
    if token.table != view.id:
        raise InvalidArgument(f"after=: the token is of another table than {view.name!r}")
    if (token.reverse, token.by_key) != (plan.reverse, plan.by_key):
        raise InvalidArgument("after=: the token is of a scan with another reverse= or ordered=")
    if not plan.by_key:
        left = plan.ask(Txn(token.txn)).after(token.row, token.given)
        return replace(plan, predicate=left.predicate, limit=left.limit, token=token)
    last = _plain_codec(view).decode(Row(token.row))
    narrower, binding = with_condition(view.schema, plan.predicate, after_key(view.schema, last, reverse=plan.reverse))
    limit = None if plan.limit is None else max(0, plan.limit - token.given)
    return replace(plan, predicate=narrower, binding=binding, limit=limit, token=token)


def snapshot_of(plan: ScanPlan, at: object) -> Txn | None:
    """The snapshot a scan is to be at; None: now."""
    wanted = None if at is None else txn_of(at)
    if plan.token is None:
        return wanted
    if wanted is not None and wanted != plan.token.txn:
        raise InvalidArgument(
            f"at= {show_txn(wanted)}: the token is of a scan at {show_txn(Txn(plan.token.txn))}; leave at= out"
        )
    return Txn(plan.token.txn)


def _plain_codec(view: TableView) -> KeyCodec:
    """Rows in the order of keys, also where the table's are not."""
    codec = view.schema.codec
    return KeyCodec(dict(zip(codec.names, codec.types, strict=True)))


class ScanRun:
    """One pass over a scan's rows. Not for two threads at once. `hold`: what keeps the snapshot pinned."""

    def __init__(self, session: Session, plan: ScanPlan, txn: Txn, hold: object) -> None:
        self._session = session
        self._plan = plan
        self._txn = txn
        self._hold = hold

    def batches(self) -> Batches:
        """The batches of the scan, in the form that its caller asked for."""
        plan = self._plan
        schema, shape = plan.view.schema, plan.shape
        if plan.cells == "map" and plan.predicate.history is None:
            return self._plain()
        return (
            each
            for batch in self._plain()
            for each in (
                long_batch(schema, batch.select(plan.key_names), self._histories(batch))
                if plan.cells == "long"
                else [versions_batch(schema, shape, batch.select(plan.key_names), self._histories(batch))]
            )
        )

    def rows(self) -> Generator[list[FoundRow], None, None]:
        """The rows of each batch; with a history, versions in the place of values."""
        plan = self._plan
        few = self._few()
        if few is not None:
            yield few
            return
        schema = plan.view.schema
        for batch in self._plain():
            if plan.predicate.history is None:
                yield rows_of_batch(schema, batch, self._txn)
                continue
            rows = rows_of_batch(schema, batch.select(plan.key_names), self._txn)
            for row, versions in zip(rows, self._histories(batch), strict=True):
                row.update(versions)
            yield rows

    def _few(self) -> list[FoundRow] | None:
        """All rows at once, if they are few and the store can tell them quickly; None: they come in batches."""
        plan, quick = self._plan, self._session.backend.quick
        if quick is None or not plan.is_simple:
            return None
        view, shape, predicate = plan.view, plan.shape, plan.predicate
        count = FEW_ROWS + 1 if plan.limit is None else plan.limit
        try:
            found = quick.few(view.id, predicate.rows.ranges[0], shape.selectors, view.schema.version, self._txn, count)
        except Retryable:
            return None
        if found is None or len(found[0]) > FEW_ROWS:
            return None
        return view.rows_of(shape, *found, self._txn)

    def token_behind(self, row: FoundRow, count: int) -> str:
        """After a page of so many rows, of which this is the last."""
        plan = self._plan
        key = tuple(row[name] for name in plan.key_names)
        codec = _plain_codec(plan.view) if plan.by_key else plan.view.schema.codec
        given = count + (0 if plan.token is None else plan.token.given)
        return str(PageToken(plan.view.id, self._txn, codec.encode(key), plan.reverse, plan.by_key, given))

    def count(self) -> int:
        return sum(batch.num_rows for batch in self._plain())

    def _histories(self, batch: pa.RecordBatch) -> list[dict[str, list[FoundVersion]]]:
        plan, predicate = self._plan, self._plan.predicate
        if plan.shape.keys_only:
            return [{} for _ in range(batch.num_rows)]
        limit = predicate.history or 1
        found = []
        for row in self._rows_of(batch, plan.view.schema.codec).to_pylist():
            versions: Any = self._session.ask(
                lambda backend, until, row=row: backend.history(  # type: ignore[misc]
                    plan.view.id, row, predicate.columns, limit, self._txn, predicate.time, deadline=until
                )
            )
            found.append(versions_of(versions or {}, plan.shape))
        return found

    def _rows_of(self, batch: pa.RecordBatch, codec: KeyCodec) -> pa.Array:
        return encode_arrays(codec, [batch.column(name) for name in self._plan.key_names])

    def _plain(self) -> Batches:
        """The newest values of the rows, as the store has them."""
        return self._sorted() if self._plan.by_key else self._streamed()

    def _streamed(self) -> Batches:
        plan, session = self._plan, self._session
        ask, schema = plan.ask(self._txn), plan.view.schema
        expected, shown = output_schema(schema, plan.predicate.columns), plan.batch_schema
        deadline = session.patience.deadline()
        attempts: Attempts | None = None
        while not ask.is_done:
            last: pa.RecordBatch | None = None
            given = 0
            stream: Iterator[pa.RecordBatch] = iter(())
            backend = session.backend
            try:
                stream = backend.scan(plan.view.id, ask, deadline=deadline)
                for batch in stream:
                    if batch.schema != expected:
                        raise _changed(plan)
                    if batch.num_rows:
                        last, given = batch, given + batch.num_rows
                        yield batch if shown is expected else batch.select(shown.names)
                    # It goes on, and how long whoever took the batch was busy with it is not the store's time.
                    deadline, attempts = deadline.anew(), None
                return
            except SchemaChanged:
                raise
            except Retryable as error:
                if last is not None:
                    ask = ask.after_batch(schema, last, given)
                attempts = attempts or Attempts(deadline, session.patience.rng)
                session.wait_to_repeat(attempts, error, backend, deadline)
                if isinstance(error, StaleSchema):
                    ask = self._bound_anew(ask)
            finally:
                close_stream(stream)

    def _bound_anew(self, ask: ScanAsk) -> ScanAsk:
        """By the schema that the table has now: SchemaChanged if what is scanned is something else there."""
        plan = self._plan
        then = plan.view.schema
        now = self._session.ask(lambda backend, until: backend.info(plan.view.id, deadline=until)).schema
        columns, where = fixed(then, plan.predicate.columns), plan.binding.condition
        if read_shape(now, columns, where) != read_shape(then, columns, where):
            raise _changed(plan)
        return replace(ask, binding=replace(plan.binding, schema=now))

    def _sorted(self) -> Batches:
        plan, codec = self._plan, _plain_codec(self._plan.view)
        held: pa.Table | None = None
        for batch in self._streamed():
            more = pa.Table.from_batches([batch.append_column(_SORT_KEY, self._rows_of(batch, codec))])
            held = more if held is None else pa.concat_tables([held, more])
            if plan.limit is not None and held.num_rows > plan.limit:
                held = self._in_order(held)[: plan.limit]
        if held is not None:
            yield from self._in_order(held).drop_columns([_SORT_KEY]).to_batches(_SORTED_BATCH_ROWS)

    def _in_order(self, held: pa.Table) -> pa.Table:
        order = "descending" if self._plan.reverse else "ascending"
        return held.take(pc.sort_indices(held[_SORT_KEY], sort_keys=[("", order)]))


def _changed(plan: ScanPlan) -> SchemaChanged:
    return SchemaChanged(f"table {plan.view.name!r}: a column that is scanned was changed meanwhile: scan again")
