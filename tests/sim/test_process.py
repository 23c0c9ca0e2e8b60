"""Processes that stop and go on, and clocks that bend a process's timers."""

from __future__ import annotations

import asyncio
import gc

import pytest

from stelae.sim.loop import SimDeadlock, SimLoop, simulate
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.process import ProcessClock, SimProcess, outside


async def tick(loop: SimLoop, times: list[float]) -> None:
    """Note the true time of each second of one's own."""
    while True:
        await asyncio.sleep(1)
        times.append(loop.now_ns / 1e9)


# -- pause and resume


def test_a_paused_process_takes_no_step_and_its_clock_goes_on() -> None:
    async def main(loop: SimLoop) -> list[float]:
        times: list[float] = []
        process = loop.spawn("paused", tick(loop, times))
        await asyncio.sleep(2.5)
        process.pause()
        steps = process.steps
        assert process.is_paused
        await asyncio.sleep(10)
        assert (process.steps, len(times)) == (steps, 2)
        process.resume()
        await asyncio.sleep(1.75)
        return times

    assert simulate(main, seed=1) == [1, 2, 12.5, 13.5]


def test_all_that_became_ready_in_a_pause_goes_on_after_it_in_drawn_order() -> None:
    def order(seed: int) -> list[int]:
        async def main(loop: SimLoop) -> list[int]:
            ran: list[int] = []

            async def live() -> None:
                for number in range(5):
                    loop.call_later(number, ran.append, number)
                loop.call_later(2, ran.append, -1).cancel()
                await asyncio.sleep(3600)

            process = loop.spawn("paused", live())
            await asyncio.sleep(0.5)
            process.pause()
            await asyncio.sleep(100)
            assert ran == [0]
            process.resume()
            process.resume()
            await asyncio.sleep(0.5)
            return ran

        return simulate(main, seed)

    orders = [order(seed) for seed in range(30)]
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in orders)
    assert len({tuple(each) for each in orders}) > 10
    assert orders == [order(seed) for seed in range(30)]


def test_what_is_killed_in_a_pause_never_goes_on() -> None:
    async def main(loop: SimLoop) -> None:
        times: list[float] = []
        process = loop.spawn("paused", tick(loop, times))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(1.5)
        process.crash()
        process.resume()
        process.pause()
        assert not process.is_paused
        await asyncio.sleep(5)
        assert times == [1]

    simulate(main, seed=1)


def test_who_waits_for_a_paused_process_for_ever_is_told() -> None:
    async def main(loop: SimLoop) -> None:
        process = loop.spawn("paused", asyncio.sleep(1))
        process.pause()
        await process.ended()

    with pytest.raises(SimDeadlock, match="paused at"):
        simulate(main, seed=1)


def test_a_world_ends_with_a_process_paused() -> None:
    ended: list[str] = []

    async def live() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cleaned up")

    async def main(loop: SimLoop) -> None:
        process = loop.spawn("paused", live())
        await asyncio.sleep(1)
        process.pause()

    simulate(main, seed=1)
    assert ended == ["cleaned up"]


# -- clocks


@pytest.mark.parametrize(("rate", "true_s"), [(2.0, 5.0), (0.5, 20.0), (1.1, 9.090909091), (1.0, 10.0)])
def test_sleeps_timeouts_and_timers_pass_at_the_clocks_rate(rate: float, true_s: float) -> None:
    async def main(loop: SimLoop) -> dict[str, float]:
        ends: dict[str, float] = {}

        def note(what: str) -> None:
            ends[what] = loop.now_ns / 1e9

        async def sleep() -> None:
            await asyncio.sleep(10)
            note("sleep")

        async def time_out() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await loop.create_future()
            note("timeout")

        async def live() -> None:
            before = loop.time()
            loop.call_later(10, note, "call_later")
            loop.call_at(before + 10, note, "call_at")
            await asyncio.gather(sleep(), time_out())
            assert loop.time() - before == pytest.approx(10)
            assert loop.time() >= before + 10

        await asyncio.sleep(3)
        process = loop.spawn("bent", live(), clock=ProcessClock(loop, rate=rate))
        assert await process.ended()
        await asyncio.sleep(0.001)
        return ends

    ends = simulate(main, seed=1)
    assert len(ends) == 4
    assert all(end == pytest.approx(3 + true_s, abs=1e-6) for end in ends.values())


