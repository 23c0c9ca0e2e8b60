"""One moment, and how long it is until then."""

from __future__ import annotations

import pytest

from stelae.model.errors import DeadlineExceeded
from stelae.service.deadlines import SECONDS_MAX, Deadline, left_of
from stelae.sim.clock import SimClock


def test_time_goes_and_is_over() -> None:
    clock = SimClock()
    deadline = Deadline(clock, 5)
    assert (deadline.left_s, deadline.is_over, left_of(deadline), left_of(None)) == (5, False, 5, None)
    clock.advance(2)
    assert deadline.check("reading") == 3
    clock.advance(3)
    assert (deadline.left_s, deadline.is_over) == (0, True)
    clock.advance(9)
    assert deadline.left_s == 0
    with pytest.raises(DeadlineExceeded, match="reading: the 5 s that were given for it are over"):
        deadline.check("reading")


def test_another_one_of_the_same_length_and_an_earlier_one() -> None:
    clock = SimClock()
    deadline = Deadline(clock, 5)
    clock.advance(4)
    assert deadline.anew().left_s == 5
    assert deadline.within(3) is deadline
    assert deadline.within(0.5).left_s == 0.5


def test_what_no_timer_can_wait_for() -> None:
    for seconds in (float("inf"), 1e300):
        assert Deadline(SimClock(), seconds).left_s == SECONDS_MAX
