"""What processes say of themselves, and hear of each other."""

from __future__ import annotations

import pytest

from stelae.model.errors import ClockTooFarAhead, Deposed
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import Txn
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
