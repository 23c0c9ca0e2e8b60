from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress

import pytest

from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimDeadlock, SimLoop, SimOverrun, SimUnhandled, simulate
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.process import current_process, inside, outside


def test_sleeps_take_no_time_and_time_jumps_to_the_next_timer() -> None:
    async def main(loop: SimLoop) -> list[float]:
        times = []
        for seconds in (0.0, 0.25, 3600, 1e-9, 86400 * 365):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert simulate(main, seed=1) == [0, 0.25, 3600.25, 3600.250000001, 31539600.250000001]


def test_timers_end_in_order_of_time_and_cancelled_ones_do_not_move_it() -> None:
    async def main(loop: SimLoop) -> tuple[list[int], float]:
        ran: list[int] = []
        for delay in (5, 1, 3, 2, 4):
            loop.call_later(delay, ran.append, delay)
        loop.call_at(100, ran.append, 100).cancel()
        loop.call_soon(ran.append, -1).cancel()
        await asyncio.sleep(6)
        return ran, loop.time()

    assert simulate(main, seed=1) == ([1, 2, 3, 4, 5], 6)


def interleaving(seed: int) -> list[tuple[int, int]]:
    async def main(loop: SimLoop) -> list[tuple[int, int]]:
        ran: list[tuple[int, int]] = []

        async def walk(name: int) -> None:
            for step in range(3):
                ran.append((name, step))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for name in range(3):
                group.create_task(walk(name))
        return ran

    return simulate(main, seed)


def test_order_is_drawn_from_the_seed_and_keeps_each_tasks_own() -> None:
    runs = [interleaving(seed) for seed in range(200)]
    assert runs == [interleaving(seed) for seed in range(200)]
    assert len({tuple(run) for run in runs}) > 150
    for run in runs:
        for name in range(3):
            assert [step for of, step in run if of == name] == [0, 1, 2]


def test_sets_of_tasks_keep_their_order_between_runs() -> None:
    async def main(loop: SimLoop) -> list[str]:
        order: list[str] = []

        async def wait_and_note() -> None:
            try:
                await loop.create_future()
            finally:
                task = asyncio.current_task()
                assert task is not None
                order.append(task.get_name())

        tasks = {asyncio.create_task(wait_and_note(), name=f"t{number}") for number in range(20)}
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return order

    runs = [simulate(main, seed=3) for _ in range(5)]
    assert all(run == runs[0] for run in runs)


def test_asyncio_tools_work() -> None:
    async def main(loop: SimLoop) -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock = asyncio.Lock()
        took: list[object] = []

        async def produce() -> None:
            for number in range(10):
                await queue.put(number)

        async def consume() -> None:
            for _ in range(5):
                async with lock:
                    took.append(await queue.get())

        async def count() -> AsyncIterator[int]:
            for number in range(3):
                await asyncio.sleep(1)
                yield number

        await asyncio.gather(produce(), consume(), consume())
        with suppress(TimeoutError):
            async with asyncio.timeout(2.5):
                async for number in count():
                    took.append(number)  # noqa: PERF401
        future: Future[object] = Future()
        loop.call_later(1, future.set_result, "from an executor")
        took.append(await asyncio.wrap_future(future))
        return took

    for seed in range(20):
        assert simulate(main, seed) == [*range(10), 0, 1, "from an executor"]


def test_deadlock_says_who_waits_where() -> None:
    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(2)
        asyncio.create_task(asyncio.Event().wait(), name="the other")  # noqa: RUF006
        await loop.create_future()

    with pytest.raises(SimDeadlock, match=r"at 2.0 s(.|\n)*main-\d+ at .*test_loop.py:\d+(.|\n)*the other at"):
        simulate(main, seed=1)


def test_spinning_is_bounded() -> None:
    async def main(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimOverrun, match="more than 100 steps"):
        simulate(main, seed=1, steps_max=100)


@pytest.mark.parametrize("what", ["to_thread", "open_connection", "create_subprocess_exec"])
def test_threads_and_real_io_are_refused(what: str) -> None:
    async def main(loop: SimLoop) -> None:
        match what:
            case "to_thread":
                await asyncio.to_thread(print)
            case "open_connection":
                await asyncio.open_connection("127.0.0.1", 1)
            case _:
                await asyncio.create_subprocess_exec("true")

    with pytest.raises(RuntimeError, match="the simulation has no threads, processes or real I/O"):
        simulate(main, seed=1)


def test_error_of_main_comes_out() -> None:
    async def main(loop: SimLoop) -> None:
        asyncio.create_task(asyncio.sleep(10))  # noqa: RUF006
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        simulate(main, seed=1)


def test_error_that_no_one_took_fails_the_run() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def in_task(loop: SimLoop) -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    async def in_callback(loop: SimLoop) -> None:
        empty: dict[str, int] = {}
        loop.call_soon(empty.__getitem__, "x")
        await asyncio.sleep(1)

    async def taken(loop: SimLoop) -> None:
        with pytest.raises(KeyError):
            await asyncio.create_task(fail())

    for main in (in_task, in_callback):
        with pytest.raises(SimUnhandled) as caught:
            simulate(main, seed=1)
        assert isinstance(caught.value.__cause__, KeyError)
    simulate(taken, seed=1)


def test_tasks_left_over_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def main(loop: SimLoop) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)
                ended.append("cleaned up")

        asyncio.create_task(wait())  # noqa: RUF006
        await asyncio.sleep(1)

    simulate(main, seed=1)
    assert ended == ["cleaned up"]


