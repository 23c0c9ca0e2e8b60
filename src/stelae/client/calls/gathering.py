"""Many small writes gathered into few large ones, as steps (see `steps`).

What is said of one row stays in order, so a batch says what its calls would have said one by one. It is written out
when so many mutations or bytes are waiting, or the oldest has waited so long: that is looked at whenever more is said,
and by whoever holds this when `due_in_s` have passed. One call at a time: a flush that waits for the store must not be
overtaken.

A table that is altered meanwhile is no obstacle: what was gathered names columns by id, and is checked once more
against the new schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stelae.client.calls.rows import Rows
from stelae.client.calls.steps import Steps
from stelae.client.calls.views import KnownTable, TableView
from stelae.client.intake.blocks import SaidRow
from stelae.client.intake.mutations import erasures_of
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row, SchemaVersion, Txn
from stelae.model.values import show
from stelae.ports.clock import Clock
from stelae.service.blocks import OrderedBlock

BATCH_COUNT = 10_000
BATCH_BYTES = 4 * 2**20
BATCH_SECONDS = 1.0


class Gathering:
    def __init__(
        self, known: KnownTable, rows: Rows, clock: Clock, count_max: int, bytes_max: int, seconds_max: float
    ) -> None:
        limits: tuple[tuple[str, object], ...] = (
            ("count_max", count_max),
            ("bytes_max", bytes_max),
            ("seconds_max", seconds_max),
        )
        for name, value in limits:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidArgument(f"{name}= of a batch is a number above 0, not {show(value)}")
        self._known = known
        self._rows = rows
        self._clock = clock
        self._count_max, self._bytes_max, self._seconds_max = count_max, bytes_max, seconds_max
        self._last_txn: Txn | None = None
        self.discard()

    @property
    def txn(self) -> Txn | None:
        """The txn of the last part that was written; None if none was."""
        return self._last_txn

    @property
    def table(self) -> str:
        return self._known.view.name

    @property
    def count(self) -> int:
        """How many mutations are gathered and not written."""
        return self._count

    @property
    def seconds_max(self) -> float:
        return self._seconds_max

    @property
    def due_in_s(self) -> float | None:
        """When what is gathered has waited long enough; None if nothing waits."""
        return self._since_s + self._seconds_max - self._clock.monotonic_s() if self._said else None

    def discard(self) -> None:
        """Forget what is not written."""
        self._said: dict[Row, SaidRow] = {}
        self._checked: set[SchemaVersion] = set()
        self._count = self._size_bytes = 0
        self._since_s = 0.0

    def put(self, row: Mapping[str, Any], ts: int | None) -> Steps[None]:
        said = yield from self._known.prepared(lambda view: self._checked_by(view, view.said_put(row, ts)))
        if said.fits_small:
            yield from self._add(said)
            return
        # Too large to be gathered: it is written at once, behind what was said before.
        yield from self.flush()
        self._last_txn = yield from self._rows.put(row, ts, None, if_absent=False)

    def erase(self, key: object, columns: Sequence[str] | None, ts: int | None) -> Steps[None]:
        def made(view: TableView) -> SaidRow:
            return self._checked_by(view, view.weighed(erasures_of(view.schema, key, columns, ts)))

        said = yield from self._known.prepared(made)
        yield from self._add(said)

    def flush(self) -> Steps[None]:
        """What is gathered is durable when this is done; after an error it is still gathered."""
        if self._said:
            self._last_txn = yield from self._rows.write(self._blocks)
        self.discard()

    def _checked_by(self, view: TableView, said: SaidRow) -> SaidRow:
        self._checked.add(view.schema.version)
        return said

    def _add(self, said: SaidRow) -> Steps[None]:
        before = self._said.get(said.row)
        whole = said if before is None else before.followed_by(said)
        if not whole.fits_small:
            yield from self.flush()
            whole = said
        if not self._said:
            self._since_s = self._clock.monotonic_s()
        self._said[said.row] = whole
        self._count += len(said.mutations)
        self._size_bytes += said.size_bytes
        if self._is_due():
            yield from self.flush()

    def _is_due(self) -> bool:
        if self._count >= self._count_max or self._size_bytes >= self._bytes_max:
            return True
        return self._clock.monotonic_s() - self._since_s >= self._seconds_max

    def _blocks(self, view: TableView) -> Sequence[OrderedBlock]:
        rows = [self._said[row] for row in sorted(self._said)]
        if self._checked != {view.schema.version}:
            rows = [view.weighed(each.mutations) for each in rows]
        return view.blocks(rows)
