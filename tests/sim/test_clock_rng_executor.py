from __future__ import annotations

import pytest

from stelae.model.errors import Closed
from stelae.sim.clock import SimClock
from stelae.sim.effects import SimCrash
from stelae.sim.executor import SimExecutor
from stelae.sim.rng import SimRng


def test_time_stands_still_until_it_is_moved() -> None:
    clock = SimClock(wall_ms=1000)
    assert [clock.wall_ms(), clock.wall_ms()] == [1000, 1000]
    assert [clock.monotonic_s(), clock.monotonic_s()] == [0, 0]
    clock.advance(2.5)
    assert (clock.wall_ms(), clock.monotonic_s()) == (3500, 2.5)


def test_parts_of_a_millisecond_add_up() -> None:
    clock = SimClock(wall_ms=0)
    for _ in range(10_000):
        clock.advance(0.0001)
    assert (clock.wall_ms(), clock.monotonic_s()) == (1000, 1.0)


def test_wall_time_steps_back_stands_still_and_jumps_while_monotonic_goes_on() -> None:
    clock = SimClock(wall_ms=10_000)
    clock.advance(1, wall_seconds=-3)
    assert (clock.wall_ms(), clock.monotonic_s()) == (7000, 1)
    clock.advance(1, wall_seconds=0)
    assert (clock.wall_ms(), clock.monotonic_s()) == (7000, 2)
    clock.set_wall_ms(99)
    assert (clock.wall_ms(), clock.monotonic_s()) == (99, 2)
    with pytest.raises(ValueError, match="-1"):
        clock.advance(-1)
    assert clock.monotonic_s() == 2


def test_draws_repeat_by_seed() -> None:
    def draws(seed: int) -> list[object]:
        rng = SimRng(seed)
        return [rng.token(8), rng.below(1 << 40), rng.fraction()]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_draws_are_the_same_on_every_machine() -> None:
    rng = SimRng(42)
    assert [rng.below(100) for _ in range(5)] == [81, 14, 3, 94, 35]


def order(seed: int) -> list[int]:
    executor = SimExecutor(SimRng(seed), queued_max=5)
    ran: list[int] = []
    for number in range(5):
        executor.submit(ran.append, number)
    executor.run_all()
    return ran


def test_order_of_jobs_repeats_by_seed_and_differs_between_seeds() -> None:
    orders = [order(seed) for seed in range(300)]
    assert orders == [order(seed) for seed in range(300)]
    assert len({tuple(ran) for ran in orders}) > 60


def test_jobs_run_only_when_asked() -> None:
    executor = SimExecutor(SimRng(0), queued_max=5)
    ran: list[int] = []
    futures = [executor.submit(ran.append, number) for number in range(2)]
    assert ran == []
    assert executor.run_one()
    assert len(ran) == 1
    assert sum(future.done() for future in futures) == 1
    assert executor.run_one()
    assert not executor.run_one()


def test_jobs_of_jobs_run_too() -> None:
    executor = SimExecutor(SimRng(0), queued_max=5)
    ran: list[str] = []

    def outer() -> None:
        executor.submit(ran.append, "inner")
        ran.append("outer")

    executor.submit(outer)
    executor.run_all()
    assert ran == ["outer", "inner"]


def test_crash_drops_what_waits() -> None:
    executor = SimExecutor(SimRng(0), queued_max=5)
    ran: list[int] = []
    future = executor.submit(ran.append, 1)
    executor.crash()
    executor.run_all()
    executor.close()
    assert ran == []
    assert not future.done()
    with pytest.raises(Closed):
        executor.submit(ran.append, 2)


def test_crash_inside_a_job_reaches_the_test() -> None:
    executor = SimExecutor(SimRng(0), queued_max=5)

    def die() -> None:
        raise SimCrash("here")

    future = executor.submit(die)
    with pytest.raises(SimCrash):
        executor.run_all()
    assert not future.done()
