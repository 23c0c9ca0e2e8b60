"""The log when disks fail and processes die: nothing acknowledged is lost, nothing that failed comes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.log.positions import POSITION_MAX, POSITION_MIN, Position
from stelae.model.errors import Closed, DiskFailed, DiskFull, Unavailable, UnknownOutcome
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import Txn
from stelae.sim.disk import DiskCall, SimDisk
from stelae.sim.effects import SimCrash
from tests.effort import examples, tries
from tests.storage.wal_world import DISK_CALLS, DISK_ERRORS, FAULTS_MAX, PAGES, World, record

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(0, 400)),
        st.tuples(st.just("enqueue"), st.integers(0, 40)),
        st.tuples(st.just("drain"), st.just(0)),
        st.tuples(st.just("drain"), st.just(0)),
        st.tuples(st.sampled_from(DISK_CALLS), st.integers(1, 3)),
        st.tuples(st.sampled_from(["append", "sync"]), st.integers(1, 3)),
        st.tuples(st.sampled_from(["roll", "close", "crash", "kill"]), st.just(0)),
        st.tuples(st.just("collect"), st.integers(0, 30)),
        st.tuples(st.just("die"), st.integers(1, 6)),
    ),
    max_size=40,
)


class Play:
    """Random steps. Bytes whose sync failed, and which are still there when the process is killed, are beyond any
    log's knowledge: where that can be, the power goes too."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self._errors = Random(seed)
        self._armed: set[str] = set()
        self._faults = 0

    def step(self, kind: str, number: int) -> None:
        try:
            self._step(kind, number)
        except SimCrash:
            self.world.end(self._death("sync", "truncate", "delete"))

    def _death(self, *risks: str) -> Callable[[SimDisk], None]:
        return SimDisk.crash if self._armed & set(risks) else self._errors.choice([SimDisk.crash, SimDisk.kill])

    def _step(self, kind: str, number: int) -> None:
        world = self.world
        match kind:
            case "enqueue":
                world.enqueue(number)
            case "drain":
                world.drain()
            case "create" | "append" | "sync" | "truncate" | "delete":
                if self._faults < FAULTS_MAX - 4:
                    self._faults += 1
                    self._armed.add(kind)
                    world.disk.fail(kind, self._errors.choice(DISK_ERRORS), number)
            case "roll":
                world.wal.roll()
            case "close":
                world.close()
                world.end(self._death("sync", "truncate", "delete"))
            case "crash":
                world.end(SimDisk.crash)
            case "kill":
                world.end(SimDisk.crash if self._armed & {"truncate", "delete"} else SimDisk.kill)
            case "collect":
                world.collect(Position(max(0, world.wal.end - 20 * number)))
            case "die":
                world.effects.die_after(number)
            case _:
                raise AssertionError(kind)


@settings(max_examples=examples(400))
@given(st.integers(0, 2**32), STEPS)
def test_what_was_told_stays_true_whatever_happens(seed: int, steps: list[tuple[str, int]]) -> None:
    play = Play(seed)
    for step in steps:
        play.step(*step)
    play.world.effects.die_after(-1)
    play.world.finish()


def quiet_work(world: World) -> None:
    """No fault; groups, rolls by size and by wish, collection, a clean restart."""
    world.write(5, 30, 80)
    world.write(300, 300)
    world.wal.roll()
    world.write(20)
    world.collect(world.wal.end)
    world.write(400, 5)
    world.close()
    world.end(SimDisk.kill)
    world.write(50, 60)
    world.wal.roll()
    world.drain()
    world.collect(POSITION_MAX)
    world.write(10)


def faulty_work(world: World) -> None:
    """Every way to fail that leaves the outcome known, and then some that do not."""
    world.write(5, 30)
    for faults in (["sync"], ["append"], ["sync", "truncate"], ["sync", "truncate", "create"], ["append", "truncate"]):
        for fault in faults:
            world.disk.fail(fault, DiskFailed)  # type: ignore[arg-type]
        world.write(40, 50, 300)
        world.write(60)
    world.wal.roll()
    world.disk.fail("create", DiskFull)
    world.write(10)
    world.disk.fail("sync", DiskFull)
    world.disk.fail("delete", DiskFailed)
    world.drain()
    world.write(20)
    world.collect(Position(world.wal.end - 1))
    world.disk.fail("sync", DiskFailed)
    world.close()


