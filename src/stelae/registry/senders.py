"""What the processes of a cluster say of themselves in every request, and what they do when they hear it.

Each request carries the sender's clock: whoever hears it gives out no txn below that afterwards, so what happened
before the request has smaller txns than what comes of it. And it carries the greatest guard that the sender knows
(`masters.guard`): whoever has heard a greater one refuses it, so a master that was followed by another changes nothing
any more, however late its requests arrive.

What somebody says of a greater guard counts at once, as an older master must not change anything meanwhile. But it is
passed on, and counts for good, only when the metastore says the same: a master writes its guard there before it asks
anything. So whoever says what is not true, by mistake or on purpose, is believed for as long as it takes to read a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import msgspec

from stelae.model.errors import ClockTooFarAhead, Deposed, StelaeError
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Txn
from stelae.ports.metastore import Metastore
from stelae.registry.masters.guard import read_guard
from stelae.registry.masters.heartbeats import HeartbeatMessage
from stelae.service.messages import Request

Q = TypeVar("Q", bound=Request)

Begin: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

_log = logging.getLogger(__name__)


class Sender:
    """One process, as it speaks to the others. Safe for threads."""

    def __init__(self, name: str, clock: HybridClock, store: Metastore | None = None) -> None:
        """`store`: says which guard there is; without it whatever is heard is taken for true."""
        self.name = name
        """Changed once it is known how often the process was started."""
        self._clock = clock
        self._guard = 0
        self._sure = 0
        """The greatest that is known from the metastore: the other is this one, or is being looked at."""
        self._lock = Lock()
        self._store = store
        self._is_looking = False

    @property
    def guard(self) -> int:
        """The greatest that was heard of; 0: none."""
        return self._guard

    def note_guard(self, guard: int) -> None:
        """Some master has begun to lead with that number: the metastore says so."""
        with self._lock:
            self._sure = max(self._sure, guard)
            self._guard = max(self._guard, guard)

    def sign(self, request: Q) -> Q:
        """The same request, with what this process says of itself."""
        return msgspec.structs.replace(request, sender=self.name, clock=self._clock.last, guard=self._sure)

    def signing_by(self, guard: int) -> Callable[[Request], Request]:
        """As `sign`, always with that guard: for a master that leads with it, whatever it hears of meanwhile."""
        return lambda request: msgspec.structs.replace(self.sign(request), guard=guard)

    def check_guard(self, guard: int, sender: str) -> None:
        """Deposed if a greater one was heard of. What waited since it was heard is checked again when it is done."""
        if guard and guard < self._guard:
            raise Deposed(f"{sender} asks by guard {guard}, and a master leads with guard {self._guard}")

    def hear(self, request: Request, begin: Begin | None = None) -> None:
        """Before anything is done about a request. Deposed if it was sent by, or in the name of, a master that another
        one has followed; ClockTooFarAhead if its sender's clock cannot be right, unless it is a heartbeat: it is how
        that is found out, and said. Clients say nothing of themselves. `begin`: begins with work that this entails."""
        if request.guard > self._guard:
            with self._lock:
                self._guard = max(self._guard, request.guard)
                if self._store is None:
                    self._sure = self._guard
        if self._guard != self._sure and not self._is_looking and self._store is not None and begin is not None:
            self._is_looking = True
            begin(self._look(self._store, request.sender))
        self.check_guard(request.guard, request.sender)
        if request.clock > self._clock.last:
            try:
                self._clock.merge(Txn(request.clock))
            except ClockTooFarAhead:
                if not isinstance(request, HeartbeatMessage):
                    raise

    async def _look(self, store: Metastore, sender: str) -> None:
        """Learn whether what was heard is true. What fails is tried again when the next request comes: while the
        metastore is away nobody begins to lead."""
        heard = self._guard
        try:
            found = await read_guard(store)
        except StelaeError as error:
            _log.warning("the guard that %s named could not be looked up yet: %s", sender, error)
            return
        finally:
            self._is_looking = False
        with self._lock:
            self._sure = max(self._sure, 0 if found is None else found.number)
            # What was heard meanwhile may be newer than what was read.
            is_wrong = self._guard == heard > self._sure
            self._guard = self._sure if is_wrong else max(self._guard, self._sure)
        if is_wrong:
            _log.warning("%s named guard %d, which no master has: the newest is %d", sender, heard, self._sure)
