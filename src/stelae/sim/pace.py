"""How fast a device lets jobs through: at once, late, or not at all for now.

A job runs whole in one step, so nothing inside it can wait. What a slow or hanging device does to it happens before it
begins: whoever submitted it cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Of one device. `slow_s_max`: how late each job is made, at most."""

    def __init__(self) -> None:
        self.slow_s_max = 0.0
        self._hangs = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def hangs(self) -> bool:
        return self._hangs

    def hang(self) -> None:
        """Let no job begin until `free`."""
        self._hangs = True

    def free(self) -> None:
        """Let all go on that waited, and all to come."""
        self._hangs = False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def when_free(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