def test_a_rate_that_changes_moves_the_timers_that_run() -> None:
    async def main(loop: SimLoop) -> list[float]:
        ends: list[float] = []
        clock = ProcessClock(loop)

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            ends.append(loop.now_ns / 1e9)

        loop.spawn("bent", sleep(10), clock=clock)
        loop.spawn("shares it", sleep(20), clock=clock)
        loop.spawn("true", sleep(10))
        await asyncio.sleep(4)
        clock.set_rate(2)
        assert clock.monotonic_s() == 4
        await asyncio.sleep(2)
        assert clock.monotonic_s() == 8
        clock.set_rate(0.5)
        await asyncio.sleep(100)
        return ends

    assert simulate(main, seed=1) == [10, 10, 30]


def test_timers_that_moved_ring_in_their_new_order() -> None:
    async def main(loop: SimLoop) -> list[str]:
        rang: list[str] = []
        clock = ProcessClock(loop)

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            rang.append(name)

        for seconds in (6, 7, 8, 9):
            loop.spawn("true", sleep(f"true {seconds}", seconds))
        for seconds in (10, 30):
            loop.spawn("bent", sleep(f"bent {seconds}", seconds), clock=clock)
        await asyncio.sleep(4)
        clock.set_rate(10)
        await asyncio.sleep(30)
        return rang

    assert simulate(main, seed=1) == ["bent 10", "true 6", "bent 30", "true 7", "true 8", "true 9"]


def test_a_clock_has_an_offset_and_a_rate_and_steps() -> None:
    async def main(loop: SimLoop) -> None:
        true, fast = SkewedClock(loop), ProcessClock(loop, offset_ms=200, rate=1.001)
        await asyncio.sleep(1000)
        assert fast.wall_ms() - true.wall_ms() == 1200
        assert (fast.monotonic_s(), fast.rate) == (1001, 1.001)
        fast.step_wall_ms(-5000)
        assert (fast.wall_ms() - true.wall_ms(), fast.monotonic_s()) == (-3800, 1001)
        with pytest.raises(ValueError, match="does not go back"):
            fast.set_rate(0)

    simulate(main, seed=1)


def test_a_process_sees_its_own_time_and_others_theirs() -> None:
    """Also timers that a process sets for the world outside: a frame is not late because its sender's clock is."""

    async def main(loop: SimLoop) -> list[float]:
        rang: list[float] = []

        async def live() -> None:
            await asyncio.sleep(20)
            assert loop.time() == 20
            assert SkewedClock(loop).monotonic_s() == 10
            loop.call_later(1, lambda: rang.append(loop.time()), context=outside())

        loop.spawn("fast", live(), clock=ProcessClock(loop, rate=2))
        await asyncio.sleep(30)
        assert loop.time() == 30
        return rang

    assert simulate(main, seed=1) == [11]


def test_loops_until_a_moment_end_at_that_moment_at_any_rate() -> None:
    """A timer never rings before its process's clock shows its time, so that none is set anew for nothing."""

    async def main(loop: SimLoop) -> None:
        async def wait_until(moment: float) -> int:
            rounds = 0
            while loop.time() < moment:
                await asyncio.sleep(moment - loop.time())
                rounds += 1
            return rounds

        async def live() -> None:
            for number in range(1, 200):
                assert await wait_until(number * 0.1237) <= 2

        for rate in (0.9, 0.999_983, 1.000_017, 1.1):
            assert await loop.spawn("bent", live(), clock=ProcessClock(loop, rate=rate)).ended()

    simulate(main, seed=1)


# -- power


def test_power_is_lost_by_what_lives() -> None:
    async def main(loop: SimLoop) -> list[bool]:
        processes: list[SimProcess] = [loop.spawn(str(number), asyncio.sleep(9)) for number in range(3)]
        processes[0].lose_power()
        processes[1].crash()
        processes[1].lose_power()
        return [process.lost_power for process in processes]

    assert simulate(main, seed=1) == [True, False, False]


def test_the_collector_is_off_in_a_run_and_as_it_was_after_it() -> None:
    async def main(loop: SimLoop) -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    assert not simulate(main, seed=1)
    assert gc.isenabled()
