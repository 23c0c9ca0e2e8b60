"""A process's own idea of virtual time: off by some, and going a little too fast or too slow."""

from __future__ import annotations

from stelae.sim.loop import SimLoop

_START_MS = 1_700_000_000_000
_MS_PER_S = 1000
_NS_PER_S = 1_000_000_000


class SkewedClock:
    """Wall time is `offset_ms` off true time; both times gain `drift` seconds each second (0.001: a fast clock). Timers
    know nothing of it: what should bend them, too, is a `ProcessClock`."""

    def __init__(self, loop: SimLoop, offset_ms: int = 0, drift: float = 0.0) -> None:
        if drift <= -1:
            raise ValueError(f"monotonic time does not go back: {drift=}")
        self._loop = loop
        self._offset_ms = offset_ms
        self._rate = 1 + drift

    def wall_ms(self) -> int:
        return _START_MS + self._offset_ms + int(self.monotonic_s() * _MS_PER_S)

    def monotonic_s(self) -> float:
        return self._loop.now_ns / _NS_PER_S * self._rate

    def step_wall_ms(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or a time service does."""
        self._offset_ms += by_ms
