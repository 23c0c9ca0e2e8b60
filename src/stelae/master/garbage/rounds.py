"""The regular collection of files: when it is due, and what kept it from happening."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stelae.model.errors import Deposed, StelaeError
from stelae.model.events import CollectionPutOff, Listener
from stelae.ports.clock import Clock

AGAIN_S = 5.0


class PutOff(msgspec.Struct, frozen=True):
    """`since_s`: when it was first put off, by the master's clock, without one that went well since. `words`: why, the
    last time."""

    since_s: float
    words: str


class CollectionRounds:
    """For one thread at a time; `put_off` may be read from anywhere.

    A round that was put off is tried again soon, if that may help: while a shard is silent it does not, and `AGAIN_S`
    after the last one is heard again it probably does. What goes on failing is tried after ever longer pauses, at most
    those between rounds."""

    def __init__(self, clock: Clock, every_s: float, tell: Listener) -> None:
        self._clock = clock
        self._every_s = every_s
        self._tell = tell
        self._due_s = clock.monotonic_s() + every_s
        self._again_s = self._due_s
        self._pause_s = AGAIN_S
        self.put_off: PutOff | None = None
        """None: the last round went well, or none was due yet."""

    def collect_if_due(self, collect: Callable[[], object], is_whole: Callable[[], bool]) -> None:
        """A shard that is away, or a store that refuses, puts a round off; that is told. `is_whole`: whether all shards
        are heard. Deposed if this master leads no more."""
        now_s = self._clock.monotonic_s()
        if self.put_off is not None and not is_whole():
            self._again_s, self._pause_s = now_s + AGAIN_S, AGAIN_S
        if now_s < (self._due_s if self.put_off is None else min(self._due_s, self._again_s)):
            return
        self._due_s = now_s + self._every_s
        try:
            collect()
        except Deposed:
            raise
        except StelaeError as error:
            since_s = now_s if self.put_off is None else self.put_off.since_s
            self.put_off = PutOff(since_s, str(error))
            ended_s = self._clock.monotonic_s()
            self._again_s, self._pause_s = ended_s + self._pause_s, min(2 * self._pause_s, self._every_s)
            self._tell(CollectionPutOff(str(error), ended_s - since_s))
        else:
            self.put_off, self._pause_s = None, AGAIN_S
