"""A store that is taken over takes as long as it takes; who asks for something waits no longer than it said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.calls.steps import ask
from stelae.client.remote.takeover import AttachedStore
from stelae.model.errors import ConnectionLost, DeadlineExceeded, Overloaded, StelaeError
from stelae.model.ids import Txn
from stelae.service.deadlines import Deadline
from tests.client.fake_backend import FakeBackend
from tests.client.remote.test_kept_pins import FakePin
from tests.effort import HANG_S

SOON_S = 1.0
LATE = (ConnectionLost, DeadlineExceeded)
"""What is told when the time is up: that it is, or, if it was up before anybody could wait, what was found."""


class Opened(FakeBackend):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class SlowPlace:
    """Its owner is gone. To open the store here takes until somebody says so."""

    opened: Opened
    begun: int = 0
    entered: Event = field(default_factory=Event)
    may_open: Event = field(default_factory=Event)

    def own(self) -> Opened:
        self.begun += 1
        self.entered.set()
        assert self.may_open.wait(HANG_S)
        return self.opened

    def attach(self, _: Deadline) -> Any:
        raise AssertionError("it is attached already")

    def away_words(self) -> str:
        return "nobody has it"


@dataclass
class Attached:
    place: SlowPlace
    store: AttachedStore
    remote: Any

    def session(self, timeout_s: float) -> Session:
        return Session(self.remote, Patience(SystemClock(), SystemRng(), timeout_s), self.store)


@pytest.fixture
def attached() -> Iterator[Attached]:
    remote: Any = FakeBackend({}, {"now": ConnectionLost("the owner is gone")})
    remote.is_local, remote.connections_made = False, 1
    place = SlowPlace(Opened({}, {"now": Txn(7), "pin": Txn(7)}))
    store = AttachedStore(place, remote, SystemClock(), ThreadExecutor(1, 1))
    yield Attached(place, store, remote)
    place.may_open.set()
    store.close()


def now(session: Session) -> Txn:
    return session.ask(lambda backend, until: backend.now(deadline=until))


def test_the_call_that_takes_over_ends_at_its_deadline(attached: Attached) -> None:
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match="taken over by this process"):
            now(attached.session(SOON_S))
    attached.place.may_open.set()
    assert now(attached.session(HANG_S)) == 7
    assert attached.place.begun == 1, "what the first had begun went on, and the others waited for it"
    assert attached.store.store is attached.place.opened


def test_who_has_time_waits_while_others_give_up(attached: Attached) -> None:
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(now, attached.session(HANG_S))
        assert attached.place.entered.wait(HANG_S)
        with pytest.raises(LATE):
            now(attached.session(SOON_S))
        assert not patient.done()
        attached.place.may_open.set()
        assert patient.result(HANG_S) == 7


def test_an_awaited_call_ends_at_its_deadline(attached: Attached) -> None:
    async def play(timeout_s: float) -> Txn:
        executor = ThreadExecutor(2, 10)
        session = AsyncSession(attached.session(timeout_s), executor)
        try:
            return await session.run(ask(lambda backend, until: backend.now(deadline=until)))
        finally:
            await asyncio.to_thread(executor.close)

    with pytest.raises(LATE):
        asyncio.run(play(SOON_S))
    attached.place.may_open.set()
    assert asyncio.run(play(HANG_S)) == 7


def test_a_store_that_is_being_opened_when_all_is_closed_is_closed_too(attached: Attached) -> None:
    with pytest.raises(LATE):
        now(attached.session(SOON_S))
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(attached.store.close)
        while not attached.store._is_closed:
            assert not closing.done()
        attached.place.may_open.set()
        closing.result(HANG_S)
    assert attached.place.opened.is_closed


@pytest.mark.parametrize("error", [Overloaded("all connections are in use"), DeadlineExceeded("slow")], ids=repr)
def test_an_owner_that_has_too_much_to_do_has_the_pins(attached: Attached, error: StelaeError) -> None:
    attached.remote.answers["now"] = error
    held = attached.store.keep(FakePin(), attached.remote, None)
    attached.store.watch_pins(Deadline(SystemClock(), SOON_S))
    assert attached.place.begun == 0
    held.close()


def test_pins_are_looked_at_again_when_the_store_is_not_open_in_time(attached: Attached) -> None:
    held = attached.store.keep(FakePin(), attached.remote, None)
    attached.store.watch_pins(Deadline(SystemClock(), SOON_S))
    assert attached.store.store is attached.remote
    attached.place.may_open.set()
    attached.store.watch_pins(Deadline(SystemClock(), HANG_S))
    assert attached.store.store is attached.place.opened
    held.close()
