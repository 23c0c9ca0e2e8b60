"""The calls of a table that read or write rows, as steps (see `steps`).

- What a stale view refuses or misreads is done again with a fresh one; while a table is being altered its tablets may
  be at another schema than the catalog, which ends, so that is waited for.
- Conditional writes go by the row's txn: read at a snapshot, decide, write with `max_txn` at that snapshot. Whatever
  happened to the row in between is a Conflict, after which `update`, `increment` and `put(if_absent=True)` start again.
  They claim the row first, so that they come between the writes begun before them and those begun later (`order`).
- Where a purge policy goes by age, a read has the time of its snapshot, which is taken first: what it found is what is
  found at `row.txn` ever after.
- What `update` and `increment` write is what the row then shows, in one commit: where the store says that versions with
  times in the future might hide it, those are looked for, and what they hide is written with a later time (`changing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeAlias

from stelae.client.api.rows import Row as FoundRow
from stelae.client.api.rows import Version as FoundVersion
from stelae.client.arguments.keys import rows_of_keys, txn_of
from stelae.client.calls.changing import put_after, written_columns
from stelae.client.calls.having import rows_having
from stelae.client.calls.remainders import Written, write_blocks
from stelae.client.calls.steps import Again, Ask, Claim, Read, Steps, ask_now
from stelae.client.calls.sums import incremented
from stelae.client.calls.views import KnownTable, RowShape, TableView, is_having
from stelae.client.intake.mutations import blocks_of, erase_rows_blocks, erasures_of, mutations_of
from stelae.model.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    SnapshotTooOld,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
    WouldBeHidden,
)
from stelae.model.hybrid import check_txn, micros_of
from stelae.model.ids import Micros, Row, Txn
from stelae.model.predicate.plan import SCAN_HISTORY_MAX, TimeRange
from stelae.model.values import show
from stelae.service.backend import Backend, Values
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.storage.read.asking import Version as StoredVersion

UpdateFunction: TypeAlias = Callable[[Any], Mapping[str, Any] | None]
"""Of a row, or None if there is none. `Any`: who knows that the row is there need not say so to a type checker."""


class Rows:
    """The calls of one handle."""

    def __init__(self, known: KnownTable) -> None:
        self._known = known

    # -- reading

    def get(self, key: object, columns: Sequence[str] | None, at: object, rows: str) -> Steps[FoundRow | None]:
        if not is_having(rows):
            _, row = yield from self._read(key, columns, at)
            return row
        (found,) = yield from rows_having(self._known, self._existing, [key], columns, at)
        return found

    def _read(self, key: object, columns: Sequence[str] | None, at: object) -> Steps[tuple[Txn, FoundRow | None]]:
        """The snapshot that was read, and the row at it."""
        while True:
            shape, row = yield from self._known.prepared(lambda view: (view.shape(columns), view.row_of(key)))
            view = self._known.view
            wanted = None if at is None else txn_of(at)
            aged = wanted is None and view.has_ages
            now: Txn | None = (yield ask_now(view.id)) if aged else wanted
            try:
                found_at: tuple[Txn, Values | None] = yield Read(view.id, row, shape.selectors, now)
            except SnapshotTooOld as error:
                if wanted is not None:
                    raise
                yield Again(error)
                continue
            txn, values = found_at
            found = None if values is None else shape.found(view.started(key, row, txn), values)
            is_settled = found is not None or values is None
            if is_settled and not shape.is_doubtful(values):
                return txn, found
            if not (yield from self._known.refresh()):
                if is_settled:
                    return txn, found
                yield Again(_being_altered(view))

    def get_many(
        self, keys: Iterable[object], columns: Sequence[str] | None, at: object, rows: str
    ) -> Steps[list[FoundRow | None]]:
        asked = _listed("keys", keys)
        if is_having(rows):
            return (yield from rows_having(self._known, self._existing, asked, columns, at))
        return (yield from self._existing(asked, columns, at))

    def _existing(
        self, asked: Sequence[object], columns: Sequence[str] | None, at: object
    ) -> Steps[list[FoundRow | None]]:
        wanted = None if at is None else txn_of(at)
        while True:
            shape, rows = yield from self._known.prepared(lambda view: _shape_and_rows(view, columns, asked))
            view = self._known.view
            txn, values = yield Ask(_newest_many(view, rows, shape, wanted))
            found = view.found_rows(shape, asked, rows, values, txn)
            is_settled = found.count(None) == values.count(None)
            if is_settled and not (shape.has_cells and any(shape.is_doubtful(each) for each in values)):
                return found
            if not (yield from self._known.refresh()):
                if is_settled:
                    return found
                yield Again(_being_altered(view))

    def history(
        self, key: object, columns: Sequence[str] | None, limit: int | None, at: object
    ) -> Steps[dict[str, list[FoundVersion]]]:
        if limit is not None and (type(limit) is not int or not 1 <= limit <= SCAN_HISTORY_MAX):
            raise InvalidArgument(f"limit= is a number of versions from 1, not {show(limit)}")
        count = SCAN_HISTORY_MAX if limit is None else limit
        txn = None if at is None else txn_of(at)
        yield from self._known.refresh()
        shape, row = yield from self._known.prepared(lambda view: (view.shape(columns), view.row_of(key)))
        found = yield Ask(
            lambda backend, until: backend.history(self._known.id, row, shape.selectors, count, txn, deadline=until)
        )
        return {} if found is None or shape.keys_only else versions_of(found, shape)

    # -- writing

    def write(
        self,
        make: Callable[[TableView], Sequence[OrderedBlock]],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        is_large: bool = False,
    ) -> Steps[Txn]:
        """Blocks that are made anew for as long as the table's schema is another when they get there. Whatever ends it
        once some rows are durable says so."""
        if is_large:
            yield Claim(self._known.id)
        written = Written()
        try:
            while True:
                blocks = yield from self._known.prepared(make, is_large=is_large, for_write=True)
                if not blocks:
                    txn: Txn = yield ask_now(self._known.id)
                    return txn
                try:
                    return (yield from write_blocks(self._known.id, blocks, max_txn, must_show, written))
                except StaleSchema as error:
                    if not (yield from self._known.refresh()):
                        yield Again(error)
        except StelaeError as error:
            told = written.tell(error)
            try:
                if told is error:
                    raise
                raise told from error
            finally:
                del told  # as in the session: an error that its own traceback leads to would keep all that the call had

    def put(self, row: Mapping[str, Any], ts: int | None, if_unchanged_since: object, if_absent: bool) -> Steps[Txn]:
        if if_absent and if_unchanged_since is not None:
            raise InvalidArgument("give if_absent=True or if_unchanged_since=, but not both")
        if if_absent:
            return (yield from self._put_new(row, ts))
        max_txn = None if if_unchanged_since is None else check_txn(if_unchanged_since)
        try:
            return (yield from self.write(lambda view: view.put_blocks(row, ts), max_txn))
        except Conflict as error:
            raise self._conflict(row, error) from None

    def _put_new(self, row: Mapping[str, Any], ts: int | None) -> Steps[Txn]:
        blocks = yield from self._known.prepared(lambda view: view.put_blocks(row, ts), for_write=True)
        encoded = blocks[0].first
        key = self._known.view.schema.codec.decode(encoded)
        yield Claim(self._known.id, encoded)
        while True:
            txn, before = yield from self._read(key, None, None)
            if before is not None:
                raise AlreadyExists(f"table {self._known.view.name!r}: row {_shown(key)} exists already")
            try:
                return (yield from self.write(lambda view: view.put_blocks(row, ts), txn))
            except Conflict as error:
                yield Again(error)

    def _conflict(self, row: Mapping[str, Any], error: Conflict) -> Conflict:
        view = self._known.view
        folded = {str(name).casefold(): value for name, value in row.items()}
        key = tuple(folded.get(name.casefold()) for name in view.schema.codec.names)
        return Conflict(f"table {view.name!r}, row {_shown(key)}: {error}; read it again, then decide")

    def put_many(self, rows: Any, nulls: str, ts: int | None, cells: str) -> Steps[Txn]:
        given = _Given(rows)
        return (
            yield from self.write(
                lambda view: blocks_of(view.schema, given.get(), nulls=nulls, ts=ts, cells=cells), is_large=True
            )
        )

    def erase(
        self, key: object, columns: Sequence[str] | None, ts: int | None, versions: Sequence[int] | None
    ) -> Steps[Txn]:
        def made(view: TableView) -> Sequence[OrderedBlock]:
            return view.blocks([view.weighed(erasures_of(view.schema, key, columns, ts, versions))])

        return (yield from self.write(made))

    def erase_many(self, keys: Any, ts: int | None) -> Steps[Txn]:
        given = _Given(keys)
        return (yield from self.write(lambda view: erase_rows_blocks(view.schema, given.get(), ts), is_large=True))

    # -- reading, then writing

    def update(self, key: object, function: UpdateFunction) -> Steps[FoundRow | None]:
        if not callable(function):
            raise InvalidArgument(f"update takes a function of the row, not {show(function)}")
        change, before, txn = yield from self._change_row(key, None, function)
        if change is None:
            return before
        try:
            _, row = yield from self._read(key, None, txn)
        except StelaeError as error:
            raise UnknownOutcome(f"the change is written, and could not be seen: {error}") from error
        return row

    def increment(self, key: object, by: Any) -> Steps[dict[str, Any]]:
        if not isinstance(by, Mapping) or not by:
            raise InvalidArgument(f"increment takes a dict of column to number, not {show(by)}")

        def sums(row: FoundRow | None) -> dict[str, Any]:
            return incremented(self._known.view.schema, row, by)

        change, _, _ = yield from self._change_row(key, list(by), sums)
        return dict(change or {})

    def _change_row(
        self, key: object, columns: Sequence[str] | None, function: UpdateFunction
    ) -> Steps[tuple[Mapping[str, Any] | None, FoundRow | None, Txn]]:
        """What the function made of the row, the row before it, and when the change was written. If nothing was: None,
        and the row as it is."""
        row = yield from self._known.prepared(lambda view: view.row_of(key), for_write=True)
        yield Claim(self._known.id, row)
        while True:
            txn, before = yield from self._read(key, columns, None)
            given = deepcopy(before)
            change = function(given)
            if change is None:
                _check_untouched(before, given)
                return None, before, txn
            if not isinstance(change, Mapping):
                raise InvalidArgument(f"an update's function returns a dict of columns, or None; not {show(change)}")
            try:
                try:
                    return change, before, (yield from self.write(_made(key, change, {}), txn, must_show=True))
                except WouldBeHidden:
                    later = yield from self._later_times(key, change, txn)
                    return change, before, (yield from self.write(_made(key, change, later), txn))
            except (Conflict, SnapshotTooOld) as error:
                yield Again(error)

    def _later_times(self, key: object, change: Mapping[str, Any], txn: Txn) -> Steps[Mapping[str, Micros]]:
        """Of the columns and cells of a change, by their names, the latest time of those that have one after the
        snapshot's."""
        view = self._known.view
        row, written, time = view.row_of(key), written_columns(view.schema, change), TimeRange(micros_of(txn) + 1)
        found = yield Ask(lambda backend, until: backend.history(view.id, row, written, 1, txn, time, deadline=until))
        return {name: versions[0].ts for name, versions in (found or {}).items()}


