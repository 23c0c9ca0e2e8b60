"""Where a simulated process touches the world: counted, so that a test can end it at each such point in turn.

effects = Effects()
run(SimDisk(rng, effects=effects))             # once to learn how many effects there are
for number in range(1, effects.count + 1):     # then once more for each of them
    effects = Effects(crash_at=number)
    ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stelae.model.errors import StelaeError
from stelae.sim.process import current_process


class SimCrash(BaseException):
    """The process ends here. Not an Exception, as KeyboardInterrupt is not one: no handler for errors may live on."""


@dataclass(frozen=True, slots=True)
class Effect:
    number: int
    kind: str
    name: str


class Effects:
    """The effects of one process on all its stores, numbered from 1.

    At number `crash_at` the process dies in the middle of the effect: whether it happened is for the store's `crash` to
    draw. From then on every call on those stores raises SimCrash, so `finally` blocks change nothing, until `restart`.
    """

    def __init__(self, *, crash_at: int | None = None, on_effect: Callable[[Effect], None] | None = None) -> None:
        self._crash_at = crash_at
        self._on_effect = on_effect
        self._count = 0
        self._dead = False

    @property
    def count(self) -> int:
        return self._count

    def check_alive(self) -> None:
        if self._dead:
            raise SimCrash(f"the process died at effect {self._crash_at}")
        process = current_process()
        if process is not None and not process.alive:
            raise SimCrash(f"the process {process.name} is dead, and what is left of it has no effect")

    def happen(self, kind: str, name: str) -> None:
        self.check_alive()
        self._count += 1
        if self._on_effect is not None:
            self._on_effect(Effect(self._count, kind, name))
        if self._count == self._crash_at:
            self._dead = True
            self.check_alive()

    def crash_at(self, number: int | None) -> None:
        """Die at that effect, if it is still to come; None: at none that was named before."""
        self._crash_at = number

    def restart(self) -> None:
        """A new process begins; effects count on, so a number that was reached is not reached again."""
        self._dead = False


class Faults:
    """Errors that wait for their turn: the nth next call of a kind, counted from when each was armed; and errors that
    last, which every call of a kind meets until it is mended."""

    def __init__(self) -> None:
        self._armed: dict[str, list[tuple[int, type[StelaeError]]]] = {}
        self._lasting: dict[str, type[StelaeError]] = {}

    def arm(self, kind: str, error: type[StelaeError], nth: int) -> None:
        if nth < 1:
            raise ValueError(f"the next call is the first: {nth}")
        self._armed.setdefault(kind, []).append((nth, error))

    def due(self, kind: str) -> type[StelaeError] | None:
        """Count one call of this kind; the error it should meet, if its turn has come."""
        waiting = [(nth - 1, error) for nth, error in self._armed.pop(kind, [])]
        self._armed[kind] = [(nth, error) for nth, error in waiting if nth]
        return next((error for nth, error in waiting if not nth), self._lasting.get(kind))

    def last(self, kind: str, error: type[StelaeError]) -> None:
        self._lasting[kind] = error

    def mend(self, kind: str | None = None) -> None:
        """Forget what lasts for this kind of call, or for all; and what was armed."""
        for each in [kind] if kind is not None else [*self._lasting, *self._armed]:
            self._lasting.pop(each, None)
            self._armed.pop(each, None)


class Pace:
    """How fast a device lets jobs through: at once, late by up to `slow_s_max`, or not at all while it hangs.

    A job runs whole in one step, so nothing inside it can wait. What a slow or hanging device does to it happens before
    it begins: whoever submitted it cannot tell the difference.
    """

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
