"""What every event loop that others wait for promises: a thread's own, and the simulated one that is run by whoever
waits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator

import pytest

from stelae.adapters.threads import LoopThread
from stelae.ports.loop import Loop
from tests.machines import OneThread

MANY = 50


@pytest.fixture(params=["thread", "sim"])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    if request.param == "thread":
        thread = LoopThread("contract")
        yield thread
        thread.close()
    else:
        one = OneThread(seed=3)
        yield one
        one.drop()


class Ready:
    """Awaitable, and no coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield from asyncio.sleep(0).__await__()
        return "ready"


def test_the_result_of_a_job_is_returned(loop: Loop) -> None:
    async def job(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    assert [loop.run(job(number)) for number in range(MANY)] == [2 * number for number in range(MANY)]


def test_what_a_job_raises_is_raised(loop: Loop) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("not here")

    async def go_on() -> str:
        return "as ever"

    with pytest.raises(LookupError, match="not here"):
        loop.run(fail())
    assert loop.run(go_on()) == "as ever"


def test_a_job_may_be_anything_that_can_be_awaited(loop: Loop) -> None:
    async def begin() -> asyncio.Future[str]:
        return asyncio.ensure_future(answer())

    async def answer() -> str:
        await asyncio.sleep(0)
        return "answered"

    assert loop.run(Ready()) == "ready"
    assert loop.run(loop.run(begin())) == "answered"


def test_all_jobs_run_on_one_loop(loop: Loop) -> None:
    async def here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert len({id(loop.run(here())) for _ in range(3)}) == 1


def test_a_job_waits_for_time_to_pass(loop: Loop) -> None:
    async def wait() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - before

    assert loop.run(wait()) >= 0.009  # clocks may be coarse


def test_what_a_job_began_goes_on_while_somebody_waits_for_another(loop: Loop) -> None:
    """As watches of a metastore do, and followers of a catalog."""
    seen: list[int] = []

    async def begin() -> tuple[asyncio.Queue[int], asyncio.Task[None]]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        return queue, asyncio.create_task(follow(queue))

    async def follow(queue: asyncio.Queue[int]) -> None:
        while (number := await queue.get()) < MANY:
            seen.append(number)

    async def say(number: int) -> None:
        await queue.put(number)

    queue, following = loop.run(begin())
    for number in range(MANY):
        loop.run(say(number))
    loop.run(say(MANY))
    loop.run(following)
    assert seen == list(range(MANY))


def test_jobs_share_what_belongs_to_the_loop(loop: Loop) -> None:
    """A lock that one job took keeps the next one waiting, until a task of the loop lets it go."""
    told: list[str] = []

    async def take() -> asyncio.Lock:
        lock = asyncio.Lock()
        await lock.acquire()
        return lock

    async def pass_on(lock: asyncio.Lock) -> None:
        async def let_go() -> None:
            told.append("let go")
            lock.release()

        ending = asyncio.create_task(let_go())
        async with lock:
            told.append("taken")
        await ending

    loop.run(pass_on(loop.run(take())))
    assert told == ["let go", "taken"]
