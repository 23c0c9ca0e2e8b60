"""What happened in a run, in few words: who crashed, what was cut, which call failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

LINES_MAX = 200
_BEGINNING = 40


class Story:
    """Bounded: of a long one the beginning and the end are kept."""

    def __init__(self, now_s: Callable[[], float], lines_max: int = LINES_MAX) -> None:
        if lines_max <= _BEGINNING:
            raise ValueError(f"a story has more than {_BEGINNING} lines: {lines_max=}")
        self._now_s = now_s
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=lines_max - _BEGINNING)
        self._told = 0

    def tell(self, what: str) -> None:
        line = f"{self._now_s():10.3f} s  {what}"
        self._told += 1
        if len(self._first) < _BEGINNING:
            self._first.append(line)
        else:
            self._last.append(line)

    @property
    def lines(self) -> list[str]:
        left_out = self._told - len(self._first) - len(self._last)
        between = [f"{'...':>10}    {left_out} lines left out"] if left_out else []
        return [*self._first, *between, *self._last]

    def text(self, repeat: str) -> str:
        """All of it, under the command that makes it happen again."""
        return "\n".join([f"To repeat: {repeat}", "What happened:", *self.lines])
