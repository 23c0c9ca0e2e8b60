"""An open database: its tables, its snapshots, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stelae.client.api.display import Description, database_html, database_line, described, glance
from stelae.client.api.handles import OfThisProcess
from stelae.client.api.named import of_named
from stelae.client.api.snapshot import Snapshot
from stelae.client.api.table import Table
from stelae.client.arguments.declarations import alter_ask, create_ask
from stelae.client.arguments.spaces import alter_zone_ask, check_given_name, create_zone_ask
from stelae.client.calls.session import Session
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.model.values import show
from stelae.service.reports import CheckReport, Progress
from stelae.service.spaces import CreateNamespaceAsk, DropNamespaceAsk, DropZoneAsk, SpacesAsk, SpacesInfo, ZoneInfo


@public("Database")
class Database(OfThisProcess):
    """An open database, from `stelae.open` or `stelae.connect`. Safe for threads.

        with stelae.open("data") as db:
            users = db.table("users")

    `close`, or leaving the `with`, waits for writes that are under way; after it, everything raises `Closed`. A program
    that ends without it loses nothing that was acknowledged.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # -- tables

    def table(self, name: str) -> Table:
        """A table by its name, or `namespace.name`; `NotFound` suggests the nearest name there is.

        users = db.table("users")
        """
        check_given_name("table", name)
        return Table(self._session, self._session.ask(lambda backend, until: backend.find(name, deadline=until)))

    def tables(self) -> list[str]:
        """The names of all tables, qualified by their namespaces, sorted.

        db.tables()   # ['users']
        """
        return list(self._session.ask(lambda backend, until: backend.names(deadline=until)))

    def describe(self, name: str) -> Description:
        """Everything about a table, as a dict that prints well: key, groups, options, tablets, size.

        db.describe("users")["key"]   # {'id': 'string'}
        """
        check_given_name("table", name)
        stats = of_named(name, lambda backend, table, until: backend.stats(table, deadline=until))
        return described(*self._session.run(stats))

    def create_table(
        self,
        name: str,
        key: Mapping[str, str] | Sequence[str] | str | None = None,
        groups: Sequence[Any] | None = None,
        *,
        like: Any = None,
        splits: Sequence[object] | None = None,
        partition: str = "range",
        tablets: int | None = None,
        zone: str | None = None,
        if_not_exists: bool = False,
        retention: str | None = None,
        comment: str | None = None,
    ) -> Table:
        """Make a table, and return it once all its tablets run.

            db.create_table(
                "users",
                key={"id": "string"},
                groups=[
                    stelae.columns("profile", {"name": "string", "age": "int32 not null default 0"}),
                    stelae.cells("events", families=["click", "view"], purge="max-age=7d"),
                ],
            )

        `key` is one or more typed columns, in order; `groups` are made by `columns` and `cells`. Or `like` is an Arrow
        schema, or a frame of pyarrow, pandas or polars, and `key` names the columns of it that are the key; the others
        are a group called data. `splits` are keys, ascending, at which tablets begin; with `partition="hash"` rows are
        spread over `tablets` of equal share instead. `retention` is how long old versions stay readable ("15m"),
        `comment` any text. With `if_not_exists` a table of that name is returned as it is.
        """
        ask = create_ask(
            name,
            key,
            groups,
            like=like,
            splits=splits,
            partition=partition,
            tablets=tablets,
            zone=zone,
            if_not_exists=if_not_exists,
            retention=retention,
            comment=comment,
        )
        return Table(self._session, self._session.ask(lambda backend, until: backend.create(ask, deadline=until)))

    def alter_table(
        self,
        name: str,
        *,
        add: Mapping[str, Mapping[str, str]] | None = None,
        drop: Sequence[str] | None = None,
        widen: Mapping[str, str] | None = None,
        rename_columns: Mapping[str, str] | None = None,
        add_families: Mapping[str, Sequence[str]] | None = None,
        purge: Mapping[str, str | None] | None = None,
        rename: str | None = None,
        drop_families: Sequence[str] | None = None,
        rename_families: Mapping[str, str] | None = None,
        drop_not_null: Sequence[str] | None = None,
        retention: str | None = None,
        comment: str | None = None,
        zone: str | None = None,
        add_groups: Sequence[Any] | None = None,
        drop_groups: Sequence[str] | None = None,
        move: Mapping[str, Sequence[str]] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Table:
        """Change a table: all of a call happens together, or nothing does. Returns when every tablet has it.

            db.alter_table("users", add={"profile": {"email": "string"}}, rename_columns={"name": "full_name"})

        `add` is columns by group, `drop` columns that go; a name that is dropped and added again starts empty. `widen`
        gives columns larger types, `drop_not_null` takes that off. `rename_columns` and `rename_families` keep the
        data. `add_families` are by group, `purge` too (None: no policy). `rename` is the table's new name. Handles of
        the table stay good.

        `add_groups` are made by `columns` and `cells`, `drop_groups` go with all that is in them. `move` takes columns
        or families to another group of their kind, with their data: both must purge alike. A new group may be filled,
        and one that was emptied dropped, in the same call. `options` are by group: compression, block_bytes,
        in_memory, bloom.

            db.alter_table(
                "users",
                add_groups=[stelae.columns("notes", {})],
                move={"notes": ["visits"]},
                options={"profile": {"in_memory": True}},
            )
        """
        check_given_name("table", name)
        ask = alter_ask(
            add=add,
            drop=drop,
            widen=widen,
            rename_columns=rename_columns,
            add_families=add_families,
            purge=purge,
            rename=rename,
            drop_families=drop_families,
            rename_families=rename_families,
            drop_not_null=drop_not_null,
            retention=retention,
            comment=comment,
            zone=zone,
            add_groups=add_groups,
            drop_groups=drop_groups,
            move=move,
            options=options,
        )
        return Table(self._session, self._session.ask(lambda backend, until: backend.alter(name, ask, deadline=until)))

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. For a while it can be had back by `recall_table`.

        db.drop_table("users")
        """
        check_given_name("table", name)
        self._session.ask(lambda backend, until: backend.drop(name, if_exists=if_exists, deadline=until))

    def recall_table(self, name: str, new_name: str | None = None) -> Table:
        """Have back the table that was dropped last under that name, with its rows; under a new one if it is taken.

        users = db.recall_table("users")
        """
        check_given_name("table", name)
        return Table(
            self._session, self._session.ask(lambda backend, until: backend.recall(name, new_name, deadline=until))
        )

    def truncate_table(self, name: str) -> Txn:
        """Empty a table, in one step. Snapshots from before still see its rows. Returns the txn.

        db.truncate_table("users")
        """
        check_given_name("table", name)
        truncate = of_named(name, lambda backend, table, until: backend.truncate(table, deadline=until))
        return self._session.run(truncate)[1]

    # -- namespaces and zones

    def namespaces(self) -> list[str]:
        """The names of all namespaces, sorted. Tables of `default` go by their names alone.

        db.namespaces()   # ['default', 'system']
        """
        return list(self._spaces().namespaces)

    def create_namespace(self, name: str, *, if_not_exists: bool = False) -> None:
        """Make a namespace: a space of names for tables. `create_table("sales.orders", ...)` makes it too.

        db.create_namespace("sales")
        """
        check_given_name("namespace", name)
        self._change_spaces(CreateNamespaceAsk(name, if_not_exists))

    def drop_namespace(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a namespace that has no tables. A table that was in it, and is recalled later, goes to `default`.

        db.create_namespace("sales")
        db.drop_namespace("sales")
        """
        check_given_name("namespace", name)
        self._change_spaces(DropNamespaceAsk(name, if_exists))

    def zones(self) -> dict[str, ZoneInfo]:
        """All zones by name, sorted: their replicas, racks, sizes of tablets, how many tables are in them.

        db.zones()["default"].tablet_bytes   # 1073741824
        """
        return {each.name: each for each in self._spaces().zones}

    def create_zone(
        self,
        name: str,
        *,
        replicas: int = 1,
        min_replicas: int = 1,
        racks: Sequence[str] | None = None,
        placement: str = "tablets",
        tablet_bytes: int | None = None,
        default: bool = False,
        if_not_exists: bool = False,
    ) -> ZoneInfo:
        """Make a zone: how the tables in it are kept. `create_table` and `alter_table` take it by `zone=`.

            db.create_zone("small", tablet_bytes=64 * 2**20)

        Each tablet has `replicas`, and a write is acknowledged by `min_replicas` of them at least; they are spread over
        `racks`. A store in one process has one replica: more are refused there. `placement` is "tablets", which moves
        them one by one to where there is room, or "ring", by a hash of their keys. Tablets are split above twice
        `tablet_bytes`. With `default` tables that name no zone go there from now on.
        """
        ask = create_zone_ask(
            name,
            replicas=replicas,
            min_replicas=min_replicas,
            racks=racks,
            placement=placement,
            tablet_bytes=tablet_bytes,
            default=default,
            if_not_exists=if_not_exists,
        )
        return self._zone(name, self._change_spaces(ask))

    def alter_zone(
        self,
        name: str,
        *,
        replicas: int | None = None,
        min_replicas: int | None = None,
        racks: Sequence[str] | None = None,
        tablet_bytes: int | None = None,
        default: bool = False,
        rename: str | None = None,
    ) -> ZoneInfo:
        """Change a zone, and how the tables in it are kept: all of a call happens together, or nothing does.

            db.alter_zone("default", tablet_bytes=256 * 2**20)

        Tablets that are too large now are split, and small ones joined, by and by. `racks=[]` means any. `default`
        makes it the zone of tables that name none, instead of the one before; `rename` is its new name.
        """
        ask = alter_zone_ask(
            name,
            replicas=replicas,
            min_replicas=min_replicas,
            racks=racks,
            tablet_bytes=tablet_bytes,
            default=default,
            rename=rename,
        )
        return self._zone(rename or name, self._change_spaces(ask))

    def drop_zone(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a zone that has no tables and is not the default one.

        db.create_zone("cold")
        db.drop_zone("cold")
        """
        check_given_name("zone", name)
        self._change_spaces(DropZoneAsk(name, if_exists))

    def _spaces(self) -> SpacesInfo:
        return self._session.ask(lambda backend, until: backend.spaces(deadline=until))

    def _change_spaces(self, ask: SpacesAsk) -> SpacesInfo:
        return self._session.ask(lambda backend, until: backend.change_spaces(ask, deadline=until))

    def _zone(self, name: str, found: SpacesInfo) -> ZoneInfo:
        return next(zone for zone in found.zones if zone.name.casefold() == name.casefold())

    # -- snapshots

    def now(self) -> Txn:
        """The newest snapshot, as a number for `at=`: everything acknowledged before this call is in it.

        before = db.now()
        """
        return self._session.ask(lambda backend, until: backend.now(deadline=until))

    def snapshot(self) -> Snapshot:
        """The newest snapshot, held while it is open: see `Snapshot`.

        with db.snapshot() as s:
            users.get("ann", at=s)
        """
        return Snapshot(self._session.pin(None))

    def metrics(self) -> dict[str, Any]:
        """Numbers about the store, by name.

        db.metrics()
        """
        return dict(self._session.ask(lambda backend, until: backend.metrics(deadline=until)))

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read everything and say what is wrong: `report.problems` is empty if nothing is. Changes nothing.

        `progress` is called with the bytes that were read and how many there are.

        db.check().problems
        """
        return self._session.ask(lambda backend, until: backend.check(progress, deadline=until))

    # -- its end

    @property
    def path(self) -> str:
        """Where the store is."""
        return self._session.place

    @property
    def closed(self) -> bool:
        return self._session.is_closed

    def close(self) -> None:
        """Wait for writes under way, end scans, let go of the store. Closing twice is no error."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return database_line(self.path, self._glance(), is_closed=self.closed)

    def _repr_html_(self) -> str:
        return database_html(self.path, self._glance(), is_closed=self.closed)

    def _glance(self) -> tuple[str, ...] | None:
        return glance(self._session, lambda backend, until: backend.names(deadline=until))


def session_of(db: object) -> Session:
    """What is behind a database, for rooms that ask for more than it offers."""
    if not isinstance(db, Database):
        raise InvalidArgument(f"not a database: {show(db)}; give what stelae.open returned")
    return db._session
