"""When to try again, and for how long: jittered waits that double, within a deadline.

What a step may be repeated after is its own business (`steps`): reads after anything Retryable, writes only after
errors that say that nothing happened. The deadline counts from the first refusal of a call, so that calls which are
never refused need no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.model.errors import InvalidArgument, StelaeError
from stelae.model.values import show
from stelae.ports.clock import Clock
from stelae.ports.rng import Rng

TIMEOUT_S_DEFAULT = 30.0
_WAIT_S_MIN = 0.001
_WAIT_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client goes on trying, and what it measures and draws that with."""

    clock: Clock
    rng: Rng
    timeout_s: float = TIMEOUT_S_DEFAULT

    def __post_init__(self) -> None:
        number: object = self.timeout_s
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
            raise InvalidArgument(f"timeout_s is a number of seconds, not {show(number)}")


class Attempts:
    """The tries of one call. `delay_s` says how long to wait before the next one, or raises the error again once the
    deadline has passed."""

    __slots__ = ("_patience", "_stop_s", "_wait_s")

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._stop_s = patience.clock.monotonic_s() + patience.timeout_s
        self._wait_s = _WAIT_S_MIN

    def delay_s(self, error: StelaeError) -> float:
        left_s = self._stop_s - self._patience.clock.monotonic_s()
        if left_s <= 0:
            error.add_note(f"it was tried again and again for {self._patience.timeout_s:g} s")
            raise error
        delay_s = self._wait_s * (0.5 + self._patience.rng.fraction())
        self._wait_s = min(2 * self._wait_s, _WAIT_S_MAX)
        return min(delay_s, left_s)