def crash_points(work: Callable[[World], None], seed: int) -> range:
    world = World(seed)
    work(world)
    return range(1, world.effects.count + 1)


def dead_at(number: int, work: Callable[[World], None], seed: int, end: Callable[[SimDisk], None]) -> World:
    """Died in the midst of this effect, and opened again; if that was in a replay, the work went on."""
    world = World(seed, dies_by=end)
    world.effects.die_after(number)
    with suppress(SimCrash):
        work(world)
    assert world.effects.count >= number
    world.end(end)
    return world


@pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.kill])
@pytest.mark.parametrize("seed", range(tries(6)))
def test_death_at_every_effect_and_power_loss_later(seed: int, end: Callable[[SimDisk], None]) -> None:
    points = crash_points(quiet_work, seed)
    assert len(points) > 30
    for number in points:
        world = dead_at(number, quiet_work, seed, end)
        world.write(30)
        world.end(SimDisk.crash)
        world.finish()


@pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.kill])
@pytest.mark.parametrize("seed", range(tries(6)))
def test_death_at_every_effect_of_failures(seed: int, end: Callable[[SimDisk], None]) -> None:
    points = crash_points(faulty_work, seed)
    assert len(points) > 60
    for number in points:
        world = dead_at(number, faulty_work, seed, end)
        world.write(30)
        world.close()
        world.end(end)
        world.write(30)
        world.end(end)


@pytest.mark.parametrize("error", DISK_ERRORS)
@pytest.mark.parametrize("call", DISK_CALLS)
def test_each_fault_at_each_call(call: DiskCall, error: type[DiskFull | DiskFailed]) -> None:
    """Writing goes on without a restart, and whoever was hit was told so with the same kind of error."""
    told: set[type[object]] = set()
    for seed in range(tries(5)):
        for nth in range(1, 12):
            world = World(seed)
            world.disk.fail(call, error, nth)
            quiet_work(world)
            told |= world.errors
            world.write(7)
            assert world.last in world.kept
            world.end(SimDisk.crash)
            world.finish()
    assert told == ({type(None), error} if call in ("create", "append", "sync") else {type(None)})


def failed_for_good(world: World, *also: DiskCall) -> Txn:
    """A write whose sync fails, and then more; the txn."""
    world.write(5)
    for call in ("sync", *also):
        world.disk.fail(call, DiskFailed)
    txn = world.enqueue(20)
    world.drain()
    return txn


@pytest.mark.parametrize("also", [(), ("truncate",)], ids=["cut", "named by the next header"])
def test_a_failed_write_is_out_of_reach_when_its_writer_hears_of_it(also: tuple[DiskCall, ...]) -> None:
    for seed in range(tries(60)):
        world = World(seed)
        txn = failed_for_good(world, *also)
        with pytest.raises(DiskFailed, match=f"txn {txn} was not made durable and never will be: .* fault at sync"):
            world.futures[txn].result(0)
        world.end(SimDisk.crash)
        assert txn in world.never


def test_if_the_disk_refuses_everything_the_outcome_is_not_known_and_a_later_write_settles_it() -> None:
    seen = set()
    for seed in range(0, 600 * len(PAGES), len(PAGES)):
        for is_settled in (False, True):
            world = World(seed)
            txn = failed_for_good(world, "truncate", "create")
            with pytest.raises(UnknownOutcome, match=f"txn {txn} may be durable or not: that is not known until"):
                world.futures[txn].result(0)
            if is_settled:
                world.write(9)
            world.end(SimDisk.crash)
            seen.add((is_settled, txn in world.kept))
    assert seen == {(False, False), (False, True), (True, False)}


def test_a_close_settles_what_is_not_known_also_in_a_segment_without_records() -> None:
    for seed in range(0, 200 * len(PAGES), len(PAGES)):
        world = World(seed)
        faults: list[tuple[DiskCall, int]] = [("sync", 2), ("truncate", 1), ("create", 2)]
        for call, nth in faults:
            world.disk.fail(call, DiskFailed, nth)
        txn = world.enqueue(20)
        world.drain()
        assert world.unknown == {txn}
        world.close()
        assert len(world.wal.segments()) == 2
        assert world.never == {txn}
        world.end(SimDisk.crash)