async def _count(counted: list[str], name: str) -> None:
    try:
        for number in range(5):
            await asyncio.sleep(1)
            counted.append(f"{name} {number}")
    finally:
        counted.append(f"{name} ends")


async def _family(counted: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_count(counted, "child"))
        asyncio.get_running_loop().call_later(2.5, counted.append, "timer")
        await _count(counted, "parent")


def test_crashed_process_takes_no_further_step_in_any_of_its_tasks() -> None:
    async def main(loop: SimLoop) -> list[str]:
        counted: list[str] = []
        process = loop.spawn("process", _family(counted))
        await asyncio.sleep(2.25)
        process.crash()
        process.crash()
        assert not process.alive
        assert not await process.ended()
        await asyncio.sleep(10)
        return list(counted)

    assert sorted(simulate(main, seed=1)) == ["child 0", "child 1", "parent 0", "parent 1"]


def test_process_that_returns_has_ended() -> None:
    async def main(loop: SimLoop) -> tuple[bool, list[str]]:
        counted: list[str] = []
        process = loop.spawn("process", _family(counted))
        return await process.ended(), counted

    ended, counted = simulate(main, seed=1)
    assert ended
    assert len(counted) == 13


def test_error_of_a_process_reaches_who_waits_for_it() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    async def main(loop: SimLoop) -> None:
        with pytest.raises(KeyError):
            await loop.spawn("process", fail()).ended()

    simulate(main, seed=1)


def test_process_can_be_crashed_at_each_of_its_steps() -> None:
    def run(crash_at: int | None) -> tuple[list[str], int, bool]:
        async def main(loop: SimLoop) -> tuple[list[str], int, bool]:
            counted: list[str] = []
            process = loop.spawn("process", _family(counted), crash_at=crash_at)
            ended = await process.ended()
            return list(counted), process.steps, ended

        return simulate(main, seed=5)

    whole, steps, ended = run(None)
    assert ended
    seen = []
    for crash_at in range(1, steps + 1):
        counted, _, ended = run(crash_at)
        assert counted == whole[: len(counted)]
        assert not ended or counted == whole
        seen.append(len(counted))
    assert seen == sorted(seen)
    assert len(set(seen)) >= 10


def test_crash_of_a_store_ends_the_process_within_the_step() -> None:
    async def main(loop: SimLoop) -> list[str]:
        counted: list[str] = []

        async def die() -> None:
            await asyncio.sleep(1.5)
            raise SimCrash("in the middle of a write")

        async def world() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(die())
                    group.create_task(_count(counted, "other"))
            finally:
                counted.append("cleaned up")

        assert not await loop.spawn("process", world()).ended()
        await asyncio.sleep(10)
        return list(counted)

    for seed in range(20):
        assert simulate(main, seed) == ["other 0"]


def test_what_a_process_left_outside_goes_on() -> None:
    async def main(loop: SimLoop) -> list[str]:
        arrived: list[str] = []

        async def send() -> None:
            loop.call_later(5, arrived.append, "message", context=outside())
            loop.call_later(5, arrived.append, "own timer")
            await asyncio.sleep(100)

        process = loop.spawn("process", send())
        await asyncio.sleep(1)
        process.crash()
        await asyncio.sleep(10)
        return arrived

    assert simulate(main, seed=1) == ["message"]


def test_clocks_are_off_and_drift() -> None:
    async def main(loop: SimLoop) -> None:
        right, late, fast = SkewedClock(loop), SkewedClock(loop, offset_ms=-250), SkewedClock(loop, 100, drift=0.01)
        start = right.wall_ms()
        assert (late.wall_ms(), fast.wall_ms()) == (start - 250, start + 100)
        await asyncio.sleep(100)
        assert (right.wall_ms() - start, right.monotonic_s()) == (100_000, 100)
        assert (late.wall_ms() - start, late.monotonic_s()) == (99_750, 100)
        assert (fast.wall_ms() - start, fast.monotonic_s()) == (101_100, 101)
        fast.step_wall_ms(-5000)
        assert (fast.wall_ms() - start, fast.monotonic_s()) == (96_100, 101)

    simulate(main, seed=1)


def test_clock_that_goes_back_is_refused() -> None:
    async def main(loop: SimLoop) -> None:
        SkewedClock(loop, drift=-1)

    with pytest.raises(ValueError, match="does not go back"):
        simulate(main, seed=1)


def test_who_watches_a_process_is_told_of_its_crash_once() -> None:
    async def main(loop: SimLoop) -> list[str]:
        told: list[str] = []

        def first() -> None:
            told.append("first")

        def second() -> None:
            told.append("second")

        process = loop.spawn("watched", asyncio.sleep(3600), crash_at=2)
        for then in (first, second):
            process.watch(then)
        process.unwatch(first)
        await asyncio.sleep(7200)
        process.crash()
        process.watch(first)
        return told

    assert simulate(main, seed=1) == ["second", "first"]


def test_code_that_runs_as_a_process_ends_with_it() -> None:
    async def main(loop: SimLoop) -> list[str]:
        ran: list[str] = []
        process = loop.spawn("one", asyncio.sleep(3600))
        inside(process).run(loop.call_later, 1, ran.append, "before")
        inside(process).run(loop.call_later, 3, ran.append, "after")
        assert inside(process).run(current_process) is process
        assert current_process() is None
        await asyncio.sleep(2)
        process.crash()
        await asyncio.sleep(2)
        return ran

    assert simulate(main, seed=1) == ["before"]
