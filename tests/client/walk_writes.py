"""All that a random walk writes and erases, with the plain model told of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import stelae
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Row, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from tests.client.walk_looks import Looks
from tests.client.walk_tables import (
    Key,
    add_required,
    columns_of,
    draw_members,
    draw_value,
    draw_values,
    families_of,
)
from tests.client.walk_world import World


class Writes:
    """`altered_at` is when the table was altered last. `tell` notes what is done."""

    def __init__(self, world: World, looks: Looks, rng: Random, tell: Callable[[str], None]) -> None:
        self.altered_at = Txn(0)
        self._world = world
        self._looks = looks
        self._rng = rng
        self._tell = tell
        self._ahead: tuple[Key, dict[str, Any]] | None = None
        """The last row that got values with a time in the future, and those values."""

    # -- what is drawn

    def draw_key(self) -> Key:
        """Half of the time the same, so that it gets a long history."""
        known, chance = self._world.declared, self._rng.random()
        return known.keys[0] if chance < 0.5 else self._rng.choice(known.keys if chance < 0.9 else known.many[:3])

    def _time(self) -> Micros | None:
        """Of a version: the commit's, that of another version, or one of the past or the future."""
        now_us = self._world.machine.clock.wall_ms() * 1_000
        near, far = self._rng.randint(-5_000, 5_000), self._rng.randint(-7_200, 7_200) * 1_000_000
        return self._rng.choice([None, *(self._world.times[-3:]), Micros(now_us + near), Micros(now_us + far)])

    def _written(self, key: Key, values: dict[str, Any], ts: Micros | None = None) -> list[Mutation]:
        """What a put of these values says."""
        row, known = self._world.row_of(key), columns_of(self._world.schema)
        found: list[Mutation] = []
        columns = tuple((known[name].id, value) for name, value in values.items() if name in known)
        if columns or not values:
            found.append(Put(row, columns, ts))
        for name, value in values.items():
            if ":" in name:
                family, _, qualifier = name.partition(":")
                found.append(PutCell(row, family, qualifier, value, ts))
        return found

    def _named(self, key: Key) -> dict[str, Any]:
        return dict(zip(self._world.schema.codec.names, key, strict=True))

    def _take(self, mutations: list[Mutation], ts: Micros | None = None) -> Txn | None:
        if ts is not None:
            self._world.times.append(ts)
        return self._world.take_over(mutations)

    # -- writing

    def put(self) -> None:
        self._put_with(None)

    def put_at_a_time(self) -> None:
        self._put_with(self._time())

    def _put_with(self, ts: Micros | None) -> None:
        key, values = self.draw_key(), draw_values(self._rng, self._world.schema)
        self._tell(f"put({key}, {values}, ts={ts})")
        txn = self._world.table.put(self._named(key) | values, ts=ts)
        assert txn == self._take(self._written(key, values, ts), ts)
        if ts is not None and ts > micros_of(txn) and values:
            self._ahead = key, values

    def put_many(self) -> None:
        ts, mutations, rows = self._time(), list[Mutation](), list[dict[str, Any]]()
        for _ in range(self._rng.randint(1, 5)):
            key, values = self.draw_key(), draw_values(self._rng, self._world.schema)
            rows.append(self._named(key) | values)
            mutations += self._written(key, values, ts)
        self._tell(f"put_many({rows}, ts={ts})")
        txn = self._world.table.put_many(rows, ts=ts)
        assert txn == self._take(mutations, ts)

    def put_without_nulls(self) -> None:
        """What is None is not written; of a row that has nothing else, the key is."""
        ts, mutations, rows = self._time(), list[Mutation](), list[dict[str, Any]]()
        for _ in range(self._rng.randint(1, 4)):
            key, values = self.draw_key(), draw_values(self._rng, self._world.schema)
            said = {name: each for name, each in values.items() if each is not None}
            said = add_required(self._rng, self._world.schema, said)
            rows.append(self._named(key) | values | said)
            mutations += self._written(key, said, ts)
        self._tell(f"put_many({rows}, nulls='skip', ts={ts})")
        txn = self._world.table.put_many(rows, nulls="skip", ts=ts)
        assert txn == self._take(mutations, ts)

    def put_very_many(self) -> None:
        """The same columns of many rows."""
        ts, mutations, rows = self._time(), list[Mutation](), list[dict[str, Any]]()
        names = draw_values(self._rng, self._world.schema)
        known = columns_of(self._world.schema)
        for key in [*self._world.declared.many, *self._rng.sample(self._world.declared.keys, 2)]:
            values = {
                name: draw_value(self._rng, known[name]) if name in known else value for name, value in names.items()
            }
            rows.append(self._named(key) | values)
            mutations += self._written(key, values, ts)
        self._tell(f"put_many({len(rows)} rows, {rows[0]}, ..., ts={ts})")
        self._world.table.put_many(rows, ts=ts)
        self._take(mutations, ts)

    def put_if_absent(self) -> None:
        key, values = self.draw_key(), draw_values(self._rng, self._world.schema)
        self._tell(f"put({key}, {values}, if_absent=True)")
        before = self._looks.row(key, self._world.db.now())
        try:
            self._world.table.put(self._named(key) | values, if_absent=True)
        except stelae.AlreadyExists:
            assert before is not None, f"{key} is not there"
            return
        assert before is None, f"{key} is there: {before}"
        self._take(self._written(key, values))

    def put_if_unchanged(self) -> None:
        """Whether it passes is known where the snapshot is one that the table keeps. A change which left nothing that
        the schema still has may be overlooked."""
        key, values, world = self.draw_key(), draw_values(self._rng, self._world.schema), self._world
        row = world.table.get(key)
        newest = [world.db.now() if row is None else row.txn]
        since = self._rng.choice([*newest * 2, *world.remembered])
        last, is_kept = world.model.last_txn(world.row_of(key)), world.is_kept(since)
        self._tell(f"put({key}, {values}, if_unchanged_since={since}), changed last at {last}")
        try:
            world.table.put(self._named(key) | values, if_unchanged_since=since)
        except stelae.Conflict:
            assert last > since or not is_kept, f"{key} has not changed since {since}"
            return
        assert last <= max(since, self.altered_at), f"{key} changed at {last}"
        self._take(self._written(key, values))

    def _changed(self) -> tuple[Key, dict[str, Any]]:
        """A row that is updated, and its new values: often some that a version of the future would hide."""
        key, values = self.draw_key(), draw_values(self._rng, self._world.schema)
        if self._ahead is None or self._rng.random() < 0.3:
            return key, values
        (key, before), self._ahead = self._ahead, None
        known, families = columns_of(self._world.schema), families_of(self._world.schema)
        for name in before:
            if name in known:
                values[name] = draw_value(self._rng, known[name])
            elif ":" in name and name.partition(":")[0] in families:
                values[name] = b"new"
        return key, add_required(self._rng, self._world.schema, values)

    def update(self) -> None:
        key, values = self._changed()
        self._tell(f"update({key}, {values})")
        given: list[Any] = []

        def change(row: Any) -> dict[str, Any] | None:
            given.append(row)
            return values or None

        before = self._looks.row(key, self._world.db.now())
        found = self._world.table.update(key, change)
        assert given == [before]
        if not values:
            assert found == before
            return
        txn = self._take_shown(key, values)
        assert found == self._looks.row(key, txn)

    def increment(self) -> None:
        world = self._world
        numbers = {n: c for n, c in columns_of(world.schema).items() if str(c.type) in ("int64", "int32", "float64")}
        needs_all = any(not column.nullable and column.default is None for column in numbers.values())
        if not numbers or (needs_all and len(numbers) < len(columns_of(world.schema))):
            return
        key, names = self.draw_key(), list(numbers)
        if self._ahead is not None and any(name in numbers for name in self._ahead[1]):
            (key, _), self._ahead = self._ahead, None
        elif not needs_all:
            names = self._rng.sample(names, self._rng.randint(1, len(names)))
        by = {name: self._rng.randint(-3, 3) for name in names}
        self._tell(f"increment({key}, {by})")
        before = self._looks.row(key, world.db.now())
        old = {name: numbers[name].default if before is None else before[name] for name in names}
        expected = {name: (old[name] or 0) + by[name] for name in names}
        assert world.table.increment(key, by) == expected, f"from {before}"
        self._take_shown(key, expected)

    def _take_shown(self, key: Key, values: dict[str, Any]) -> Txn:
        """What was written and must be seen: at the commit's time, or behind a version of the future."""
        world, row = self._world, self._world.row_of(key)
        (txn,) = {txn for txn, _ in world.heard}
        before = world.model.read(world.model.last, read_us=micros_of(txn)).get(row)
        found = world.table.history(key, list(values), 1, txn)
        mutations: list[Mutation] = []
        hidden = {
            name: before.versions[name][0].ts
            for name in values
            if before is not None and name in before.versions and before.versions[name][0].ts > micros_of(txn)
        }
        for name, value in values.items():
            (version,) = found[name]
            assert (version.value, version.txn) == (value, txn), f"{name} of {key} is {version}, behind {hidden}"
            assert version.ts > hidden.get(name, -1)
            assert version.ts == micros_of(txn) or hidden, f"{name} of {key} is {version}"
            mutations += self._written(key, {name: value}, version.ts)
        assert world.take_over(mutations) == txn
        return txn

    def batch(self) -> None:
        world, pending = self._world, list[Mutation]()
        count_max = self._rng.randint(1, 6)
        self._tell(f"batch(count_max={count_max})")
        with world.table.batch(count_max=count_max) as batch:
            for _ in range(self._rng.randint(1, 6)):
                key, ts = self.draw_key(), self._time()
                if self._rng.random() < 0.3:
                    columns = None if self._rng.random() < 0.5 else draw_members(self._rng, world.schema)
                    self._tell(f"  erase({key}, {columns}, ts={ts})")
                    batch.erase(key, columns, ts=ts)
                    pending += self._erasures(world.row_of(key), columns, ts)
                else:
                    values = draw_values(self._rng, world.schema)
                    self._tell(f"  put({key}, {values}, ts={ts})")
                    batch.put(self._named(key) | values, ts=ts)
                    pending += self._written(key, values, ts)
                if world.heard:
                    self._take(pending)
                    pending = []
        self._take(pending)

    # -- erasing

    def _erasures(self, row: Row, columns: list[str] | None, ts: Micros | None) -> list[Mutation]:
        if columns is None:
            return [Erase(row, WholeRow(), ts)]
        return [Erase(row, target, ts) for target in self._targets(columns)]

    def _targets(self, columns: list[str]) -> list[Columns | Cell | WholeFamily]:
        known = columns_of(self._world.schema)
        found: list[Columns | Cell | WholeFamily] = []
        for name in columns:
            family, _, qualifier = name.partition(":")
            if name in known:
                found.append(Columns((known[name].id,)))
            else:
                found.append(Cell(family, qualifier) if qualifier else WholeFamily(family))
        return found

    def erase(self) -> None:
        key, ts = self.draw_key(), self._time()
        columns = None if self._rng.random() < 0.3 else draw_members(self._rng, self._world.schema)
        self._tell(f"erase({key}, {columns}, ts={ts})")
        self._world.table.erase(key, columns, ts=ts)
        self._take(self._erasures(self._world.row_of(key), columns, ts))

    def erase_versions(self) -> None:
        """Of a column or cell that has some, the newest if it can be."""
        key, now = self.draw_key(), self._world.db.now()
        found = self._world.model.read(now, history=9).get(self._world.row_of(key))
        if found is None or not found.versions:
            return
        name = self._rng.choice(list(found.versions))
        times = [version.ts for version in found.versions[name][:2]] + self._world.times[-2:]
        versions = sorted(set(self._rng.sample(times, self._rng.randint(1, 2)))) if len(times) > 1 else times
        self._tell(f"erase({key}, {[name]}, versions={versions})")
        self._world.table.erase(key, [name], versions=versions)
        target = self._targets([name])[0]
        assert not isinstance(target, WholeFamily)
        self._take([EraseVersion(self._world.row_of(key), target, ts) for ts in versions])

    def erase_many(self) -> None:
        pool = self._world.declared.many if self._rng.random() < 0.2 else self._world.declared.keys[:4]
        ts = self._time()
        self._tell(f"erase_many({pool[:4]}..., ts={ts})")
        self._world.table.erase_many(pool, ts=ts)
        self._take([Erase(self._world.row_of(key), WholeRow(), ts) for key in pool])

    def erase_range(self) -> None:
        start, stop = sorted(self._rng.sample(self._world.declared.keys, 2))
        self._tell(f"erase_range({start}, {stop})")
        decode = self._world.schema.codec.decode
        rows = [row for row in self._looks.rows(self._world.db.now()) if start <= decode(row) < stop]
        assert self._world.table.erase_range(start, stop) == len(rows)
        self._take([Erase(row, WholeRow()) for row in rows])
