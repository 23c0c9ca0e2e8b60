"""A walk through everything that can be done to a table, drawn from a seed: `Walk(7).run()` is always the same one.

After every step the table is read in some way and compared with the plain model, at the newest snapshot or an older
one; at the end in every way, at all of them. What the model is told of a step is what the call said, and the txn that
the store gave each row: nothing else of the store's own is in it, but for the times that `update` and `increment` give
to values which a version of the future would hide. Those are looked up, and must lie behind that version.
"""

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
    columns_of,
    draw_alteration,
    draw_members,
    draw_table,
    draw_value,
    draw_values,
)
from tests.client.walk_world import NAME, World

STEPS = 30
HELD_MAX = 2
_PASSES_S = (1, 60, 1_799, 3_601, 90_001)
_TOLD_MAX = 40


class Walk:
    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.seed = seed
        self.told: list[str] = []
        """What was done, for whoever looks for the cause of a failure."""
        self._steps = steps
        self._rng = rng = Random(seed)
        declared = draw_table(rng)
        self._tell(f"create_table({declared.arguments})")
        self._world = World(seed, declared)
        self._looks = Looks(self._world, rng)
        self._altered_at = Txn(0)
        self._ways: list[Callable[[], None]] = [
            way
            for way, weight in (
                (self._put, 12),
                (self._put_at_a_time, 8),
                (self._put_many, 4),
                (self._put_very_many, 1),
                (self._put_if_absent, 2),
                (self._put_if_unchanged, 4),
                (self._update, 4),
                (self._increment, 6),
                (self._batch, 3),
                (self._erase, 6),
                (self._erase_versions, 4),
                (self._erase_many, 2),
                (self._erase_range, 2),
                (self._truncate, 1),
                (self._flush, 6),
                (self._compact, 4),
                (self._erase_now, 2),
                (self._keep, 4),
                (self._split, 3),
                (self._join, 2),
                (self._alter, 14),
                (self._recall, 1),
                (self._snapshot, 4),
                (self._remember, 5),
                (self._pass_time, 6),
                (self._reopen, 4),
            )
            for _ in range(weight)
        ]

    def run(self) -> None:
        try:
            for number in range(self._steps):
                self.told.append(f"step {number}:")
                self._rng.choice(self._ways)()
                self._looks.look()
            self._looks.look_at_all()
            problems = self._world.db.check().problems
            assert not problems, problems
            self._world.close()
        except BaseException as error:
            error.add_note(f"Walk({self.seed}, {self._steps}).run(), which ended with:")
            for line in self.told[-_TOLD_MAX:]:
                error.add_note(f"  {line}")
            raise

    def _tell(self, what: str) -> None:
        self.told.append(what)

    # -- what is drawn

    def _key(self) -> Key:
        pool = self._world.declared.many[:3] if self._rng.random() < 0.1 else self._world.declared.keys
        return self._rng.choice(pool)

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

    def _put(self) -> None:
        self._put_with(None)

    def _put_at_a_time(self) -> None:
        self._put_with(self._time())

    def _put_with(self, ts: Micros | None) -> None:
        key, values = self._key(), draw_values(self._rng, self._world.schema)
        self._tell(f"put({key}, {values}, ts={ts})")
        txn = self._world.table.put(self._named(key) | values, ts=ts)
        assert txn == self._take(self._written(key, values, ts), ts)

    def _put_many(self) -> None:
        ts, mutations, rows = self._time(), list[Mutation](), list[dict[str, Any]]()
        for _ in range(self._rng.randint(1, 5)):
            key, values = self._key(), draw_values(self._rng, self._world.schema)
            rows.append(self._named(key) | values)
            mutations += self._written(key, values, ts)
        self._tell(f"put_many({rows}, ts={ts})")
        txn = self._world.table.put_many(rows, ts=ts)
        assert txn == self._take(mutations, ts)

    def _put_very_many(self) -> None:
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

    def _put_if_absent(self) -> None:
        key, values = self._key(), draw_values(self._rng, self._world.schema)
        self._tell(f"put({key}, {values}, if_absent=True)")
        before = self._looks.row(key, self._world.db.now())
        try:
            self._world.table.put(self._named(key) | values, if_absent=True)
        except stelae.AlreadyExists:
            assert before is not None, f"{key} is not there"
            return
        assert before is None, f"{key} is there: {before}"
        self._take(self._written(key, values))

    def _put_if_unchanged(self) -> None:
        """Whether it passes is known where the snapshot is one that the table keeps. A change which left nothing that
        the schema still has may be overlooked."""
        key, values, world = self._key(), draw_values(self._rng, self._world.schema), self._world
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
        assert last <= max(since, self._altered_at), f"{key} changed at {last}"
        self._take(self._written(key, values))

    def _update(self) -> None:
        key, values = self._key(), draw_values(self._rng, self._world.schema)
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

    def _increment(self) -> None:
        world = self._world
        numbers = {n: c for n, c in columns_of(world.schema).items() if str(c.type) in ("int64", "int32", "float64")}
        needs_all = any(not column.nullable and column.default is None for column in numbers.values())
        if not numbers or (needs_all and len(numbers) < len(columns_of(world.schema))):
            return
        names = list(numbers) if needs_all else self._rng.sample(list(numbers), self._rng.randint(1, len(numbers)))
        key, by = self._key(), {name: self._rng.randint(-3, 3) for name in names}
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

    def _batch(self) -> None:
        world, pending = self._world, list[Mutation]()
        count_max = self._rng.randint(1, 6)
        self._tell(f"batch(count_max={count_max})")
        with world.table.batch(count_max=count_max) as batch:
            for _ in range(self._rng.randint(1, 6)):
                key, ts = self._key(), self._time()
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

    def _erase(self) -> None:
        key, ts = self._key(), self._time()
        columns = None if self._rng.random() < 0.3 else draw_members(self._rng, self._world.schema)
        self._tell(f"erase({key}, {columns}, ts={ts})")
        self._world.table.erase(key, columns, ts=ts)
        self._take(self._erasures(self._world.row_of(key), columns, ts))

    def _erase_versions(self) -> None:
        """Of a column or cell that has some, the newest if it can be."""
        key, now = self._key(), self._world.db.now()
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

    def _erase_many(self) -> None:
        pool = self._world.declared.many if self._rng.random() < 0.2 else self._world.declared.keys[:4]
        ts = self._time()
        self._tell(f"erase_many({pool[:4]}..., ts={ts})")
        self._world.table.erase_many(pool, ts=ts)
        self._take([Erase(self._world.row_of(key), WholeRow(), ts) for key in pool])

    def _erase_range(self) -> None:
        start, stop = sorted(self._rng.sample(self._world.declared.keys, 2))
        self._tell(f"erase_range({start}, {stop})")
        decode = self._world.schema.codec.decode
        rows = [row for row in self._looks.rows(self._world.db.now()) if start <= decode(row) < stop]
        assert self._world.table.erase_range(start, stop) == len(rows)
        self._take([Erase(row, WholeRow()) for row in rows])

    def _truncate(self) -> None:
        self._tell("truncate_table")
        self._world.model.truncate(self._world.db.truncate_table(NAME))

    # -- files and tablets

    def _flush(self) -> None:
        self._tell("flush")
        self._world.table.flush()

    def _compact(self) -> None:
        self._tell("compact")
        self._world.table.compact()

    def _erase_now(self) -> None:
        self._tell("compact(erase_now=True)")
        now = self._world.db.now()
        kept = self._world.table.compact(erase_now=True)
        assert bool(kept) == bool(self._world.held)
        self._world.end_history(now)

    def _keep(self) -> None:
        """What a store does by itself, some of it."""
        self._tell("flush_step, compact_step")
        for step in (self._world.store.flush_step, self._world.store.compact_step):
            for _ in range(self._rng.randint(1, 12)):
                if not step():
                    break

    def _split(self) -> None:
        key = None if self._rng.random() < 0.2 else self._key()
        self._tell(f"split({key})")
        before = len(self._world.table.tablets())
        try:
            self._world.table.split(key)
        except stelae.InvalidArgument:
            assert len(self._world.table.tablets()) == before
        else:
            assert len(self._world.table.tablets()) == before + 1

    def _join(self) -> None:
        starts = [tablet.start for tablet in self._world.table.tablets()[1:]]
        if starts:
            self._tell("join")
            self._world.store.join(self._world.table.info.id, Row(self._rng.choice(starts)))

    def _alter(self) -> None:
        changes = draw_alteration(self._rng, self._world.schema)
        self._tell(f"alter_table({changes})")
        if self._world.alter(changes):
            self._altered_at = self._world.db.now()
        else:
            self._tell("  refused")

    def _recall(self) -> None:
        self._tell("drop_table, recall_table")
        self._world.db.drop_table(NAME)
        self._world.table = self._world.db.recall_table(NAME)

    # -- time and life

    def _snapshot(self) -> None:
        world = self._world
        if len(world.held) >= HELD_MAX or (world.held and self._rng.random() < 0.5):
            self._tell("let a snapshot go")
            world.held.pop(self._rng.randrange(len(world.held))).close()
        else:
            world.held.append(world.db.snapshot())
            self._tell(f"snapshot() at {world.held[-1].txn}")

    def _remember(self) -> None:
        self._world.remember(self._world.db.now())
        self._tell(f"now() is {self._world.remembered[-1]}")

    def _pass_time(self) -> None:
        seconds = self._rng.choice(_PASSES_S)
        self._tell(f"{seconds} s pass")
        self._world.machine.pass_s(seconds)
        self._looks.look_at_rows()

    def _reopen(self) -> None:
        how = self._rng.choice(("closed", "kill", "power"))
        self._tell(f"reopen after {how}")
        self._world.reopen(how)
