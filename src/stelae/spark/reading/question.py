"""What a read asks, as a value that goes from the driver to whoever plans and reads: a table that is held, and a
predicate as its text. All of them make the same of it as a scan of the client does.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.catalog.objects import Table
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.client.arguments.predicates import predicate_of
from stelae.client.calls.scans import ScanPlan, plan_scan
from stelae.client.calls.views import ALL_ROWS, RowShape, TableView
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Txn
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import SCAN_HISTORY_MAX, ScanPredicate, plan
from stelae.model.predicate.selectors import ColumnSelector, Selectors, union_selectors
from stelae.model.predicate.vector import names_of
from stelae.model.schema import TableSchema
from stelae.model.values import show
from stelae.service.scans import bind
from stelae.service.tables import TableInfo
from stelae.service.tickets import HeldTable
from stelae.storage.offline.scans import Appearing, rows_shown


class ReadJob(msgspec.Struct, frozen=True):
    """`predicate`: the text of a `ScanPredicate`. `keys_only`: the key alone. `having`: only rows that have one of the
    columns."""

    root: str
    name: str
    table: bytes
    txn: Txn
    predicate: str
    keys_only: bool
    cells: str
    having: bool = False


class Question:
    """A job, prepared."""

    def __init__(self, job: ReadJob) -> None:
        self.job = job
        table: Table = CATALOG_SERIALIZERS.decode(job.table)
        predicate = plan(parse(job.predicate))
        self.view = TableView(TableInfo(table, job.name, ""))
        shape = RowShape(table.schema, predicate.columns, keys_only=job.keys_only)
        self.scan = ScanPlan(self.view, shape, *bind(predicate, table.schema), cells=job.cells, having=job.having)

    @property
    def schema(self) -> TableSchema:
        return self.view.schema

    @property
    def predicate(self) -> ScanPredicate:
        return self.scan.predicate

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """As the client's: of the frame, its types may still differ from what Spark takes."""
        return self.scan.arrow_schema

    @property
    def where(self) -> Expr | None:
        """Bound to the table's types."""
        return self.scan.binding.condition

    @cached_property
    def read(self) -> Selectors:
        """All that is read: what is shown, and what the condition asks for."""
        asked = names_of(self.where) if self.where is not None else frozenset[str]()
        return union_selectors([*self.predicate.columns, *(ColumnSelector(name, is_prefix=False) for name in asked)])

    @cached_property
    def appearing(self) -> Appearing:
        """Which rows are shown."""
        return Appearing.HAVING if self.job.having else rows_shown(self.schema, self.where)

    @property
    def is_newest(self) -> bool:
        """The newest values, in columns of their own."""
        return self.predicate.history is None and self.job.cells == "map"


def asked_of(
    held: HeldTable,
    *,
    where: object = None,
    columns: Any = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    history: int | None = None,
    cells: str = "map",
    rows: str = ALL_ROWS,
) -> Question:
    """Checked as the client checks a scan; mistakes name the table."""
    view = TableView(TableInfo(held.description(), held.name, ""))
    try:
        predicate, binding, shape = predicate_of(view, where, columns=columns, start=start, stop=stop, prefix=prefix)
        predicate = _with_history(predicate, history)
        asked = plan_scan(
            view,
            shape,
            predicate,
            binding,
            limit=None,
            reverse=False,
            after=None,
            ordered=False,
            cells=cells,
            rows=rows,
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"table {held.name!r}: {error}") from None
    text = predicate.to_text()
    return Question(ReadJob(held.root, held.name, held.table, held.txn, text, shape.keys_only, cells, asked.having))


def _with_history(predicate: ScanPredicate, history: int | None) -> ScanPredicate:
    if history is None:
        return predicate
    if type(history) is not int or not 1 <= history <= SCAN_HISTORY_MAX:
        raise InvalidArgument(f"history= is a number of versions from 1, not {show(history)}")
    if predicate.history not in (None, history):
        raise InvalidArgument(f"history= {history}, and the condition says history = {predicate.history}")
    return replace(predicate, history=history)
