"""One program owns the store, others are attached, and owners are killed at every step: nothing acknowledged is lost,
nothing happens twice, snapshots and scans go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import stelae
from stelae.client.api.database import Database
from stelae.model.errors import Corruption, DiskFailed, Unavailable, UnknownOutcome
from stelae.model.events import Event, OwnerLost, TookOver
from stelae.sim.effects import SimCrash
from tests.client.remote.shared_store import Program, SharedStore
from tests.effort import tries

KEYS = [f"k{number}" for number in range(8)]
SPLITS = ["k2", "k4", "k6"]
SETTLED_S = 1.0
"""After so long nothing that a killed program had sent is on its way any more."""


def make_table(db: Database) -> None:
    db.create_table("t", key={"k": "string"}, groups=[stelae.columns("g", {"v": "int64"})], splits=SPLITS)


class Story:
    """Random calls of a few programs, one at a time, against what the rows may hold. `may[key]`: the values a row may
    have now; more than one after a write of which nobody knows whether it happened."""

    def __init__(self, seed: int) -> None:
        self.world = SharedStore(seed)
        self.chance = self.world.machine.chance
        self.may: dict[str, set[int | None]] = {key: {None} for key in KEYS}
        self.programs: list[tuple[Program, Database]] = []
        self.snapshots: list[tuple[Program, Any, dict[str, set[int | None]]]] = []
        self.scans: list[tuple[Program, Iterator[Any], dict[str, set[int | None]], set[str]]] = []
        self.next_value = 1
        self.unknown = 0
        first = self.world.start()
        self.programs.append((first, first.open()))
        first.run(make_table, self.programs[0][1])

    def step(self) -> None:
        if not self.programs or (len(self.programs) < 4 and self.chance.below(4) == 0):
            self._open()
            return
        if self.chance.below(5) == 0:
            self._arm()
        program, db = self.programs[self.chance.below(len(self.programs))]
        calls: list[Callable[[Program, Database], None]] = [
            *(self._put, self._put, self._put, self._get, self._get, self._erase, self._add),
            *(self._snapshot, self._read_snapshot, self._scan, self._go_on, self._compact, self._kill),
        ]
        with suppress(SimCrash):
            calls[self.chance.below(len(calls))](program, db)
        self._bury()

    def _arm(self) -> None:
        """The owner, or anybody, dies somewhere in what comes next."""
        owner = self.world.owner
        if owner is None:
            return
        for program, _ in self.programs:
            # Whoever takes over may fail to for a while.
            program.failures = [Unavailable("it cannot be opened now")] * self.chance.below(3)
        match self.chance.below(3):
            case 0:
                self.world.kill_at_effect(1 + self.chance.below(12))
            case 1:
                self.world.kill_at_step(owner, 1 + self.chance.below(30))
            case _:
                anybody = self.programs[self.chance.below(len(self.programs))][0]
                self.world.kill_at_step(anybody, 1 + self.chance.below(30))

    def _open(self) -> None:
        program = self.world.start()
        with suppress(SimCrash):
            self.programs.append((program, program.open()))
        self._bury()

    def _bury(self) -> None:
        if any(not program.is_alive for program, _ in self.programs):
            self.world.pass_s(SETTLED_S)
        self.programs = [(program, db) for program, db in self.programs if program.is_alive]
        self.snapshots = [each for each in self.snapshots if each[0].is_alive]
        self.scans = [each for each in self.scans if each[0].is_alive]

    # -- calls

    def _key(self) -> str:
        return KEYS[self.chance.below(len(KEYS))]

    def _write(self, key: str, value: int | None, write: Callable[[], object]) -> None:
        before = self.may[key]
        try:
            write()
        except UnknownOutcome:
            self.unknown += 1
            self.may[key] = before | {value}
        except SimCrash:
            self.may[key] = before | {value}
            raise
        else:
            self.may[key] = {value}

    def _put(self, program: Program, db: Database) -> None:
        key, value = self._key(), self.next_value
        self.next_value += 1
        self._write(key, value, lambda: program.run(lambda: db.table("t").put({"k": key, "v": value})))

    def _erase(self, program: Program, db: Database) -> None:
        key = self._key()
        self._write(key, None, lambda: program.run(lambda: db.table("t").erase(key)))

    def _add(self, program: Program, db: Database) -> None:
        """A transaction: what it made is what it read plus one thousand, once."""
        key = self._key()
        self._get(program, db, key)
        (before,) = self.may[key]
        after = (before or 0) + 1_000
        self._write(key, after, lambda: program.run(lambda: db.table("t").increment(key, {"v": 1_000})))

    def _get(self, program: Program, db: Database, key: str | None = None) -> None:
        key = self._key() if key is None else key
        row = program.run(lambda: db.table("t").get(key))
        self._see(self.may, key, row)

    def _see(self, may: dict[str, set[int | None]], key: str, row: Any) -> None:
        value = None if row is None else row["v"]
        assert value in may[key], f"row {key} shows {value}, and may have {may[key]}"
        may[key] = {value}

    def _snapshot(self, program: Program, db: Database) -> None:
        for key in KEYS:
            self._get(program, db, key)
        may = {key: set(values) for key, values in self.may.items()}
        self.snapshots.append((program, program.run(db.snapshot), may))

    def _read_snapshot(self, _: Program, __: Database) -> None:
        if not self.snapshots:
            return
        program, snapshot, may = self.snapshots[self.chance.below(len(self.snapshots))]
        db = next(db for each, db in self.programs if each is program)
        self._watch_pins(program)
        key = self._key()
        self._see(may, key, program.run(lambda: db.table("t").get(key, at=snapshot)))

    def _watch_pins(self, program: Program) -> None:
        """Again, if it failed: as the thread does that looks after pins."""
        is_done = program.attached is None
        while program.attached is not None and not is_done:
            try:
                program.run(program.attached.watch_pins)
                is_done = True
            except Unavailable:
                self.world.pass_s(SETTLED_S)

    def _scan(self, program: Program, db: Database) -> None:
        for key in KEYS:
            self._get(program, db, key)
        may = {key: set(values) for key, values in self.may.items()}
        rows = program.run(lambda: iter(db.table("t").scan()))
        self.scans.append((program, rows, may, set()))

    def _go_on(self, _: Program, __: Database) -> None:
        """A scan in the middle: row after row, each once, at its snapshot; in the end, all of them."""
        if not self.scans:
            return
        place = self.chance.below(len(self.scans))
        program, rows, may, seen = self.scans[place]
        for _number in range(1 + self.chance.below(4)):
            row = program.run(next, rows, None)
            if row is None:
                del self.scans[place]
                assert seen == {key for key in KEYS if may[key] != {None}}
                return
            assert row["k"] not in seen
            seen.add(row["k"])
            self._see(may, row["k"], row)

    def _compact(self, program: Program, db: Database) -> None:
        """History goes as far as nobody holds a snapshot. Those who do have had the time to say so to a new owner."""
        for holder, _ in self.programs:
            self._watch_pins(holder)
        owners = self.world.takeovers
        try:
            program.run(lambda: db.table("t").compact(erase_now=True))
        finally:
            if self.world.takeovers != owners:  # to an owner of this moment nobody could say it
                self.snapshots, self.scans = [], []

    def _kill(self, program: Program, _: Database) -> None:
        if self.chance.below(3) == 0:
            self.world.kill(program)

    def finish(self) -> None:
        """Whoever comes last finds all of it."""
        self.world.kill_at_effect(10**9)
        for program, _ in self.programs:
            program.failures = []
            self.world.kill_at_step(program, 10**9)
        self._open()
        program, db = self.programs[-1]
        for key in KEYS:
            self._get(program, db, key)


def test_stories_of_programs_that_are_killed() -> None:
    """At least three hundred seeds, whatever the effort. Writes whose owner was killed are sent again to the next one,
    or done by whoever took over: nobody is told that the outcome is unknown."""
    takeovers = unknown = 0
    for seed in range(max(300, tries(300))):
        story = Story(seed)
        try:
            for _ in range(25):
                story.step()
            story.finish()
        except BaseException as error:
            error.add_note(f"repeat it with Story({seed})")
            raise
        finally:
            story.world.end()
        takeovers += story.world.takeovers - 1
        unknown += story.unknown
    assert takeovers > 200
    assert unknown == 0


def test_a_takeover_that_fails_for_a_while_is_tried_again() -> None:
    world = SharedStore(1)
    owner, program = world.start(), world.start()
    try:
        owner.run(make_table, owner.open())
        db = program.open()
        world.kill(owner)
        program.failures = [Unavailable("the files cannot be reached"), DiskFailed("it cannot be read now")]
        assert program.run(find_k5, db) is None
        assert program.failures == []
        assert world.owner is program
    finally:
        world.end()


def test_a_takeover_that_goes_on_failing_says_why_at_the_deadline() -> None:
    world = SharedStore(1)
    owner, program = world.start(), world.start()
    try:
        owner.run(make_table, owner.open())
        db = program.open()
        world.kill(owner)
        program.failures = [Unavailable("the files cannot be reached")] * 1_000
        with pytest.raises(Unavailable, match="the files cannot be reached") as caught:
            program.run(find_k5, db)
        assert "again and again for 30 s" in caught.value.__notes__[-1]
        program.failures = [Corruption("a file is damaged", "f")]
        with pytest.raises(Corruption):
            program.run(find_k5, db)
        assert program.failures == []
    finally:
        world.end()


def one_of_each(world: SharedStore, program: Program, db: Database) -> None:
    """What an attached program asks: each kind of call, with an answer that is known."""
    table = program.run(db.table, "t")
    with suppress(UnknownOutcome):
        program.run(table.put, {"k": "k1", "v": 1})
    program.run(table.put, {"k": "k5", "v": 5})
    assert program.run(table.get, "k5") == {"k": "k5", "v": 5}
    snapshot = program.run(db.snapshot)
    rows = program.run(lambda: iter(table.scan(start="k5")))
    with suppress(UnknownOutcome):
        program.run(table.put, {"k": "k7", "v": 7})
    assert program.run(lambda: list(rows)) == [{"k": "k5", "v": 5}]
    assert program.run(lambda: table.get("k7", at=snapshot)) is None
    assert program.run(table.get_many, ["k5", "k9"]) == [{"k": "k5", "v": 5}, None]
    program.run(snapshot.close)


def find_k5(db: Database) -> Any:
    return db.table("t").get("k5")


@pytest.mark.parametrize("how", ["step", "effect"])
def test_an_owner_killed_at_every_step(how: str) -> None:
    """The calls of an attached program all come to their end, and what was acknowledged is there."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        world = SharedStore(number)
        owner, program = world.start(), world.start()
        owner.run(make_table, owner.open())
        db = program.open()
        if how == "step":
            world.kill_at_step(owner, number)
        else:
            world.kill_at_effect(number)
        try:
            with suppress(UnknownOutcome):
                one_of_each(world, program, db)
                assert program.run(find_k5, db) == {"k": "k5", "v": 5}
            is_over = owner.is_alive
        finally:
            world.end()
    assert number > (20 if how == "step" else 4)


