"""What processes say of themselves, and hear of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from stelae.model.errors import ClockTooFarAhead, Deposed, Unavailable
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import Txn
from stelae.ports.metastore import Entry, Metastore, Revision
from stelae.registry.masters.guard import GUARD_KEY, MasterGuard
from stelae.registry.masters.heartbeats import Heartbeat, HeartbeatMessage
from stelae.registry.senders import Sender
from stelae.service.messages import NothingMessage


def sender(name: str, wall_ms: int) -> tuple[Sender, HybridClock]:
    clock = HybridClock(lambda: wall_ms)
    return Sender(name, clock), clock


def test_what_comes_of_a_request_is_later_than_what_happened_before_it() -> None:
    ahead, fast = sender("master", 5_000)
    behind, slow = sender("shard", 1_000)
    before = fast.tick()
    behind.hear(ahead.sign(NothingMessage()))
    assert slow.tick() > before


def test_a_clock_that_cannot_be_right_is_not_followed() -> None:
    wrong, far = sender("master", 10**9)
    here, clock = sender("shard", 1_000)
    far.tick()
    with pytest.raises(ClockTooFarAhead):
        here.hear(wrong.sign(NothingMessage()))
    assert clock.tick() < pack(2_000, 0)


def test_the_heartbeat_of_a_clock_that_cannot_be_right_is_heard_and_the_clock_is_not_followed() -> None:
    wrong, far = sender("shard", 10**9)
    here, clock = sender("master", 1_000)
    far.tick()
    here.hear(wrong.sign(HeartbeatMessage(Heartbeat("shard", 1, 1, 10**9, 1))))
    assert clock.tick() < pack(2_000, 0)


def test_a_smaller_guard_than_was_heard_of_is_refused() -> None:
    first, _ = sender("one", 1_000)
    second, _ = sender("two", 1_000)
    shard, _ = sender("shard", 1_000)
    first.note_guard(1)
    second.note_guard(2)
    shard.hear(first.sign(NothingMessage()))
    shard.hear(second.sign(NothingMessage()))
    with pytest.raises(Deposed, match="one asks by guard 1, and a master leads with guard 2"):
        shard.hear(first.sign(NothingMessage()))
    # A shard tells a master what it has heard of.
    second.note_guard(3)
    with pytest.raises(Deposed):
        second.hear(shard.sign(NothingMessage()))
    first.hear(shard.sign(NothingMessage()))
    assert first.guard == 2


def test_clients_say_nothing_of_themselves_and_are_heard() -> None:
    shard, clock = sender("shard", 1_000)
    shard.note_guard(7)
    last = clock.last
    shard.hear(NothingMessage())
    assert (shard.guard, clock.last) == (7, last)
    said = shard.sign(NothingMessage(left_ms=5))
    assert (said.sender, said.guard, said.left_ms, said.clock) == ("shard", 7, 5, Txn(last))


class OneKey:
    """A metastore that has a guard, may be away, and tells when it is read."""

    def __init__(self, number: int) -> None:
        self.is_away = False
        self.read: Callable[[], None] = lambda: None
        self._value = MasterGuard("m", number, "there:1").value

    async def get(self, key: str) -> Entry | None:
        assert key == GUARD_KEY
        if self.is_away:
            raise Unavailable("away")
        self.read()
        return Entry(key, self._value, Revision(1), Revision(1), 1, None)


class Reader:
    """A process that hears of guards, and looks at a metastore."""

    def __init__(self, store: OneKey) -> None:
        self.sender = Sender("shard", HybridClock(lambda: 1_000), cast(Metastore, store))
        self.looks: list[Coroutine[Any, Any, None]] = []

    def hear(self, guard: int) -> None:
        self.sender.hear(NothingMessage(guard=guard, sender="somebody"), self.looks.append)

    @property
    def said(self) -> int:
        return self.sender.sign(NothingMessage()).guard


def test_a_guard_that_no_master_has_is_forgotten_as_soon_as_the_metastore_was_asked() -> None:
    shard = Reader(OneKey(2))
    shard.sender.note_guard(2)
    shard.hear(2**62)
    # Until then an older master is refused, and nobody else is told.
    with pytest.raises(Deposed):
        shard.hear(2)
    assert shard.said == 2
    asyncio.run(shard.looks.pop())
    assert not shard.looks
    shard.hear(2)
    assert (shard.sender.guard, shard.said) == (2, 2)


def test_a_guard_that_a_master_has_stays() -> None:
    shard = Reader(OneKey(7))
    shard.hear(7)
    asyncio.run(shard.looks.pop())
    assert (shard.sender.guard, shard.said) == (7, 7)
    with pytest.raises(Deposed):
        shard.hear(6)
    assert not shard.looks


def test_what_was_heard_while_the_metastore_was_asked_is_looked_at_too() -> None:
    store = OneKey(1)
    shard = Reader(store)
    store.read = lambda: shard.hear(9)
    shard.hear(5)
    asyncio.run(shard.looks.pop())
    assert not shard.looks, "one look at a time"
    assert shard.sender.guard == 9
    store.read = lambda: None
    shard.hear(9)
    asyncio.run(shard.looks.pop())
    assert (shard.sender.guard, shard.said) == (1, 1)


def test_a_metastore_that_is_away_is_asked_again_when_the_next_request_comes() -> None:
    store = OneKey(1)
    shard = Reader(store)
    store.is_away = True
    shard.hear(5)
    asyncio.run(shard.looks.pop())
    assert shard.sender.guard == 5
    store.is_away = False
    with pytest.raises(Deposed):
        shard.hear(1)
    asyncio.run(shard.looks.pop())
    shard.hear(1)
