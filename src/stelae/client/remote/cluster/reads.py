"""Rows of several shards, read at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stelae.client.remote.cluster.pins import ClusterPins
from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.routing import Routing, all_of
from stelae.model.errors import SnapshotTooOld
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Values
from stelae.service.deadlines import Deadline


def ask_snapshots(routing: Routing, shards: Sequence[str], deadline: Deadline) -> dict[str, Txn]:
    """What each shard calls the newest snapshot. From now on every request carries the largest of these."""
    said = routing.ask_these(shards, lambda shard: shard.now(deadline=deadline))
    routing.seen.note(max(said.values()))
    return said


class ManyRows:
    """Reads rows by their keys, wherever they are. Safe for threads."""

    def __init__(self, routing: Routing, pins: ClusterPins) -> None:
        self._routing = routing
        self._pins = pins

    def read_many(
        self, table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None, deadline: Deadline
    ) -> tuple[Txn, list[Values | None]]:
        """The snapshot they were all read at, and the rows in the order asked for. If several shards have them, that is
        what all of these have said is the newest; it is pinned only if its history was dropped while it was read."""
        routing = self._routing
        routes = routing.locations.find(table, deadline)
        cut = routes.cut_rows(rows) or {routes.servers[0]: []}
        if len(cut) == 1:
            (name,) = cut
            found = self._read_part(table, routes, name, rows, columns, at, deadline)
            routing.seen.note(found[0])
            return found
        if at is not None:
            return at, self._read_parts(table, routes, cut, rows, columns, at, deadline)
        with routing.doubting(table):
            now = max(ask_snapshots(routing, list(cut), deadline).values())
        try:
            return now, self._read_parts(table, routes, cut, rows, columns, now, deadline)
        except SnapshotTooOld:
            pin = self._pins.pin(None, table, deadline)
        try:
            return pin.txn, self._read_parts(table, routes, cut, rows, columns, pin.txn, deadline)
        finally:
            pin.close()

    def _read_parts(
        self,
        table: TableId,
        routes: TableRoutes,
        cut: Mapping[str, Sequence[int]],
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn,
        deadline: Deadline,
    ) -> list[Values | None]:
        """`cut`: by shard, the places of its rows."""

        def read(name: str) -> list[Values | None]:
            wanted = [rows[place] for place in cut[name]]
            return self._read_part(table, routes, name, wanted, columns, at, deadline)[1]

        found: list[Values | None] = [None] * len(rows)
        for name, values in all_of(self._routing.shards.ask_each(list(cut), read)).items():
            for place, value in zip(cut[name], values, strict=True):
                found[place] = value
        return found

    def _read_part(
        self,
        table: TableId,
        routes: TableRoutes,
        name: str,
        rows: Sequence[Row],
        columns: Selectors,
        at: Txn | None,
        deadline: Deadline,
    ) -> tuple[Txn, list[Values | None]]:
        return self._routing.ask_shard(
            table, routes, name, lambda shard: shard.newest_many(table, rows, columns, at, deadline=deadline)
        )
