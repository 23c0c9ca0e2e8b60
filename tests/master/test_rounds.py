"""The regular collection of files: when it is due, and that nothing keeps it from happening in silence."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stelae.master.garbage.rounds import AGAIN_S, CollectionRounds
from stelae.model.errors import Corruption, Deposed, StelaeError, Unavailable
from stelae.model.events import CollectionPutOff, Event
from stelae.sim.clock import SimClock


class _Collected:
    def __init__(self) -> None:
        self.count = 0
        self.error: StelaeError | None = None

    def __call__(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


def test_rounds_are_due_by_the_clock_and_what_puts_them_off_is_told() -> None:
    clock, told, collected = SimClock(), list[Event](), _Collected()
    rounds = CollectionRounds(clock, 300.0, told.append)
    rounds.collect_if_due(collected, lambda: False)
    clock.advance(299.0)
    rounds.collect_if_due(collected, lambda: False)
    assert collected.count == 0
    clock.advance(1.0)
    rounds.collect_if_due(collected, lambda: False)
    rounds.collect_if_due(collected, lambda: False)
    assert (collected.count, rounds.put_off, told) == (1, None, [])

    for error, seconds in ((Unavailable("shard a is away"), 0.0), (Corruption("cannot be read", "x"), 300.0)):
        collected.error = error
        clock.advance(300.0)
        rounds.collect_if_due(collected, lambda: False)
        assert rounds.put_off is not None
        assert rounds.put_off.words == str(error)
        assert told.pop() == CollectionPutOff(str(error), seconds)

    collected.error = None
    clock.advance(300.0)
    rounds.collect_if_due(collected, lambda: False)
    assert (collected.count, rounds.put_off, told) == (4, None, [])


def test_who_leads_no_more_is_not_put_off() -> None:
    clock, told, collected = SimClock(), list[Event](), _Collected()
    rounds = CollectionRounds(clock, 1.0, told.append)
    clock.advance(1.0)
    collected.error = Deposed("another leads")
    with pytest.raises(Deposed):
        rounds.collect_if_due(collected, lambda: False)
    assert (rounds.put_off, told) == (None, [])


def test_a_round_that_was_put_off_is_tried_again_soon_after_the_last_silent_shard_is_back() -> None:
    clock, collected, away = SimClock(), _Collected(), ["a", "b"]
    rounds = CollectionRounds(clock, 300.0, lambda _: None)

    def tend(seconds: float) -> int:
        """How many times files were collected meanwhile."""
        before = collected.count
        for _ in range(int(seconds)):
            clock.advance(1.0)
            rounds.collect_if_due(collected, lambda: not away)
        return collected.count - before

    collected.error = Unavailable("shard a is away")
    assert tend(301) == 1
    assert tend(250) == 0, "they are silent"
    away.pop()
    assert tend(40) == 0, "one is silent still"
    away.pop()
    collected.error = None
    assert (tend(AGAIN_S + 1), rounds.put_off) == (1, None)
    assert tend(290) == 0


def test_what_goes_on_failing_is_tried_after_ever_longer_pauses() -> None:
    clock, collected, tries = SimClock(), _Collected(), list[float]()
    rounds = CollectionRounds(clock, 300.0, lambda _: None)
    collected.error = Unavailable("the store refuses")
    begun_s = clock.monotonic_s()
    for _ in range(1_500):
        clock.advance(1.0)
        before = collected.count
        rounds.collect_if_due(collected, lambda: True)
        tries += [clock.monotonic_s() - begun_s] * (collected.count - before)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
