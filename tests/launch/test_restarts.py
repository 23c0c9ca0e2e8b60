"""When something that ended is started again."""

from __future__ import annotations

from stelae.launch.restarts import LASTING_S, PAUSE_S_MAX, PAUSE_S_MIN, next_pause_s


def test_pauses_grow_up_to_a_limit_and_begin_anew_after_a_long_run() -> None:
    pauses = [PAUSE_S_MIN]
    while pauses[-1] < PAUSE_S_MAX:
        pauses.append(next_pause_s(pauses[-1], 0.0))
        assert pauses[-1] > pauses[-2]
    assert next_pause_s(PAUSE_S_MAX, LASTING_S / 2) == PAUSE_S_MAX
    assert next_pause_s(PAUSE_S_MAX, LASTING_S) == PAUSE_S_MIN
