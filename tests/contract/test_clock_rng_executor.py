from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, get_ident
from typing import TypeVar

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.model.errors import Closed, Overloaded
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.rng import Rng
from stelae.sim.clock import SimClock
from stelae.sim.executor import LoopExecutor, SimExecutor
from stelae.sim.loop import SimLoop
from stelae.sim.process import ProcessClock
from stelae.sim.rng import SimRng

T = TypeVar("T")

WORKERS = 2
QUEUED_MAX = 3


@pytest.fixture(params=[SystemClock, SimClock, ProcessClock])
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    if request.param is not ProcessClock:
        yield request.param()
        return
    loop = SimLoop(seed=1)
    yield ProcessClock(loop, offset_ms=-77, rate=1.01)
    loop._drop()


def test_wall_time_is_in_milliseconds_of_this_age(clock: Clock) -> None:
    year_2020_ms, year_2200_ms = 1_577_836_800_000, 7_258_118_400_000
    assert year_2020_ms < clock.wall_ms() < year_2200_ms
    assert isinstance(clock.wall_ms(), int)


def test_monotonic_time_never_goes_back(clock: Clock) -> None:
    times = [clock.monotonic_s() for _ in range(1000)]
    assert times == sorted(times)


@pytest.fixture(params=["system", "sim"])
def rng(request: pytest.FixtureRequest) -> Rng:
    return SystemRng() if request.param == "system" else SimRng(5)


def test_tokens_have_their_size_and_do_not_repeat(rng: Rng) -> None:
    assert rng.token(0) == b""
    tokens = [rng.token(16) for _ in range(1000)]
    assert {len(token) for token in tokens} == {16}
    assert len(set(tokens)) == 1000


def test_draws_below_a_bound_reach_all_of_it(rng: Rng) -> None:
    assert {rng.below(5) for _ in range(1000)} == set(range(5))
    assert {rng.below(1) for _ in range(10)} == {0}


def test_fractions_fill_the_unit_interval(rng: Rng) -> None:
    draws = [rng.fraction() for _ in range(1000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert {int(draw * 10) for draw in draws} == set(range(10))


@dataclass(frozen=True)
class Running:
    """An executor, and how to let the accepted jobs of a future run to their end."""

    executor: Executor
    finish: Callable[[Future[T]], Future[T]]


@pytest.fixture(params=["threads", "sim", "loop"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    if request.param == "threads":
        threads = ThreadExecutor(WORKERS, QUEUED_MAX)
        yield Running(threads, lambda future: future)
        threads.close()
        return
    if request.param == "loop":
        loop = SimLoop(seed=3)

        def run_loop(future: Future[T]) -> Future[T]:
            with suppress(Exception):
                loop.run_until_complete(asyncio.wrap_future(future, loop=loop))
            return future

        yield Running(LoopExecutor(loop, QUEUED_MAX), run_loop)
        loop._drop()
        return
    scheduled = SimExecutor(SimRng(3), QUEUED_MAX)

    def finish(future: Future[T]) -> Future[T]:
        scheduled.run_all()
        return future

    yield Running(scheduled, finish)


def test_job_gets_its_arguments_and_gives_its_result(running: Running) -> None:
    future = running.executor.submit(divmod, 17, 5)
    assert running.finish(future).result() == (3, 2)
    assert running.finish(running.executor.submit(dict, key="value")).result() == {"key": "value"}


def test_error_of_a_job_is_in_its_future(running: Running) -> None:
    future = running.executor.submit(divmod, 1, 0)
    assert isinstance(running.finish(future).exception(), ZeroDivisionError)
    assert running.finish(running.executor.submit(int, "1")).result() == 1


@pytest.fixture
def gate(running: Running) -> Iterator[Event]:
    """What occupied workers wait for; opened at the end, so that a failing test ends too."""
    made = Event()
    yield made
    made.set()


def test_one_job_too_many_is_refused_and_never_runs(running: Running, gate: Event) -> None:
    ran: list[int] = []
    if isinstance(running.executor, ThreadExecutor):
        started = [Event() for _ in range(WORKERS)]

        def occupy(event: Event) -> None:
            event.set()
            gate.wait()

        for event in started:
            running.executor.submit(occupy, event)
            event.wait()
    accepted = [running.executor.submit(ran.append, number) for number in range(QUEUED_MAX)]
    with pytest.raises(Overloaded):
        running.executor.submit(ran.append, -1)
    gate.set()
    for future in accepted:
        running.finish(future).result()
    assert sorted(ran) == list(range(QUEUED_MAX))


def test_who_waited_for_a_result_may_submit_again(running: Running) -> None:
    for _ in range(200):
        futures = [running.executor.submit(get_ident) for _ in range(QUEUED_MAX)]
        for future in futures:
            running.finish(future).result()


def test_cancelled_job_never_runs_and_frees_its_place(running: Running, gate: Event) -> None:
    ran: list[int] = []
    if isinstance(running.executor, ThreadExecutor):
        occupied = [running.executor.submit(gate.wait) for _ in range(WORKERS)]
        while not all(future.running() for future in occupied):
            pass
    for _ in range(3 * QUEUED_MAX):
        assert running.executor.submit(ran.append, -1).cancel()
    waiting = [running.executor.submit(ran.append, number) for number in range(QUEUED_MAX)]
    assert waiting[1].cancel()
    gate.set()
    running.finish(waiting[0]).result()
    running.finish(waiting[2]).result()
    assert sorted(ran) == [0, 2]


def test_close_finishes_accepted_jobs_and_takes_no_more(running: Running) -> None:
    ran: list[int] = []
    futures = [running.executor.submit(ran.append, number) for number in range(QUEUED_MAX)]
    running.executor.close()
    assert all(future.done() for future in futures)
    assert sorted(ran) == list(range(QUEUED_MAX))
    with pytest.raises(Closed):
        running.executor.submit(ran.append, -1)
    running.executor.close()
    assert len(ran) == QUEUED_MAX
