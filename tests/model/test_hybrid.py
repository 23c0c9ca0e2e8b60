"""Hybrid time grows whatever the wall clock does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import hybrid
from stelae.model.errors import ClockTooFarAhead, InvalidArgument, Unavailable
from stelae.model.ids import Txn
from stelae.sim.clock import SimClock

HUGE = pytest.param(10**5000, id="huge")


@given(st.lists(st.integers(0, 2**41), min_size=1, max_size=50))
def test_grows_under_a_clock_that_jumps_anywhere(readings: list[int]) -> None:
    wall = iter(readings)
    clock = hybrid.HybridClock(lambda: next(wall))
    times = [clock.tick() for _ in readings]
    assert times == sorted(set(times))
    highest = 0
    for reading, time in zip(readings, times, strict=True):
        highest = max(highest, reading)
        assert hybrid.millis_of(time) >= highest


def test_follows_the_wall_clock_and_counts_while_it_stands_still() -> None:
    sim = SimClock(wall_ms=1_000)
    clock = hybrid.HybridClock(sim.wall_ms)
    assert [clock.tick() for _ in range(3)] == [hybrid.pack(1_000, n) for n in range(3)]
    sim.advance(1.0)
    assert clock.tick() == hybrid.pack(2_000, 0)


def test_a_full_counter_carries_into_the_milliseconds() -> None:
    clock = hybrid.HybridClock(lambda: 5, last=hybrid.pack(5, hybrid.COUNTER_MAX))
    assert clock.tick() == hybrid.pack(6, 0)


def test_ticks_after_a_merge_lie_above_the_remote_time() -> None:
    clock = hybrid.HybridClock(lambda: 1_000)
    remote = hybrid.pack(1_500, 7)
    clock.merge(remote)
    assert clock.tick() == remote + 1
    clock.merge(hybrid.pack(3))
    assert clock.tick() == remote + 2


def test_a_remote_time_too_far_ahead_is_refused_and_changes_nothing() -> None:
    clock = hybrid.HybridClock(lambda: 1_000, ahead_max_ms=500)
    clock.merge(hybrid.pack(1_500))
    with pytest.raises(ClockTooFarAhead, match=r"501 ms ahead .* at most 500 ms"):
        clock.merge(hybrid.pack(1_501))
    assert clock.last == hybrid.pack(1_500)


def test_threads_never_get_the_same_time() -> None:
    clock = hybrid.HybridClock(lambda: 7)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [clock.tick() for _ in range(500)], range(8)))
    times = [time for batch in batches for time in batch]
    assert len(set(times)) == len(times)
    assert all(batch == sorted(batch) for batch in batches)


@pytest.mark.parametrize("bad", [-1, hybrid.TXN_MAX + 1, True, 1.0, "1", None, HUGE])
def test_what_is_no_txn_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument, match="not a txn"):
        hybrid.check_txn(bad)


def test_a_time_too_large_to_print_is_refused_too() -> None:
    with pytest.raises(InvalidArgument, match="no hybrid time has <int of 16610 bits> milliseconds"):
        hybrid.pack(10**5000)


def test_the_last_time_of_all_is_not_passed() -> None:
    clock = hybrid.HybridClock(lambda: 0, last=hybrid.TXN_MAX)
    with pytest.raises(InvalidArgument, match="exhausted"):
        clock.tick()


def test_a_datetime_means_the_end_of_its_millisecond() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    txn = hybrid.at_datetime(moment)
    assert hybrid.counter_of(txn) == hybrid.COUNTER_MAX
    assert hybrid.to_datetime(txn) == moment
    assert hybrid.at_datetime(moment + timedelta(microseconds=999)) == txn
    with pytest.raises(InvalidArgument, match="time zone"):
        hybrid.at_datetime(datetime(2024, 1, 1))  # noqa: DTZ001


@given(st.integers(0, hybrid.MILLIS_MAX), st.integers(0, hybrid.COUNTER_MAX))
def test_packs_and_unpacks(millis: int, counter: int) -> None:
    txn = hybrid.pack(millis, counter)
    assert (hybrid.millis_of(txn), hybrid.counter_of(txn)) == (millis, counter)
    assert 0 <= txn < 2**63
    assert hybrid.check_txn(int(txn)) == Txn(txn)


def test_nothing_is_given_out_or_answered_above_the_bound() -> None:
    wall, asked = [10], list[str]()
    clock = hybrid.HybridClock(lambda: wall[0])
    clock.on_bound = lambda: asked.append("more")
    clock.limit(hybrid.pack(20))
    assert clock.tick() == hybrid.pack(10)
    clock.reach(hybrid.pack(20))
    wall[0] = 21
    with pytest.raises(Unavailable, match="up to which this process may give out and answer times"):
        clock.tick()
    assert clock.last == hybrid.pack(20)
    with pytest.raises(Unavailable):
        clock.reach(hybrid.pack(30))
    assert asked == ["more", "more"]
    clock.limit(hybrid.pack(40))
    assert clock.tick() > hybrid.pack(30), "what was refused was merged all the same"


def test_messages_are_merged_though_they_come_from_above_the_bound() -> None:
    clock = hybrid.HybridClock(lambda: 10)
    clock.limit(hybrid.pack(20))
    clock.merge(hybrid.pack(25))
    with pytest.raises(Unavailable):
        clock.tick()
    clock.limit(hybrid.pack(30))
    assert clock.tick() > hybrid.pack(25)


def test_what_is_too_far_ahead_is_known_before_it_is_merged() -> None:
    clock = hybrid.HybridClock(lambda: 1_000, ahead_max_ms=500)
    assert clock.too_far_ms(hybrid.pack(1_500)) == 0
    assert clock.too_far_ms(hybrid.pack(1_501)) == 501
    with pytest.raises(ClockTooFarAhead):
        clock.reach(hybrid.pack(1_501))
    clock.resume(hybrid.pack(2_000))
    assert clock.too_far_ms(hybrid.pack(2_000)) == 0, "it gave that out itself"
