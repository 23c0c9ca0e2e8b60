"""Jobs on a simulated loop: when they run, when their futures complete, and what a crash, a pause or a slow device does
to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from stelae.model.errors import Closed, Overloaded
from stelae.sim.effects import Pace, SimCrash
from stelae.sim.executor import LoopExecutor
from stelae.sim.loop import SimLoop, SimUnhandled, simulate
from stelae.sim.process import current_process


async def submit(executor: LoopExecutor, job: Callable[[], object]) -> object:
    return await asyncio.wrap_future(executor.submit(job))


def orders(seed: int) -> list[str]:
    """Which jobs ran and were heard of, in which order."""

    async def main(loop: SimLoop) -> list[str]:
        executor = LoopExecutor(loop, 10)
        found: list[str] = []

        async def one(number: int) -> None:
            await submit(executor, lambda: found.append(f"ran {number}"))
            found.append(f"heard {number}")

        await asyncio.gather(*(one(number) for number in range(4)))
        return found

    return simulate(main, seed)


def test_others_run_between_a_job_and_the_news_of_it() -> None:
    runs = [orders(seed) for seed in range(100)]
    assert runs == [orders(seed) for seed in range(100)]
    assert len({tuple(run) for run in runs}) > 50
    for run in runs:
        assert all(run.index(f"ran {number}") < run.index(f"heard {number}") for number in range(4))
    assert any(run.index("heard 0") > run.index("ran 1") > run.index("ran 0") for run in runs)


def test_a_job_takes_virtual_time_and_runs_in_its_process() -> None:
    async def main(loop: SimLoop) -> None:
        executor = LoopExecutor(loop, 4, delay_s_max=10.0)

        async def live() -> None:
            ran_in = await submit(executor, current_process)
            assert ran_in is current_process()

        process = loop.spawn("one", live())
        assert await process.ended()
        assert 0 < loop.time() < 20

    simulate(main, seed=1)


def test_jobs_of_a_crashed_process_never_run() -> None:
    fates: set[tuple[bool, bool]] = set()
    for seed in range(60):

        async def main(loop: SimLoop) -> None:
            executor = LoopExecutor(loop, 4, delay_s_max=1.0)
            found: list[str] = []

            async def live() -> None:
                await submit(executor, lambda: found.append("ran"))
                found.append("heard")

            process = loop.spawn("one", live())
            await asyncio.sleep(0.6)
            process.crash()
            before = list(found)
            await asyncio.sleep(60)
            assert found == before
            fates.add(("ran" in found, "heard" in found))

        simulate(main, seed)
    assert fates == {(False, False), (True, False), (True, True)}


def test_jobs_of_a_paused_process_wait() -> None:
    async def main(loop: SimLoop) -> None:
        executor = LoopExecutor(loop, 4)
        ran: list[float] = []

        async def live() -> None:
            await submit(executor, lambda: ran.append(loop.time()))

        process = loop.spawn("one", live())
        loop.call_soon(process.pause)
        await asyncio.sleep(60)
        assert ran == []
        process.resume()
        assert await process.ended()
        assert ran[0] >= 60

    simulate(main, seed=3)


def test_a_crash_inside_a_job_ends_its_process() -> None:
    def die() -> None:
        raise SimCrash("at an effect")

    async def main(loop: SimLoop) -> None:
        executor = LoopExecutor(loop, 4)
        process = loop.spawn("one", submit(executor, die))
        assert not await process.ended()

    async def nobodys(loop: SimLoop) -> None:
        LoopExecutor(loop, 4).submit(die)
        await asyncio.sleep(1)

    simulate(main, seed=1)
    with pytest.raises(SimUnhandled):
        simulate(nobodys, seed=1)


def test_jobs_wait_for_a_device_that_hangs_and_for_nothing_else() -> None:
    async def main(loop: SimLoop) -> None:
        pace, found = Pace(), list[str]()
        log, reads = LoopExecutor(loop, 4, paces=[pace]), LoopExecutor(loop, 4)
        pace.hang()
        futures: list[Future[None]] = [log.submit(found.append, "log"), reads.submit(found.append, "read")]
        steps = loop.steps
        await asyncio.sleep(3600)
        assert found == ["read"]
        assert loop.steps - steps < 20
        assert pace.hangs
        pace.free()
        await asyncio.wrap_future(futures[0])
        assert found == ["read", "log"]

    simulate(main, seed=1)


def test_a_slow_device_delays_its_jobs() -> None:
    async def main(loop: SimLoop) -> float:
        pace = Pace()
        pace.slow_s_max = 100.0
        await submit(LoopExecutor(loop, 4, paces=[pace]), lambda: None)
        return loop.time()

    assert max(simulate(main, seed) for seed in range(5)) > 10


def test_a_process_that_died_at_a_device_that_hangs_stays_dead() -> None:
    async def main(loop: SimLoop) -> None:
        pace, ran = Pace(), list[int]()
        pace.hang()
        process = loop.spawn("one", submit(LoopExecutor(loop, 4, paces=[pace]), lambda: ran.append(1)))
        await asyncio.sleep(1)
        process.crash()
        pace.free()
        await asyncio.sleep(1)
        assert ran == []

    simulate(main, seed=1)


def test_closing_on_the_loop_runs_what_is_left_at_once() -> None:
    async def main(loop: SimLoop) -> None:
        executor, ran = LoopExecutor(loop, 3), list[int]()
        futures = [executor.submit(ran.append, number) for number in range(3)]
        with pytest.raises(Overloaded):
            executor.submit(ran.append, 3)
        executor.close()
        assert (ran, [future.done() for future in futures]) == ([0, 1, 2], [True] * 3)
        with pytest.raises(Closed):
            executor.submit(ran.append, 4)
        await asyncio.sleep(1)
        assert ran == [0, 1, 2]

    simulate(main, seed=1)
