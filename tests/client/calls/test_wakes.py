"""Results of other threads reach the tasks that wait for them, and those that come together wake the loop once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from stelae.client.calls.wakes import Wakes


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
            waiting = [wakes.awaited(future) for future in futures]
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
            waiting = [wakes.awaited(future) for future in futures]
            done = loop.run_in_executor(None, lambda futures=futures: [future.set_result(1) for future in futures])  # type: ignore[misc]
            total += sum(await asyncio.wait_for(asyncio.gather(*waiting), 60))
            await done
        return total

    assert asyncio.run(play()) == 1_200


def test_who_waits_no_longer_is_passed_over() -> None:
    async def play() -> int:
        wakes: Wakes[int] = Wakes()
        futures: list[Future[int]] = [Future() for _ in range(3)]
        gone, failed, kept = [wakes.awaited(future) for future in futures]
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
        wakes.awaited(early)
        wakes.awaited(late)
        early.set_result(1)  # the call that this makes is never answered

    run(asyncio.new_event_loop(), leave())
    late.set_result(2)

    async def stay() -> int:
        future: Future[int] = Future()
        waiting = wakes.awaited(future)
        future.set_result(3)
        return await asyncio.wait_for(waiting, 60)

    assert run(asyncio.new_event_loop(), stay()) == 3
