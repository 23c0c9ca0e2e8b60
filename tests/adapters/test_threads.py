"""A loop in a thread of its own: whoever waits for it is answered, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from stelae.adapters.threads import LoopThread, StepThread
from stelae.model.errors import Closed, DiskFull, InvalidArgument
from tests.effort import HANG_S, tries


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("tried")
    yield made
    made.close()


async def one() -> int:
    return 1


def test_a_job_that_the_end_comes_before_is_told(loop: LoopThread) -> None:
    assert loop.run(one()) == 1
    loop.close()
    with pytest.raises(Closed):
        loop.run(one())
    loop.close()


def test_a_job_that_is_under_way_at_the_end_is_told(loop: LoopThread) -> None:
    begun = Event()

    async def for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(loop.run, for_ever())
        begun.wait()
        loop.close()
        with pytest.raises(Closed, match="meanwhile"):
            waiting.result()


def test_a_job_that_is_cancelled_by_others_is_cancelled(loop: LoopThread) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CancelledError):
        loop.run(cancelled())
    assert loop.run(one()) == 1


def test_the_loops_own_thread_cannot_wait_for_it(loop: LoopThread) -> None:
    async def ended() -> None:
        loop.close()

    with pytest.raises(InvalidArgument, match="own thread"):
        loop.run(ended())
    assert loop.run(one()) == 1


@pytest.mark.parametrize("closers", [1, 2])
def test_nobody_waits_for_ever_for_a_loop_that_ends(closers: int) -> None:
    """Jobs and the end come at once."""

    def ask(loop: LoopThread, barrier: Barrier) -> None:
        barrier.wait()
        try:
            while True:
                assert loop.run(one()) == 1
        except Closed:
            pass

    def end(loop: LoopThread, barrier: Barrier) -> None:
        barrier.wait()
        loop.close()
        assert loop.loop.is_closed()

    with ThreadPoolExecutor(3 + closers) as threads:
        for _ in range(tries(50)):
            loop, barrier = LoopThread("raced"), Barrier(3 + closers)
            jobs = [threads.submit(ask, loop, barrier) for _ in range(3)]
            jobs += [threads.submit(end, loop, barrier) for _ in range(closers)]
            for job in jobs:
                job.result(HANG_S)


def test_a_step_that_fails_is_tried_again_ever_less_often_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    plan: list[Exception | bool] = [*[DiskFull("no room")] * 6, ValueError("odd"), True, DiskFull("no room"), False]
    done = Event()

    def step() -> bool:
        said = plan.pop(0)
        if isinstance(said, Exception):
            raise said
        if not plan:
            done.set()
        return said

    thread = StepThread("steps", step)
    monkeypatch.setattr(thread._ended, "wait", waits.append)
    thread.wake()
    assert done.wait(HANG_S)
    thread.close()
    assert waits == [1, 2, 4, 8, 8, 8, 8, 1]
    told = [record.getMessage() for record in caplog.records if record.name == "stelae"]
    assert told == [
        "steps: no room; it is tried again until it is done",
        "steps failed (odd); it is tried again",
        "steps: no room; it is tried again until it is done",
    ]
