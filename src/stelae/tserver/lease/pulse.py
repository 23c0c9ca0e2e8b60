"""Whether a shard's log moves: one that does not, though something waits, lies on a disk that hangs."""

from __future__ import annotations

from typing import Protocol

import msgspec

from stelae.format.log.positions import Position

_STUCK_SHARE = 0.5
"""Of the duration: a log that waits and has not moved for so long is not well."""


class MovingLog(Protocol):
    """A shard's log: how far it is durable, and whether anything waits to be."""

    @property
    def end(self) -> Position: ...

    @property
    def queued_bytes(self) -> int: ...


class LogPulse(msgspec.Struct):
    """Since when a log has not moved though something waits to be written to it, as far as it was looked at."""

    _end: Position | None = None
    _moved_s: float = 0.0

    def note(self, end: Position, queued_bytes: int, now_s: float) -> None:
        if not queued_bytes or end != self._end:
            self._end, self._moved_s = end, now_s

    def is_stuck(self, now_s: float, duration_s: float) -> bool:
        return self.stood_s(now_s) >= _STUCK_SHARE * duration_s

    def stood_s(self, now_s: float) -> float:
        return now_s - self._moved_s
