"""Results of other threads reach the tasks that wait for them, and those that come together wake the loop once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from stelae.adapters.clock import SystemClock
from stelae.client.calls.wakes import Wakes
from stelae.model.errors import UnknownOutcome
from stelae.service.deadlines import Deadline
from stelae.sim.clock import SimClock


def later() -> Deadline:
    return Deadline(SystemClock(), 600)


class CountingLoop(asyncio.SelectorEventLoop):
    """Knows how often it was called from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def run(loop: asyncio.AbstractEventLoop, job: Any) -> Any:
    try:
        return loop.run_until_complete(job)
    finally:
        loop.close()


def settled(futures: list[Future[int]]) -> None:
    for number, future in enumerate(futures):
        if number % 3:
            future.set_result(number)
        else:
            future.set_exception(ValueError(str(number)))


def test_a_group_wakes_the_loop_once_and_each_gets_its_own() -> None:
    loop = CountingLoop()

    async def play() -> None:
        wakes: Wakes[int] = Wakes()
        for turn in (1, 2):
            futures: list[Future[int]] = [Future() for _ in range(9)]
            waiting = [wakes.watch(future, later()) for future in futures]
            settled(futures)
            assert not any(each.done() for each in waiting)
            found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
            assert [str(each) for each in found] == [str(number) for number in range(9)]
            assert [isinstance(each, ValueError) for each in found] == [number % 3 == 0 for number in range(9)]
            assert loop.calls == turn

    run(loop, play())


def test_results_of_another_thread_are_never_missed() -> None:
    async def play() -> int:
        wakes: Wakes[int] = Wakes()
        loop = asyncio.get_running_loop()
        total = 0
        for _ in range(300):
            futures: list[Future[int]] = [Future() for _ in range(4)]
            waiting = [wakes.watch(future, later()) for future in futures]
            done = loop.run_in_executor(None, lambda futures=futures: [future.set_result(1) for future in futures])  # type: ignore[misc]
            total += sum(await asyncio.wait_for(asyncio.gather(*waiting), 60))
            await done
        return total

    assert asyncio.run(play()) == 1_200


def test_who_waits_no_longer_is_passed_over() -> None:
    async def play() -> int:
        wakes: Wakes[int] = Wakes()
        futures: list[Future[int]] = [Future() for _ in range(3)]
        gone, failed, kept = [wakes.watch(future, later()) for future in futures]
        gone.cancel()
        failed.cancel()
        futures[0].set_result(1)
        futures[1].set_exception(ValueError("nobody looks"))
        futures[2].set_result(3)
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await asyncio.wait_for(kept, 60)

    assert asyncio.run(play()) == 3


def test_a_loop_that_was_closed_is_not_waited_for_and_the_next_one_is() -> None:
    wakes: Wakes[int] = Wakes()
    early: Future[int] = Future()
    late: Future[int] = Future()

    async def leave() -> None:
        wakes.watch(early, later())
        wakes.watch(late, later())
        early.set_result(1)  # the call that this makes is never answered

    run(asyncio.new_event_loop(), leave())
    late.set_result(2)

    async def stay() -> int:
        future: Future[int] = Future()
        waiting = wakes.watch(future, later())
        future.set_result(3)
        return await asyncio.wait_for(waiting, 60)

    assert run(asyncio.new_event_loop(), stay()) == 3


def test_what_does_not_come_in_time_is_unknown_and_the_rest_is_awaited() -> None:
    """One timer is set for all: for the first, and when it fires for the next."""

    async def play() -> None:
        clock = SimClock()
        wakes: Wakes[int] = Wakes()
        futures: list[Future[int]] = [Future() for _ in range(5)]
        deadlines = [Deadline(clock, seconds) for seconds in (0.01, 0.02, 0.02, 0.03, 600)]
        clock.advance(0.02)
        waiting = [wakes.watch(*each) for each in zip(futures, deadlines, strict=True)]
        futures[1].set_result(1)
        for late in (waiting[0], waiting[2]):
            with pytest.raises(UnknownOutcome, match="may happen or not"):
                await late
        assert await waiting[1] == 1
        assert not waiting[3].done()
        clock.advance(0.01)
        futures[0].set_result(0)  # late, and nobody is told
        with pytest.raises(UnknownOutcome, match=r"within 0\.03 s"):
            await waiting[3]
        futures[4].set_result(4)
        assert await waiting[4] == 4

    asyncio.run(play())


def test_those_that_came_are_not_watched_any_more() -> None:
    async def play() -> None:
        wakes: Wakes[int] = Wakes()
        for _ in range(100):
            future: Future[int] = Future()
            waiting = wakes.watch(future, later())
            future.set_result(1)
            await waiting
        assert wakes._calls is not None
        assert len(wakes._calls._watched) == 1

    asyncio.run(play())