@pytest.mark.parametrize("owner_step", [1, 6, 12])
def test_an_heir_killed_at_every_effect_of_its_takeover(owner_step: int) -> None:
    """The owner dies in the middle of a write, and whoever takes over dies, too: the next one finds what was
    acknowledged, and of the write either all or nothing."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        world = SharedStore(number)
        owner, heir, last = world.start(), world.start(), world.start()
        try:
            owner.run(make_table, owner.open())
            db, last_db = heir.open(), last.open()
            heir.run(put_k5, db, 1)
            may: set[int] = {1}
            heir.own = dying(world, heir, number)  # type: ignore[method-assign]
            world.kill_at_step(owner, owner_step)
            try:
                heir.run(put_k5, db, 2)
                may = {2}
            except (UnknownOutcome, SimCrash):
                may = {1, 2}
            if owner.is_alive:
                world.kill(owner)
            with suppress(SimCrash):
                assert heir.run(find_k5, db)["v"] in may
            is_over = heir.is_alive
            world.kill(heir)
            assert last.run(find_k5, last_db)["v"] in may
        finally:
            world.end()
    assert number > 3


def put_k5(db: Database, value: int) -> None:
    db.table("t").put({"k": "k5", "v": value})


def dying(world: SharedStore, program: Program, number: int) -> Callable[[], Any]:
    """How a program owns the store that dies at the n-th effect of it."""
    own = program.own

    def die() -> Any:
        world.kill_at_effect(number)
        found = own()
        world.kill_at_effect(10**9)
        return found

    return die


def test_who_listens_hears_of_the_owner_and_of_the_takeover() -> None:
    world = SharedStore(1)
    owner, first, second = world.start(), world.start(), world.start()
    try:
        owner.run(make_table, owner.open())
        programs = [(first, first.open()), (second, second.open())]

        def ask() -> list[list[type[Event]]]:
            for program, db in programs:
                assert program.run(find_k5, db) is None
            return [[type(event) for event in program.heard] for program in (first, second)]

        assert ask() == [[], []]
        world.kill(owner)
        assert ask() == ask()
        lost = list(second.heard)  # it may have found the next owner without noticing that there was none
        assert [type(event) for event in first.heard] == [OwnerLost, TookOver]
        assert lost in ([], [OwnerLost()])
        world.kill(first)
        del programs[0]
        assert ask() == ask()
        assert [type(event) for event in second.heard] == [*map(type, lost), OwnerLost, TookOver]
    finally:
        world.end()
