"""A far side that fails on a mistake of its own: what may be behind a change is told as unknown, at once; what is safe
to repeat is told as the mistake that it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.api.aio.table import AsyncTable
from stelae.client.api.table import Table
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.intake.mutations import blocks_of
from stelae.client.remote.writes import GROUP_BYTES
from stelae.model.errors import InternalFault, Overloaded, StelaeError, UnknownOutcome
from stelae.model.ids import Txn
from stelae.service.table import OPERATIONS
from tests.client.asked import ASKED, TABLE
from tests.client.fake_backend import FakeBackend, StoreWorld, served, table_info
from tests.client.samples import USERS
from tests.effort import HANG_S


def fail(*_: object) -> object:
    raise KeyError("a mistake of the far side")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    with served(tmp_path, FakeBackend({TABLE: table_info(USERS)}, {"now": Txn(1)})) as world:
        world.loop.run(_hear_nothing())
        yield world


async def _hear_nothing() -> None:
    """The far side says its mistakes to whoever hears them there."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


def check(error: StelaeError, name: str) -> None:
    if OPERATIONS[name].is_repeatable:
        assert type(error) is InternalFault
        return
    assert isinstance(error, UnknownOutcome)
    assert (type(error), error.is_fault) == (UnknownOutcome, True)
    assert str(error).startswith(f"{name} may or may not have happened: ")
    assert "KeyError" in str(error)


@pytest.mark.parametrize("name", ASKED)
def test_what_may_be_behind_a_change_is_told_as_unknown(name: str, world: StoreWorld) -> None:
    world.backend.answers |= {name: fail, "newest_cached": fail}
    with pytest.raises(StelaeError) as caught:
        ASKED[name](world.attach(), None)
    check(caught.value, name)


class Programs:
    """A table as a plain program and an awaited one see it."""

    def __init__(self, world: StoreWorld) -> None:
        self._world = world

    def plainly(self, call: Callable[[Any], Any]) -> StelaeError:
        session = Session(self._world.attach(), Patience(SystemClock(), SystemRng(), HANG_S))
        with pytest.raises(StelaeError) as caught:
            call(Table(session, table_info(USERS)))
        return caught.value

    def awaited(self, call: Callable[[Any], Any]) -> StelaeError:
        return asyncio.run(self._awaited(call))

    async def _awaited(self, call: Callable[[Any], Any]) -> StelaeError:
        session = Session(self._world.attach(), Patience(SystemClock(), SystemRng(), HANG_S))
        on_loop = AsyncSession(session, ThreadExecutor(2, 10))
        try:
            with pytest.raises(StelaeError) as caught:
                await call(AsyncTable(on_loop, table_info(USERS)))
            return caught.value
        finally:
            await on_loop.close()

    def each(self, call: Callable[[Any], Any]) -> Iterator[StelaeError]:
        """What ends it in one and then in the other."""
        yield self.plainly(call)
        yield self.awaited(call)


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "put": ("write", lambda table: table.put({"id": "ann", "age": 1})),
    "put_many": ("write", lambda table: table.put_many([{"id": "ann", "age": 1}, {"id": "bob", "age": 2}])),
    "erase": ("write", lambda table: table.erase("ann")),
    "get_many": ("newest_many", lambda table: table.get_many(["ann"])),
    "flush": ("flush", lambda table: table.flush()),
}


@pytest.mark.parametrize("which", CALLS)
def test_a_call_that_meets_a_mistake_ends_with_its_first_try(which: str, world: StoreWorld) -> None:
    name, call = CALLS[which]
    world.backend.answers[name] = fail
    for number, error in enumerate(Programs(world).each(call), 1):
        check(error, name)
        assert [asked[0] for asked in world.backend.calls].count(name) == number, "nobody asked twice"


def test_a_mistake_after_a_refusal_or_a_lost_answer_ends_the_call(world: StoreWorld) -> None:
    """As long as nothing worse is said, the write is sent again."""
    said: list[Any] = []

    def answer(*_: Any) -> Any:
        if not said:
            said.extend([fail, lambda: UnknownOutcome("its answer was lost"), lambda: Overloaded("full")])
        return said.pop()()

    world.backend.answers["write"] = answer
    for number, error in enumerate(Programs(world).each(CALLS["put"][1]), 1):
        check(error, "write")
        assert len(world.backend.calls) == 3 * number


@pytest.mark.parametrize("way", ["write", "submit"])
def test_a_mistake_half_way_says_what_is_durable_and_leaves_the_rest_open(way: str, world: StoreWorld) -> None:
    """Two rows that are sent one after the other."""
    rows = [{"id": name, "name": "x" * (GROUP_BYTES * 3 // 4)} for name in ("ann", "bob")]
    blocks = blocks_of(USERS, rows, block_rows_max=1)
    world.backend.answers["write"] = lambda *_: Txn(4) if len(world.backend.calls) == 1 else fail()
    remote = world.attach()
    with pytest.raises(UnknownOutcome, match="the first 1 records are durable") as caught:
        remote.write(TABLE, blocks) if way == "write" else remote.submit(TABLE, blocks).result()
    assert caught.value.is_fault
    assert len(world.backend.calls) == 2
