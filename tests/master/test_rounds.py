"""The regular collection of files: when it is due, and that nothing keeps it from happening in silence."""

from __future__ import annotations

import pytest

from stelae.master.garbage.rounds import CollectionRounds
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
    rounds.collect_if_due(collected)
    clock.advance(299.0)
    rounds.collect_if_due(collected)
    assert collected.count == 0
    clock.advance(1.0)
    rounds.collect_if_due(collected)
    rounds.collect_if_due(collected)
    assert (collected.count, rounds.put_off, told) == (1, None, [])

    for error, seconds in ((Unavailable("shard a is away"), 0.0), (Corruption("cannot be read", "x"), 300.0)):
        collected.error = error
        clock.advance(300.0)
        rounds.collect_if_due(collected)
        assert rounds.put_off is not None
        assert rounds.put_off.words == str(error)
        assert told.pop() == CollectionPutOff(str(error), seconds)

    collected.error = None
    clock.advance(300.0)
    rounds.collect_if_due(collected)
    assert (collected.count, rounds.put_off, told) == (4, None, [])


def test_who_leads_no_more_is_not_put_off() -> None:
    clock, told, collected = SimClock(), list[Event](), _Collected()
    rounds = CollectionRounds(clock, 1.0, told.append)
    clock.advance(1.0)
    collected.error = Deposed("another leads")
    with pytest.raises(Deposed):
        rounds.collect_if_due(collected)
    assert (rounds.put_off, told) == (None, [])
