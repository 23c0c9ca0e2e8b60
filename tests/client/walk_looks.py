"""All ways to read a table, each compared with what the plain model has at the same snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import stelae
from stelae.model.ids import Row, Txn
from stelae.model.predicate.printer import to_text
from stelae.model.ranges import RangeSet, single
from tests.client.walk_tables import Key, columns_of, draw_members
from tests.client.walk_world import World
from tests.storage.plain import PlainRow

_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Condition:
    """What a scan is given as `where`, in words, and which rows it must let through."""

    where: Any
    words: str
    holds: Callable[[dict[str, Any]], bool]


class Looks:
    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng

    def look(self) -> None:
        """One way of reading, at one snapshot."""
        world, rng = self._world, self._rng
        at: Any = rng.choice([None, None, *world.remembered, *world.held])
        self._look_at(at, rng.choice((self._get, self._get, self._get_many, self._history, self._scan, self._count)))

    def look_at_rows(self) -> None:
        """The rows as they are now, one by one, and each again at its own txn."""
        for key in self._world.declared.keys:
            found = self._world.table.get(key)
            txn = self._world.db.now() if found is None else found.txn
            assert found == self.row(key, txn), f"get({key})"
            assert found is None or found == self._world.table.get(key, at=txn), f"{key} again at its own txn {txn}"

    def look_at_all(self) -> None:
        """Every way of reading, at every snapshot."""
        for at in (None, *self._world.held, *self._world.remembered):
            for way in (self._get_all, self._get_many, self._histories, self._scan, self._whole, self._count):
                self._look_at(at, way)

    def _look_at(self, at: Any, way: Any) -> None:
        txn = None if at is None else Txn(int(at))
        if txn is None or self._world.is_kept(txn):
            way(at)
            return
        try:
            way(at)
        except stelae.SnapshotTooOld:
            if txn in self._world.remembered:
                self._world.remembered.remove(txn)

    # -- what must be found

    def row(self, key: Key, txn: Txn, columns: list[str] | None = None, *, having: bool = False) -> Any:
        row = self._world.row_of(key)
        return self.rows(txn, columns, having=having, within=RangeSet.of([single(row)])).get(row)

    def rows(
        self, txn: Txn, columns: list[str] | None = None, *, having: bool = False, within: RangeSet | None = None
    ) -> dict[Row, dict[str, Any]]:
        found = self._world.model.read(txn, within, columns, having=having)
        return {row: self._shown(row, each, columns) for row, each in found.items()}

    def _shown(self, row: Row, found: PlainRow, columns: list[str] | None) -> dict[str, Any]:
        schema = self._world.schema
        shown = dict(zip(schema.codec.names, schema.codec.decode(row), strict=True))
        for name, column in columns_of(schema).items():
            if columns is None or name in columns:
                shown[name] = column.default
        return shown | {name: versions[0].value for name, versions in found.versions.items()}

    # -- ways to read

    def _some_columns(self) -> list[str] | None:
        return None if self._rng.random() < 0.5 else draw_members(self._rng, self._world.schema)

    def _some_key(self) -> Key:
        pool = self._world.declared.many if self._rng.random() < 0.1 else self._world.declared.keys
        return self._rng.choice(pool)

    def _txn(self, at: Any) -> Txn:
        return self._world.db.now() if at is None else Txn(int(at))

    def _get(self, at: Any) -> None:
        self._get_one(self._some_key(), at, self._some_columns())

    def _get_all(self, at: Any) -> None:
        for key in self._world.declared.keys:
            self._get_one(key, at, None)

    def _get_one(self, key: Key, at: Any, columns: list[str] | None) -> None:
        table, rows = self._world.table, self._rng.choice(("all", "all", "having"))
        found = table.get(key, columns, at, rows=rows)
        txn = self._txn(at) if found is None else found.txn
        assert found == self.row(key, txn, columns, having=rows == "having"), f"get({key}, {columns}, {at}, {rows})"
        if found is not None:
            assert at is None or txn == int(at)
            assert table.get(key, columns, txn, rows=rows) == found, f"{key} again at its own txn {txn}, {columns}"
            assert table.history(key, limit=1, at=txn) == self._versions(key, txn, None, 1)

    def _get_many(self, at: Any) -> None:
        world, rows, columns = self._world, self._rng.choice(("all", "having")), self._some_columns()
        keys = self._rng.sample(world.declared.keys, 3) + self._rng.sample(world.declared.many, 2)
        found = world.table.get_many(keys, columns, at, rows=rows)
        txns = {row.txn for row in found if row is not None}
        assert len(txns) < 2
        expected = self.rows(max(txns, default=self._txn(at)), columns, having=rows == "having")
        assert found == [expected.get(world.row_of(key)) for key in keys], f"get_many({keys}, {columns}, {at}, {rows})"

    def _history(self, at: Any) -> None:
        self._history_of(self._some_key(), at, self._some_columns(), self._rng.choice((None, 1, 2)))

    def _histories(self, at: Any) -> None:
        for key in self._world.declared.keys:
            self._history_of(key, at, None, None)

    def _history_of(self, key: Key, at: Any, columns: list[str] | None, limit: int | None) -> None:
        found = self._world.table.history(key, columns, limit, at)
        assert found == self._versions(key, self._txn(at), columns, limit), f"history({key}, {columns}, {limit}, {at})"

    def _versions(self, key: Key, txn: Txn, columns: list[str] | None, limit: int | None) -> Any:
        row = self._world.row_of(key)
        found = self._world.model.read(txn, RangeSet.of([single(row)]), columns, history=limit or _ALL)
        versions = found[row].versions if row in found else {}
        return {
            name: [stelae.Version(each.value, each.ts, each.txn) for each in kept] for name, kept in versions.items()
        }

    def _bounds(self) -> tuple[Any, Any]:
        keys = self._world.declared.keys
        start, stop = (self._rng.choice([None, *keys]) for _ in range(2))
        return start, stop

    def _within(self, rows: dict[Row, dict[str, Any]], start: Key | None, stop: Key | None) -> list[dict[str, Any]]:
        """In the order of their keys."""
        decode = self._world.schema.codec.decode
        by_key = {decode(row): each for row, each in rows.items()}
        return [
            by_key[key] for key in sorted(by_key) if (start is None or key >= start) and (stop is None or key < stop)
        ]

    def _condition(self) -> Condition:
        """What the rows of a scan are judged by: how a number compares, or whether a column is NULL. As an expression,
        or as text."""
        rng, columns = self._rng, columns_of(self._world.schema)
        if not columns or rng.random() < 0.5:
            return Condition(None, "", lambda _: True)
        name, number = rng.choice(list(columns)), rng.randint(-5, 8)
        col = stelae.col(name)
        kinds: list[tuple[Any, str, Callable[[Any], bool]]] = [(col.is_null(), "is null", lambda value: value is None)]
        kinds.append((~col.is_null(), "is not null", lambda value: value is not None))
        if str(columns[name].type) in ("int64", "int32", "int8", "float64", "float32"):
            kinds += [
                (col >= number, f">= {number}", lambda value: value is not None and value >= number),
                (col < number, f"< {number}", lambda value: value is not None and value < number),
                (col != number, f"!= {number}", lambda value: value is not None and value != number),
            ]
        where, words, holds = rng.choice(kinds)
        return Condition(rng.choice((where, to_text(where))), f"{name} {words}", lambda row: holds(row[name]))

    def _whole(self, at: Any) -> None:
        with self._world.table.scan(at=at, ordered=True) as scan:
            assert list(scan) == self._within(self.rows(scan.txn), None, None), f"scan(at={at})"

    def _scan(self, at: Any) -> None:
        world, rng = self._world, self._rng
        columns, rows, (start, stop) = self._some_columns(), rng.choice(("all", "having")), self._bounds()
        condition = self._condition()
        reverse, limit = rng.random() < 0.3, rng.choice((None, None, 0, 1, 3))
        with world.table.scan(
            condition.where,
            start=start,
            stop=stop,
            columns=columns,
            limit=limit,
            reverse=reverse,
            at=at,
            ordered=True,
            rows=rows,
        ) as scan:
            found = list(scan)
            count = scan.to_arrow().num_rows
        shown = self.rows(scan.txn, columns, having=rows == "having")
        whole = self.rows(scan.txn)
        shown = {row: each for row, each in shown.items() if condition.holds(whole[row])}
        expected = self._within(shown, start, stop)[:: -1 if reverse else 1][:limit]
        assert found == expected, f"{scan!r} from {start} to {stop}, {columns}, {rows}, {condition.words}"
        assert count == len(expected)
        assert all(row.txn == scan.txn for row in found)

    def _count(self, at: Any) -> None:
        (start, stop), condition = self._bounds(), self._condition()
        found = self._world.table.count(condition.where, start=start, stop=stop, at=at)
        rows = self._within(self.rows(self._txn(at)), start, stop)
        expected = [row for row in rows if condition.holds(row)]
        assert found == len(expected), f"count({condition.words}, {start}, {stop}, {at})"
