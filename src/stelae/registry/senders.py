"""What the processes of a cluster say of themselves in every request, and what they do when they hear it.

Each request carries the sender's clock: whoever hears it gives out no txn below that afterwards, so what happened
before the request has smaller txns than what comes of it. And it carries the greatest guard that the sender knows
(`masters.guard`): whoever has heard a greater one refuses it, so a master that was followed by another changes nothing
any more, however late its requests arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import msgspec

from stelae.model.errors import ClockTooFarAhead, Deposed
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Txn
from stelae.registry.masters.heartbeats import HeartbeatMessage
from stelae.service.messages import Request

Q = TypeVar("Q", bound=Request)


class Sender:
    """One process, as it speaks to the others. Safe for threads."""

    def __init__(self, name: str, clock: HybridClock) -> None:
        self.name = name
        """Changed once it is known how often the process was started."""
        self._clock = clock
        self._guard = 0
        self._lock = Lock()

    @property
    def guard(self) -> int:
        """The greatest that was heard of; 0: none."""
        return self._guard

    def note_guard(self, guard: int) -> None:
        """Some master has begun to lead with that number."""
        with self._lock:
            self._guard = max(self._guard, guard)

    def sign(self, request: Q) -> Q:
        """The same request, with what this process says of itself."""
        return msgspec.structs.replace(request, sender=self.name, clock=self._clock.last, guard=self._guard)

    def signing_by(self, guard: int) -> Callable[[Request], Request]:
        """As `sign`, always with that guard: for a master that leads with it, whatever it hears of meanwhile."""
        return lambda request: msgspec.structs.replace(self.sign(request), guard=guard)

    def check_guard(self, guard: int, sender: str) -> None:
        """Deposed if a greater one was heard of. What waited since it was heard is checked again when it is done."""
        if guard and guard < self._guard:
            raise Deposed(f"{sender} asks by guard {guard}, and a master leads with guard {self._guard}")

    def hear(self, request: Request) -> None:
        """Before anything is done about a request. Deposed if it was sent by, or in the name of, a master that another
        one has followed; ClockTooFarAhead if its sender's clock cannot be right, unless it is a heartbeat: it is how
        that is found out, and said. Clients say nothing of themselves."""
        if request.guard:
            self.check_guard(request.guard, request.sender)
            self.note_guard(request.guard)
        if request.clock > self._clock.last:
            try:
                self._clock.merge(Txn(request.clock))
            except ClockTooFarAhead:
                if not isinstance(request, HeartbeatMessage):
                    raise
