"""A shard's clock does not leap with its machine's, until a master agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from stelae.model.events import Event
from stelae.registry.masters.heartbeats import Heartbeat, HeartbeatAnswer, Registration
from stelae.tserver.heartbeats import Heartbeats, HeartbeatWriter, ShardNow
from stelae.tserver.lease.steadiness import LEAP_MS_MIN, SteadyClock


@dataclass
class Hand:
    """A clock that is set by hand."""

    wall: int = 1_000_000
    monotonic: float = 50.0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_s(self) -> float:
        return self.monotonic

    def go_on(self, ms: int, leap_ms: int = 0) -> None:
        self.wall += ms + leap_ms
        self.monotonic += ms / 1_000


def test_a_leap_is_not_followed_until_it_is_believed() -> None:
    hand = Hand()
    clock = SteadyClock(hand)
    for leap_ms in (300_000, -700_000):
        before = clock.wall_ms()
        hand.go_on(2_000, leap_ms)
        assert (clock.wall_ms(), clock.leapt_ms) == (before + 2_000, leap_ms)
        hand.go_on(1_000)
        assert clock.wall_ms() == before + 3_000
        clock.believe(leap_ms)
        assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall, 0)


def test_what_leaps_after_a_master_was_asked_is_not_believed_with_its_answer() -> None:
    hand = Hand()
    clock = SteadyClock(hand)
    hand.go_on(1_000, 20_000)
    asked = clock.leapt_ms
    hand.go_on(1_000, 400_000)
    clock.believe(asked)
    assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall - 400_000, 400_000)


def test_a_clock_that_is_wrong_from_the_beginning_goes_by_the_masters() -> None:
    hand = Hand()
    clock = SteadyClock(hand)
    clock.doubt(3_600_000)
    hand.go_on(1_000)
    assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall - 3_600_000, 3_600_000)
    hand.go_on(1_000, -3_600_000)  # somebody sets it right
    assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall, 0)


def test_a_leap_and_the_way_back_leave_nothing() -> None:
    hand = Hand()
    clock = SteadyClock(hand)
    hand.go_on(1_000, 300_000)
    assert clock.leapt_ms == 300_000
    hand.go_on(1_000, -300_000)
    assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall, 0)


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(1 - LEAP_MS_MIN, LEAP_MS_MIN - 1))))
def test_small_steps_are_followed(steps: list[tuple[int, int]]) -> None:
    hand = Hand()
    clock = SteadyClock(hand)
    for ms, step_ms in steps:
        hand.go_on(ms, step_ms // 2)  # rounding may make a step larger by a millisecond
        assert (clock.wall_ms(), clock.leapt_ms) == (hand.wall, 0)


def _believed(answers: list[HeartbeatAnswer]) -> list[int]:
    """What is believed of a clock that has leapt, when a master answers so, one after the other."""
    left, believed = list(answers), list[int]()

    async def run() -> None:
        ended = asyncio.Event()

        async def send(_: Heartbeat) -> HeartbeatAnswer:
            if len(left) == 1:
                ended.set()
            return left.pop(0)

        writer = HeartbeatWriter("n/0", 1, Registration("id", "127.0.0.1:1"))
        beats = Heartbeats(writer, lambda: ShardNow(0, 1, {}, leapt_ms=70_000), send, _ignore, believed.append)
        await _run_until(beats, ended.wait)

    asyncio.run(run())
    return believed


async def _run_until(beats: Heartbeats, ended: Callable[[], Awaitable[object]]) -> None:
    await beats.start()
    await ended()
    await beats.close()


def _ignore(_: Event) -> None:
    """What is told is no matter here."""


def test_only_a_master_that_finds_nothing_wrong_makes_a_leap_believed() -> None:
    wrong, late, right = HeartbeatAnswer(clock_off_ms=70_000), HeartbeatAnswer(is_late=True), HeartbeatAnswer()
    assert _believed([wrong]) == []
    assert _believed([late]) == []
    assert 70_000 in _believed([right, wrong])