def test_what_is_queued_behind_a_failure_fails_for_certain() -> None:
    world = World(0)
    world.write(5)
    for call in ("sync", "truncate", "create"):
        world.disk.fail(call, DiskFull)
    first, second = world.enqueue(200), world.enqueue(200)
    world.drain()
    assert world.unknown == {first}
    assert second in world.never
    assert world.failed == {first, second}
    for txn, kind in ((first, UnknownOutcome), (second, DiskFull)):
        error = world.futures[txn].exception()
        assert isinstance(error, kind)
        assert str(error).startswith(f"txn {txn} ")
        assert "simulated fault at sync" in str(error.__cause__)


def test_a_segment_that_could_not_be_begun_leaves_no_file_for_good() -> None:
    for seed in range(tries(40)):
        world = World(seed)
        for _ in range(3):
            world.disk.fail("sync", DiskFull)
            world.disk.fail("delete", DiskFull)
            world.write(5)
        for _ in range(3):
            world.write(5)
        assert world.last in world.kept
        if seed % 2:
            world.collect(POSITION_MIN)
            assert [info.name for info in world.disk.list()] == [info.name for info in world.wal.segments()]
        world.end(SimDisk.crash)
        assert [info.name for info in world.disk.list()] == [info.name for info in world.wal.segments()]


def test_names_grow_over_failures_and_restarts() -> None:
    world = World(0)
    names = []
    for call in ("sync", "append", "create", "truncate", "sync"):
        world.write(5)
        names.append(world.wal.segments()[-1].name)
        world.disk.fail(call, DiskFailed)
        world.write(5)
        world.write(5)
        names.append(world.wal.segments()[-1].name)
        world.close()
        world.end(SimDisk.crash)
    assert names == sorted(names)
    assert len(set(names)) >= 8


def test_a_deleted_segment_that_comes_back_is_no_gap_in_the_chain() -> None:
    for seed in range(tries(60)):
        world = World(seed)
        world.write(600)
        world.write(600)
        world.write(600)
        world.disk.fail("delete", DiskFailed)
        world.collect(POSITION_MAX)
        world.end(SimDisk.kill)
        world.collect(POSITION_MAX)
        world.end(SimDisk.crash)
        world.finish()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, ZeroDivisionError])
def test_any_other_error_fails_the_records_too_and_only_a_disk_error_is_swallowed(error: type[BaseException]) -> None:
    world = World(0)
    world.write(5)
    world.disk.fail("sync", error)  # type: ignore[arg-type]
    txn = world.enqueue()
    if error is OSError:
        world.drain()
    else:
        with pytest.raises(error):
            world.drain()
    expected = DiskFailed if error is OSError else Unavailable
    assert type(world.futures[txn].exception()) is expected
    world.write(5)
    world.end(SimDisk.crash)
    assert txn in world.never
    assert len(world.kept) == 2


def test_an_interrupt_while_waiting_for_the_lock_neither_loses_nor_doubles_a_record() -> None:
    for entered in range(1, 8):
        world = World(0)
        for _ in range(3):
            world.enqueue(100)
        world.lock.interrupt_at = world.lock.entered + entered
        with pytest.raises(KeyboardInterrupt):
            world.drain()
        world.drain()
        world.end(SimDisk.crash)
        assert len(world.kept) == 3


@pytest.mark.parametrize("faults", [("append",), ("sync",), ("sync", "truncate", "create")], ids="-".join)
def test_a_close_that_the_disk_refuses_says_so_and_loses_nothing(faults: tuple[DiskCall, ...]) -> None:
    for seed in range(tries(30)):
        world = World(seed)
        world.write(5, 6)
        for fault in faults:
            world.disk.fail(fault, DiskFull)
        with pytest.raises(DiskFull):
            world.wal.close()
        with pytest.raises(Closed):
            world.wal.enqueue(record(TXN_MAX))
        world.wal.roll()
        world.wal.drain()
        assert [info.is_active for info in world.wal.segments()] == [False]
        if seed % 2:
            world.wal.close()
            assert [info.is_active for info in world.wal.segments()] == [False, False]
        world.end(SimDisk.crash if "truncate" in faults else SimDisk.kill)
        world.write(7)
        world.end(SimDisk.crash)
        assert len(world.kept) == 3
