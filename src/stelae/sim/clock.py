"""Time that moves only when a test moves it."""

from __future__ import annotations

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class SimClock:
    """Both times stand still between calls. Wall time may go anywhere; monotonic time refuses to go back."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        return self._wall_ns // _NS_PER_MS

    def monotonic_s(self) -> float:
        return self._monotonic_ns / _NS_PER_S

    def advance(self, seconds: float, *, wall_seconds: float | None = None) -> None:
        """Let time pass. Wall time moves as much, or by `wall_seconds`: 0 to stand still, negative to step back."""
        if seconds < 0:
            raise ValueError(f"monotonic time does not go back: {seconds}")
        self._monotonic_ns += round(seconds * _NS_PER_S)
        self._wall_ns += round((seconds if wall_seconds is None else wall_seconds) * _NS_PER_S)

    def set_wall_ms(self, wall_ms: int) -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
