"""Time, as the world offers it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time may stand still or step back; monotonic time never does. Neither survives a crash."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as the machine believes."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from some fixed moment of this process: for durations and deadlines only."""
        ...
