"""A walk through everything that can be done to a table, drawn from a seed: `Walk(7).run()` is always the same one.

After every step the table is read in some way and compared with the plain model, at the newest snapshot or an older
one; at the end in every way, at all of them. What the model is told of a step is what the call said, and the txn that
the store gave each row: nothing else of the store's own is in it, but for the times that `update` and `increment` give
to values which a version of the future would hide. Those are looked up, and must lie behind that version.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import stelae
from stelae.model.ids import Row
from tests.client.walk_looks import Looks
from tests.client.walk_tables import draw_alteration, draw_table
from tests.client.walk_world import NAME, World
from tests.client.walk_writes import Writes

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
        self.looks = Looks(self._world, rng)
        self._writes = writes = Writes(self._world, self.looks, rng, self._tell)
        self._ways: list[Callable[[], None]] = [
            way
            for way, weight in (
                (writes.put, 14),
                (writes.put_at_a_time, 8),
                (writes.put_many, 4),
                (writes.put_very_many, 1),
                (writes.put_without_nulls, 2),
                (writes.put_if_absent, 2),
                (writes.put_if_unchanged, 4),
                (writes.update, 6),
                (writes.increment, 6),
                (writes.batch, 3),
                (writes.erase, 6),
                (writes.erase_versions, 4),
                (writes.erase_many, 2),
                (writes.erase_range, 2),
                (self._truncate, 1),
                (self._flush, 6),
                (self._compact, 4),
                (self._erase_now, 3),
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
                self.looks.look()
            self.looks.look_at_all()
            problems = self._world.db.check().problems
            assert not problems, problems
            self._world.close()
        except BaseException as error:
            error.add_note(f"Walk({self.seed}, {self._steps}).run(), which ended with:")
            for line in self.told[-_TOLD_MAX:]:
                error.add_note(f"  {line}")
            self._world.machine.end("kill")
            raise

    def _tell(self, what: str) -> None:
        self.told.append(what)

    # -- files and tablets

    def _truncate(self) -> None:
        self._tell("truncate_table")
        self._world.model.truncate(self._world.db.truncate_table(NAME))

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
        snapshots = [who for who in kept if "begins at the key of a row that is gone" not in who]
        assert bool(snapshots) == bool(self._world.held)
        assert len(kept) - len(snapshots) < len(self._world.table.tablets())
        self._world.end_history(now)

    def _keep(self) -> None:
        """What a store does by itself, some of it."""
        self._tell("flush_step, compact_step")
        for step in (self._world.store.flush_step, self._world.store.compact_step):
            for _ in range(self._rng.randint(1, 12)):
                if not step():
                    break

    def _split(self) -> None:
        key = None if self._rng.random() < 0.2 else self._writes.draw_key()
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
            self._world.store.join(self._world.table._info.id, Row(self._rng.choice(starts)))

    def _alter(self) -> None:
        changes = draw_alteration(self._rng, self._world.schema)
        self._tell(f"alter_table({changes})")
        if self._world.alter(changes):
            self._writes.altered_at = self._world.db.now()
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
        self.looks.look_at_rows()

    def _reopen(self) -> None:
        how = self._rng.choice(("closed", "kill", "power"))
        self._tell(f"reopen after {how}")
        self._world.reopen(how)
