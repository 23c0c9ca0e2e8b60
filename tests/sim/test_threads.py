"""Simulated threads: they wait in virtual time, one at a time, in an order that the seed draws, and end by a crash."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from stelae.model.errors import Closed, Overloaded
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop, SimUnhandled, simulate
from stelae.sim.threads.executor import ThreadsExecutor
from stelae.sim.threads.locks import simulated_locks
from stelae.sim.threads.thread import SimThread, current_thread, run_in_thread


def sleep(seconds: float) -> None:
    thread = current_thread()
    assert thread is not None
    thread.sleep(seconds)


def test_a_thread_sleeps_in_virtual_time_while_the_loop_goes_on() -> None:
    async def main(loop: SimLoop) -> tuple[float, float]:
        def job() -> float:
            sleep(5.0)
            return loop.time()

        task = asyncio.ensure_future(run_in_thread(loop, job))
        await asyncio.sleep(1.0)
        between = loop.time()
        return between, await task

    assert simulate(main, 1) == (1.0, 5.0)


def test_what_a_job_raises_is_its_callers() -> None:
    def job() -> None:
        raise ValueError("no")

    async def main(loop: SimLoop) -> None:
        with pytest.raises(ValueError, match="no"):
            await run_in_thread(loop, job)

    simulate(main, 1)


def test_what_a_thread_of_nobody_raises_fails_the_run() -> None:
    def job() -> None:
        raise ValueError("no")

    async def main(loop: SimLoop) -> None:
        SimThread(loop, job, "t").start()
        await asyncio.sleep(1)

    with pytest.raises(SimUnhandled):
        simulate(main, 1)


def test_locks_events_conditions_and_futures_wait_in_virtual_time() -> None:
    heard: list[str] = []

    async def main(loop: SimLoop) -> None:
        lock, event, condition = threading.Lock(), threading.Event(), threading.Condition()
        future: Future[str] = Future()

        def hold() -> None:
            with lock:
                sleep(2.0)
                heard.append("held")
            event.set()
            with condition:
                condition.notify()
            future.set_result("done")

        def wait() -> None:
            with condition:
                assert condition.wait(10.0)
            assert event.wait(10.0)
            with lock:
                heard.append("waited")
            assert future.result(10.0) == "done"
            assert not threading.Event().wait(3.0)

        await asyncio.gather(run_in_thread(loop, wait), run_in_thread(loop, hold))
        assert loop.time() == 5.0

    with simulated_locks():
        simulate(main, 1)
    assert heard == ["held", "waited"]


@pytest.mark.parametrize("preemption", [0.0, 0.5])
def test_threads_change_at_locks_only_with_preemption_and_by_the_seed(preemption: float) -> None:
    def order(seed: int) -> str:
        heard: list[str] = []

        async def main(loop: SimLoop) -> None:
            lock = threading.Lock()

            def job(name: str) -> None:
                for _ in range(4):
                    with lock:
                        heard.append(name)

            await asyncio.gather(*(run_in_thread(loop, job, name) for name in "ab"))

        with simulated_locks(preemption):
            simulate(main, seed)
        return "".join(heard)

    orders = [order(seed) for seed in range(10)]
    assert orders == [order(seed) for seed in range(10)]
    unbroken = {"aaaabbbb", "bbbbaaaa"}
    assert set(orders) <= unbroken if not preemption else set(orders) - unbroken


def test_a_crash_unwinds_threads_where_they_wait_and_lets_go_of_their_locks() -> None:
    heard: list[str] = []

    async def main(loop: SimLoop) -> None:
        lock = threading.Lock()

        def job() -> None:
            with lock:
                try:
                    sleep(10.0)
                except SimCrash:
                    heard.append("crashed")
                    raise

        async def live() -> None:
            await run_in_thread(loop, job)

        process = loop.spawn("p", live())
        await asyncio.sleep(1.0)
        process.crash()
        await asyncio.sleep(1.0)
        assert not lock.locked()
        assert not loop.threads

    with simulated_locks():
        simulate(main, 1)
    assert heard == ["crashed"]


def test_a_paused_process_takes_its_threads_along() -> None:
    async def main(loop: SimLoop) -> None:
        process = loop.spawn("p", run_in_thread(loop, lambda: sleep(1.0)))
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5.0)
        assert loop.threads
        process.resume()
        assert await process.ended()
        assert loop.time() == 5.5

    simulate(main, 1)


def test_an_executor_has_so_many_threads_and_places() -> None:
    async def main(loop: SimLoop) -> None:
        executor = ThreadsExecutor(loop, threads_max=1, queued_max=1)
        running, most = 0, 0

        def job() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            sleep(1.0)
            running -= 1
            return most

        first, second = executor.submit(job), executor.submit(job)
        with pytest.raises(Overloaded):
            executor.submit(job)
        assert await asyncio.gather(*(asyncio.wrap_future(each) for each in (first, second))) == [1, 1]
        executor.close()
        with pytest.raises(Closed):
            executor.submit(job)

    simulate(main, 1)
