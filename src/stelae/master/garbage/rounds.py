"""The regular collection of files: when it is due, and what kept it from happening."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stelae.model.errors import Deposed, StelaeError
from stelae.model.events import CollectionPutOff, Listener
from stelae.ports.clock import Clock


class PutOff(msgspec.Struct, frozen=True):
    """`since_s`: when it was first put off, by the master's clock, without one that went well since. `words`: why, the
    last time."""

    since_s: float
    words: str


class CollectionRounds:
    """For one thread at a time; `put_off` may be read from anywhere."""

    def __init__(self, clock: Clock, every_s: float, tell: Listener) -> None:
        self._clock = clock
        self._every_s = every_s
        self._tell = tell
        self._due_s = clock.monotonic_s() + every_s
        self.put_off: PutOff | None = None
        """None: the last round went well, or none was due yet."""

    def collect_if_due(self, collect: Callable[[], object]) -> None:
        """A shard that is away, or a store that refuses, puts a round off until the next; that is told. Deposed if this
        master leads no more."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._every_s
        try:
            collect()
        except Deposed:
            raise
        except StelaeError as error:
            since_s = now_s if self.put_off is None else self.put_off.since_s
            self.put_off = PutOff(since_s, str(error))
            self._tell(CollectionPutOff(str(error), self._clock.monotonic_s() - since_s))
        else:
            self.put_off = None
