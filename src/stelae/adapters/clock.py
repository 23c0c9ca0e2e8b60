"""The machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time as the machine believes (it may step either way); monotonic time that only goes on."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
