"""When to start again what has ended by itself."""

from __future__ import annotations

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 10.0
LASTING_S = 30.0


def next_pause_s(before_s: float, ran_s: float) -> float:
    """How long to wait before the next start: short after what ran for long, else twice as long as the time before."""
    return PAUSE_S_MIN if ran_s >= LASTING_S else min(2 * before_s, PAUSE_S_MAX)
