"""What `Table.scan` returns: a question that is fixed, and can be asked again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, cast
from weakref import finalize

import pyarrow as pa
from msgspec.structs import replace

from stelae.client.api.display import SHOWN_ROWS_MAX, rows_html
from stelae.client.api.handles import OfThisProcess
from stelae.client.api.rows import Row, pandas_of, polars_of, table_of
from stelae.client.arguments.predicates import predicate_of
from stelae.client.calls.brief import MISTAKES
from stelae.client.calls.scans import ScanPlan, ScanRun, plan_scan, snapshot_of
from stelae.client.calls.session import Session
from stelae.client.calls.views import ALL_ROWS, KnownTable, TableView
from stelae.model.errors import Closed, InvalidArgument, Retryable
from stelae.model.hybrid import show_txn
from stelae.model.ids import Txn
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.printer import to_text
from stelae.model.public import public
from stelae.model.values import show
from stelae.service.backend import Pin


class _Hold:
    """Keeps a pin for as long as anything refers to it: the scan until it is closed, and every pass over it."""

    __slots__ = ("__weakref__",)

    def __init__(self, pin: Pin) -> None:
        finalize(self, pin.close).atexit = False


class PinnedScan:
    """A plan and the snapshot it is at, which is held until this is closed or forgotten, and passes under way have
    ended. This is the only pin of a scan: all that reads below relies on it."""

    def __init__(self, session: Session, plan: ScanPlan, at: object, asked: Mapping[str, object]) -> None:
        """`asked`: the arguments that it was asked for with, to show them."""
        pin = session.pin(snapshot_of(plan, at), plan.view.id)
        self.session = session
        self.plan = plan
        self._asked = asked
        self.txn: Txn = pin.txn
        self._hold: _Hold | None = _Hold(pin)

    def run(self, at_most: int | None = None) -> ScanRun:
        """A pass from the beginning, over so many rows at most."""
        if self._hold is None:
            raise Closed("the scan is closed: scan again")
        plan = self.plan
        if at_most is not None and (plan.limit is None or at_most < plan.limit):
            plan = replace(plan, limit=at_most)
        return ScanRun(self.session, plan, self.txn, self._hold)

    def close(self) -> None:
        self._hold = None

    def page(self, count: int) -> tuple[list[Row], str | None]:
        if type(count) is not int or count < 1:
            raise InvalidArgument(f"a page has a number of rows from 1, not {show(count)}")
        run, rows = self.run(count + 1), list[Row]()
        with closing(run.rows()) as chunks:
            for chunk in chunks:
                rows += chunk
                if len(rows) > count:
                    return rows[:count], run.token_behind(rows[count - 1], count)
        return rows, None

    def table(self) -> pa.Table:
        return table_of(self.plan.arrow_schema, self.run().batches())

    def __repr__(self) -> str:
        return f"<Scan of {self.plan.view.name!r} at {show_txn(self.txn)}: {_words(self._asked)}>"


def open_scan(
    session: Session,
    known: KnownTable,
    where: object = None,
    *,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    reverse: bool = False,
    at: object = None,
    after: str | None = None,
    ordered: bool = False,
    cells: str = "map",
    rows: str = ALL_ROWS,
    keys_only: bool = False,
) -> PinnedScan:
    """Planned by the schema as it is now. `keys_only`: of the key columns, whatever they are called."""
    asked = {
        "where": where,
        "start": start,
        "stop": stop,
        "prefix": prefix,
        "columns": columns,
        "limit": limit,
        "after": after,
        "reverse": reverse,
        "ordered": ordered,
        "cells": cells,
        "rows": rows,
    }
    try:
        view = _view_now(session, known)
        if keys_only:
            columns = view.schema.codec.names
        predicate, binding, shape = predicate_of(view, where, columns=columns, start=start, stop=stop, prefix=prefix)
        plan = plan_scan(
            view,
            shape,
            predicate,
            binding,
            limit=limit,
            reverse=reverse,
            after=after,
            ordered=ordered,
            cells=cells,
            rows=rows,
        )
        return PinnedScan(session, plan, at, asked)
    except MISTAKES as error:
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _words(asked: Mapping[str, object]) -> str:
    """What a scan was asked for, without what is so anyway."""
    words = []
    for name, value in asked.items():
        if value is None or value is False:
            continue
        if name == "where":
            words.append(value if isinstance(value, str) else to_text(cast(Expr, value)))
        elif (name, value) not in (("cells", "map"), ("rows", ALL_ROWS)):
            words.append(f"{name}={_shown(value)}")
    return ", ".join(words) or "all rows"


def _shown(value: object) -> str:
    return f"[{', '.join(map(show, value))}]" if isinstance(value, list | tuple) else show(value)


def _view_now(session: Session, known: KnownTable) -> TableView:
    """Straight from a store in this process, which never waits; from others in steps that are repeated."""
    backend = session.backend
    try:
        is_known = backend.is_local and backend.info(known.id) is known.view.info
    except Retryable:
        is_known = False
    if not is_known:
        session.run(known.refresh())
    return known.view


@public("Scan")
class Scan(OfThisProcess):
    """Rows of a table at one moment: iterate it, page through it, or take it all as a frame.

        for row in users.scan(stelae.col("age") > 30):
            print(row["name"])

    Nothing is read before you ask, and each time you ask it starts anew, at the same snapshot: the one at which the
    scan was made. That snapshot is held until the scan is closed, by `close`, `with`, or when it is forgotten.
    A scan may be used by one thread at a time.
    """

    def __init__(self, pinned: PinnedScan) -> None:
        self._pinned = pinned

    @property
    def txn(self) -> Txn:
        """The snapshot the scan is at."""
        return self._pinned.txn

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of `batches` and `to_arrow`."""
        return self._pinned.plan.arrow_schema

    def __iter__(self) -> Iterator[Row]:
        """Rows as dicts; with `history = N`, a list of `Version` in the place of each value."""
        for chunk in self._pinned.run().rows():
            yield from chunk

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same as a stream of `pyarrow.RecordBatch`, in bounded memory.

        sum(batch.num_rows for batch in users.scan().batches())
        """
        return self._pinned.run().batches()

    def to_arrow(self) -> pa.Table:
        """All rows as a `pyarrow.Table`; of no rows, an empty one with the same columns."""
        return self._pinned.table()

    def to_pandas(self) -> Any:
        """All rows as a pandas frame. Ints with gaps stay ints, in pandas' nullable types."""
        return pandas_of(self._pinned.table())

    def to_polars(self) -> Any:
        """All rows as a polars frame."""
        return polars_of(self._pinned.table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's way from one library to another: DuckDB, polars and pandas take the scan as it is, batch by batch.

        import polars
        polars.DataFrame(users.scan(columns=["name"]))
        """
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def page(self, count: int) -> tuple[list[Row], str | None]:
        """The first `count` rows, and a token to go on with; None if there are no more.

            rows, token = users.scan(columns=["name"]).page(100)
            while token:
                rows, token = users.scan(columns=["name"], after=token).page(100)

        Make the next scan with the same arguments and `after=token`: it is at the same snapshot, which is readable for
        as long as the table's retention says, or while something holds it.
        """
        return self._pinned.page(count)

    def close(self) -> None:
        """Let go of the snapshot. Closing twice is no error."""
        self._pinned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._pinned)

    def _repr_html_(self) -> str:
        """In a notebook: the first rows."""
        found = [row for chunk in self._pinned.run(SHOWN_ROWS_MAX + 1).rows() for row in chunk]
        return rows_html(repr(self), found)
