"""A table of an open database: what users read and write rows with.

`get` and `put` go straight to the backend where nothing is odd; everything else, and whatever is, goes through the
steps of `operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stelae.client.api.batch import Batch
from stelae.client.api.display import described, glance, table_line
from stelae.client.api.handles import OfThisProcess
from stelae.client.api.rows import Row, Version
from stelae.client.api.scan import Scan, open_scan
from stelae.client.arguments.keys import check_bounded, start_of
from stelae.client.calls.gathering import BATCH_BYTES, BATCH_COUNT, BATCH_SECONDS, Gathering
from stelae.client.calls.quick import Missed, quick_get
from stelae.client.calls.rows import Rows, UpdateFunction
from stelae.client.calls.session import Session
from stelae.client.calls.views import ALL_ROWS, KnownTable
from stelae.model.errors import InvalidArgument, Retryable, StaleSchema
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.model.schema import TableSchema
from stelae.service.reports import Progress
from stelae.service.tables import TableInfo, TableStats, TabletInfo


@public("Table")
class Table(OfThisProcess):
    """A table of an open database, from `db.table(name)`. Safe for threads.

        users = db.table("users")
        users.put({"id": "ann", "name": "Ann"})
        users.get("ann")

    A key is a value, or for a key of several columns a tuple of them or a dict. Rows are dicts: key columns, value
    columns and cells (`family:qualifier`) by name. Case does not count in the names of columns and declared families;
    in qualifiers, and in families that only the wildcard `*` takes, it does. A handle stays good when its table is
    altered or renamed.
    """

    def __init__(self, session: Session, info: TableInfo) -> None:
        self._session = session
        self._known = KnownTable(info)
        self._id = info.id
        self._rows = Rows(self._known)

    @property
    def _info(self) -> TableInfo:
        """The table as the catalog had it when this handle last looked."""
        return self._known.view.info

    @property
    def name(self) -> str:
        """The qualified name, as the catalog has it now."""
        self._session.run(self._known.refresh())
        return self._known.view.name

    @property
    def schema(self) -> TableSchema:
        """Key, groups and columns, as the catalog has them now."""
        self._session.run(self._known.refresh())
        return self._known.view.schema

    # -- reading

    def get(
        self, key: object, columns: Sequence[str] | None = None, at: object = None, *, rows: str = ALL_ROWS
    ) -> Row | None:
        """The newest values of one row, or None if there is no such row.

            users.get("ann")                    # Row({'id': 'ann', 'name': 'Ann', 'age': 31}, txn=...)
            users.get("ann", columns=["name"])

        The result is a dict of the key and the values, in the order of the schema; `row.txn` is the snapshot it was
        read at. `columns` are names of columns, of cells, or `"click:"` for a family; a row that exists and has none of
        them is its key with None for each column. With `rows="having"` such a row is None: it has no value in any of
        the columns, not even NULL. `at` is a txn, a snapshot or an aware datetime; without it, the row as it is now.
        Under a purge policy of `max-age`, values have the age they have at that moment, so `at=row.txn` shows the same
        row again.
        """
        backend = self._session.backend
        if rows == ALL_ROWS and backend.is_local:
            found = quick_get(self._known.view, backend, backend.newest, key, columns, at, backend.quick)
            if not isinstance(found, Missed):
                return found
        return self._session.run(self._rows.get(key, columns, at, rows))

    def get_many(
        self, keys: Iterable[object], columns: Sequence[str] | None = None, at: object = None, *, rows: str = ALL_ROWS
    ) -> list[Row | None]:
        """Many rows at one snapshot, in the order of the keys; None for those that are not there. `columns` and `rows`
        are as in `get`.

        users.get_many(["ann", "bob"])
        """
        return self._session.run(self._rows.get_many(keys, columns, at, rows))

    def exists(self, key: object, at: object = None) -> bool:
        """Whether there is such a row.

        users.exists("ann")
        """
        return self.get(key, at=at) is not None

    def history(
        self, key: object, columns: Sequence[str] | None = None, limit: int | None = None, at: object = None
    ) -> dict[str, list[Version]]:
        """The versions of each column and cell of a row, newest first; nothing of a row that is not there.

            users.history("ann", columns=["name"], limit=3)   # {'name': [Version(value='Ann', ts=..., txn=...)]}

        `limit` is how many of each at most; without it, all that are kept and not erased.
        """
        return self._session.run(self._rows.history(key, columns, limit, at))

    def count(
        self,
        where: object = None,
        *,
        start: object = None,
        stop: object = None,
        prefix: object = None,
        at: object = None,
    ) -> int:
        """How many rows there are, or how many the condition is true of. Reads the keys of all, and what the condition
        looks at.

        users.count(stelae.col("age") > 30)
        """
        pinned = open_scan(
            self._session, self._known, where, start=start, stop=stop, prefix=prefix, at=at, keys_only=True
        )
        try:
            return pinned.run().count()
        finally:
            pinned.close()

    def head(self, count: int = 10) -> list[Row]:
        """The first rows.

        users.head(3)
        """
        with self.scan(limit=count) as scan:
            return list(scan)

    def scan(
        self,
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
    ) -> Scan:
        """Many rows, in the order of their keys: see `Scan` for what to do with them.

            users.scan(stelae.col("age") > 30, start="a", stop="n", columns=["name"], limit=100)
            users.scan('"a" <= row < "n" and column ~= "click:" and history = 2')

        `where` is an expression of `col(...)`, or a text of the same language. `start` (included), `stop` (excluded)
        and `prefix` are keys, or the first columns of a longer key; of a string key, `prefix` is a beginning. `limit`
        is how many rows at most, `reverse` from the last to the first. `at` is as in `get`; `after` a token of
        `Scan.page`. With `history = N` in the text, rows hold lists of versions, which are read row by row. Columns
        are chosen by `columns`, as in `get`, and by `column` in the text: where both are given, by both. A running scan
        raises `SchemaChanged` if a column it reads is altered.

        Whatever columns are chosen, every row that exists and `where` is true of comes, with None (in Arrow, null)
        where it has nothing. With `rows="having"` only those come that have a value, NULL included, in one of the
        columns: of a family that few rows have, that reads less.

        Rows of a hash-partitioned table come in no order of keys; `ordered=True` sorts them, in memory. In Arrow
        batches a family is a map from qualifier to value, or with `cells="long"` each version of a cell is a row.
        """
        pinned = open_scan(
            self._session,
            self._known,
            where,
            start=start,
            stop=stop,
            prefix=prefix,
            columns=columns,
            limit=limit,
            reverse=reverse,
            at=at,
            after=after,
            ordered=ordered,
            cells=cells,
            rows=rows,
        )
        return Scan(pinned)

    # -- writing

    def put(
        self,
        row: Mapping[str, Any],
        *,
        ts: int | None = None,
        if_unchanged_since: int | None = None,
        if_absent: bool = False,
    ) -> Txn:
        """Write columns and cells of one row; durable when it returns. Returns the txn.

            users.put({"id": "ann", "name": "Ann", "click:home": b"1"})

        Columns that are not named stay as they are; None writes NULL. The key alone makes the row exist. `ts` is the
        time of the values in microseconds, by default the commit's. With `if_unchanged_since=row.txn` it raises
        `Conflict` if the row has changed since; with `if_absent=True`, `AlreadyExists` if there is such a row.
        """
        backend = self._session.backend
        if if_unchanged_since is None and not if_absent and backend.is_local:
            deadline, failed = self._session.patience.deadline(), None
            try:
                return backend.write(self._id, self._known.view.put_blocks(row, ts), deadline=deadline)
            except (InvalidArgument, StaleSchema):  # perhaps not by a fresh view
                pass
            except Retryable as error:
                failed = error
            return self._session.run(self._rows.put(row, ts, None, if_absent=False), deadline, failed)
        return self._session.run(self._rows.put(row, ts, if_unchanged_since, if_absent=if_absent))

    def put_many(self, rows: Any, *, nulls: str = "write", ts: int | None = None, cells: str = "map") -> Txn:
        """Write many rows: a list of dicts, or a frame of pyarrow, pandas or polars. Returns the largest txn.

            users.put_many([{"id": "bob", "age": 40}, {"id": "cay", "age": 41}])

        Columns go by their names; one that is not there is untouched, null writes NULL, or with `nulls="skip"`
        nothing. All is checked before anything is written, then it is atomic for each row; `PartialWrite` says how much
        is durable if it fails half-way. With `cells="long"` each row of the frame is one cell: the key, family,
        qualifier, value, and perhaps ts.
        """
        return self._session.run(self._rows.put_many(rows, nulls, ts, cells))

    def erase(
        self,
        key: object,
        columns: Sequence[str] | None = None,
        *,
        ts: int | None = None,
        versions: Sequence[int] | None = None,
    ) -> Txn:
        """Erase a row, or some columns, cells (`"click:home"`) or families (`"click:"`) of it. Returns the txn.

            users.erase("ann", columns=["age", "click:"])

        What is not newer than `ts` goes, by default what has a time up to now; or with `versions` those at exactly
        these times. A row that is not there is no error.
        """
        return self._session.run(self._rows.erase(key, columns, ts, versions))

    def erase_many(self, keys: Any, *, ts: int | None = None) -> Txn:
        """Erase many rows: a list of keys, an Arrow array of them, or a frame of the key columns.

            users.erase_many(["bob", "cay"])

        It is atomic for each row; `PartialWrite` says how much is durable if it fails half-way.
        """
        return self._session.run(self._rows.erase_many(keys, ts))

    def erase_range(self, start: object = None, stop: object = None, *, prefix: object = None) -> int:
        """Erase the rows from `start` to below `stop`, or with a prefix. Returns how many there were.

            users.erase_range("a", "c")

        The rows there are now are looked up and erased in parts, so others may see some of them gone before the rest.
        Without bounds, or with an empty prefix, it is refused: `db.truncate_table` empties a table.
        """
        check_bounded(self.schema, self._known.view.name, start, stop, prefix)
        erased = 0
        with self.scan(
            start=start, stop=stop, prefix=prefix, columns=list(self._known.view.schema.codec.names)
        ) as scan:
            for keys in scan.batches():
                self.erase_many(keys)
                erased += keys.num_rows
        return erased

    def update(self, key: object, function: UpdateFunction) -> Row | None:
        """Read a row, change it, and write it back if it has not changed meanwhile; else again. Returns the new row.

            users.update("ann", lambda row: {"age": row["age"] + 1})

        The function gets a copy of the row, or None if there is none, and returns the columns to write, or None to
        write nothing; to change the copy alone is an error. It must be pure: on a conflict it is called again. What it
        returns is seen afterwards: where a version with a time in the future would hide a value, that gets the next
        time after it.
        """
        return self._session.run(self._rows.update(key, function))

    def increment(self, key: object, by: Mapping[str, Any]) -> dict[str, Any]:
        """Add to number columns of a row, atomically. Returns the new values.

            users.increment("ann", {"visits": 1})

        NULL counts as 0, and so does a column that was never written, unless it has a default. A sum out of the
        column's range is `InvalidArgument`, and nothing is written. The new values are what the row shows then: where
        the old one has a time in the future, the new one gets the next time after it.
        """
        return self._session.run(self._rows.increment(key, by))

    def batch(
        self, *, count_max: int = BATCH_COUNT, bytes_max: int = BATCH_BYTES, seconds_max: float = BATCH_SECONDS
    ) -> Batch:
        """Gather many puts and erasures into large writes: see `Batch`.

            with users.batch() as batch:
                batch.put({"id": "dan"})
                batch.erase("eve")

        A part is written when so many puts, erasures or bytes are gathered, or the oldest has waited so long.
        """
        clock = self._session.patience.clock
        return Batch(self._session, Gathering(self._known, self._rows, clock, count_max, bytes_max, seconds_max))

    # -- upkeep

    def flush(self) -> None:
        """Write what is in memory to files. Nothing needs it to be durable."""
        self._session.ask(lambda backend, until: backend.flush(self._id, deadline=until))

    def compact(self, *, erase_now: bool = False, progress: Progress | None = None) -> tuple[str, ...]:
        """Merge all files into one for each tablet and group.

            for who in users.compact(erase_now=True):
                print("still kept:", who)

        With `erase_now=True`, what was erased or purged is in no file and not in the log when this returns, whatever
        the table's retention, except for what open snapshots and jobs hold: those are what is returned, each in words.
        So are tablets that begin at the key of an erased row, because you split there: such a key stays, as a boundary,
        until they are joined. Backups have what they had. `progress` is called with how much is done, and of how much.
        """
        return self._session.ask(
            lambda backend, until: backend.compact(self._id, erase_now=erase_now, progress=progress, deadline=until)
        )

    def split(self, key: object = None) -> None:
        """Cut a tablet in two at a key; without one, the largest tablet at its middle.

        A key that is given is kept as it is where tablets are recorded, also when its row is erased. Where the store
        chooses, as little of a key as parts two rows.
        """
        row = None if key is None else self._known.view.row_of(key)
        self._session.ask(lambda backend, until: backend.split(self._id, row, deadline=until))

    def join(self, key: object) -> None:
        """Join the tablet that begins at a key with the one before it: what undoes `split`, or one of `splits=`.

            users.split("m")
            users.join("m")

        A tablet that begins where the store chose, or of a hashed table, is given as `tablets()` has it. Neighbours
        join by themselves only when both are small.
        """
        row = start_of(self._known.view.schema, self._id, key)
        self._session.ask(lambda backend, until: backend.join(self._id, row, deadline=until))

    def tablets(self) -> tuple[TabletInfo, ...]:
        """The table's tablets, in the order of their rows, which `start` and `stop` give as encoded keys."""
        return self._session.ask(lambda backend, until: backend.tablets(self._id, deadline=until))

    def stats(self) -> TableStats:
        """How many files, records and bytes there are now."""
        return self._session.ask(lambda backend, until: backend.stats(self._id, deadline=until))

    def __repr__(self) -> str:
        return table_line(*self._glance())

    def _repr_html_(self) -> str:
        return described(*self._glance())._repr_html_()

    def _glance(self) -> tuple[TableInfo, TableStats | None]:
        """The table as it is now; as it was when this handle last looked, if the store does not answer soon."""
        found = glance(
            self._session,
            lambda backend, until: (backend.info(self._id, deadline=until), backend.stats(self._id, deadline=until)),
        )
        return (self._known.view.info, None) if found is None else found