def _check_untouched(before: FoundRow | None, given: FoundRow | None) -> None:
    """An update's function that changed its copy of the row, and returned nothing, meant to write what it changed."""
    changed = [] if before is None or given is None else [n for n in {**before, **given} if _differs(n, before, given)]
    if changed:
        raise InvalidArgument(
            f"an update's function changed {', '.join(map(repr, changed))} in its copy of the row and returned None, "
            "which writes nothing: return the columns to write, as in "
            f"lambda row: {{{changed[0]!r}: ...}}"
        )


def _differs(name: str, before: FoundRow, given: FoundRow) -> bool:
    return (name in before, before.get(name)) != (name in given, given.get(name))


class _Given:
    """What can be read only once may be needed twice, when the schema changes meanwhile: it is kept when it is read."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def get(self) -> Any:
        if hasattr(self._given, "__next__"):
            self._given = list(self._given)
        return self._given


def _made(
    key: object, change: Mapping[str, Any], later: Mapping[str, Micros]
) -> Callable[[TableView], Sequence[OrderedBlock]]:
    def made(view: TableView) -> Sequence[OrderedBlock]:
        row = view.row_of(key)
        keys = dict(zip(view.schema.codec.names, view.schema.codec.decode(row), strict=True))
        folded = {name.casefold(): name for name in keys}
        given = {name: value for name, value in change.items() if str(name).casefold() in folded}
        named = {folded[str(name).casefold()]: value for name, value in given.items()}
        if named and view.row_of({**keys, **named}) != row:
            raise InvalidArgument(f"row {_shown(tuple(keys.values()))}: an update does not change the key")
        others = {name: value for name, value in change.items() if name not in given}
        if not later:
            return view.put_blocks({**keys, **others}, None)
        puts = put_after(view.schema, mutations_of(view.schema, {**keys, **others}), later)
        return view.blocks([view.weighed(puts)])

    return made


def _newest_many(
    view: TableView, rows: Sequence[Row], shape: RowShape, at: Txn | None
) -> Callable[[Backend, Deadline], tuple[Txn, list[Any]]]:
    def read(backend: Backend, until: Deadline) -> tuple[Txn, list[Any]]:
        if at is not None or not view.has_ages:
            if backend.quick is not None and shape.is_flat:
                with suppress(TabletAway):  # what is behind that is told below
                    return backend.quick.many(view.id, rows, shape.selectors, view.schema.version, at, until)
            return backend.newest_many(view.id, rows, shape.selectors, at, deadline=until)
        try:
            now = backend.now(view.id, deadline=until)
            return backend.newest_many(view.id, rows, shape.selectors, now, deadline=until)
        except SnapshotTooOld as error:
            raise Unavailable(f"table {view.name!r}: its history was dropped just now: {error}") from None

    return read


def _shape_and_rows(view: TableView, columns: Any, keys: Sequence[object]) -> tuple[RowShape, list[Row]]:
    return view.shape(columns), rows_of_keys(view.schema, view.row_of, keys)


def _being_altered(view: TableView) -> Unavailable:
    return Unavailable(f"table {view.name!r} is being altered: its tablets are not at its schema yet")


def _listed(what: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"{what} are a list of them, not {show(given)}")
    return list(given)


def _shown(key: tuple[Any, ...]) -> str:
    return show(key[0] if len(key) == 1 else key)


def versions_of(found: Mapping[str, Sequence[StoredVersion]], shape: RowShape) -> dict[str, list[FoundVersion]]:
    """By name, columns in the order of the schema and then cells."""
    names = [*(name for name in shape.names if name in found), *sorted(set(found) - set(shape.names))]
    return {name: [FoundVersion(each.value, each.ts, each.txn) for each in found[name]] for name in names}
